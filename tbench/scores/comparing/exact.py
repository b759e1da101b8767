"""Exact tests of paired differences: whether their signs could as well be the other way round.

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
"""Random choices of signs where all of them are too many; fewer where that took more than _MOST_LOOKUPS."""
_FEWEST_DRAWS, _MOST_LOOKUPS = 9_999, 10_000_000
_MOST_WORK_BYTES, _WIDEST = 1 << 31, 1 << 20
"""Bytes to shift and add, and sums to count, in which all sums are counted: about a second."""
_FEW, _HALVED = 20, 36
"""Differences for which the sums of either half are listed at once, and the most for which they can be."""

Way = Literal["exact", "sampled"]


@dataclass(frozen=True, slots=True)
class PValue:
    """The two-sided p of a test."""

    p: float
    way: Way = "exact"
    """Whether every choice of signs was counted, or many random ones that are the same each time."""


def sign_test(better: int, worse: int) -> float:
    """The exact two-sided p of a sign test; differences of 0 are not counted. 1 where there are no others."""
    total = better + worse
    return min(1.0, float(Fraction(2 * _binomial_tail(total, max(better, worse)), 2**total)))


def sign_flip_test(differences: Iterable[Fraction]) -> PValue:
    """The two-sided p of a sum of differences under all choices of their signs.

    It is exact for rewards that are multiples of a common part, which is nearly always; where neither that nor the
    number of differences allows to count them all, p = (b + 1) / (m + 1) of m random choices, b of them as far or
    farther (Phipson and Smyth 2010).
    """
    weights = _whole_numbers([each for each in differences if each])
    total, far = sum(map(abs, weights)), abs(sum(weights))
    sizes = [abs(weight) for weight in weights]
    if far == 0:
        return PValue(1.0)
    # With X the sum of the sizes that get a plus, the sum of all is 2 X - total, as often above 0 as below.
    least = (total + far + 1) // 2
    if total == len(sizes):
        return PValue(float(Fraction(2 * _binomial_tail(total, least), 2**total)))
    is_narrow = total <= _WIDEST and total * _digit_bytes(sizes) * len(sizes) <= _MOST_WORK_BYTES
    if len(sizes) <= (_FEW if is_narrow else _HALVED):
        count = _count_by_halves(sizes, least)
    elif is_narrow:
        count = _count_on_lattice(sizes, least)
    else:
        return PValue(_sampled(sizes, total, far), "sampled")
    return PValue(float(Fraction(2 * count, 2 ** len(sizes))))


def holm(ps: Sequence[float]) -> tuple[float, ...]:
    """The p values of several tests, adjusted so that all together err once in 20 at 0.05 (Holm 1979)."""
    adjusted, largest = [0.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[index]))
        adjusted[index] = largest
    return tuple(adjusted)


def _whole_numbers(differences: Sequence[Fraction]) -> list[int]:
    """The differences in their largest common part."""
    if not differences:
        return []
    scale = math.lcm(*(each.denominator for each in differences))
    whole = [int(each * scale) for each in differences]
    common = math.gcd(*whole)
    return [each // common for each in whole]


def _binomial_tail(total: int, least: int) -> int:
    """How many subsets of `total` things have `least` or more of them."""
    count, tail = math.comb(total, least), 0
    for number in range(least, total + 1):
        tail += count
        count = count * (total - number) // (number + 1)
    return tail


def _digit_bytes(sizes: Sequence[int]) -> int:
    """Bytes that hold a count of choices of signs."""
    return len(sizes) // 8 + 1


def _count_on_lattice(sizes: Sequence[int], least: int) -> int:
    """How many subsets have a sum of `least` or more.

    The generating function, prod (1 + x^size), is held in one whole number, with x = 2^(8 * bytes of a count): digit k
    is the number of subsets with sum k.
    """
    digit = _digit_bytes(sizes)
    product = 1
    for size in sizes:
        product += product << (8 * digit * size)
    tail = (product >> (8 * digit * least)).to_bytes((sum(sizes) - least + 1) * digit, "little")
    return sum(int.from_bytes(tail[start : start + digit], "little") for start in range(0, len(tail), digit))


def _count_by_halves(sizes: Sequence[int], least: int) -> int:
    """The same from the sums of all subsets of either half."""
    middle = len(sizes) // 2
    low, high = _subset_sums(sizes[:middle]), _subset_sums(sizes[middle:])
    high.sort()
    return sum(len(high) - bisect_left(high, least - each) for each in low)


def _subset_sums(sizes: Sequence[int]) -> list[int]:
    sums = [0]
    for size in sizes:
        sums += [each + size for each in sums]
    return sums


def _sampled(sizes: Sequence[int], total: int, far: int) -> float:
    """p of random choices of signs, one bit for each size; the sums of eight sizes at a time are looked up."""
    tables = [_subset_sums(sizes[start : start + 8]) for start in range(0, len(sizes), 8)]
    masks = [len(table) - 1 for table in tables]
    draw = random.Random(0).randbytes
    draws = max(_FEWEST_DRAWS, min(DRAWS, _MOST_LOOKUPS // len(tables)))
    farther = 0
    for _ in range(draws):
        drawn = draw(len(tables))
        chosen = sum(table[byte & mask] for table, byte, mask in zip(tables, drawn, masks, strict=True))
        farther += abs(2 * chosen - total) >= far
    return (farther + 1) / (draws + 1)
