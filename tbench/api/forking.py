"""Forks stored trials from a step on, and finds the step at which a failed trial was lost."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from pathlib import Path

from harness.trajectory import Outcome, Trajectory
from tbench.api.debugging import DebugSession, debug_from, prepare_run
from tbench.config.settings import RunConfig
from tbench.datasets.read_tasks import read_again
from tbench.errors import UsageError
from tbench.results import TrialResult
from tbench.runs.replay_log import ReplaySteps, replay_steps, replay_steps_before
from tbench.sandbox.backend import MakeBackend
from tbench.storage.run_files import REPLAYED_NAME, trial_directory
from tbench.storage.stored_trial import StoredTrial, find_trial
from tbench.tasks.task import Task


@dataclass(frozen=True)
class ForkedTrial:
    """One trial of a fork."""

    result: TrialResult
    directory: Path
    """Directory of the trial's files."""
    differs: str
    """First difference of the terminal output from the original trial's; empty for none."""


@dataclass(frozen=True)
class Fork:
    """Trials that share the steps before one step of a stored trial."""

    of: str
    """Name of the original trial, RUN/TASK/SEED."""
    at_step: int
    """First step for which a model was asked."""
    directory: Path
    """Directory of the fork's run."""
    trials: tuple[ForkedTrial, ...]

    @property
    def judged(self) -> tuple[ForkedTrial, ...]:
        """Trials with a verdict."""
        return tuple(each for each in self.trials if each.result.reward is not None)

    @property
    def passed(self) -> int:
        """Number of passed trials."""
        return sum(each.result.passed for each in self.judged)

    @property
    def differs(self) -> str:
        """First difference from the original trial; empty for none."""
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
    """Replay a stored trial up to a step in fresh containers, and let a model continue from there, several times.

    `trial` is RUN/TASK/SEED; `config` is by default its run's. The samples have the trial's seed and the following
    ones; none counts in a score. `say` is called with messages about builds and differences. Raises UsageError.
    """
    found = find_trial(str(trial))
    replay = _replay_steps(found, at_step)
    config = _config(found, config, samples)
    path = Path(directory) if directory is not None else _own_directory(found, at_step)
    ended: list[TrialResult] = []
    task = current_task(found, say)
    prepared = prepare_run(task, config, path, ended.append, backend=backend, say=say, purpose="fork")
    async with prepared as execute:
        await execute(replay=replay)
    trials = tuple(_make_forked_trial(path, each) for each in sorted(ended, key=lambda each: each.seed))
    return Fork(found.name, at_step, path, trials)


