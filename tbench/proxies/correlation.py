"""Rank correlation of two scores of the same models: Spearman and Kendall, with intervals. Pure functions, no I/O.

A rank correlation measures whether both scores order the models alike, not how far apart they are.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from tbench.scores.intervals import NORMAL_975, quantile
from tbench.scores.statistics import average_ranks

BOOTSTRAP_RESAMPLES = 5_000
MIN_MODELS_FOR_INTERVAL = 10
"""Fewer models have too few orders for resampling, and too few for the normal approximation of Fisher's interval."""

Interval = tuple[float, float]
Coefficient = Callable[[Sequence[float], Sequence[float]], float | None]


@dataclass(frozen=True, slots=True)
class BootstrapInterval:
    """Percentile interval over resamples of models."""

    low: float
    high: float
    resamples: int
    """Resamples in which the coefficient is defined; in the others all models had the same score."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A coefficient from -1 to 1 with 95 % intervals."""

    value: float | None
    """The coefficient; None for fewer than two models, and if one score is the same for all."""
    bootstrap: BootstrapInterval | None
    fisher: Interval | None = None
    """Fisher's interval, for Spearman's coefficient only."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """Both coefficients over `n` models, and notes on missing values and intervals."""

    n: int
    spearman: Estimate
    kendall: Estimate
    notes: tuple[str, ...]


def correlate(xs: Sequence[float], ys: Sequence[float], *, seed: int = 0) -> Correlation:
    """Correlate two scores of the same models, given in the same order.

    The same `seed` gives the same intervals on every machine. Raises ValueError for lists of different length and for
    scores that are not finite.
    """
    if len(xs) != len(ys) or not all(map(math.isfinite, (*xs, *ys))):
        raise ValueError("correlate() needs two lists of finite scores, of the same models in the same order")
    n = len(xs)
    rho, tau = spearman(xs, ys), kendall(xs, ys)
    return Correlation(
        n=n,
        spearman=Estimate(rho, bootstrap(spearman, xs, ys, seed=seed), fisher_interval(rho, n)),
        kendall=Estimate(tau, bootstrap(kendall, xs, ys, seed=seed)),
        notes=_notes(xs, ys, rho),
    )


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Return Pearson's correlation of the average ranks (Spearman 1904); None if all xs or all ys are equal."""
    # Doubled ranks are integers, so that the sums are exact.
    ranks_x, ranks_y = ([round(2 * rank) for rank in average_ranks(values)] for values in (xs, ys))
    n, mean = len(ranks_x), len(ranks_x) + 1
    over_x = sum((rank - mean) ** 2 for rank in ranks_x)
    over_y = sum((rank - mean) ** 2 for rank in ranks_y)
    if n < 2 or not over_x or not over_y:
        return None
    both = sum((x - mean) * (y - mean) for x, y in zip(ranks_x, ranks_y, strict=True))
    return _bounded(both, over_x * over_y)


def kendall(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Return Kendall's tau-b (1945): (C - D) / sqrt((P - T_x)(P - T_y)); None if all xs or all ys are equal.

    Of P = n(n - 1)/2 pairs, C are ordered alike, D in opposite ways, and T_x and T_y are tied in x and y.
    """
    pairs = math.comb(len(xs), 2)
    tied_x, tied_y, tied_both = (_tied_pairs(values) for values in (xs, ys, list(zip(xs, ys, strict=True))))
    if not pairs or tied_x == pairs or tied_y == pairs:
        return None
    # Knight 1966: with models sorted by x, then y, a pair is discordant if a larger y came before.
    seen: list[float] = []
    opposite = 0
    for _, y in sorted(zip(xs, ys, strict=True)):
        opposite += len(seen) - bisect_right(seen, y)
        insort(seen, y)
    ordered = pairs - tied_x - tied_y + tied_both
    return _bounded(ordered - 2 * opposite, (pairs - tied_x) * (pairs - tied_y))


def bootstrap(
    coefficient: Coefficient,
    xs: Sequence[float],
    ys: Sequence[float],
    *,
    resamples: int = BOOTSTRAP_RESAMPLES,
    seed: int = 0,
) -> BootstrapInterval | None:
    """Return the interval over resamples of models, drawn with replacement.

    None for fewer than 10 models, and if the coefficient is undefined.
    """
    n = len(xs)
    if n < MIN_MODELS_FOR_INTERVAL or coefficient(xs, ys) is None:
        return None
    draw = random.Random(seed).choices
    values = []
    for _ in range(resamples):
        drawn = draw(range(n), k=n)
        value = coefficient([xs[i] for i in drawn], [ys[i] for i in drawn])
        if value is not None:
            values.append(value)
    if not values:
        return None
    values.sort()
    return BootstrapInterval(quantile(values, 0.025), quantile(values, 0.975), len(values))


def fisher_interval(rho: float | None, n: int) -> Interval | None:
    """Return the 95 % interval of Spearman's coefficient: atanh(rho) ± 1.96 sqrt((1 + rho²/2) / (n - 3)), then tanh.

    The variance is Bonett and Wright's (2000). None for fewer than 10 models, and at ±1, where it is undefined.
    """
    if rho is None or n < MIN_MODELS_FOR_INTERVAL or abs(rho) >= 1.0:
        return None
    centre, half = math.atanh(rho), NORMAL_975 * math.sqrt((1 + rho * rho / 2) / (n - 3))
    return math.tanh(centre - half), math.tanh(centre + half)


def _notes(xs: Sequence[float], ys: Sequence[float], rho: float | None) -> tuple[str, ...]:
    n = len(xs)
    if n < 2:
        return (f"undefined: {n} {'model' if n == 1 else 'models'} on both sides; two are needed",)
    notes = [
        f"undefined: all {n} {side} scores are equal"
        for side, values in (("proxy", xs), ("executed", ys))
        if len(set(values)) == 1
    ]
    if rho is not None and n < MIN_MODELS_FOR_INTERVAL:
        notes.append(f"no interval: {n} models are too few; {MIN_MODELS_FOR_INTERVAL} are needed")
    elif rho is not None and abs(rho) >= 1.0:
        notes.append("no interval by Fisher's z at ±1")
    return tuple(notes)


def _bounded(numerator: int, square: int) -> float:
    """Return numerator / sqrt(square), limited to exactly ±1."""
    if numerator * numerator >= square:
        return math.copysign(1.0, numerator)
    return numerator / math.sqrt(square)


def _tied_pairs(values: Sequence[Hashable]) -> int:
    return sum(math.comb(count, 2) for count in Counter(values).values())
