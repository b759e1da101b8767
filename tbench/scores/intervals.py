"""Confidence intervals of a mean over tasks: Korn-Graubard for rewards from 0 to 1, else a bootstrap.

A 95 % bootstrap interval is too narrow if few tasks carry the variance: it covers 40 to 50 % at 2 tasks, and little
more at 30 tasks if hardly any is ever solved. If every task is solved its width is 0.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from statistics import fmean, stdev, variance
from typing import Literal, NamedTuple

BOOTSTRAP_RESAMPLES = 20_000
BOOTSTRAP_MIN_TASKS = 30
_MIN_EFFECTIVE = 10.0
"""Smallest effective number of values (n / kurtosis) for a bootstrap."""
_MAX_DENOMINATOR = 1000
"""Largest d for which rewards are recognised as multiples of 1/d."""
_MAX_PRODUCTS = 2_000_000
"""Multiplications (some 0.2 s) up to which a bootstrap is exact; beyond, drawing resamples is as fast."""
_ASYMPTOTIC_FROM = 2000
"""Number of values from which the asymptotic distribution is more accurate than 20,000 resamples."""
NORMAL_975 = 1.959963984540054
_BISECTIONS = 50
_MAX_TERMS = 10_000

IntervalMethod = Literal["bootstrap", "korn-graubard", "bonett-price"]


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Standard error and percentile interval of a mean under resampling."""

    se: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % interval of a mean over tasks, or of a mean difference."""

    low: float
    high: float
    method: IntervalMethod


def interval_95(means: Sequence[float]) -> Interval | None:
    """Return the 95 % interval of the mean of task means, over other tasks of the same kind.

    None for a single task, and for rewards outside 0 to 1 that do not suffice for a bootstrap.
    """
    if len(means) < 2:
        return None
    if min(means) >= 0.0 and max(means) <= 1.0:
        return korn_graubard_95(means)
    if not can_be_resampled(means):
        return None
    resampled = bootstrap(means)
    return Interval(resampled.low, resampled.high, "bootstrap")


def korn_graubard_95(means: Sequence[float]) -> Interval:
    """Return the Clopper-Pearson interval of a proportion at the effective sample size of n means within 0 to 1.

    n_eff = m (1 - m) / (s^2 / n) * (z / t_{n-1})^2, with m their mean and s^2 their variance (Korn and Graubard 1998,
    "Confidence intervals for proportions with small expected number of positive counts estimated from survey data"). If
    the means hardly differ, s^2 misses rare exceptions, and n_eff exceeds n. Then s^2 is computed with two more means,
    0 and 1, but n_eff is not reduced below n.
    """
    n, mean = len(means), fmean(means)
    most = n * mean * (1.0 - mean) * (NORMAL_975 / student_t_975(n - 1)) ** 2
    size = max(n, most / variance([*means, 0.0, 1.0]))
    if most > 0.0 and (spread := variance(means)) > 0.0:
        size = min(size, most / spread)
    solved = mean * size
    low = 0.0 if solved <= 0.0 else beta_quantile(0.025, solved, size - solved + 1.0)
    high = 1.0 if solved >= size else beta_quantile(0.975, solved + 1.0, size - solved)
    return Interval(low, high, "korn-graubard")


def can_be_resampled(values: Sequence[float]) -> bool:
    """Whether values suffice for a bootstrap of their mean: at least 30, and an effective number above 10.

    The effective number is n / kurtosis: n if all are equally far from the mean, 1 if a single one differs.
    """
    mean = fmean(values)
    squares = [(value - mean) ** 2 for value in values]
    fourth = math.fsum(square * square for square in squares)
    return len(values) >= BOOTSTRAP_MIN_TASKS and math.fsum(squares) ** 2 > _MIN_EFFECTIVE * fourth


def bootstrap(values: Sequence[float]) -> Bootstrap:
    """Bootstrap a mean: exactly, as with infinitely many resamples, where that is feasible, else by drawing.

    Sums of rewards that are multiples of a step, such as means over a few seeds, take few values, whose probabilities
    can be computed.
    """
    if len(values) >= _ASYMPTOTIC_FROM:
        return _asymptotic_bootstrap(values)
    lattice = _as_lattice(values)
    return bootstrap_mean(values) if lattice is None else _exact_bootstrap(*lattice)


def _asymptotic_bootstrap(values: Sequence[float]) -> Bootstrap:
    """Approximate the bootstrap of many values by a normal distribution with skewness (Cornish-Fisher)."""
    count, mean = len(values), fmean(values)
    se = math.sqrt(math.fsum((value - mean) ** 2 for value in values)) / count
    skewed = 0.0 if se == 0.0 else math.fsum((value - mean) ** 3 for value in values) / (count * se) ** 3
    middle = mean + se * skewed * (NORMAL_975**2 - 1.0) / 6.0
    return Bootstrap(se, middle - se * NORMAL_975, middle + se * NORMAL_975)


class _Lattice(NamedTuple):
    """Values `low + step * number`, as counts by number."""

    counts: Counter[int]
    low: float
    step: float


def _as_lattice(values: Sequence[float]) -> _Lattice | None:
    """Return the values in the coarsest steps 1/d that fit all of them; None if an exact bootstrap would be slow."""
    low, span, count = min(values), max(values) - min(values), len(values)
    distinct = {value - low for value in values}
    for denominator in range(1, _MAX_DENOMINATOR + 1):
        if count * count * span * denominator * len(distinct) > _MAX_PRODUCTS:
            return None
        if all(abs(each * denominator - round(each * denominator)) < 1e-9 for each in distinct):
            return _Lattice(Counter(round((value - low) * denominator) for value in values), low, 1.0 / denominator)
    return None


def _exact_bootstrap(counts: Counter[int], low: float, step: float) -> Bootstrap:
    """Compute the distribution of the sum of n draws with replacement from n values by n convolutions."""
    size = counts.total()
    shares = [(number, count / size) for number, count in counts.items()]
    longest = max(counts)
    sums = [1.0]
    for _ in range(size):
        longer = [0.0] * (len(sums) + longest)
        for number, share in shares:
            for at, chance in enumerate(sums, number):
                longer[at] += share * chance
        sums = longer
    mean = sum(number * share for number, share in shares)
    spread = sum((number - mean) ** 2 * share for number, share in shares)
    ends = (low + step * _quantile_of_counts(sums, q) / size for q in (0.025, 0.975))
    return Bootstrap(step * math.sqrt(spread / size), *ends)


def _quantile_of_counts(chances: Sequence[float], q: float) -> int:
    """Return the smallest number whose cumulative chance is at least `q`."""
    total = 0.0
    for number, chance in enumerate(chances):
        total += chance
        if total >= q - 1e-12:
            return number
    return len(chances) - 1


def bootstrap_mean(values: Sequence[float], *, resamples: int = BOOTSTRAP_RESAMPLES) -> Bootstrap:
    """Resample the values with replacement; return the sample std and 95 % percentile interval of the means.

    The interval is the same on every machine. Percentiles interpolate linearly between order statistics.
    """
    draw = random.Random(0).choices
    count = len(values)
    means = sorted(math.fsum(draw(values, k=count)) / count for _ in range(resamples))
    tail = (1.0 - 0.95) / 2.0
    return Bootstrap(se=stdev(means), low=quantile(means, tail), high=quantile(means, 1.0 - tail))


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return the `q`-quantile (0 to 1) of sorted values, interpolated linearly between order statistics."""
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


