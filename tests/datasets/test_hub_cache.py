"""Packages that Harbor has downloaded: found by name and digest, checked, and never fetched."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tbench.datasets.reading import read_chosen
from tbench.errors import UsageError
from tbench.tasks.sources import ALL_TASKS, TaskChoice
from tbench.tasks.task import Task

MakeTask = Any


@pytest.fixture
def harbor(tmp_path: Path) -> Path:
    """Harbor's cache, in the home directory of the test."""
    path = tmp_path / "home" / ".cache" / "harbor"
    path.mkdir(parents=True)
    return path


def package(harbor: Path, task: Path, name: str = "org/one") -> Path:
    target = harbor / "tasks" / "packages" / name / Task.read(task).hash
    shutil.copytree(task, target)
    return target


def test_a_package_has_its_name_again_and_its_digest_is_compared(harbor: Path, make_task: MakeTask) -> None:
    digest = package(harbor, make_task("one")).name
    for said in ("org/one@latest", "org/one", f"org/one@sha256:{digest}"):
        tasks = read_chosen(said, ALL_TASKS)
        assert tasks.names == ["one"] and tasks.origin is not None
        assert (tasks.origin.source, tasks.origin.verified) == ("harbor", True)
        assert tasks.origin.digest_words == "1 of 1 task matches the published digests"


def test_a_package_that_was_half_extracted_is_no_package(harbor: Path, make_task: MakeTask) -> None:
    path = package(harbor, make_task("one"))
    (path / "solution" / "solve.sh").unlink()
    with pytest.raises(UsageError, match="has another content than its name says; let Harbor download it again"):
        read_chosen("org/one", ALL_TASKS)
    (path / "task.toml").unlink()
    with pytest.raises(UsageError, match=r"cannot be read: .*let Harbor download it again"):
        read_chosen("org/one", ALL_TASKS)


def test_of_several_contents_one_has_to_be_named(harbor: Path, make_task: MakeTask) -> None:
    package(harbor, make_task("one"))
    other = package(harbor, make_task("one", instruction="Another.\n"))
    with pytest.raises(UsageError, match=r"org/one: .* holds 2 contents; write @ and one of sha256:"):
        read_chosen("org/one", ALL_TASKS)
    assert read_chosen(f"org/one@sha256:{other.name}", ALL_TASKS).tasks[0].instruction == "Another.\n"


def test_a_dataset_is_read_by_its_manifest_and_a_task_that_is_not_there_is_named(
    harbor: Path, make_task: MakeTask
) -> None:
    digests = {name: package(harbor, make_task(name), f"org/{name}").name for name in ("one", "two")}
    directory = harbor / "datasets" / "org" / "set" / ("d" * 64)
    directory.mkdir(parents=True)
    rows = "".join(f'[[tasks]]\nname = "org/{name}"\ndigest = "sha256:{each}"\n' for name, each in digests.items())
    (directory / "dataset.toml").write_text(f'[dataset]\nname = "org/set"\n{rows}')
    assert read_chosen("org/set", ALL_TASKS).names == ["one", "two"]
    assert read_chosen("org/set", TaskChoice(["two"])).names == ["two"]
    shutil.rmtree(harbor / "tasks" / "packages" / "org" / "two")
    with pytest.raises(
        UsageError, match=r"dataset\.toml: org/two is not in Harbor's cache; .* harbor download org/two"
    ):
        read_chosen("org/set", ALL_TASKS)


def test_what_harbor_does_not_have_is_not_asked_of_the_hub(harbor: Path) -> None:
    with pytest.raises(UsageError, match="or fetch a package with: harbor download org/none@latest"):
        read_chosen("org/none@latest", ALL_TASKS)
