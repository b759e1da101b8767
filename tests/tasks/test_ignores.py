"""Ignore files of a task: the digest is the one that Harbor gives, and excluded files stay out of containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from digest_cases import CASES, DIGESTS, write_task

from tbench.errors import TaskInvalid
from tbench.tasks.task import Task

MakeTask = Any
SECRET = {"tests/.harborignore": "secret*\n", "tests/secret.txt": "s", "tests/sub/secret/x": "s", "tests/sub/open": "o"}


@pytest.mark.parametrize("name", CASES)
def test_the_digest_is_harbors(tmp_path: Path, name: str) -> None:
    assert Task.read(write_task(tmp_path / "task", CASES[name])).hash == DIGESTS[name]


def test_what_is_excluded_does_not_go_into_containers(make_task: MakeTask) -> None:
    path = write_task(make_task(), SECRET | {"solution/.harborignore": "/draft.sh\n", "solution/draft.sh": ""})
    task = Task.read(path)
    assert set(task.tests) == {"test.sh", "sub", "sub/open"}
    assert set(task.solution) == {"solve.sh"}


def test_what_the_digest_ignores_does_not_go_into_containers(make_task: MakeTask) -> None:
    path = write_task(
        make_task(), {".gitignore": "*.log\n", "tests/a.log": "", "tests/b.pyc": "", "tests/.gitignore": ""}
    )
    assert set(Task.read(path).tests) == {"test.sh", "b.pyc", ".gitignore"}


def test_files_that_only_the_own_gitignore_leaves_out_are_reported(make_task: MakeTask) -> None:
    files = {
        "tests/data/a.bin": "",
        "solution/b.bin": "",
        "tests/x.pyc": "",
        "environment/__pycache__/y": "",
        "c.bin": "",
    }
    path = write_task(make_task(), files)
    assert Task.read(path).left_out == []
    (path / ".gitignore").write_text("*.bin\n*.pyc\n__pycache__/\n")
    assert Task.read(path).left_out == ["solution/b.bin", "tests/data/a.bin"]


@pytest.mark.parametrize("name", ["tests/test.sh", "instruction.md"])
def test_a_task_whose_own_files_its_gitignore_leaves_out_is_not_run(make_task: MakeTask, name: str) -> None:
    task = Task.read(write_task(make_task(), {".gitignore": f"/{name}\n"}))
    assert task.unsupported == [f"{name} excluded from its hash (.gitignore)"]


def test_a_link_to_what_is_excluded_is_excluded(make_task: MakeTask) -> None:
    links = {"tests/alias": "-> secret.txt", "tests/folder": "-> sub"}
    task = Task.read(write_task(make_task(), SECRET | links))
    assert set(task.tests) == {"test.sh", "sub", "sub/open", "folder", "folder/open"}


def test_an_excluded_link_may_leave_the_task(make_task: MakeTask, tmp_path: Path) -> None:
    path = write_task(make_task(), {"tests/.venv/bin/python": f"-> {tmp_path}"})
    with pytest.raises(TaskInvalid, match="symlink leaves the task"):
        Task.read(path)
    (path / "tests" / ".harborignore").write_text(".venv/\n")
    assert set(Task.read(path).tests) == {"test.sh"}


def test_a_verifier_that_is_excluded_is_missing(make_task: MakeTask) -> None:
    path = write_task(make_task(), {"tests/.harborignore": "*.sh\n"})
    with pytest.raises(TaskInvalid, match=r"tests/test\.sh: a \.harborignore excludes it"):
        Task.read(path)


def test_a_solution_that_is_excluded_is_no_oracle(make_task: MakeTask) -> None:
    task = Task.read(write_task(make_task(), {"solution/.harborignore": "*\n"}))
    assert (task.has_oracle, task.solution) == (False, {})
    assert Task.read(make_task("other")).has_oracle
    assert not Task.read(make_task("none", solve=None)).has_oracle


@pytest.mark.parametrize("name", [".gitignore", "tests/.harborignore"])
@pytest.mark.parametrize("content", [b"\xff\n", b"!\n"])
def test_an_ignore_file_that_cannot_be_used_is_named(make_task: MakeTask, name: str, content: bytes) -> None:
    path = make_task()
    (path / name).write_bytes(content)
    with pytest.raises(TaskInvalid) as caught:
        Task.read(path)
    assert str(path / name) in str(caught.value)


@pytest.mark.parametrize("name", [".gitignore", "tests/.harborignore"])
def test_an_ignore_file_may_not_lie_elsewhere(make_task: MakeTask, tmp_path: Path, name: str) -> None:
    (tmp_path / "rules").write_text("*\n")
    path = write_task(make_task(), {name: f"-> {tmp_path / 'rules'}"})
    with pytest.raises(TaskInvalid, match="symlink leaves the task"):
        Task.read(path)
