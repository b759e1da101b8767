"""The verifier's own container: its image, its limits, and whether the tests are in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tbench.sandbox.build_context import build_tag
from tbench.tasks.environment import Environment, agent_environment, verifier_environment
from tbench.tasks.task import Task

MakeTask = Any
SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'
OWN = "[verifier.environment]\ncpus = 3\n"


def made(make_task: MakeTask, toml: str, **files: str) -> Environment | None:
    path: Path = make_task(toml=toml)
    for name, content in files.items():
        (path / "tests" / name).write_text(content)
    return verifier_environment(Task.read(path))


@pytest.mark.parametrize("toml", ["", '[verifier]\nenvironment_mode = "shared"\n'])
def test_without_a_word_the_verifier_runs_in_the_agents_container(make_task: MakeTask, toml: str) -> None:
    assert made(make_task, toml, Dockerfile="FROM x\n") is None


@pytest.mark.parametrize(
    ("toml", "files", "image", "folder", "brings_tests"),
    [
        (
            OWN + "docker_image = 'v:1'\n[environment]\ndocker_image = 'a:1'\n",
            {"Dockerfile": "x"},
            "v:1",
            "tests",
            True,
        ),
        (OWN + "[environment]\ndocker_image = 'a:1'\n", {"Dockerfile": "x"}, None, "tests", True),
        (OWN + "[environment]\ndocker_image = 'a:1'\n", {}, "a:1", "environment", False),
        (SEPARATE + "[environment]\ndocker_image = 'a:1'\n", {"Dockerfile": "x"}, None, "tests", True),
        (SEPARATE, {}, None, "environment", False),
    ],
)
def test_its_image_is_its_own_else_that_of_the_tests_else_a_fresh_one_of_the_agents(
    make_task: MakeTask, toml: str, files: dict[str, str], image: str | None, folder: str, brings_tests: bool
) -> None:
    found = made(make_task, toml, **files)
    assert found is not None
    assert (found.settings.docker_image, found.folder, found.brings_tests) == (image, folder, brings_tests)
    assert found.settings.cpus == (3 if toml.startswith(OWN) else 1)


def test_what_it_says_nothing_of_it_has_from_the_agents(make_task: MakeTask) -> None:
    found = made(
        make_task, SEPARATE + "user = 1000\n[environment]\nmemory_mb = 77\nworkdir = '/w'\nenv = { A = 'b' }\n"
    )
    assert found is not None
    assert (found.settings.memory_mb, found.settings.workdir, found.variables()) == (77, "/w", {"A": "b"})
    assert (found.user, found.role) == ("1000", "verifier")


def test_a_network_for_the_tests_is_that_of_their_container(make_task: MakeTask) -> None:
    found = made(make_task, SEPARATE + 'network_mode = "no-network"\n')
    assert found is not None and found.settings.network.mode == "no-network"
    found = made(make_task, SEPARATE + 'network_mode = "public"\n[environment]\nallow_internet = false\n')
    assert found is not None and found.settings.network.mode == "public"


def test_a_fresh_container_of_the_agents_image_needs_no_build_of_its_own(make_task: MakeTask) -> None:
    task = Task.read(make_task(toml=SEPARATE))
    own = verifier_environment(task)
    assert own is not None
    assert build_tag(own) == build_tag(agent_environment(task))
    (task.path / "tests" / "Dockerfile").write_text("FROM x\n")
    other = verifier_environment(Task.read(task.path))
    assert other is not None and build_tag(other).startswith("tbench/small-task-tests:")
