"""At which step a failed trial was lost: where going on anew still succeeds, and where it no longer does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tbench.api.forking import Fork, fork
from tbench.config.settings import RunConfig
from tbench.errors import UsageError
from tbench.sandbox.backend import MakeBackend
from tbench.storage.stored_trial import StoredTrial, find_trial


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
    path = Path(directory) if directory is not None else _own_directory(found)
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


def _own_directory(trial: StoredTrial) -> Path:
    return Path("runs") / f"blame-{trial.task}-{trial.seed}-{datetime.now():%Y%m%d-%H%M%S}"
