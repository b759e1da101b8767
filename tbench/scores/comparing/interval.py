"""The 95 % interval of a mean difference over tasks, also where tasks are few or hardly any of them differs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tbench.scores.intervals import bootstrap, can_be_resampled, student_t_975

Method = Literal["bootstrap", "bonett-price"]


@dataclass(frozen=True, slots=True)
class DifferenceInterval:
    """A 95 % interval of a mean difference, as fractions."""

    low: float
    high: float
    method: Method


@lru_cache(maxsize=128)
def difference_interval_95(differences: tuple[float, ...]) -> DifferenceInterval | None:
    """The 95 % interval of the mean of differences, one per task, for other tasks of the same kind.

    A bootstrap over tasks where it has enough to draw from; else `bonett_price_95`, which has no width of 0 where all
    are equal. None for a single task, and where a bootstrap has too little and some task differs by more than 1.
    """
    if len(differences) < 2:
        return None
    if can_be_resampled(differences):
        drawn = bootstrap(differences)
        return DifferenceInterval(drawn.low, drawn.high, "bootstrap")
    if max(map(abs, differences)) > 1.0:
        return None
    return bonett_price_95(differences)


def bonett_price_95(differences: Sequence[float]) -> DifferenceInterval:
    """The adjusted Wald interval of a mean of n differences within -1 to 1: with one more of 1 and one more of -1.

    m +- t_{n+1} sqrt(v / (n + 2)), with mean m and variance v of the n + 2 values (Bonett and Price 2012, "Adjusted
    Wald confidence interval for a difference of binomial proportions based on paired data", there with the normal
    quantile). With Student's its simulated coverage is 95 % or more from 2 tasks on.
    """
    count = len(differences) + 2
    mean = math.fsum(differences) / count
    variance = (math.fsum(each * each for each in differences) + 2.0) / count - mean * mean
    half = student_t_975(count - 1) * math.sqrt(variance / count)
    return DifferenceInterval(max(-1.0, mean - half), min(1.0, mean + half), "bonett-price")
