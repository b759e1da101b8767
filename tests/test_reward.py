"""Rewards as numbers: whatever a program computes in floats stands for the number that it meant."""

from __future__ import annotations

import math
import random
import struct
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.reward import as_fraction, canonical, exact_mean, is_solved, mean_text, reward_text

decimals = st.integers(-3_000_000, 3_000_000).map(lambda number: Fraction(number, 10**6))
ratios = st.builds(Fraction, st.integers(-5_000, 20_000), st.integers(1, 10_000))
coarse = st.builds(Fraction, st.integers(-500, 2_000), st.sampled_from([*range(1, 101), 1_000, 10_000]))


def single(number: float) -> float:
    """The nearest number in single precision."""
    found: float = struct.unpack("f", struct.pack("f", number))[0]
    return found


def noisy(number: Fraction, seed: int) -> float:
    """A number as a program comes to it that adds up parts of it, in one order or another."""
    draw = random.Random(seed)
    parts = [Fraction(draw.randrange(-10, 11), 10) for _ in range(draw.randrange(8))]
    terms = [float(part) for part in (*parts, number - sum(parts))]
    draw.shuffle(terms)
    return sum(terms)


@given(decimals | ratios, st.integers(0, 1_000))
def test_a_sum_of_floats_stands_for_the_number_that_it_is_the_sum_of(number: Fraction, seed: int) -> None:
    found = noisy(number, seed)
    assert as_fraction(found) == number
    assert canonical(found) == float(number) == canonical(canonical(found))
    assert is_solved(found) == (number >= 1)


@given(coarse)
def test_single_precision_is_no_difference(number: Fraction) -> None:
    assert as_fraction(single(float(number))) == number


@given(st.floats(-1e9, 1e9))
def test_other_numbers_have_six_decimals_and_keep_their_order(number: float) -> None:
    found = as_fraction(number)
    assert math.isclose(float(found), number, rel_tol=1e-6, abs_tol=1e-6)
    assert canonical(canonical(number)) == canonical(number)
    assert canonical(number) <= canonical(number + 1e-5 * max(1.0, abs(number)))


@pytest.mark.parametrize(
    ("written", "number"),
    [
        (0.1 + 0.2, Fraction(3, 10)),
        (0.7 + 0.2 + 0.1, Fraction(1)),
        (0.1 + 0.7 + 0.2 + 2**-52, Fraction(1)),
        (0.99999994, Fraction(1)),
        (1.0000001, Fraction(1)),
        (0.99999934, Fraction(1)),  # a hundred times 0.01, added up in single precision
        (0.10000000149, Fraction(1, 10)),
        (0.3333, Fraction(3333, 10_000)),
        (1 / 3 + 1 / 3, Fraction(2, 3)),
        (-1e-17, Fraction(0)),
        (0.999, Fraction(999, 1000)),
        (0.999999, Fraction(999_999, 10**6)),
        (0.1234565, as_fraction(0.12345650000000001)),
        (1e9, Fraction(10**9)),
    ],
)
def test_noise_vanishes_and_what_a_verifier_meant_stays(written: float, number: Fraction) -> None:
    assert as_fraction(written) == number
    assert math.copysign(1.0, canonical(written)) == (-1.0 if number < 0 else 1.0)


def test_means_of_other_numbers_of_seeds_are_the_same_where_they_are_equal() -> None:
    assert exact_mean([0.3, 0.3, 0.3]) == exact_mean([0.2, 0.3, 0.4]) == exact_mean([0.1 + 0.2])
    assert exact_mean([1 / 3, 1 / 3, 1 / 3]) == exact_mean([1.0, 0.0, 0.0]) == exact_mean([single(1 / 3)] * 7)


@pytest.mark.parametrize(
    ("reward", "text", "mean"),
    [
        (0.0, "0", "0.00"),
        (1.0, "1", "1.00"),
        (0.7 + 0.2 + 0.1, "1", "1.00"),
        (0.5, "0.50", "0.50"),
        (0.996, "0.996", "0.996"),
        (0.999999, "0.999999", "0.999999"),
        (0.001, "0.001", "0.001"),
        (-0.004, "-0.004", "-0.004"),
        (1.5, "1.50", "1.50"),
        (2.999, "2.999", "2.999"),
    ],
)
def test_a_part_is_never_shown_as_a_whole_number(reward: float, text: str, mean: str) -> None:
    assert reward_text(reward) == text
    assert mean_text(canonical(reward)) == mean


def test_a_mean_that_is_hardly_below_1_is_not_1() -> None:
    assert mean_text(float(exact_mean([1.0, 1.0, 1.0, 1.0, 0.999999]))) == "0.9999998"
