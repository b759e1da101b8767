"""Tests that compare two groups of trials task by task, and the adjustment of p values for many tests.

Within a task, the trials of both groups are exchangeable if nothing has changed. Tasks differ, so only trials of the
same task are compared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from tbench.scores.comparing.exact_tests import holm
from tbench.scores.statistics import average_ranks

Way = Literal["exact", "normal"]
_MAX_SUMS = 4000
"""Largest possible sum over all tasks for which the distribution of the sum is computed exactly."""
_MAX_TRIALS = 120
"""Trials of a task up to which the distribution of a sum of partial rewards is computed exactly."""
_LEVELS = 20
"""Steps into which partial rewards are rounded in the test (not in the points)."""


@dataclass(frozen=True, slots=True)
class TwoSample:
    """The result of a test within tasks."""

    p: float
    """Two-sided p: twice the smaller tail, at most 1."""
    least_p: float
    """Lowest possible p of the test for any outcome; 0 if unknown."""
    way: Way = "exact"


@dataclass(frozen=True, slots=True)
class Stratum:
    """The values of one task in the two groups."""

    first: Sequence[float]
    second: Sequence[float]


def sums_test(strata: Iterable[Stratum]) -> TwoSample:
    """Test whether values are higher or lower in the second group than in the first, within tasks.

    The p is exact over all exchanges of trials within tasks: for values of 0 and 1 a test of Mantel and Haenszel, for a
    single task Fisher's. If the exchanges are too many to count, a normal approximation with the exact variance.
    """
    useful = [each for each in strata if each.first and each.second and len({*each.first, *each.second}) > 1]
    if not useful:
        return TwoSample(1.0, 1.0)
    whole = [_as_levels(each) for each in useful]
    most = sum(sum(sorted((*a, *b))[-len(b) :]) for a, b in whole)
    if most > _MAX_SUMS or any(len(a) + len(b) > _MAX_TRIALS and max(*a, *b) > 1 for a, b in whole):
        return _by_normal(whole)
    chances, observed = [1.0], 0
    for first, second in whole:
        chances = _convolve(chances, _chances_of_sum(first, second))
        observed += sum(second)
    lower, upper = math.fsum(chances[: observed + 1]), math.fsum(chances[observed:])
    possible = [chance for chance in chances if chance > 0.0]
    return TwoSample(min(1.0, 2 * min(lower, upper)), min(1.0, 2 * min(possible[0], possible[-1])))


def _as_levels(stratum: Stratum) -> tuple[list[int], list[int]]:
    """Return the values as whole numbers from 0: 0 and 1 if there are only two, else up to `_LEVELS`."""
    known = {*stratum.first, *stratum.second}
    low, high = min(known), max(known)
    levels = 1 if len(known) == 2 else _LEVELS
    return (
        [round(levels * (each - low) / (high - low)) for each in stratum.first],
        [round(levels * (each - low) / (high - low)) for each in stratum.second],
    )


def _chances_of_sum(first: Sequence[int], second: Sequence[int]) -> list[float]:
    """Return the chance of each sum of the second group when trials of both groups are exchanged at random."""
    values, drawn = [*first, *second], len(second)
    every = math.comb(len(values), drawn)
    if max(values) == 1:
        ones = sum(values)
        return [
            math.comb(ones, count) * math.comb(len(values) - ones, drawn - count) / every
            if drawn - count <= len(values) - ones
            else 0.0
            for count in range(min(ones, drawn) + 1)
        ]
    ways: list[Counter[int]] = [Counter({0: 1}), *(Counter[int]() for _ in range(drawn))]
    for value in values:
        for size in range(drawn, 0, -1):
            for total, number in ways[size - 1].items():
                ways[size][total + value] += number
    return [ways[drawn][total] / every for total in range(max(ways[drawn]) + 1)]


def _convolve(first: Sequence[float], second: Sequence[float]) -> list[float]:
    result = [0.0] * (len(first) + len(second) - 1)
    for at, chance in enumerate(second):
        if chance:
            for place, other in enumerate(first):
                result[at + place] += chance * other
    return result


def _by_normal(whole: Sequence[tuple[list[int], list[int]]]) -> TwoSample:
    excess = spread = 0.0
    for first, second in whole:
        values, drawn = [*first, *second], len(second)
        count, mean = len(values), math.fsum(values) / len(values)
        squares = math.fsum((each - mean) ** 2 for each in values)
        excess += sum(second) - drawn * mean
        spread += len(first) * drawn * squares / (count * (count - 1))
    return TwoSample(_two_sided(max(0.0, abs(excess) - 0.5), spread), 0.0, "normal")


def _two_sided(distance: float, variance: float) -> float:
    return 2 * NormalDist().cdf(-distance / math.sqrt(variance)) if variance > 0.0 else 1.0


def ranks_test(strata: Iterable[Stratum]) -> TwoSample:
    """Test whether values tend to be higher or lower in the second group: Wilcoxon's rank sums added over tasks.

    A normal approximation with the exact variance, ties included (van Elteren 1960, with equal weights).
    """
    excess = spread = 0.0
    for each in strata:
        if not each.first or not each.second:
            continue
        ranks = average_ranks([*each.first, *each.second])
        count, drawn = len(ranks), len(each.second)
        mean = (count + 1) / 2
        excess += math.fsum(ranks[len(each.first) :]) - drawn * mean
        if count > 1:
            squares = math.fsum((rank - mean) ** 2 for rank in ranks)
            spread += len(each.first) * drawn * squares / (count * (count - 1))
    return TwoSample(_two_sided(abs(excess), spread), 0.0 if spread else 1.0, "normal")


def adjusted(tests: Sequence[TwoSample], level: float) -> list[float]:
    """Return the p values adjusted for many tests (Holm 1979); tests that cannot reach `level` do not count.

    A test does not count, and gets 1, if its lowest possible p is above `level` / K, for the smallest K for which at
    most K tests remain (Tarone 1990). The chance that any test without a real difference gets a value of at most
    `level` is at most `level`.
    """
    count = next(
        (size for size in range(1, len(tests) + 1) if sum(each.least_p <= level / size for each in tests) <= size),
        len(tests),
    )
    able = [at for at, each in enumerate(tests) if each.least_p <= level / count]
    values = [1.0] * len(tests)
    for at, p in zip(able, holm([tests[at].p for at in able]), strict=True):
        values[at] = p
    return values
