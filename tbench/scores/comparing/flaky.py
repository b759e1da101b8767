"""Tasks that are solved sometimes: which of them, how often, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterable

from harness.trajectory import Frozen
from tbench.reward import is_solved
from tbench.scores.comparing.side import Side

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
