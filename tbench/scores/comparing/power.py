"""How many seeds it takes to see a difference, and when no number of them can.

Of T tasks with S seeds each, W is the variance within tasks of the difference at one seed, B the variance over tasks of
the true difference, d the mean difference to be seen with the chance `power` (z_b its normal quantile) at a two-sided
level (z_a). A test rejects where the mean of T differences is z_a times what it would be by chance signs:

- over these very tasks, by the signs of all pairs: d >= (z_a sqrt(W + B + d^2) + z_b sqrt(W)) / sqrt(S T) + 1 / (S T);
- over other tasks of the same kind, by the signs of tasks:
  d >= (z_a sqrt(B + d^2 + W/S) + z_b sqrt(B + W/S)) / sqrt(T) + 1 / (S T).

At S = 1 these are the formula for McNemar's test (Connor 1987, "Sample size for testing differences in proportions for
the paired-sample design") with a correction for continuity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist, fmean, variance
from typing import Literal

from harness.trajectory import Frozen
from tbench.scores.comparing.side import Side
from tbench.scores.comparing.variance import VarianceParts
from tbench.scores.statistics import RewardTable, score, task_means

MOST_SEEDS = 10_000
"""Beyond it, no number of seeds is a plan."""
LEVEL = 0.05
Where = Literal["these tasks", "other tasks"]


class PowerPlan(Frozen):
    """What seeds can see, given the noise of runs that exist."""

    parts: VarianceParts
    is_pair: bool
    """Whether the parts come of two runs; of one alone `between` is not known, and is 0 here."""
    is_bound: bool = False
    """Whether `within` is the most that it can be, as from a single seed."""

    def is_seen(self, difference: float, power: float, seeds: float, where: Where, tasks: float | None = None) -> bool:
        """Whether a mean difference is seen with so many seeds, and on so many tasks."""
        return difference >= self._least(difference, power, seeds, where, tasks or self.parts.tasks)

    def seeds_for(self, difference: float, power: float, where: Where) -> int | None:
        """The fewest seeds that see a difference; None where MOST_SEEDS do not."""
        return _fewest(lambda seeds: self.is_seen(difference, power, seeds, where), MOST_SEEDS)

    def tasks_for(self, difference: float, power: float, seeds: float) -> int | None:
        """The fewest tasks of the same kind on which so many seeds see a difference; None where a million do not."""
        return _fewest(lambda tasks: self.is_seen(difference, power, seeds, "other tasks", tasks), 1_000_000)

    def seen_with(self, seeds: float, power: float, where: Where) -> float | None:
        """The smallest mean difference that so many seeds see; None where not even 1 is seen."""
        if not self.is_seen(1.0, power, seeds, where):
            return None
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2.0
            low, high = (low, middle) if self.is_seen(middle, power, seeds, where) else (middle, high)
        return high

    def _least(self, difference: float, power: float, seeds: float, where: Where, tasks: float) -> float:
        at_level, at_power = NormalDist().inv_cdf(1.0 - LEVEL / 2.0), NormalDist().inv_cdf(power)
        within, between = self.parts.within, self.parts.between
        by_chance = between + difference**2 + (within if where == "these tasks" else within / seeds)
        spread = within if where == "these tasks" else between + within / seeds
        pairs = seeds * tasks if where == "these tasks" else tasks
        return (at_level * math.sqrt(by_chance) + at_power * math.sqrt(spread)) / math.sqrt(pairs) + 1.0 / (
            seeds * tasks
        )


def plan_of_one(table: RewardTable) -> PowerPlan:
    """The plan from one run, for a second one that is as noisy and independent of it.

    W is twice the mean variance of a task's rewards; at a single seed it is at most 2 p (1 - p) with p the score, for
    rewards within 0 to 1.
    """
    means = task_means(table)
    seeds = len(table.seeds)
    if seeds > 1:
        rows = [[reward or 0.0 for reward in row] for row in table.rows]
        within = 2.0 * fmean(variance(row) for row in rows)
    else:
        mean = min(1.0, max(0.0, score(table)))
        within = 2.0 * mean * (1.0 - mean)
    parts = VarianceParts(tasks=len(means), seeds=seeds, within=within, between=0.0)
    return PowerPlan(parts=parts, is_pair=False, is_bound=seeds == 1)


def pooled(sides: Sequence[Side]) -> Side:
    """Runs of one configuration as one with the seeds of all, over the tasks that all of them have with one content."""
    first = sides[0]
    if len(sides) == 1:
        return first
    common = [
        task
        for task in first.table.tasks
        if all(task in side.table.tasks for side in sides) and len({side.hashes.get(task) for side in sides}) == 1
    ]
    by_task = [dict(zip(side.table.tasks, side.table.rows, strict=True)) for side in sides]
    rows = tuple(tuple(reward for rows in by_task for reward in rows[task]) for task in common)
    seeds = tuple(range(sum(len(side.table.seeds) for side in sides)))
    name = " + ".join(side.name for side in sides)
    return Side(
        name,
        RewardTable(tuple(common), seeds, rows, all(side.table.is_bounded for side in sides)),
        {task: first.hashes[task] for task in common if task in first.hashes},
    )


def _fewest(is_enough: Callable[[int], bool], most: int) -> int | None:
    """The smallest number that is enough, where every larger one is, too."""
    if not is_enough(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
