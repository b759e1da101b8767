"""The good runs before one, and `tbench.explain` against them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from run_trees import FIRST_NIGHT, a_result, write_run

import tbench
from tbench.errors import UsageError
from tbench.explaining.good_runs import good_runs, good_runs_before

TASKS = tuple(f"t{at}" for at in range(12))


def a_night(folder: Path, number: int, lost: Sequence[str] = (), **settings: Any) -> Path:
    """A night in which every third trial fails, and all of the lost tasks."""
    seeds = (2 * number, 2 * number + 1)
    results = [
        a_result(task, seed, float(task not in lost and (at + seed) % 3 > 0))
        for at, task in enumerate(TASKS)
        for seed in seeds
    ]
    begun = FIRST_NIGHT + timedelta(days=number)
    return write_run(folder / f"night-{number:02}", results, dict.fromkeys(TASKS, "h"), seeds, begun=begun, **settings)


def names(paths: Sequence[Path]) -> list[str]:
    return [path.name for path in paths]


def test_runs_since_a_drop_count_together_against_those_before(tmp_path: Path) -> None:
    for number in range(12):
        a_night(tmp_path, number, lost=TASKS[:8] if number >= 10 else ())
    found = good_runs_before(tmp_path / "night-11")
    assert names(found.now) == ["night-10", "night-11"]
    assert names(found.before) == [f"night-{number:02}" for number in range(10)]
    explained = tbench.explain(tmp_path / "night-11", against="last-good")
    assert explained.named[0].cause == "model"
    assert explained.run.runs == tuple(map(str, found.now))


def test_without_a_drop_the_run_is_compared_with_all_before(tmp_path: Path) -> None:
    runs = [a_night(tmp_path, number) for number in range(4)]
    found = good_runs_before(runs[-1])
    assert (names(found.now), len(found.before)) == (["night-03"], 3)
    assert not tbench.explain(str(runs[-1]), "last-good").named


def test_only_finished_earlier_runs_of_the_model_with_the_settings_of_the_last_good_one_count(tmp_path: Path) -> None:
    a_night(tmp_path, 0, temperature=0.1)
    a_night(tmp_path, 1)
    a_night(tmp_path, 2, model="another")
    a_night(tmp_path, 3, status="running")
    run = a_night(tmp_path, 4)
    a_night(tmp_path, 5)
    (tmp_path / "not-a-run").mkdir()
    assert names(good_runs_before(run).before) == ["night-01"]


def test_what_cannot_be_found_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no earlier finished run"):
        good_runs_before(a_night(tmp_path, 0))
    with pytest.raises(UsageError, match="give one run"):
        tbench.explain([tmp_path, tmp_path], "last-good")


def test_runs_that_plan_no_trial_are_passed_over(tmp_path: Path) -> None:
    a_night(tmp_path, 0)
    empty = write_run(tmp_path / "empty", [], {}, (0,), begun=FIRST_NIGHT + timedelta(hours=1))
    assert names(good_runs_before(a_night(tmp_path, 2)).before) == ["night-00"]
    with pytest.raises(UsageError, match="plans no trial"):
        good_runs_before(empty)


def test_an_earlier_run_without_any_result_is_left_out(tmp_path: Path) -> None:
    paths = [a_night(tmp_path, number) for number in range(4)]
    for path in (paths[0], paths[2]):
        (path / "results.jsonl").write_text("")
    assert [names(each) for each in good_runs(paths)] == [["night-03"], ["night-01"]]
    assert [names(each) for each in good_runs(paths, 3)] == [["night-03"], ["night-01"]]
    with pytest.raises(UsageError, match="the first run of its series with results"):
        good_runs([paths[0], paths[3]])
    with pytest.raises(UsageError, match="the first run of its series with results"):
        good_runs(paths, 1)
