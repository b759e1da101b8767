"""Changed tasks: exact tests compared with counting all splits, and the adjustment for many tasks."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.scores.gate.verdict import moved_tasks, permutation_p


def counted(base: list[float], since: list[float]) -> float:
    """Return the fraction of all choices of the later trials whose sum is as low."""
    both = [Fraction(r) for r in (*base, *since)]
    sums = [sum(split) for split in combinations(both, len(since))]
    return sum(each <= sum(map(Fraction, since)) for each in sums) / len(sums)


SOLVED = st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=6)
PARTIAL = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=6)


@given(SOLVED | PARTIAL, SOLVED | PARTIAL)
def test_p_is_the_share_of_splits_that_are_as_low(base: list[float], since: list[float]) -> None:
    assert permutation_p(base, since) == pytest.approx(counted(base, since))


def test_p_is_that_of_fishers_test() -> None:
    """The lady tasting tea: 3 of 4 and 1 of 4, one-sided 17 / 70."""
    assert permutation_p([1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]) == pytest.approx(17 / 70)


def test_where_splits_are_too_many_they_are_drawn_the_same_each_time() -> None:
    base, since = [0.5, 0.75, 1.0] * 10, [0.0, 0.25] * 5
    assert permutation_p(base, since) == permutation_p(base, since) == pytest.approx(1 / 2001)


def test_the_least_likely_task_comes_first_and_the_others_are_held_against_all() -> None:
    always, never, half = [1.0] * 10, [0.0] * 5, [1.0, 0.0] * 5
    pairs = [("same", half, half), ("lost", always, never), ("better", never, always), ("lower", half, [0.0, 0.0])]
    lost, lower = moved_tasks(pairs, downwards=True)
    assert (lost.task, lost.base_solved, lost.base_trials, lost.since_solved, lost.since_trials) == (
        "lost",
        10,
        10,
        0,
        5,
    )
    assert lost.p == pytest.approx(1 / 3003)
    assert lost.p_holm == pytest.approx(4 / 3003)
    assert lost.share == pytest.approx(-0.25)
    assert (lower.task, lower.p_holm) == ("lower", pytest.approx(3 * lower.p))
    assert [change.task for change in moved_tasks(pairs, downwards=False)] == ["better"]
