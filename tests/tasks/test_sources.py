"""Sets of tasks: what counts as a task, patterns, and one bad task among good ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tbench.errors import UsageError
from tbench.tasks.sources import BUNDLED, TaskChoice, read_tasks
from tbench.tasks.task import Task

MakeTask = Any


@pytest.fixture
def dataset(make_task: MakeTask) -> Path:
    for name in ("beta", "alpha_2026-01-01", "gamma"):
        make_task(name)
    return Path(make_task("delta")).parent


def test_tasks_are_sorted_by_name(dataset: Path) -> None:
    assert read_tasks(str(dataset)).names == ["alpha_2026-01-01", "beta", "delta", "gamma"]


def test_other_folders_and_files_are_no_tasks(dataset: Path) -> None:
    (dataset / "assets").mkdir()
    (dataset / ".git").mkdir()
    (dataset / ".git" / "task.toml").touch()
    (dataset / "README.md").touch()
    assert len(read_tasks(str(dataset)).names) == 4


def test_a_single_task_can_be_named_by_its_directory(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_tasks(str(dataset / "beta")).names == ["beta"]
    monkeypatch.chdir(dataset / "beta")
    assert read_tasks(".").names == ["beta"]


def test_patterns_are_shell_globs_and_add_up(dataset: Path) -> None:
    assert read_tasks(str(dataset), TaskChoice(["*a", "alpha*"])).names == [
        "alpha_2026-01-01",
        "beta",
        "delta",
        "gamma",
    ]
    assert read_tasks(str(dataset), TaskChoice(["?eta"])).names == ["beta"]


def test_a_pattern_that_matches_nothing_is_refused(dataset: Path) -> None:
    with pytest.raises(UsageError, match="--task zeta: matches no task"):
        read_tasks(str(dataset), TaskChoice(["beta", "zeta"]))


@pytest.mark.parametrize("part", ["toml", "instruction", "test", "dockerfile"])
def test_one_bad_task_does_not_cost_the_others(dataset: Path, make_task: MakeTask, part: str) -> None:
    make_task("broken", **{part: None})
    tasks = read_tasks(str(dataset))
    assert len(tasks.tasks) == 4
    assert list(tasks.invalid) == ["broken"]
    assert str(dataset / "broken") in tasks.invalid["broken"]
    assert "broken" in tasks.names


def test_a_source_with_only_bad_tasks_says_what_is_wrong(make_task: MakeTask) -> None:
    path = make_task(toml="[agent\n")
    with pytest.raises(UsageError, match="not valid TOML"):
        read_tasks(str(path.parent))


def test_a_source_that_is_missing_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        read_tasks(str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="contains no tasks"):
        read_tasks(str(tmp_path))


def test_the_bundled_tasks_are_a_set_like_any_other() -> None:
    tasks = read_tasks(BUNDLED)
    assert len(tasks.tasks) >= 11
    assert tasks.invalid == {}


def test_tasks_in_folders_of_folders_are_named_by_their_path(make_task: MakeTask) -> None:
    root = make_task("biology/cells").parents[1]
    for name in ("physics/optics/lens", "physics/waves/lens"):
        make_task(name)
    (root / "physics" / "optics" / "lens" / "inside").mkdir()
    (root / "physics" / "optics" / "lens" / "inside" / "task.toml").touch()
    tasks = read_tasks(str(root))
    assert tasks.names == ["biology.cells", "physics.optics.lens", "physics.waves.lens"]
    assert [task.name for task in read_tasks(str(root), TaskChoice(["physics.*"])).tasks] == tasks.names[1:]
    assert read_tasks(str(root / "physics" / "optics")).names == ["lens"]
    (root / "top").mkdir()
    (root / "top" / "task.toml").touch()
    assert read_tasks(str(root), TaskChoice(), lambda path: Task.read(root / "biology" / "cells")).names == ["top"]
