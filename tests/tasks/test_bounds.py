"""Bounds of what is read of a task: files of any size, found by their size, in one line each, and without reading."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tbench.cli import app
from tbench.errors import TaskInvalid, TrialError
from tbench.tasks.files import FOLDER_BYTES, FOLDER_ENTRIES, LINKED_ENTRIES, TEXT_BYTES, read_bounded
from tbench.tasks.sources import read_tasks
from tbench.tasks.task import Task

MakeTask = Any
LARGE = 3 << 30
"""Bytes of sparse files: they take no room on the disk, and all of it in memory."""
LITTLE = 16 << 20


def make_large(path: Path, size: int = LARGE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, size)
    return path


def little_memory(act: Callable[[], object]) -> None:
    """Do something, which must hold little in memory at any moment."""
    tracemalloc.start()
    try:
        act()
        assert tracemalloc.get_traced_memory()[1] < LITTLE
    finally:
        tracemalloc.stop()


def complaint(path: Path) -> str:
    said: list[str] = []

    def read() -> None:
        with pytest.raises(TaskInvalid) as caught:
            Task.read(path)
        said.append(str(caught.value))

    little_memory(read)
    assert "\n" not in said[0]
    return said[0]


@pytest.mark.parametrize("folder", ["tests", "solution"])
def test_a_folder_that_is_too_large_is_named_with_its_size_and_what_to_do(make_task: MakeTask, folder: str) -> None:
    path = make_task()
    make_large(path / folder / "data" / "blob")
    assert complaint(path) == (
        f"{path / folder}: has 3,072.0 MB of files, more than the maximum of 256.0 MB; "
        "put the rest into the image (environment/), or let a script create or fetch it"
    )


def test_all_files_of_a_folder_count_together_and_as_often_as_links_lead_to_them(make_task: MakeTask) -> None:
    path = make_task(test="#" * 10)
    for number in range(4):
        make_large(path / "tests" / "data" / str(number), (FOLDER_BYTES - 10) // 4)
    make_large(path / "solution" / "blob", FOLDER_BYTES - 100)
    assert Task.read(path).name == "small-task"
    (path / "tests" / "again").symlink_to("data")
    assert "tests: has 512.0 MB of files" in complaint(path)


@pytest.mark.slow
def test_a_folder_of_very_many_files_is_refused(make_task: MakeTask) -> None:
    path = make_task()
    for number in range(FOLDER_ENTRIES):
        (path / "tests" / str(number)).touch()
    with pytest.raises(TaskInvalid, match=f"tests: has more than the maximum of {FOLDER_ENTRIES:,} files and folders"):
        Task.read(path)


def test_a_few_links_that_make_very_many_files_are_refused(make_task: MakeTask) -> None:
    path = make_task()
    for number in range(16):
        (path / "tests" / str(number)).mkdir()
        for name in "ab":
            (path / "tests" / str(number) / name).symlink_to(f"../{number + 1}")
    (path / "tests" / "16").mkdir()
    with pytest.raises(TaskInvalid, match=f"maximum of {LINKED_ENTRIES:,} files and folders behind links"):
        Task.read(path)


def test_what_may_not_be_read_is_one_line(make_task: MakeTask) -> None:
    path = make_task()
    (path / "tests").chmod(0)
    path.parent.parent.chmod(0o700)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)  # root may read everything
        with pytest.raises(TaskInvalid, match="cannot be read: Permission denied"):
            Task.read(path)
    finally:
        os.seteuid(user)
        (path / "tests").chmod(0o755)


def test_files_that_are_not_read_may_be_large(make_task: MakeTask) -> None:
    path = make_task()
    make_large(path / "tests" / "left-out")
    (path / "tests" / ".harborignore").write_text("left-out\n")
    make_large(path / "beside")
    make_large(path / "environment" / "blob", FOLDER_BYTES + 1)
    assert "left-out" not in Task.read(path).tests


@pytest.mark.parametrize(
    "name",
    ["task.toml", "instruction.md", "environment/Dockerfile", ".gitignore", "tests/.harborignore"],
)
def test_a_text_that_is_too_large_is_named_with_its_size(make_task: MakeTask, name: str) -> None:
    path = make_task()
    make_large(path / name)
    words = f"{path / name}: has 3,072.0 MB, but at most 1.0 MB are allowed; make it shorter"
    assert complaint(path) == words


def test_a_text_whose_size_is_only_a_claim_is_bounded_too(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"x" * TEXT_BYTES)
    assert len(read_bounded(path)) == TEXT_BYTES
    endless = Path("/dev/zero")  # says that it holds nothing
    with pytest.raises(TaskInvalid, match=r"has more than 1\.0 MB"):
        little_memory(lambda: read_bounded(endless))


def test_toml_that_is_nested_too_deeply_is_named(make_task: MakeTask) -> None:
    path = make_task(toml=f"version = {'[' * 100_000}")
    with pytest.raises(TaskInvalid, match="not valid TOML"):
        Task.read(path)


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("tests/test.sh", lambda task: task.tests),
        ("tests/new.bin", lambda task: task.tests),
        ("solution/solve.sh", lambda task: task.solution),
        ("instruction.md", lambda task: task.instruction),
    ],
)
def test_what_grows_after_the_hash_was_taken_is_not_read(
    make_task: MakeTask, name: str, use: Callable[[Task], object]
) -> None:
    path = make_task()
    task = Task.read(path)
    assert task.hash
    make_large(path / name)

    def read() -> None:
        with pytest.raises(TrialError, match="grew") as caught:
            use(task)
        assert caught.value.type == "task_changed"

    little_memory(read)


def test_a_task_that_is_too_large_costs_no_other_and_check_says_so(make_task: MakeTask) -> None:
    make_task("small")
    large = make_task("large")
    make_large(large / "solution" / "blob")
    assert [task.name for task in read_tasks(str(large.parent)).tasks] == ["small"]
    done = CliRunner().invoke(app, ["task", "check", str(large.parent)], prog_name="tbench")
    lines = done.output.splitlines()
    assert (done.exit_code, lines[-1]) == (2, "2 tasks, 1 problem, 0 hints")
    assert lines[0].startswith(f"cannot run: {large / 'solution'}: has 3,072.0 MB of files")
