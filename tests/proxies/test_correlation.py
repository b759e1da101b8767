"""Rank correlation against values worked out by hand, by brute force, and by properties."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbench.proxies.correlation import bootstrap, correlate, fisher_interval, kendall, spearman
from tbench.scores.statistics import average_ranks

scores = st.integers(-3, 3).map(float)
pairs = st.lists(st.tuples(scores, scores), min_size=2, max_size=9)


def sides(drawn: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in drawn], [y for _, y in drawn]


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    assert average_ranks([10, 30, 20, 20, 40, 20]) == [1, 5, 3, 3, 6, 3]
    assert average_ranks([]) == []


def test_spearman_without_ties_is_one_minus_six_sums_of_squared_differences() -> None:
    # d = 0, 1, -1, 1, -1: 1 - 6*4 / (5*24)
    assert spearman([1, 2, 3, 4, 5], [1, 3, 2, 5, 4]) == pytest.approx(0.8)
    # The textbook's IQ and hours of television: sum of d² = 194, n = 10.
    iq = [106, 100, 86, 101, 99, 103, 97, 113, 112, 110]
    hours = [7, 27, 2, 50, 28, 29, 20, 12, 6, 17]
    assert spearman(iq, hours) == pytest.approx(-29 / 165)


def test_spearman_with_ties_is_pearson_of_the_average_ranks() -> None:
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: covariance 4.5, variances 4.5 and 5.
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))


def test_kendall_without_ties_counts_pairs() -> None:
    # 2 of 10 pairs in opposite orders.
    assert kendall([1, 2, 3, 4, 5], [1, 3, 2, 5, 4]) == pytest.approx(0.6)


def test_kendall_with_ties_is_tau_b() -> None:
    # 6 pairs, one tied in x, 5 in the same order: 5 / sqrt(5 * 6).
    assert kendall([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(5 / math.sqrt(30))
    # Ties in both: (1,1) (1,1) (2,1) (2,2): C = 2, D = 0, P = 6, T_x = 2, T_y = 3.
    assert kendall([1, 1, 2, 2], [1, 1, 1, 2]) == pytest.approx(2 / math.sqrt(12))


@given(pairs)
def test_kendall_is_what_looking_at_every_pair_gives(drawn: list[tuple[float, float]]) -> None:
    def sign(a: float, b: float) -> int:
        return (a > b) - (a < b)

    both = list(itertools.combinations(drawn, 2))
    score = sum(sign(a[0], b[0]) * sign(a[1], b[1]) for a, b in both)
    in_x = sum(a[0] != b[0] for a, b in both)
    in_y = sum(a[1] != b[1] for a, b in both)
    found = kendall(*sides(drawn))
    if in_x and in_y:
        assert found == pytest.approx(score / math.sqrt(in_x * in_y))
    else:
        assert found is None


@given(pairs)
def test_coefficients_are_bounded_symmetric_and_see_only_the_order(drawn: list[tuple[float, float]]) -> None:
    xs, ys = sides(drawn)
    for coefficient in (spearman, kendall):
        value = coefficient(xs, ys)
        assert value == coefficient(ys, xs)
        assert coefficient([math.exp(x) for x in xs], [y**3 for y in ys]) == value
        shuffled = sorted(drawn, key=lambda pair: (pair[1], -pair[0]))
        assert coefficient(*sides(shuffled)) == value
        if value is None:
            assert len(set(xs)) == 1 or len(set(ys)) == 1
        else:
            assert -1 <= value <= 1
            assert coefficient([-x for x in xs], ys) == pytest.approx(-value)
            assert coefficient(xs, xs) == 1.0


@settings(max_examples=8)
@given(st.lists(st.tuples(scores, scores), min_size=10, max_size=14), st.integers(0, 9))
def test_intervals_lie_within_the_bounds_and_repeat(drawn: list[tuple[float, float]], seed: int) -> None:
    for coefficient in (spearman, kendall):
        found = bootstrap(coefficient, *sides(drawn), resamples=100, seed=seed)
        assert found == bootstrap(coefficient, *sides(drawn), resamples=100, seed=seed)
        if found is None:
            assert coefficient(*sides(drawn)) is None
        else:
            assert -1 <= found.low <= found.high <= 1
            assert 0 < found.resamples <= 100


def test_fishers_interval_is_the_one_worked_out_by_hand() -> None:
    # atanh 0.5 = 0.549306; sqrt(1.125 / 25) = 0.212132; ± 0.415771 -> 0.133535, 0.965077.
    interval = fisher_interval(0.5, 28)
    assert interval == pytest.approx((0.132747, 0.746533), abs=1e-6)


@pytest.mark.parametrize(("rho", "n"), [(0.5, 9), (1.0, 30), (-1.0, 30), (None, 30)])
def test_fishers_interval_is_not_given_where_it_would_mean_nothing(rho: float | None, n: int) -> None:
    assert fisher_interval(rho, n) is None


@pytest.mark.parametrize(
    ("xs", "ys", "said"),
    [
        ([], [], "undefined: 0 models on both sides; two are needed"),
        ([1.0], [2.0], "undefined: 1 model on both sides; two are needed"),
        ([1.0, 1, 1, 1], [1.0, 2, 3, 4], "undefined: all 4 proxy scores are equal"),
        ([1.0, 2, 3, 4], [0.0, 0, 0, 0], "undefined: all 4 executed scores are equal"),
    ],
)
def test_undefined_coefficients_are_noted(xs: Sequence[float], ys: Sequence[float], said: str) -> None:
    found = correlate(xs, ys)
    assert found.notes == (said,)
    for estimate in (found.spearman, found.kendall):
        assert (estimate.value, estimate.bootstrap, estimate.fisher) == (None, None, None)


@pytest.mark.parametrize("more", [0, 6])
def test_few_models_have_a_coefficient_and_no_interval(more: int) -> None:
    found = correlate([1, 2, 3, *range(4, 4 + more)], [1, 3, 2, *range(4, 4 + more)])
    if not more:
        assert (found.spearman.value, found.kendall.value) == (0.5, pytest.approx(1 / 3))
    assert found.spearman.bootstrap is None and found.kendall.bootstrap is None
    assert found.notes == (f"no interval: {3 + more} models are too few; 10 are needed",)


def test_a_real_relation_has_an_interval_around_its_value() -> None:
    xs = [float(n) for n in range(12)]
    ys = [n + (3.0 if n % 2 else 0.0) for n in xs]
    found = correlate(xs, ys)
    for estimate in (found.spearman, found.kendall):
        assert estimate.value is not None and estimate.bootstrap is not None
        assert estimate.bootstrap.low < estimate.value < estimate.bootstrap.high
        assert estimate.bootstrap.low > 0.3
    assert bootstrap(spearman, xs, ys, resamples=100) != bootstrap(spearman, xs, ys, resamples=100, seed=1)


@pytest.mark.parametrize(("xs", "ys"), [([1.0], [1.0, 2.0]), ([1.0, math.nan], [1.0, 2.0]), ([1.0], [math.inf])])
def test_scores_that_are_no_scores_are_refused(xs: list[float], ys: list[float]) -> None:
    with pytest.raises(ValueError, match="two lists of finite scores"):
        correlate(xs, ys)
