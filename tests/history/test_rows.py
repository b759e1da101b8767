"""Gaps, renamed tasks and changed content are reported in a line each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from run_trees import FIRST_NIGHT, a_result, write_run

from tbench.history.database import INDEX_NAME
from tbench.history.index import RunHistory
from tbench.history.rows import run_remarks, task_changes, task_remarks


@pytest.fixture
def history(tmp_path: Path) -> Iterator[RunHistory]:
    with RunHistory.open(tmp_path / INDEX_NAME) as opened:
        yield opened


def write_night(folder: Path, day: float, tasks: dict[str, str], **settings: str) -> None:
    begun = FIRST_NIGHT + timedelta(days=day)
    results = [a_result(task, 0, 1.0, begun) for task in tasks]
    write_run(folder / f"night-{day:g}", results, {**tasks}, (0,), begun=begun, **settings)


def remarks(history: RunHistory, folder: Path) -> Sequence[str]:
    history.update(folder)
    return run_remarks(history.runs(), lambda row: history.tasks(row.path))


def test_quiet_nights_need_no_remark(history: RunHistory, tmp_path: Path) -> None:
    for day in (0, 1, 2.3, 3, 4):
        write_night(tmp_path, day, {"a": "1"})
    assert remarks(history, tmp_path) == ()


def test_a_gap_is_reported_if_it_is_unusual_for_its_series(history: RunHistory, tmp_path: Path) -> None:
    for day in (0, 1, 2, 3, 9):
        write_night(tmp_path, day, {"a": "1"})
    for day in (5.5, 5.6):  # another series fills no gap
        write_night(tmp_path, day, {"a": "1"}, verify="isolated")
    assert remarks(history, tmp_path) == (
        "gap: no run for 6 days between night-3 (2026-01-04) and night-9 (2026-01-10)",
    )


def test_changed_tasks_are_reported(history: RunHistory, tmp_path: Path) -> None:
    write_night(tmp_path, 0, {"a": "1", "b": "2", "c": "3"})
    write_night(tmp_path, 1, {"a": "9", "b": "2", "c": "3"})
    write_night(tmp_path, 2, {"a": "9", "b-new": "2", "d": "4"})
    assert remarks(history, tmp_path) == (
        "tasks of night-1 (2026-01-02) compared with night-0 (2026-01-01): changed content of a",
        "tasks of night-2 (2026-01-03) compared with night-1 (2026-01-02): renamed b to b-new; without c; new d",
    )


def test_content_that_is_not_known_has_not_changed() -> None:
    assert list(task_changes({"a": None, "b": "1"}, {"a": "1", "b": None})) == []
    assert list(task_changes({"a": None}, {"b": None})) == ["without a", "new b"]


def test_the_remarks_on_a_task_report_changed_content(history: RunHistory, tmp_path: Path) -> None:
    write_night(tmp_path, 0, {"old-name": "1"})
    write_night(tmp_path, 1, {"a": "1"})
    write_night(tmp_path, 2, {"a": "2"})
    history.update(tmp_path)
    points = history.task("a")
    names = history.names_by_hash(point.hash for point in points if point.hash is not None)
    assert task_remarks("a", points, names, 3) == (
        "content changed from night-2 (2026-01-03) on: 1 to 2; earlier results are of another task",
        "the same content was also run as old-name",
        "1 of 3 runs did not plan this task",
    )
