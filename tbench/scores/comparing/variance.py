"""The error of a difference, apart by where it comes from: noise within tasks, and tasks that are not alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance

from harness.trajectory import Frozen


class VarianceParts(Frozen):
    """Variance of the difference between two runs at one seed, in squared fractions.

    SE^2 over other tasks = (between + within / S) / T; over these very tasks = within / (S T).
    """

    tasks: int
    seeds: int
    within: float
    """Mean over tasks of the variance over seeds of r_b[t,s] - r_a[t,s]: more seeds take it away."""
    between: float
    """Variance over tasks of the true difference, var_t(D_t) - within / S, not below 0: only more tasks help."""

    def se(self, seeds: float | None = None, *, between: bool = True) -> float:
        """The standard error with so many seeds: over other tasks of their kind, or without `between` over these."""
        of_tasks = self.between if between else 0.0
        return math.sqrt((of_tasks + self.within / (seeds or self.seeds)) / self.tasks)

    @property
    def se_these_tasks(self) -> float:
        """The standard error for these very tasks: how far another run of both over them would move."""
        return self.se(between=False)

    @property
    def se_any_seeds(self) -> float:
        """What is left of the standard error over other tasks with however many seeds."""
        return math.sqrt(self.between / self.tasks)

    @property
    def share_within(self) -> float | None:
        """The part of the squared error that is noise within tasks; None without any error."""
        total = self.se() ** 2
        return self.se_these_tasks**2 / total if total > 0.0 else None


def variance_parts(pairs: Sequence[Sequence[float]]) -> VarianceParts | None:
    """The parts from the differences of pairs, one row per task; None for a single seed or a single task."""
    seeds = len(pairs[0])
    if seeds < 2 or len(pairs) < 2:
        return None
    within = fmean(variance(row) for row in pairs)
    between = max(0.0, variance([fmean(row) for row in pairs]) - within / seeds)
    return VarianceParts(tasks=len(pairs), seeds=seeds, within=within, between=between)
