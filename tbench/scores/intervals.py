"""Confidence intervals of a mean over tasks: for rewards from 0 to 1 one that keeps what it promises, else resampling.

A bootstrap promises too much where few tasks carry the variance, however many there are: of 95 % it covers 40 to 50 at
2 tasks, and 30 tasks of which hardly any is ever solved are no better. With every task solved it has no width.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev, variance
from typing import Literal, NamedTuple

BOOTSTRAP_RESAMPLES = 20_000
SMALL = 30
"""Tasks from which on there may be a bootstrap."""
_FEW_VARYING = 10.0
"""Tasks that the variance comes of, below which a bootstrap has too little to draw from."""
_FINEST = 1000
"""Steps of rewards down to 1/1000 are looked for."""
_MOST_PRODUCTS = 2_000_000
"""Products of an exact bootstrap, some 0.2 s, beyond which drawing is as fast."""
_MANY = 2000
"""Values from which on a bootstrap is taken from its limit, which is nearer to it than 20,000 draws are."""
_NORMAL_975 = 1.959963984540054
_HALVINGS = 50
_MOST_TERMS = 10_000

IntervalMethod = Literal["bootstrap", "korn-graubard"]


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Standard error and percentile interval of a mean under resampling."""

    se: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % interval of a mean over tasks."""

    low: float
    high: float
    method: IntervalMethod


def interval_95(means: Sequence[float]) -> Interval | None:
    """The 95 % interval of the mean of task means, for other tasks of the same kind.

    None for a single task, and for rewards outside of 0 to 1 that a bootstrap is not good for.
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
    """The Clopper-Pearson interval of a share, at the effective sample size of n means in 0 to 1.

    n_eff = m (1 - m) / (s^2 / n) * (z / t_{n-1})^2, with m their mean and s^2 their variance (Korn and Graubard 1998,
    "Confidence intervals for proportions with small expected number of positive counts estimated from survey data").
    Means that hardly differ say nothing of the rare task that is solved, or not, against the rule. Where n_eff is
    above n, s^2 is therefore that of the n and two more, at 0 and 1, as far as n_eff stays above n.
    """
    n, mean = len(means), fmean(means)
    most = n * mean * (1.0 - mean) * (_NORMAL_975 / student_t_975(n - 1)) ** 2
    size = max(n, most / variance([*means, 0.0, 1.0]))
    if most > 0.0 and (spread := variance(means)) > 0.0:
        size = min(size, most / spread)
    solved = mean * size
    low = 0.0 if solved <= 0.0 else beta_quantile(0.025, solved, size - solved + 1.0)
    high = 1.0 if solved >= size else beta_quantile(0.975, solved + 1.0, size - solved)
    return Interval(low, high, "korn-graubard")


def can_be_resampled(values: Sequence[float]) -> bool:
    """Whether a bootstrap of the mean has enough to draw from: 30 values, 10 of which the variance comes of.

    These are n / kurtosis: n where all are as far from the mean, 1 where a single one is off it.
    """
    mean = fmean(values)
    squares = [(value - mean) ** 2 for value in values]
    fourth = math.fsum(square * square for square in squares)
    return len(values) >= SMALL and math.fsum(squares) ** 2 > _FEW_VARYING * fourth


def bootstrap(values: Sequence[float]) -> Bootstrap:
    """The bootstrap of a mean: exactly, as with resamples without end, where the values allow that, else drawn.

    Rewards that are multiples of a step, such as shares of a few seeds, have sums of few values, whose probabilities
    are counted out.
    """
    if len(values) >= _MANY:
        return _limit_of_bootstrap(values)
    steps = _as_steps(values)
    return bootstrap_mean(values) if steps is None else _exact_bootstrap(*steps)


def _limit_of_bootstrap(values: Sequence[float]) -> Bootstrap:
    """The normal distribution that the bootstrap of many values comes to, with its skewness (Cornish-Fisher)."""
    count, mean = len(values), fmean(values)
    se = math.sqrt(math.fsum((value - mean) ** 2 for value in values)) / count
    skewed = 0.0 if se == 0.0 else math.fsum((value - mean) ** 3 for value in values) / (count * se) ** 3
    middle = mean + se * skewed * (_NORMAL_975**2 - 1.0) / 6.0
    return Bootstrap(se, middle - se * _NORMAL_975, middle + se * _NORMAL_975)


