"""Rewards of nights, added up task by task; every list has one entry for each task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tbench.reward import exact_sum
from tbench.scores.gate.series import Cells


@dataclass(frozen=True, slots=True)
class Tally:
    """One night: planned trials, those with a verdict and the sum of their rewards; 0 for a task that it has not."""

    planned: list[int]
    trials: list[int]
    totals: list[float]

    @classmethod
    def of(cls, cells: Cells) -> Tally:
        """Count each row."""
        planned = [0 if row is None else len(row) for row in cells]
        rewards = [() if row is None else [reward for reward in row if reward is not None] for row in cells]
        return cls(planned, list(map(len, rewards)), [float(exact_sum(of_task)) for of_task in rewards])

    def at(self, places: Sequence[int]) -> Tally:
        """The same over some of the tasks."""
        planned, trials, totals = self.planned, self.trials, self.totals
        return Tally([planned[at] for at in places], [trials[at] for at in places], [totals[at] for at in places])


def together(nights: Sequence[Tally]) -> Tally:
    """Several nights as one."""
    columns = (
        zip(*(getattr(night, name) for night in nights), strict=True) for name in ("planned", "trials", "totals")
    )
    planned, trials, totals = ([sum(of_task) for of_task in column] for column in columns)
    return Tally(planned, trials, totals)
