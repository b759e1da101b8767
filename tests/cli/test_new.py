"""`tbench task new`: what it writes passes `tbench task check` in real containers."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tbench.cli import app
from tbench.tasks.task import Task


def tbench(*arguments: str) -> tuple[int, list[str], str]:
    done = CliRunner().invoke(app, ["task", *arguments], prog_name="tbench")
    return done.exit_code, done.output.splitlines(), str(done.exception)


@pytest.mark.engine
def test_a_new_task_passes_the_check(tmp_path: Path) -> None:
    path = tmp_path / "first-task"
    assert tbench("new", "first-task", "--dir", str(tmp_path))[:2] == (
        0,
        [f"{path}: created a working task; edit its files and try it with: tbench task check {path}"],
    )
    code, lines, _ = tbench("check", str(path))
    assert code == 0
    assert {"oracle: first-task: scores 1", "nop: first-task: scores 0", "1 task, 0 problems, 0 hints"} <= set(lines)


def test_it_has_all_parts_and_its_name(tmp_path: Path) -> None:
    tbench("new", "a.b_c-1", "--dir", str(tmp_path / "not-there-yet"))
    task = Task.read(tmp_path / "not-there-yet" / "a.b_c-1")
    assert (task.unsupported, task.unknown_keys, task.has_oracle) == ([], [], True)
    assert task.file.task.name == "my/a.b_c-1"
    assert sorted(path.name for path in task.path.iterdir()) == [
        *("environment", "instruction.md", "solution", "task.toml", "tests"),
    ]


@pytest.mark.parametrize("name", ["", ".", "..", "Big", "a/b", "-x", "a b", "a\n", "x" * 65, "é"])
def test_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    assert "not a task name" in tbench("new", "--dir", str(tmp_path), "--", name)[2]
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert "already exists; choose another name" in tbench("new", "mine", "--dir", str(tmp_path))[2]
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be written" in tbench("new", "mine", "--dir", str(tmp_path / "file"))[2]
