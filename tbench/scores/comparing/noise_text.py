"""Flaky tasks and what seeds can see, in words and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tbench.scores.comparing.flaky import TaskTries
from tbench.scores.comparing.power import LEVEL, MOST_SEEDS, PowerPlan
from tbench.scores.comparing.text import size
from tbench.scores.sheet import Column, Sheet
from tbench.scores.summary import percent
from tbench.text import counted, names_shown

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
