"""Noise between seeds: flaky tasks, and how many seeds it takes to see a difference, in numbers and in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import NormalDist, fmean, variance
from typing import Literal

from harness.trajectory import Frozen
from tbench.reward import is_solved
from tbench.scores.comparing.compare import VarianceParts
from tbench.scores.comparing.side import Side
from tbench.scores.comparing.text import size
from tbench.scores.statistics import RewardTable, score, task_means
from tbench.scores.summary import percent
from tbench.scores.tables import Column, Sheet
from tbench.text import counted, names_shown

# Tasks that are solved sometimes: which of them, how often, and how sure that is.

_NORMAL_975 = 1.959963984540054


class TaskTries(Frozen):
    """How often a task was solved (reward >= 1) in all trials with a verdict."""

    task: str
    hash: str | None
    """Hash of its content; trials of other content are counted apart."""
    solved: int
    scored: int
    unscored: int
    """Trials without a verdict, which say nothing of it."""

    @property
    def is_flaky(self) -> bool:
        return 0 < self.solved < self.scored

    @property
    def rate(self) -> float | None:
        """Solved trials / trials with a verdict; None without any."""
        return self.solved / self.scored if self.scored else None

    @property
    def interval_95(self) -> tuple[float, float] | None:
        return wilson_95(self.solved, self.scored) if self.scored else None


def task_tries(sides: Iterable[Side]) -> tuple[TaskTries, ...]:
    """Count the trials of runs of one configuration, task by task; the least decided tasks come first."""
    counts: dict[tuple[str, str | None], list[int]] = {}
    for side in sides:
        for task, row in zip(side.table.tasks, side.table.rows, strict=True):
            count = counts.setdefault((task, side.hashes.get(task)), [0, 0, 0])
            scored = [reward for reward in row if reward is not None]
            count[0] += sum(map(is_solved, scored))
            count[1] += len(scored)
            count[2] += len(row) - len(scored)
    found = (
        TaskTries(task=task, hash=digest, solved=solved, scored=scored, unscored=unscored)
        for (task, digest), (solved, scored, unscored) in counts.items()
    )
    return tuple(sorted(found, key=lambda each: (_decided(each), -each.scored, each.task)))


def _decided(tries: TaskTries) -> float:
    """How far a task is from being solved every other time: 0 to 1."""
    return abs(2 * tries.solved - tries.scored) / tries.scored if tries.scored else 1.0


def wilson_95(solved: int, trials: int) -> tuple[float, float]:
    """The 95 % score interval of a share (Wilson 1927, "Probable inference")."""
    z2, rate = _NORMAL_975**2, solved / trials
    middle = rate + z2 / (2 * trials)
    half = _NORMAL_975 * math.sqrt(rate * (1.0 - rate) / trials + z2 / (4 * trials * trials))
    low, high = (middle - half) / (1.0 + z2 / trials), (middle + half) / (1.0 + z2 / trials)
    # Rounding may end a little beside the ends that are exact.
    return (0.0 if solved == 0 else low), (1.0 if solved == trials else high)


# How many seeds it takes to see a difference, and when no number of them can.
#
# Of T tasks with S seeds each, W is the variance within tasks of the difference at one seed, B the variance over tasks
# of the true difference, d the mean difference to be seen with the chance `power` (z_b its normal quantile) at a two-
# sided level (z_a). A test rejects where the mean of T differences is z_a times what it would be by chance signs:
#
# - over these very tasks, by the signs of all pairs: d >= (z_a sqrt(W + B + d^2) + z_b sqrt(W)) / sqrt(S T) + 1 / (S
#   T);
# - over other tasks of the same kind, by the signs of tasks:
#   d >= (z_a sqrt(B + d^2 + W/S) + z_b sqrt(B + W/S)) / sqrt(T) + 1 / (S T).
#
# At S = 1 these are the formula for McNemar's test (Connor 1987, "Sample size for testing differences in proportions
# for the paired-sample design") with a correction for continuity.

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


# Flaky tasks and what seeds can see, in words and tables.

_SEEDS = (1, 2, 3, 5, 10, 20, 50)
_HASH_SHOWN = 12


def tries_lines(name: str, tasks: Sequence[TaskTries]) -> Iterator[str]:
    """How many tasks are solved always, sometimes and never."""
    kinds = Counter(_kind(task) for task in tasks)
    parts = ", ".join(f"{kinds[kind]} {kind}" for kind in ("always", "sometimes", "never") if kinds[kind])
    trials = sum(task.scored for task in tasks)
    yield f"{name}: {counted(len(tasks), 'task')}, {counted(trials, 'trial')} with a verdict; solved: {parts or 'none'}"
    if without := [task.task for task in tasks if not task.scored]:
        yield f"  no verdict at all: {counted(len(without), 'task')} ({names_shown(without)})"
    if single := [task.task for task in tasks if task.scored == 1]:
        yield f"  a single verdict, so nothing is known: {counted(len(single), 'task')} ({names_shown(single)})"


def _kind(task: TaskTries) -> str:
    if not task.scored:
        return "unknown"
    return "sometimes" if task.is_flaky else "always" if task.solved else "never"


def tries_sheet(groups: Sequence[tuple[str, Sequence[TaskTries]]]) -> Sheet:
    """The flaky tasks, the least decided first."""
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
    """How many seeds see a difference, and what to do where none can."""
    parts = plan.parts
    yield f"{name}: {counted(parts.tasks, 'task')}, {counted(parts.seeds, 'seed')}"
    yield f"  {_variance(plan)}"
    yield f"  to see {100 * difference:g} points with a chance of {100 * power:g} % (two-sided p <= {LEVEL:g}):"
    yield f"    on these very tasks: {_seeds(plan.seeds_for(difference, power, 'these tasks'))}"
    if not plan.is_pair:
        yield "    on other tasks of their kind: one configuration does not tell; give two that differ as those to come"
        return
    seeds = plan.seeds_for(difference, power, "other tasks")
    yield f"    on other tasks of their kind: {_seeds(seeds)}"
    if seeds is None:
        yield f"      the tasks differ too much in how they change; {_tasks(plan, difference, power)}"


def _variance(plan: PowerPlan) -> str:
    parts = plan.parts
    if plan.is_pair:
        share = (
            "" if parts.share_within is None else f"; {100 * parts.share_within:.0f} % of the squared error is noise"
        )
        return (
            f"variance of a difference: {parts.within:.4f} within tasks at one seed, {parts.between:.4f} between{share}"
        )
    most = ", at most: one seed does not tell" if plan.is_bound else ""
    return f"variance of a difference of two such runs: {parts.within:.4f} within tasks at one seed{most}"


def _seeds(seeds: int | None) -> str:
    return f"no number of seeds up to {MOST_SEEDS:,}" if seeds is None else counted(seeds, "seed")


def _tasks(plan: PowerPlan, difference: float, power: float) -> str:
    now = plan.tasks_for(difference, power, plan.parts.seeds)
    ever = plan.tasks_for(difference, power, MOST_SEEDS)
    if now is None or ever is None:
        return "nor would a million tasks do"
    return f"{now:,} tasks would do with {counted(plan.parts.seeds, 'seed')}, {ever:,} with any number"


def power_sheet(plans: Sequence[tuple[str, PowerPlan]], power: float) -> Sheet:
    """By number of seeds: the error, and the smallest difference that is seen."""
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
                    "seen_these": plan.seen_with(seeds, power, "these tasks"),
                    "se_other": plan.parts.se(seeds) if other else None,
                    "seen_other": plan.seen_with(seeds, power, "other tasks") if other else None,
                }
            )
    return Sheet(columns, rows)
