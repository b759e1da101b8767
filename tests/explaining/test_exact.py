"""Exact tests within tasks: against counting by hand, and the choice of findings among tests of few values."""

from __future__ import annotations

import math
import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbench.explaining.exact import Stratum, TwoSample, adjusted, ranks_test, sums_test

rows = st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=5)


def counted_p(strata: list[Stratum]) -> float:
    """The doubled smaller tail, by counting every exchange of every task."""
    sums = [0.0]
    for each in strata:
        values = [*each.first, *each.second]
        own = [sum(values[at] for at in drawn) for drawn in combinations(range(len(values)), len(each.second))]
        sums = [total + one for total in sums for one in own]
    observed = sum(sum(each.second) for each in strata)
    lower = sum(total <= observed + 1e-9 for total in sums) / len(sums)
    upper = sum(total >= observed - 1e-9 for total in sums) / len(sums)
    return min(1.0, 2 * min(lower, upper))


@given(st.lists(st.tuples(rows, rows), min_size=1, max_size=3))
@settings(deadline=None, max_examples=60)
def test_the_p_is_the_share_of_exchanges_within_tasks(groups: list[tuple[list[float], list[float]]]) -> None:
    strata = [Stratum(*group) for group in groups]
    assert sums_test(strata).p == pytest.approx(counted_p(strata), abs=1e-12)


def test_partial_rewards_are_exchanged_too() -> None:
    strata = [Stratum([1.0, 0.5, 0.75], [0.0, 0.25, 0.0]), Stratum([0.5, 1.0], [0.5, 0.0])]
    assert sums_test(strata).p == pytest.approx(counted_p(strata), abs=1e-12)


def test_a_single_task_gives_fishers_test() -> None:
    found = sums_test([Stratum([1.0] * 12, [0.0] * 8)])
    assert found.p == pytest.approx(2 / math.comb(20, 8))
    assert found.least_p == pytest.approx(2 / math.comb(20, 8))


def test_many_trials_are_tested_by_a_normal_distribution_that_agrees() -> None:
    rng = random.Random(3)
    small = [Stratum([float(rng.random() < 0.6) for _ in range(40)], [float(rng.random() < 0.5) for _ in range(40)])]
    large = [Stratum(each.first * 200, each.second * 200) for each in small]
    assert sums_test(small).way == "exact"
    assert sums_test(large).way == "normal"
    assert sums_test(large).p < sums_test(small).p


def test_values_that_never_vary_say_nothing() -> None:
    assert sums_test([Stratum([1.0], [1.0]), Stratum([0.0], [])]) == TwoSample(1.0, 1.0)
    assert ranks_test([Stratum([2.0, 2.0], [2.0])]).p == 1.0


def test_ranks_see_a_shift_within_tasks_that_differ_much() -> None:
    shifted = [
        Stratum([base + step for step in (0, 1, 2, 3)], [base + 10 + step for step in (0, 1, 2, 3)])
        for base in range(0, 5000, 1000)
    ]
    assert ranks_test(shifted).p < 0.001
    assert ranks_test([Stratum(each.first, each.first) for each in shifted]).p == pytest.approx(1.0)


def test_tests_that_cannot_succeed_do_not_burden_the_others() -> None:
    able, unable = TwoSample(0.004, 0.0001), TwoSample(0.5, 0.2)
    assert adjusted([able, *[unable] * 50], 0.01)[0] == pytest.approx(0.004)
    assert adjusted([able, able], 0.01) == pytest.approx([0.008, 0.008])
    assert adjusted([], 0.01) == []


def test_no_finding_among_many_true_hypotheses_more_often_than_the_level() -> None:
    rng, found = random.Random(7), 0
    for _ in range(300):
        tests = [
            sums_test(
                [Stratum([float(rng.random() < 0.7) for _ in range(9)], [float(rng.random() < 0.7) for _ in range(5)])]
            )
            for _ in range(12)
        ]
        found += min(adjusted(tests, 0.05)) <= 0.05
    assert found <= 300 * 0.08
