"""Stored trials done again from a step on: otherwise, or to find the step at which they were lost."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tbench.api.debugging import DebugSession, debug_from, run_of_task
from tbench.config.settings import RunConfig
from tbench.datasets.reading import read_again
from tbench.errors import UsageError
from tbench.results import TrialResult
from tbench.runs.course import Steps, known_until
from tbench.sandbox.backend import MakeBackend
from tbench.storage.run_files import REPLAYED_NAME, trial_directory
from tbench.storage.stored_trial import StoredTrial, find_trial
from tbench.tasks.task import Task


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
    known = _known(found, at_step)
    config = _config(found, config, samples)
    path = Path(directory) if directory is not None else _own_directory(found, at_step)
    ended: list[TrialResult] = []
    task = task_of(found, say)
    async with run_of_task(task, config, path, ended.append, backend=backend, say=say) as execute:
        await execute(known=known)
    trials = tuple(_forked(path, each) for each in sorted(ended, key=lambda each: each.seed))
    return Fork(found.name, at_step, path, trials)


@contextlib.asynccontextmanager
async def debugged_fork(
    trial: str | Path,
    at_step: int,
    *,
    asks_model: bool = True,
    config: RunConfig | None = None,
    directory: Path | str | None = None,
    backend: MakeBackend | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[DebugSession]:
    """Do a stored trial again up to a step, where somebody decides about each reply of the model from there on.

    Without `asks_model` the agent is held before the step's query, so that its terminal can be taken; no endpoint is
    needed then. At the end of the block the trial is ended. Raises UsageError.
    """
    found = find_trial(str(trial))
    known = _known(found, at_step)
    async with debug_from(
        task_of(found, say),
        _config(found, config, 1),
        known=known,
        waits="reply" if asks_model else "query",
        directory=Path(directory) if directory is not None else _own_directory(found, at_step),
        backend=backend,
        say=say,
    ) as session:
        yield session


def _known(trial: StoredTrial, at_step: int) -> Sequence[Steps]:
    """What is done again. Raises UsageError where it cannot be."""
    if trial.result is not None and trial.result.task_steps:
        raise UsageError(f"{trial.name}: its task has several steps, of which each has an agent of its own")
    try:
        return known_until(at_step, trial.steps, trial.trajectory)
    except UsageError as error:
        raise UsageError(f"{trial.name}: {error}") from None


def _config(trial: StoredTrial, config: RunConfig | None, samples: int) -> RunConfig:
    """The configuration of trials that come of that one, by default with its own values."""
    config = config or trial.document.config
    return config.with_values(
        tasks={"seeds": samples, "first_seed": trial.seed},
        schedule={"retries": 0, "concurrency": min(samples, config.schedule.at_once)},
        output={"directory": None},
    )


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


def _own_directory(trial: StoredTrial, step: int) -> Path:
    return Path("runs") / f"fork-{trial.task}-{trial.seed}-at-{step}-{datetime.now():%Y%m%d-%H%M%S}"


def _forked(run: Path, result: TrialResult) -> ForkedTrial:
    directory = trial_directory(run, result.task, result.seed, result.attempt)
    try:
        differs = str(json.loads((directory / REPLAYED_NAME).read_bytes())["differs"])
    except (OSError, ValueError, KeyError):
        differs = ""
    return ForkedTrial(result, directory, differs)


# At which step a failed trial was lost: where going on anew still succeeds, and where it no longer does.


@dataclass(frozen=True)
class BlamedTrial:
    """What forks at several steps say about a trial that failed."""

    of: str
    """The trial, as RUN/TASK/SEED."""
    steps: int
    """How many it has."""
    forks: tuple[Fork, ...]
    """Those that were tried, by step."""
    step: int | None
    """The one after which it succeeds much less often; None where it does not succeed from its beginning either."""


async def blame(
    trial: str | Path,
    *,
    samples: int = 5,
    config: RunConfig | None = None,
    directory: Path | str | None = None,
    backend: MakeBackend | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> BlamedTrial:
    """Fork a failed trial at steps between which it is halved, and name the step after which its chances drop.

    A fork at a step asks for that step anew: where such forks succeed at least half as often as those from the very
    beginning, the trial was not lost before it. Raises UsageError, also for a trial that passed or has no verdict.
    """
    found = find_trial(str(trial))
    _require_failure(found)
    path = Path(directory) if directory is not None else _blame_directory(found)
    forks: dict[int, Fork] = {}

    async def share_from(step: int) -> float:
        done = await fork(
            trial,
            step,
            samples=samples,
            config=config,
            directory=path / f"at-{step}",
            backend=backend,
            say=say,
        )
        if not done.judged:
            raise UsageError(f"{found.name}: no sample from step {step} on came to a verdict; see {done.directory}")
        forks[step] = done
        say(f"from step {step} on: {done.passed} of {len(done.judged)} succeed")
        return done.passed / len(done.judged)

    step = await lost_at(len(found.steps), share_from)
    return BlamedTrial(found.name, len(found.steps), tuple(forks[at] for at in sorted(forks)), step)


async def lost_at(steps: int, share_from: Callable[[int], Awaitable[float]]) -> int | None:
    """The step after which the share of those that succeed drops below half of that from the beginning.

    `share_from` tells the share of those that go on anew from a step. None where none succeeds from the beginning.
    """
    whole = await share_from(1)
    if whole == 0:
        return None
    good, bad = 1, steps + 1
    """From the one it is not lost; behind the last step it is."""
    while bad - good > 1:
        middle = (good + bad) // 2
        if await share_from(middle) >= whole / 2:
            good = middle
        else:
            bad = middle
    return good


def _require_failure(trial: StoredTrial) -> None:
    result = trial.result
    if result is None or result.reward is None:
        raise UsageError(f"{trial.name}: has no verdict, so nothing was lost that could be found")
    if result.passed:
        raise UsageError(f"{trial.name}: has passed; blame is for trials that failed")
    if result.human_touched:
        raise UsageError(f"{trial.name}: a person had a hand in it; blame is for trials that count")
    if not trial.steps:
        raise UsageError(f"{trial.name}: has no steps")


def _blame_directory(trial: StoredTrial) -> Path:
    return Path("runs") / f"blame-{trial.task}-{trial.seed}-{datetime.now():%Y%m%d-%H%M%S}"
