"""Tasks that are solved sometimes."""

from __future__ import annotations

import pytest
from compared_runs import a_side, published

from tbench.scores.comparing.flaky import task_tries, wilson_95


def test_a_task_is_flaky_where_some_of_its_verdicts_are_solved_and_some_are_not() -> None:
    found = task_tries([a_side({"a": (1.0, 0.0, 0.0), "b": (1.0, 1.0, None), "c": (None,) * 3, "d": (0.5, 1.0, 1.0)})])
    assert {each.task: each.is_flaky for each in found} == {"a": True, "b": False, "c": False, "d": True}
    by_task = {each.task: each for each in found}
    assert (by_task["b"].solved, by_task["b"].scored, by_task["b"].unscored) == (2, 2, 1)
    assert (by_task["c"].rate, by_task["c"].interval_95) == (None, None)


def test_runs_are_pooled_task_by_task_and_other_content_is_counted_apart() -> None:
    one = a_side({"a": (1.0, 1.0), "b": (0.0, 0.0)}, hashes={"b": "1"})
    two = a_side({"a": (0.0, 0.0), "b": (1.0, 1.0)}, "b", hashes={"b": "2"})
    found = task_tries([one, two])
    assert [(each.task, each.hash, each.solved, each.scored) for each in found if each.is_flaky] == [("a", None, 2, 4)]
    assert len(found) == 3


def test_the_published_flaky_tasks_are_those_between_none_and_all() -> None:
    """The histogram of the published file: 12, 1, 1 and 6 tasks at 1 to 4 of 5."""
    found = [each for each in task_tries([published("tmax-9b")]) if each.rate is not None]
    assert sum(0 < each.solved < 5 for each in found) == 20
    assert found[0].rate in (0.4, 0.6)


@pytest.mark.parametrize(
    ("solved", "trials", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (1, 5, 0.0362, 0.6245)],
)
def test_wilson_intervals_are_as_tabled(solved: int, trials: int, low: float, high: float) -> None:
    assert wilson_95(solved, trials) == pytest.approx((low, high), abs=5e-5)
