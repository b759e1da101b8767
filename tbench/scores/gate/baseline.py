"""The baseline: what each task did over the first nights, and how far it varies from night to night by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from tbench.scores.gate.series import Cells
from tbench.scores.statistics import Row

_PRIOR_FLIPS = 3.0
"""Flips that are added to those of the baseline nights: as many as there may be, at 95 %, where none was seen."""


@dataclass(frozen=True, slots=True)
class TaskBase:
    """One task over the baseline nights."""

    trials: int
    mean: float
    variance: float
    """Of a single trial."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The tasks that are compared, by their place among the last night's tasks."""

    nights: int
    tasks: dict[int, TaskBase]

    @property
    def mean(self) -> float:
        """The score over the tasks that are compared."""
        return fmean(task.mean for task in self.tasks.values())


def scored(row: Row) -> tuple[float, ...]:
    """The rewards that there are."""
    return tuple(reward for reward in row if reward is not None)


def baseline_of(nights: Sequence[Cells]) -> Baseline | None:
    """The baseline of the nights that make it up; None where no task has a verdict in half of them.

    A task's variance is taken between nights: sum_n S_n (m_n - m)^2 / (N - 1), with m_n the mean of night n over its
    S_n trials and m the mean over all of them. Divided by the trials of a night it is the variance of that night's
    mean, also where the seeds of one night are not independent. As a task that was never seen to flip may do so, each
    has a share of `_PRIOR_FLIPS` besides (the rule of three: Hanley and Lippman-Hand 1983).
    """
    enough = max(2, (len(nights) + 1) // 2)
    found: dict[int, tuple[int, float, float]] = {}
    for place in range(len(nights[0])):
        rows = [rewards for cells in nights if (row := cells[place]) is not None and (rewards := scored(row))]
        if len(rows) < enough:
            continue
        trials = sum(map(len, rows))
        mean = sum(map(sum, rows)) / trials
        squares = sum(len(row) * (sum(row) / len(row) - mean) ** 2 for row in rows)
        found[place] = (trials, mean, squares / (len(rows) - 1))
    if not found:
        return None
    return Baseline(
        len(nights),
        {
            place: TaskBase(trials, mean, variance + _PRIOR_FLIPS / (trials * len(found)))
            for place, (trials, mean, variance) in found.items()
        },
    )
