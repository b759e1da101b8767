"""Noise between seeds: flaky tasks, and the number of seeds needed to detect a difference; as data and as text."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import NormalDist, fmean, variance
from typing import Literal

from harness.trajectory import Frozen
from tbench.reward import is_solved
from tbench.scores.comparing.compare import VarianceParts
from tbench.scores.comparing.compared_run import ComparedRun
from tbench.scores.comparing.comparison_text import size
from tbench.scores.intervals import NORMAL_975
from tbench.scores.statistics import RewardTable, score, task_means
from tbench.scores.summary import percent
from tbench.scores.tables import Column, Sheet
from tbench.text import counted, names_text


class TaskSolveRate(Frozen):
    """Numbers of a task's trials that were solved (reward >= 1), have a verdict, and have none."""

    task: str
    hash: str | None
    """Content hash of the task; trials of other content are counted separately."""
    solved: int
    scored: int
    unscored: int
    """Trials without a verdict, which `rate` ignores."""

    @property
    def is_flaky(self) -> bool:
        return 0 < self.solved < self.scored

    @property
    def rate(self) -> float | None:
        """Solved trials / trials with a verdict; None without any verdict."""
        return self.solved / self.scored if self.scored else None

    @property
    def interval_95(self) -> tuple[float, float] | None:
        return wilson_95(self.solved, self.scored) if self.scored else None


def task_solve_rates(sides: Iterable[ComparedRun]) -> tuple[TaskSolveRate, ...]:
    """Count the trials of runs of one configuration by task; tasks with solve rates close to one half come first."""
    counts: dict[tuple[str, str | None], list[int]] = {}
    for side in sides:
        for task, row in zip(side.table.tasks, side.table.rows, strict=True):
            count = counts.setdefault((task, side.hashes.get(task)), [0, 0, 0])
            scored = [reward for reward in row if reward is not None]
            count[0] += sum(map(is_solved, scored))
            count[1] += len(scored)
            count[2] += len(row) - len(scored)
    found = (
        TaskSolveRate(task=task, hash=digest, solved=solved, scored=scored, unscored=unscored)
        for (task, digest), (solved, scored, unscored) in counts.items()
    )
    return tuple(sorted(found, key=lambda each: (_decidedness(each), -each.scored, each.task)))


def _decidedness(tries: TaskSolveRate) -> float:
    """Return the distance of the solve rate from one half, scaled to 0 to 1."""
    return abs(2 * tries.solved - tries.scored) / tries.scored if tries.scored else 1.0


def wilson_95(solved: int, trials: int) -> tuple[float, float]:
    """Return the 95 % score interval of a proportion (Wilson 1927, "Probable inference")."""
    z2, rate = NORMAL_975**2, solved / trials
    middle = rate + z2 / (2 * trials)
    half = NORMAL_975 * math.sqrt(rate * (1.0 - rate) / trials + z2 / (4 * trials * trials))
    low, high = (middle - half) / (1.0 + z2 / trials), (middle + half) / (1.0 + z2 / trials)
    # Avoids rounding errors at the ends that are exact.
    return (0.0 if solved == 0 else low), (1.0 if solved == trials else high)


# Number of seeds needed to detect a difference.
#
# Of T tasks with S seeds each, W is the variance within tasks of the difference at one seed, B the variance over tasks
# of the true difference, d the mean difference to be detected with probability `power` (z_b its normal quantile) at a
# two-sided level (z_a). A test rejects if the mean of T differences is z_a times its sd under random signs:
#
# - over these tasks, by the signs of all pairs: d >= (z_a sqrt(W + B + d^2) + z_b sqrt(W)) / sqrt(S T) + 1 / (S T);
# - over other tasks of the same kind, by the signs of tasks:
#   d >= (z_a sqrt(B + d^2 + W/S) + z_b sqrt(B + W/S)) / sqrt(T) + 1 / (S T).
#
# For S = 1 these equal the formula for McNemar's test (Connor 1987, "Sample size for testing differences in proportions
# for the paired-sample design") with a continuity correction.

MAX_SEEDS = 10_000
"""Largest number of seeds that is considered."""
LEVEL = 0.05
TaskScope = Literal["these tasks", "other tasks"]


