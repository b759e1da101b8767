"""Arithmetic of rewards without float noise: comparison with 1, sums, means and formatting.

Verifiers write computed numbers such as 0.7 + 0.2 + 0.1, which is 0.9999999999999999. Files keep these numbers; code
that compares, counts or shows rewards uses these functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache

_FINEST = 10**6
"""Rewards that are not simple fractions are rounded to multiples of 1 / _FINEST."""
_LARGEST = 1e15
"""Largest absolute value with digits left for float noise; anything larger, or NaN, is not a reward."""
_DOUBLE = 1e-12
"""Largest error of a computation in double precision; relative for numbers above 1."""
_NOISE = ((1, 1e-6), (100, 2.5e-7), (1_000, 6e-8), (10_000, _DOUBLE))
"""Pairs of a largest denominator and an error: for long sums, short sums and numbers in single precision, and doubles.

Two such fractions, or a fraction and a number with four decimals, are always further apart than these errors.
"""


@lru_cache(maxsize=1 << 16)
def as_fraction(reward: float) -> Fraction:
    """Return the exact number behind a reward: a simple fraction within float noise, or else six decimals.

    0.1 + 0.2 is 3/10, a third in single precision is 1/3, and 0.99999994 is 1, but 0.999999 is not.
    """
    # Rounded twice, so that noise does not decide about a number halfway between two steps.
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
    """Yield the convergents of a number's continued fraction, each closer and with a larger denominator."""
    above, below = float(number).as_integer_ratio()
    p, p_before, q, q_before = 1, 0, 0, 1
    while below:
        whole = above // below
        above, below = below, above - whole * below
        p, p_before, q, q_before = whole * p + p_before, p, whole * q + q_before, q
        yield p, q


@lru_cache(maxsize=1 << 16)
def canonical(reward: float) -> float:
    """Return a reward without float noise: rewards that differ only by noise become equal."""
    return float(as_fraction(reward)) if abs(reward) <= _LARGEST else reward


def is_solved(reward: float) -> bool:
    """Whether a reward solves the task: it is at least 1, apart from float noise."""
    return reward >= 1.0 or (reward > 0.999 and canonical(reward) >= 1.0)


def exact_sum(rewards: Iterable[float | Fraction]) -> Fraction:
    """Return the sum of rewards, each without float noise."""
    given = list(rewards)
    if not any(isinstance(each, Fraction) for each in given):
        steps = [round(each * _FINEST) for each in given]
        if all(step / _FINEST == each for step, each in zip(steps, given, strict=True)):
            return Fraction(sum(steps), _FINEST)
    parts = [each if isinstance(each, Fraction) else as_fraction(each) for each in given]
    common = math.lcm(*(part.denominator for part in parts))  # much faster than adding fractions one by one
    return Fraction(sum(part.numerator * (common // part.denominator) for part in parts), common)


def exact_mean(rewards: Sequence[float]) -> Fraction:
    """Return the mean of rewards, each without float noise: (0.3, 0.3, 0.3) and (0.2, 0.3, 0.4) have equal means."""
    return _mean_of_few(tuple(rewards)) if len(rewards) <= _FEW else exact_sum(rewards) / len(rewards)


_FEW = 8
"""Number of rewards up to which means are cached: most tasks and runs have the same few rewards."""


@lru_cache(maxsize=1 << 12)
def _mean_of_few(rewards: tuple[float, ...]) -> Fraction:
    return exact_sum(rewards) / len(rewards)


def mean(rewards: Sequence[float]) -> float:
    """Return `exact_mean` as the nearest float: equal means give equal floats."""
    return float(exact_mean(rewards))


def reward_text(reward: float) -> str:
    """Format a reward: whole numbers without decimals, others with two or as many as needed to not look whole."""
    number = canonical(reward)
    return str(int(number)) if number == int(number) else mean_text(number)


def mean_text(mean: float) -> str:
    """Format a mean of rewards with two decimals, or more if it would look whole but is not."""
    texts = [f"{mean:.{digits}f}" for digits in range(2, 17)]
    return next((text for text in texts if mean == int(mean) or float(text) != int(float(text))), f"{mean:g}")