@contextlib.asynccontextmanager
async def debug_fork(
    trial: str | Path,
    at_step: int,
    *,
    asks_model: bool = True,
    config: RunConfig | None = None,
    directory: Path | str | None = None,
    backend: MakeBackend | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[DebugSession]:
    """Replay a stored trial up to a step, and debug it from there on.

    Without `asks_model` the agent is held before the step's query, so that its terminal can be taken; this needs no
    endpoint. At the end of the block the trial is ended. Raises UsageError.
    """
    found = find_trial(str(trial))
    replay = _replay_steps(found, at_step)
    async with debug_from(
        current_task(found, say),
        _config(found, config, 1),
        replay=replay,
        hold_at="reply" if asks_model else "query",
        directory=Path(directory) if directory is not None else _own_directory(found, at_step),
        backend=backend,
        say=say,
    ) as session:
        yield session


def _replay_steps(trial: StoredTrial, at_step: int) -> Sequence[ReplaySteps]:
    """Return the steps to replay. Raises UsageError if that is impossible."""
    try:
        return (*_replay_task_steps(trial), *replay_steps_before(at_step, trial.steps, trial.trajectory))
    except UsageError as error:
        raise UsageError(f"{trial.name}: {error}") from None


def _replay_task_steps(trial: StoredTrial) -> Iterator[ReplaySteps]:
    """Yield the steps of the task steps before that of `trial`. Raises UsageError if they cannot be replayed."""
    task_steps = trial.result.task_steps if trial.result is not None else ()
    if task_steps and not trial.task_step:
        raise UsageError(f"its task has several steps; name one of them, such as {trial.name}/{task_steps[0].name}")
    if trial.task_step and not task_steps:
        raise UsageError("has no result, so the end of earlier steps of its task is unknown")
    for task_step in takewhile(lambda each: each.name != trial.task_step, task_steps):
        if task_step.outcome != Outcome.SUBMITTED:
            raise UsageError(f"the step {task_step.name} of its task did not end by itself, so it cannot be replayed")
        before = replace(trial, task_step=task_step.name)
        known = before.trajectory or Trajectory(protocol="")
        yield from replay_steps(before.steps, known.interventions, known.compactions)


def _config(trial: StoredTrial, config: RunConfig | None, samples: int) -> RunConfig:
    """Return the configuration of forked trials, by default the original one."""
    config = config or trial.document.config
    return config.with_values(
        tasks={"seeds": samples, "first_seed": trial.seed},
        schedule={"retries": 0, "concurrency": min(samples, config.schedule.at_once)},
        output={"directory": None},
    )


def current_task(trial: StoredTrial, say: Callable[[str], None]) -> Task:
    """Return the current task of a stored trial; `say` is called if it has changed since. Raises UsageError."""
    document = trial.document
    source = document.config.tasks
    tasks = {task.name: task for task in read_again(source.source, document.dataset, source.registry).tasks}
    if (task := tasks.get(trial.task)) is None:
        raise UsageError(f"{source.source}: {trial.task} is missing; restore it to fork {trial.name}")
    before = next((each.hash for each in document.tasks if each.name == trial.task), None)
    if before not in (None, task.hash):
        say(f"{trial.task}: has changed since {trial.name}, so the replay may differ")
    return task


def _own_directory(trial: StoredTrial, step: int) -> Path:
    return Path("runs") / f"fork-{_file_name(trial)}-at-{step}-{datetime.now():%Y%m%d-%H%M%S}"


def _file_name(trial: StoredTrial) -> str:
    return "-".join(filter(None, (trial.task, str(trial.seed), trial.task_step)))


def _make_forked_trial(run: Path, result: TrialResult) -> ForkedTrial:
    directory = trial_directory(run, result.task, result.seed, result.attempt)
    try:
        differs = str(json.loads((directory / REPLAYED_NAME).read_bytes())["differs"])
    except (OSError, ValueError, KeyError):
        differs = ""
    return ForkedTrial(result, directory, differs)


# Blame: the step after which a failed trial could no longer succeed.


@dataclass(frozen=True)
class BlamedTrial:
    """Results of forks at several steps of a failed trial."""

    of: str
    """Name of the trial, RUN/TASK/SEED."""
    steps: int
    """Number of steps of the trial."""
    forks: tuple[Fork, ...]
    """Forks that were tried, by step."""
    step: int | None
    """Step after which forks succeed much less often; None if they do not succeed from the beginning, either."""


async def blame(
    trial: str | Path,
    *,
    samples: int = 5,
    config: RunConfig | None = None,
    directory: Path | str | None = None,
    backend: MakeBackend | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> BlamedTrial:
    """Find the step after which a failed trial's chances drop, by a binary search with forks.

    A fork at a step asks the model for that step again. If such forks succeed at least half as often as forks from the
    beginning, the trial was not lost before that step. Raises UsageError, also for a trial that passed or has no
    verdict.
    """
    found = find_trial(str(trial))
    _require_failure(found)
    own = f"blame-{_file_name(found)}-{datetime.now():%Y%m%d-%H%M%S}"
    path = Path(directory) if directory is not None else Path("runs") / own
    forks: dict[int, Fork] = {}

    async def share_from(step: int) -> float:
        into = path / f"at-{step}"
        done = await fork(trial, step, samples=samples, config=config, directory=into, backend=backend, say=say)
        if not done.judged:
            raise UsageError(f"{found.name}: no sample from step {step} on has a verdict; see {done.directory}")
        forks[step] = done
        say(f"from step {step} on: {done.passed} of {len(done.judged)} succeed")
        return done.passed / len(done.judged)

    step = await find_lost_step(len(found.steps), share_from)
    return BlamedTrial(found.name, len(found.steps), tuple(forks[at] for at in sorted(forks)), step)


async def find_lost_step(steps: int, share_from: Callable[[int], Awaitable[float]]) -> int | None:
    """Return the step after which the success rate drops below half of that from the beginning.

    `share_from` returns the success rate of forks at a step. None if no fork from the beginning succeeds.
    """
    whole = await share_from(1)
    if whole == 0:
        return None
    good, bad = 1, steps + 1
    """Bounds for the lost step: forks still succeed from `good`, and no longer from `bad`."""
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
        raise UsageError(f"{trial.name}: has no verdict; blame is for trials that failed")
    if result.passed:
        raise UsageError(f"{trial.name}: passed; blame is for trials that failed")
    if result.human_touched:
        raise UsageError(f"{trial.name}: a person intervened in it; blame is for trials that count")
    if not trial.steps:
        raise UsageError(f"{trial.name}: has no steps")