class PowerPlan(Frozen):
    """Differences that numbers of seeds can detect, given the noise of existing runs."""

    parts: VarianceParts
    is_pair: bool
    """Whether the plan is made from two runs; in a plan from one run, `between` is unknown, and 0."""
    is_bound: bool = False
    """Whether `within` is an upper bound, as from a single seed."""

    def detects(
        self, difference: float, power: float, seeds: float, scope: TaskScope, tasks: float | None = None
    ) -> bool:
        """Whether a mean difference is detected with this number of seeds and tasks."""
        return difference >= self._detection_limit(difference, power, seeds, scope, tasks or self.parts.tasks)

    def seeds_for(self, difference: float, power: float, scope: TaskScope) -> int | None:
        """Return the smallest number of seeds that detects a difference; None if MAX_SEEDS do not."""
        return _smallest(lambda seeds: self.detects(difference, power, seeds, scope), MAX_SEEDS)

    def tasks_for(self, difference: float, power: float, seeds: float) -> int | None:
        """Return the smallest number of tasks on which `seeds` seeds detect a difference; None if a million do not."""
        return _smallest(lambda tasks: self.detects(difference, power, seeds, "other tasks", tasks), 1_000_000)

    def detectable_difference(self, seeds: float, power: float, scope: TaskScope) -> float | None:
        """Return the smallest mean difference that `seeds` seeds detect; None if they do not even detect 1."""
        if not self.detects(1.0, power, seeds, scope):
            return None
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2.0
            low, high = (low, middle) if self.detects(middle, power, seeds, scope) else (middle, high)
        return high

    def _detection_limit(self, difference: float, power: float, seeds: float, scope: TaskScope, tasks: float) -> float:
        at_level, at_power = NormalDist().inv_cdf(1.0 - LEVEL / 2.0), NormalDist().inv_cdf(power)
        within, between = self.parts.within, self.parts.between
        under_null = between + difference**2 + (within if scope == "these tasks" else within / seeds)
        spread = within if scope == "these tasks" else between + within / seeds
        pairs = seeds * tasks if scope == "these tasks" else tasks
        return (at_level * math.sqrt(under_null) + at_power * math.sqrt(spread)) / math.sqrt(pairs) + 1.0 / (
            seeds * tasks
        )


