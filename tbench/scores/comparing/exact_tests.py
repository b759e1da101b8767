"""Exact sign and randomisation tests of paired differences, and Holm's adjustment of p values.

If two runs are equally good, the difference of every pair is as likely to be +d as -d. The p of a sum of n differences
is the share of the 2^n ways to choose signs that give a sum as far from 0 or farther (Fisher's randomisation test). For
differences of -1, 0 and 1 it is McNemar's exact test.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

DRAWS = 99_999
"""Random choices of signs if there are too many to count all; fewer if they need more than _MAX_LOOKUPS."""
_MIN_DRAWS, _MAX_LOOKUPS = 9_999, 10_000_000
_MAX_LATTICE_BYTES, _MAX_TOTAL = 1 << 31, 1 << 20
"""Limits of counting on a lattice (bytes to shift and add, sum of all sizes): about a second."""
_PREFER_HALVES, _MAX_HALVES = 20, 36
"""Numbers of differences up to which counting by halves is faster than on a lattice, and is feasible at all."""

PMethod = Literal["exact", "sampled"]


@dataclass(frozen=True, slots=True)
class PValue:
    """The two-sided p of a test."""

    p: float
    method: PMethod = "exact"
    """exact: all choices of signs were counted; sampled: random ones, which are the same every time."""


def sign_test(better: int, worse: int) -> float:
    """Return the exact two-sided p of a sign test, which ignores differences of 0; 1 if all are 0."""
    total = better + worse
    return min(1.0, float(Fraction(2 * _binomial_tail(total, max(better, worse)), 2**total)))


def sign_flip_test(differences: Iterable[Fraction]) -> PValue:
    """Return the two-sided p of a sum of differences under all choices of their signs.

    It is exact if the differences are few, or multiples of a step that is not too small, which is nearly always so.
    Otherwise p = (b + 1) / (m + 1) from m random choices; b of them are at least as far from 0 (Phipson and Smyth
    2010).
    """
    weights = _whole_numbers([each for each in differences if each])
    total, distance = sum(map(abs, weights)), abs(sum(weights))
    sizes = [abs(weight) for weight in weights]
    if distance == 0:
        return PValue(1.0)
    # If X is the sum of the sizes with a plus, the sum of all is 2 X - total, which is symmetric around 0.
    least = (total + distance + 1) // 2
    if total == len(sizes):
        return PValue(float(Fraction(2 * _binomial_tail(total, least), 2**total)))
    is_narrow = total <= _MAX_TOTAL and total * _digit_bytes(sizes) * len(sizes) <= _MAX_LATTICE_BYTES
    if len(sizes) <= (_PREFER_HALVES if is_narrow else _MAX_HALVES):
        count = _count_by_halves(sizes, least)
    elif is_narrow:
        count = _count_on_lattice(sizes, least)
    else:
        return PValue(_sample_p(sizes, total, distance), "sampled")
    return PValue(float(Fraction(2 * count, 2 ** len(sizes))))


def holm(ps: Sequence[float]) -> tuple[float, ...]:
    """Adjust the p values of several tests so that their family-wise error rate is the level (Holm 1979)."""
    adjusted, largest = [0.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[index]))
        adjusted[index] = largest
    return tuple(adjusted)


def _whole_numbers(differences: Sequence[Fraction]) -> list[int]:
    """Return the differences in units of their greatest common divisor."""
    if not differences:
        return []
    scale = math.lcm(*(each.denominator for each in differences))
    whole = [int(each * scale) for each in differences]
    common = math.gcd(*whole)
    return [each // common for each in whole]


def _binomial_tail(total: int, least: int) -> int:
    """Count the subsets of `total` items that have `least` or more of them."""
    count, tail = math.comb(total, least), 0
    for number in range(least, total + 1):
        tail += count
        count = count * (total - number) // (number + 1)
    return tail


def _digit_bytes(sizes: Sequence[int]) -> int:
    """Return the number of bytes that hold a count of choices of signs."""
    return len(sizes) // 8 + 1


def _count_on_lattice(sizes: Sequence[int], least: int) -> int:
    """Count the subsets with a sum of `least` or more.

    The generating function prod (1 + x^size) is evaluated as one integer at x = 2^(8 * bytes of a count), so that
    digit k is the number of subsets with sum k.
    """
    digit = _digit_bytes(sizes)
    product = 1
    for size in sizes:
        product += product << (8 * digit * size)
    tail = (product >> (8 * digit * least)).to_bytes((sum(sizes) - least + 1) * digit, "little")
    return sum(int.from_bytes(tail[start : start + digit], "little") for start in range(0, len(tail), digit))


def _count_by_halves(sizes: Sequence[int], least: int) -> int:
    """Count the subsets with a sum of `least` or more from the subset sums of either half."""
    middle = len(sizes) // 2
    low, high = _subset_sums(sizes[:middle]), _subset_sums(sizes[middle:])
    high.sort()
    return sum(len(high) - bisect_left(high, least - each) for each in low)


def _subset_sums(sizes: Sequence[int]) -> list[int]:
    sums = [0]
    for size in sizes:
        sums += [each + size for each in sums]
    return sums


def _sample_p(sizes: Sequence[int], total: int, distance: int) -> float:
    """Estimate p by random choices of signs, one bit for each size; sums of eight sizes at a time are looked up."""
    tables = [_subset_sums(sizes[start : start + 8]) for start in range(0, len(sizes), 8)]
    masks = [len(table) - 1 for table in tables]
    draw = random.Random(0).randbytes
    draws = max(_MIN_DRAWS, min(DRAWS, _MAX_LOOKUPS // len(tables)))
    farther = 0
    for _ in range(draws):
        drawn = draw(len(tables))
        chosen = sum(table[byte & mask] for table, byte, mask in zip(tables, drawn, masks, strict=True))
        farther += abs(2 * chosen - total) >= distance
    return (farther + 1) / (draws + 1)