@cache
def student_t_975(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t. With x = v / (v + t^2), the tail above t is I_x(v/2, 1/2) / 2."""
    x = _bisect(lambda x: incomplete_beta(degrees / 2.0, 0.5, x) - 0.05)
    return math.sqrt(degrees * (1.0 - x) / x)


@lru_cache(maxsize=4096)  # nights of a benchmark often solve equally many of equally many tasks
def beta_quantile(q: float, a: float, b: float) -> float:
    """Return the `q`-quantile of the beta distribution."""
    return _bisect(lambda x: incomplete_beta(a, b, x) - q)


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Compute the regularised incomplete beta function I_x(a, b) by its continued fraction (DLMF 8.17.22)."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1.0) / (a + b + 2.0):  # the fraction converges slowly
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / a / _beta_fraction(a, b, x)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Evaluate 1 + d1 / (1 + d2 / (1 + ...)) by the modified Lentz algorithm until it converges."""
    value = c = 1.0
    d = 0.0
    for number in range(1, _MAX_TERMS):
        m = number // 2
        if number % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1.0 / _nonzero(1.0 + term * d)
        c = _nonzero(1.0 + term / c)
        value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value


def _nonzero(number: float) -> float:
    return number or 1e-300


def _bisect(rising: Callable[[float], float]) -> float:
    """Return the zero in 0 to 1 of an increasing function."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if rising(middle) < 0.0 else (low, middle)
    return (low + high) / 2.0