def plan_from_one_run(table: RewardTable) -> PowerPlan:
    """Plan from one run, assuming a second, independent one with the same noise.

    W is twice the mean variance of a task's rewards; for a single seed its upper bound 2 p (1 - p) with the score p,
    for rewards within 0 to 1.
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


def pool_runs(sides: Sequence[ComparedRun]) -> ComparedRun:
    """Pool runs of one configuration into one run with all their seeds, over the tasks with the same content in all."""
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
    return ComparedRun(
        name,
        RewardTable(tuple(common), seeds, rows, all(side.table.is_bounded for side in sides)),
        {task: first.hashes[task] for task in common if task in first.hashes},
    )


def _smallest(is_enough: Callable[[int], bool], most: int) -> int | None:
    """Return the smallest number up to `most` for which a monotone `is_enough` is true; None if there is none."""
    found = 1 + bisect_left(range(1, most + 1), True, key=is_enough)
    return found if found <= most else None


_SEEDS = (1, 2, 3, 5, 10, 20, 50)
_HASH_SHOWN = 12


def solve_rate_lines(name: str, tasks: Sequence[TaskSolveRate]) -> Iterator[str]:
    """Yield lines on how many tasks are solved always, sometimes and never."""
    kinds = Counter(_kind(task) for task in tasks)
    parts = ", ".join(f"{kinds[kind]} {kind}" for kind in ("always", "sometimes", "never") if kinds[kind])
    trials = sum(task.scored for task in tasks)
    yield f"{name}: {counted(len(tasks), 'task')}, {counted(trials, 'trial')} with a verdict; solved: {parts or 'none'}"
    if without := [task.task for task in tasks if not task.scored]:
        yield f"  no verdict at all: {counted(len(without), 'task')} ({names_text(without)})"
    if single := [task.task for task in tasks if task.scored == 1]:
        yield f"  only one verdict: {counted(len(single), 'task')} ({names_text(single)})"


def _kind(task: TaskSolveRate) -> str:
    if not task.scored:
        return "unknown"
    return "sometimes" if task.is_flaky else "always" if task.solved else "never"


def flaky_task_sheet(groups: Sequence[tuple[str, Sequence[TaskSolveRate]]]) -> Sheet:
    """Return a sheet of the flaky tasks, in the order given."""
    columns = (
        Column("runs", None),
        Column("task", "task", is_text=True),
        Column("solved", "solved"),
        Column("scored", "of"),
        Column("unscored", "no verdict"),
        Column("rate", "rate %", percent),
        Column("low", "95 % from", percent),
        Column("high", "to", percent),
    )
    rows = []
    for name, tasks in groups:
        several = {task for task, number in Counter(task.task for task in tasks).items() if number > 1}
        for task in tasks:
            if task.is_flaky:
                low, high = task.interval_95 or (None, None)
                content = f" ({(task.hash or 'unknown')[:_HASH_SHOWN]})" if task.task in several else ""
                counts = {"solved": task.solved, "scored": task.scored, "unscored": task.unscored}
                rows.append(
                    {"runs": name, "task": task.task + content, **counts, "rate": task.rate, "low": low, "high": high}
                )
    return Sheet(columns, rows)


def power_lines(name: str, plan: PowerPlan, difference: float, power: float) -> Iterator[str]:
    """Yield lines on how many seeds detect a difference, or how many tasks it would take."""
    parts = plan.parts
    yield f"{name}: {counted(parts.tasks, 'task')}, {counted(parts.seeds, 'seed')}"
    yield f"  variance of a difference{_variance(plan)}"
    yield f"  to detect {100 * difference:g} points with a chance of {100 * power:g} % (two-sided p <= {LEVEL:g}):"
    yield f"    on these tasks: {_seeds(plan.seeds_for(difference, power, 'these tasks'))}"
    if not plan.is_pair:
        yield "    on other tasks of the same kind: unknown from one configuration; give two that differ as expected"
        return
    seeds = plan.seeds_for(difference, power, "other tasks")
    yield f"    on other tasks of the same kind: {_seeds(seeds)}"
    if seeds is None:
        yield f"      the changes differ too much between tasks; {_tasks(plan, difference, power)}"


def _variance(plan: PowerPlan) -> str:
    parts = plan.parts
    within, share = f"{parts.within:.4f} within tasks at one seed", parts.share_within
    if plan.is_pair:
        noise = "" if share is None else f"; {100 * share:.0f} % of the squared error is noise"
        return f": {within}, {parts.between:.4f} between{noise}"
    return f" of two such runs: {within}{', an upper bound from one seed' if plan.is_bound else ''}"


def _seeds(seeds: int | None) -> str:
    return f"no number of seeds up to {MAX_SEEDS:,}" if seeds is None else counted(seeds, "seed")


def _tasks(plan: PowerPlan, difference: float, power: float) -> str:
    now = plan.tasks_for(difference, power, plan.parts.seeds)
    ever = plan.tasks_for(difference, power, MAX_SEEDS)
    if now is None or ever is None:
        return "even a million tasks would not suffice"
    return f"{now:,} tasks would suffice with {counted(plan.parts.seeds, 'seed')}, {ever:,} with unlimited seeds"


def power_sheet(plans: Sequence[tuple[str, PowerPlan]], power: float) -> Sheet:
    """Return a sheet of standard errors and detectable differences by number of seeds."""
    columns = (
        Column("runs", None),
        Column("seeds", "seeds"),
        Column("se_these", "SE, these tasks", size),
        Column("seen_these", f"seen ({100 * power:g} %)", size),
        Column("se_other", "SE, other tasks", size),
        Column("seen_other", "seen", size),
    )
    rows = []
    for name, plan in plans:
        for seeds in sorted({*_SEEDS, plan.parts.seeds}):
            other = plan.is_pair
            rows.append(
                {
                    "runs": name,
                    "seeds": seeds,
                    "se_these": plan.parts.se(seeds, between=False),
                    "seen_these": plan.detectable_difference(seeds, power, "these tasks"),
                    "se_other": plan.parts.se(seeds) if other else None,
                    "seen_other": plan.detectable_difference(seeds, power, "other tasks") if other else None,
                }
            )
    return Sheet(columns, rows)
