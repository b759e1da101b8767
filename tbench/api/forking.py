"""Trials that were done, done again up to a step and then otherwise: by another model, another prompt, other seeds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from tbench.api.task_runs import run_of_task
from tbench.config.settings import RunConfig
from tbench.datasets.reading import read_again
from tbench.errors import UsageError
from tbench.results import TrialResult
from tbench.runs.live.forking import known_until
from tbench.sandbox.backend import MakeBackend
from tbench.storage.run_files import REPLAYED_NAME, trial_directory
from tbench.storage.stored_trial import StoredTrial, find_trial
from tbench.tasks.task import Task

T = TypeVar("T")


@dataclass(frozen=True)
class ForkedTrial:
    """What became of one sample."""

    result: TrialResult
    directory: Path
    """Directory of its files."""
    differs: str
    """Where the terminal showed something else than in the trial that it comes of; empty where it did not."""


@dataclass(frozen=True)
class Fork:
    """Trials that have in common what was done before a step."""

    of: str
    """The trial that they come of, as RUN/TASK/SEED."""
    at_step: int
    """The first step for which a model was asked."""
    directory: Path
    """Directory of their run."""
    trials: tuple[ForkedTrial, ...]

    @property
    def judged(self) -> tuple[ForkedTrial, ...]:
        """Those with a verdict."""
        return tuple(each for each in self.trials if each.result.reward is not None)

    @property
    def passed(self) -> int:
        """How many of those passed."""
        return sum(each.result.passed for each in self.judged)

    @property
    def differs(self) -> str:
        """The first difference that was seen; empty where there was none."""
        return next((each.differs for each in self.trials if each.differs), "")


async def fork(
    trial: str | Path,
    at_step: int,
    *,
    samples: int = 1,
    config: RunConfig | None = None,
    directory: Path | str | None = None,
    backend: MakeBackend | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Fork:
    """Do a stored trial again up to a step, in fresh containers, and let a model go on from there, several times.

    `trial` is RUN/TASK/SEED; `config` by default that of its run. The samples have the trial's seed and those after it,
    and none of them counts in a score. `say` is told of builds, and of what differs. Raises UsageError.
    """
    found = find_trial(str(trial))
    result = found.result
    if result is not None and result.task_steps:
        raise UsageError(f"{found.name}: its task has several steps, of which each has an agent of its own")
    known = _named(found, lambda: known_until(at_step, found.steps, found.trajectory))
    config = config or found.document.config
    config = config.with_values(
        tasks={"seeds": samples, "first_seed": found.seed},
        schedule={"retries": 0, "concurrency": min(samples, config.schedule.concurrency)},
        output={"directory": None},
    )
    path = Path(directory) if directory is not None else _own_directory(found, at_step)
    ended: list[TrialResult] = []
    task = task_of(found, say)
    async with run_of_task(task, config, path, ended.append, backend=backend, say=say) as execute:
        await execute(known=known)
    trials = tuple(_forked(path, each) for each in sorted(ended, key=lambda each: each.seed))
    return Fork(found.name, at_step, path, trials)


def task_of(trial: StoredTrial, say: Callable[[str], None]) -> Task:
    """The task of a stored trial as it is now; `say` is told where it has changed since. Raises UsageError."""
    document = trial.document
    source = document.config.tasks
    tasks = {task.name: task for task in read_again(source.source, document.dataset, source.registry).tasks}
    if (task := tasks.get(trial.task)) is None:
        raise UsageError(f"{source.source}: {trial.task} is gone; put it back to do {trial.name} again")
    before = next((each.hash for each in document.tasks if each.name == trial.task), None)
    if before not in (None, task.hash):
        say(f"{trial.task}: has changed since {trial.name}, so what it shows may differ")
    return task


def _named(trial: StoredTrial, make: Callable[[], T]) -> T:
    try:
        return make()
    except UsageError as error:
        raise UsageError(f"{trial.name}: {error}") from None


def _own_directory(trial: StoredTrial, step: int) -> Path:
    return Path("runs") / f"fork-{trial.task}-{trial.seed}-at-{step}-{datetime.now():%Y%m%d-%H%M%S}"


def _forked(run: Path, result: TrialResult) -> ForkedTrial:
    directory = trial_directory(run, result.task, result.seed, result.attempt)
    try:
        differs = str(json.loads((directory / REPLAYED_NAME).read_bytes())["differs"])
    except (OSError, ValueError, KeyError):
        differs = ""
    return ForkedTrial(result, directory, differs)
