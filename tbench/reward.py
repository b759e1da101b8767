"""Rewards as numbers: what one stands for without float noise, whether it solves a task, sums and means of them.

Verifiers write what programs compute, such as 0.7 + 0.2 + 0.1, which is 0.9999999999999999. Files keep what they wrote;
whatever compares, counts or shows rewards reads them with these functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache

_FINEST = 10**6
"""Parts of 1 that a reward is rounded to where it is no simple fraction."""
_LARGEST = 1e15
"""The largest amount that has digits for noise to be in; what is larger, or no number, is no reward either."""
_DOUBLE = 1e-12
"""How far computing in double precision may have moved a number; relative to it where that is above 1."""
_NOISE = ((1, 1e-6), (100, 2.5e-7), (1_000, 6e-8), (10_000, _DOUBLE))
"""How far a fraction may have been moved, by its largest denominator: long sums and short ones in single precision, one
number, doubles.

No two of these fractions, and none of them and a number with four decimals, are as near to each other.
"""


@lru_cache(maxsize=1 << 16)
def as_fraction(reward: float) -> Fraction:
    """The number that a reward stands for: the fraction that it is but for float noise, or else six decimals of it.

    0.1 + 0.2 is 3/10, a third in single precision is 1/3, and 0.99999994 is 1, but 0.999999 is not.
    """
    # Rounded twice, so that noise cannot tip what lies in the middle of two steps.
    steps, scale = round(round(reward, 12) * _FINEST), max(1.0, abs(reward))
    if abs(steps / _FINEST - reward) <= _DOUBLE * scale:
        return Fraction(steps, _FINEST)
    near: Fraction | None = None
    for number, denominator in _convergents(reward):
        limit = next((limit for most, limit in _NOISE if denominator <= most), None)
        if limit is None:
            break
        if (off := abs(number / denominator - reward) / scale) <= _DOUBLE:
            return Fraction(number, denominator)
        if near is None and off <= limit:
            near = Fraction(number, denominator)
    return Fraction(steps, _FINEST) if near is None else near


def _convergents(number: float) -> Iterator[tuple[int, int]]:
    """The best fractions for a number, each nearer and with a larger denominator: its continued fraction."""
    above, below = float(number).as_integer_ratio()
    p, p_before, q, q_before = 1, 0, 0, 1
    while below:
        whole = above // below
        above, below = below, above - whole * below
        p, p_before, q, q_before = whole * p + p_before, p, whole * q + q_before, q
        yield p, q


@lru_cache(maxsize=1 << 16)
def canonical(reward: float) -> float:
    """A reward without float noise: the same number for all rewards that stand for the same."""
    return float(as_fraction(reward)) if abs(reward) <= _LARGEST else reward


def is_solved(reward: float) -> bool:
    """Whether a trial with this reward is solved: the reward is 1 or more, but for float noise."""
    return reward >= 1.0 or (reward > 0.999 and canonical(reward) >= 1.0)


def exact_sum(rewards: Iterable[float | Fraction]) -> Fraction:
    """The sum of the numbers that rewards stand for."""
    given = list(rewards)
    steps = [round(each * _FINEST) for each in given]
    if all(step / _FINEST == each for step, each in zip(steps, given, strict=True)):
        return Fraction(sum(steps), _FINEST)
    parts = [each if isinstance(each, Fraction) else as_fraction(each) for each in given]
    common = math.lcm(*(part.denominator for part in parts))  # far faster than one after the other
    return Fraction(sum(part.numerator * (common // part.denominator) for part in parts), common)


def exact_mean(rewards: Sequence[float]) -> Fraction:
    """The mean of the numbers that rewards stand for: that of 0.3, 0.3 and 0.3 is that of 0.2, 0.3 and 0.4."""
    return exact_sum(rewards) / len(rewards)


def mean(rewards: Sequence[float]) -> float:
    """The float nearest to `exact_mean`: where two means are equal, so are these floats."""
    return float(exact_mean(rewards))


def reward_text(reward: float) -> str:
    """A reward in a table: a whole number without decimals, another with two, or more so that it never looks whole."""
    number = canonical(reward)
    return str(int(number)) if number == int(number) else mean_text(number)


def mean_text(mean: float) -> str:
    """A mean of rewards in a table, with two decimals, or more so that it never looks whole where it is not."""
    texts = [f"{mean:.{digits}f}" for digits in range(2, 17)]
    return next((text for text in texts if mean == int(mean) or float(text) != int(float(text))), f"{mean:g}")
