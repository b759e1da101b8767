"""How long trials take, as earlier runs tell."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from tbench.errors import UsageError
from tbench.storage.read_run import read_run


def mean_durations(runs: Iterable[Path], tasks: Collection[str]) -> dict[str, float]:
    """The mean wall seconds of each of these tasks over the trials of runs, of whatever model, that have a verdict.

    Trials in which a person had a hand tell nothing. Raises UsageError for a run that cannot be read, or that tells
    nothing of any of the tasks.
    """
    seconds: dict[str, list[float]] = {}
    for run in runs:
        told = [
            result
            for result in read_run(run).results
            if result.task in tasks and result.reward is not None and not result.human_touched
            and result.timings.wall_sec > 0
        ]  # fmt: skip
        if not told:
            raise UsageError(
                f"--durations {run}: tells nothing of the {len(tasks)} tasks of this run; name one of them"
            )
        for result in told:
            seconds.setdefault(result.task, []).append(result.timings.wall_sec)
    return {task: sum(each) / len(each) for task, each in seconds.items()}