class _Steps(NamedTuple):
    """Values as `low + step * number`, by how many there are of each number."""

    counts: Counter[int]
    low: float
    step: float


def _as_steps(values: Sequence[float]) -> _Steps | None:
    """The values in the coarsest steps 1/d that all of them fit; None where counting all sums out would take long."""
    low, span, count = min(values), max(values) - min(values), len(values)
    distinct = {value - low for value in values}
    for denominator in range(1, _FINEST + 1):
        if count * count * span * denominator * len(distinct) > _MOST_PRODUCTS:
            return None
        if all(abs(each * denominator - round(each * denominator)) < 1e-9 for each in distinct):
            return _Steps(Counter(round((value - low) * denominator) for value in values), low, 1.0 / denominator)
    return None


def _exact_bootstrap(counts: Counter[int], low: float, step: float) -> Bootstrap:
    """The distribution of the sum of n draws with replacement from n values, by n convolutions of positive terms."""
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
    ends = (low + step * _reached(sums, q) / size for q in (0.025, 0.975))
    return Bootstrap(step * math.sqrt(spread / size), *ends)


def _reached(chances: Sequence[float], q: float) -> int:
    """The smallest number up to which the chances come to `q`."""
    total = 0.0
    for number, chance in enumerate(chances):
        total += chance
        if total >= q - 1e-12:
            return number
    return len(chances) - 1


def bootstrap_mean(
    values: Sequence[float], *, resamples: int = BOOTSTRAP_RESAMPLES, seed: int = 0, level: float = 0.95
) -> Bootstrap:
    """Resample the values with replacement; sample std and percentile interval of the means.

    The same `seed` gives the same interval on every machine. Percentiles interpolate linearly between order
    statistics. Raises ValueError for fewer than 2 resamples or a level outside (0, 1).
    """
    if resamples < 2 or not 0.0 < level < 1.0:
        raise ValueError("bootstrap needs at least 2 resamples and a level between 0 and 1")
    draw = random.Random(seed).choices
    count = len(values)
    means = sorted(math.fsum(draw(values, k=count)) / count for _ in range(resamples))
    tail = (1.0 - level) / 2.0
    return Bootstrap(se=stdev(means), low=quantile(means, tail), high=quantile(means, 1.0 - tail))


def quantile(ordered: Sequence[float], q: float) -> float:
    """The `q`-quantile (0 to 1) of sorted values, interpolated linearly between order statistics."""
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


@cache
def student_t_975(degrees: int) -> float:
    """The 97.5 % quantile of Student's t. With x = v / (v + t^2), the tail above t is I_x(v/2, 1/2) / 2."""
    x = _root(lambda x: incomplete_beta(degrees / 2.0, 0.5, x) - 0.05)
    return math.sqrt(degrees * (1.0 - x) / x)


def beta_quantile(q: float, a: float, b: float) -> float:
    """The `q`-quantile of the beta distribution."""
    return _root(lambda x: incomplete_beta(a, b, x) - q)


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22)."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1.0) / (a + b + 2.0):  # else it converges slowly
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / a / _beta_fraction(a, b, x)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """1 + d1 / (1 + d2 / (1 + ...)), from the outside in (Lentz), until a further term changes nothing."""
    value = c = 1.0
    d = 0.0
    for number in range(1, _MOST_TERMS):
        m = number // 2
        if number % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1.0 / _not_zero(1.0 + term * d)
        c = _not_zero(1.0 + term / c)
        value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value


def _not_zero(number: float) -> float:
    return number or 1e-300


def _root(rising: Callable[[float], float]) -> float:
    """Where a function that rises over 0 to 1 is 0."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if rising(middle) < 0.0 else (low, middle)
    return (low + high) / 2.0
