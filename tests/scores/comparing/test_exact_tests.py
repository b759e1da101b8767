"""Exact tests, compared with counting every choice of signs."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbench.reward import as_fraction
from tbench.scores.comparing.exact_tests import DRAWS, holm, sign_flip_test, sign_test

differences = st.lists(st.fractions(-1, 1, max_denominator=30), max_size=7)


def counted_one_by_one(values: list[Fraction]) -> float:
    far = abs(sum(values))
    choices = list(itertools.product((1, -1), repeat=len(values)))
    farther = sum(abs(sum(s * each for s, each in zip(signs, values, strict=True))) >= far for signs in choices)
    return farther / len(choices)


@settings(max_examples=50)
@given(differences)
def test_p_is_the_share_of_signs_that_give_as_much_or_more(values: list[Fraction]) -> None:
    found = sign_flip_test(values)
    assert (found.p, found.method) == (pytest.approx(counted_one_by_one(values), abs=1e-15), "exact")


@settings(max_examples=50)
@given(differences, st.fractions(Fraction(1, 90), 50, max_denominator=90))
def test_p_has_no_unit_and_no_direction(values: list[Fraction], unit: Fraction) -> None:
    p = sign_flip_test(values).p
    assert sign_flip_test([-unit * each for each in values]).p == p
    assert sign_flip_test([*values, Fraction(0)]).p == p


@given(st.integers(0, 40), st.integers(0, 40))
def test_for_differences_of_one_it_is_the_sign_test(better: int, worse: int) -> None:
    found = sign_flip_test([Fraction(1)] * better + [Fraction(-1)] * worse)
    assert found.p == pytest.approx(sign_test(better, worse), rel=1e-12)


@pytest.mark.parametrize(
    ("better", "worse", "p"),
    [(24, 8, 0.00700036669), (8, 24, 0.00700036669), (0, 0, 1.0), (5, 5, 1.0), (1, 0, 1.0), (10, 0, 2 / 1024)],
)
def test_sign_tests_have_the_tabled_p(better: int, worse: int, p: float) -> None:
    assert sign_test(better, worse) == pytest.approx(p, rel=1e-8)


def test_many_differences_on_a_lattice_are_exact_and_near_the_normal_curve() -> None:
    rng = random.Random(3)
    values = [Fraction(rng.choice((-3, -2, -1, 0, 1, 2, 3)), 5) for _ in range(500)]
    found = sign_flip_test(values)
    z = abs(sum(values)) / math.sqrt(sum(each * each for each in values))
    assert found.method == "exact"
    assert found.p == pytest.approx(math.erfc(z / math.sqrt(2)), rel=0.05)


@settings(max_examples=30)
@given(st.lists(st.integers(-5, 5).filter(bool), min_size=21, max_size=60))
def test_sums_on_a_lattice_are_counted_as_their_distribution_grows(fifths: list[int]) -> None:
    distribution = Counter({0: 1})
    for each in fifths:
        distribution = Counter(
            {
                total: distribution[total - each] + distribution[total + each]
                for total in {known + sign * each for known in distribution for sign in (1, -1)}
            }
        )
    farther = sum(count for total, count in distribution.items() if abs(total) >= abs(sum(fifths)))
    assert sign_flip_test([Fraction(each, 5) for each in fifths]).p == farther / 2 ** len(fifths)


def odd_values(count: int, seed: int = 1) -> list[Fraction]:
    """Differences without a common part of any size."""
    rng = random.Random(seed)
    return [as_fraction(rng.random()) - as_fraction(rng.random()) + Fraction(1, 5) for _ in range(count)]


def test_differences_of_any_size_are_exact_while_their_halves_can_be_listed() -> None:
    values = odd_values(11)
    found = sign_flip_test(values)
    assert (found.p, found.method) == (pytest.approx(counted_one_by_one(values), abs=1e-15), "exact")


def test_where_all_signs_are_too_many_they_are_sampled_alike_each_time_and_p_is_never_0() -> None:
    values = odd_values(60)
    found = sign_flip_test(values)
    assert found == sign_flip_test(values) and found.method == "sampled"
    z = float(abs(sum(values))) / math.sqrt(float(sum(each * each for each in values)))
    expected = math.erfc(z / math.sqrt(2))
    assert found.p == pytest.approx(expected, abs=4 * math.sqrt(expected / DRAWS) + 0.05 * expected)
    assert sign_flip_test([abs(each) for each in values[:40]]).p == 1 / (DRAWS + 1)


def test_holm_multiplies_the_smallest_by_most_and_keeps_the_order() -> None:
    # The example of R's p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm").
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([0.9, 0.8]) == (1.0, 1.0)
    assert holm([]) == ()


def test_flips_of_a_hundred_thousand_trials_are_exact() -> None:
    found = sign_flip_test([Fraction(1)] * 5200 + [Fraction(-1)] * 4800 + [Fraction(0)] * 90000)
    assert found.method == "exact" and found.p == pytest.approx(math.erfc(4 * (1 - 1 / 400) / math.sqrt(2)), rel=0.01)
