"""The final results of a run's trials, taken in one by one: what a summary needs of them, and no more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, Self

from harness.replies import RepliesSeen
from harness.trajectory import Outcome
from tbench.results import (
    NOTHING_SEEN,
    Blame,
    ErrorInfo,
    HostSample,
    Integrity,
    Stage,
    TaskStepResult,
    Timings,
    TrialResult,
)

HUMAN_TOUCHED = "human_touched"
"""The error type shown for a result in which a person had a hand."""
_NO_NUMBERS: Mapping[str, Any] = {}


@lru_cache(maxsize=1024)
def _shared(counts: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    """Counts as an object that is the same for equal ones: thousands of trials have them."""
    return dict(counts) or _NO_NUMBERS


class SeenOfReplies(NamedTuple):
    """The numbers of `RepliesSeen`, in a third of the memory."""

    total: int
    models: Mapping[str, int]
    fingerprints: Mapping[str, int]
    weights: Mapping[str, int]
    signs: Mapping[str, int]
    first: str | None

    @classmethod
    def of(cls, seen: RepliesSeen) -> SeenOfReplies:
        if not seen.total:
            return _NO_REPLIES
        return cls(
            total=seen.total,
            models=_shared(tuple(seen.models.items())),
            fingerprints=_shared(tuple(seen.fingerprints.items())),
            weights=_shared(tuple(seen.weights.items())),
            signs=_shared(tuple(seen.signs.items())),
            first=seen.first,
        )


_NO_REPLIES = SeenOfReplies(0, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, None)


class Seconds(NamedTuple):
    """The numbers of `Timings`, in a third of the memory."""

    queue_sec: float
    sandbox_sec: float
    agent_sec: float
    model_sec: float
    waited_sec: float
    command_sec: float
    verifier_sec: float
    teardown_sec: float
    wall_sec: float

    @classmethod
    def of(cls, timings: Timings) -> Self:
        return cls(*(getattr(timings, name) for name in cls._fields))


@dataclass(frozen=True, slots=True)
class FinalResult:
    """What a summary needs of a result that counts, under the same names."""

    task: str
    seed: int
    attempt: int
    reward: float | None
    told: float | None
    """The reward as its line has it, also where it does not count."""
    passed: bool
    metrics: Mapping[str, float]
    outcome: Outcome | None
    error: ErrorInfo | None
    steps: int
    tokens: tuple[int, int, int | None, int]
    replies_from: Mapping[str, int]
    replies: SeenOfReplies
    timings: Seconds
    started_at: datetime
    human_touched: bool
    integrity: Integrity
    host: HostSample | None
    """None for a trial that was solved: nothing is asked of it there."""
    task_steps: tuple[TaskStepResult, ...]
    reward_all_steps: float | None

    @classmethod
    def of(cls, result: TrialResult, told: float | None) -> Self:
        usage = result.usage
        return cls(
            task=result.task,
            seed=result.seed,
            attempt=result.attempt,
            reward=result.reward,
            told=told,
            passed=result.passed,
            metrics=result.metrics or _NO_NUMBERS,
            outcome=result.outcome,
            error=result.error,
            steps=result.steps,
            tokens=(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.uncounted),
            replies_from=result.replies_from or _NO_NUMBERS,
            replies=SeenOfReplies.of(result.replies),
            timings=Seconds.of(result.timings),
            started_at=result.started_at,
            human_touched=result.human_touched,
            integrity=NOTHING_SEEN if result.integrity == NOTHING_SEEN else result.integrity,
            host=None if result.passed else result.host,
            task_steps=result.task_steps,
            reward_all_steps=result.reward_all_steps,
        )


class Finals:
    """All results of a run, taken in one by one; only what counts of them is held."""

    def __init__(self, results: Iterable[TrialResult] = ()) -> None:
        self.by_trial: dict[tuple[str, int], FinalResult] = {}
        """What counts for each task and seed: of several final results the highest attempt, then the last line."""
        self.results = 0
        """The number of all results, final or not."""
        self.names: dict[str, set[str | None]] = {"run": set(), "model": set(), "agent": set()}
        """Of which runs, models and agents the results are."""
        self._repeated: dict[tuple[str, int], list[float | None]] = {}
        for result in results:
            self.add(result)

    def add(self, result: TrialResult) -> None:
        self.results += 1
        for what, found in self.names.items():
            found.add(getattr(result, what))
        if not result.final:
            return
        trial = (result.task, result.seed)
        if (before := self.by_trial.get(trial)) is not None:
            self._repeated.setdefault(trial, [before.told]).append(result.reward)
        if before is None or result.attempt >= before.attempt:
            self.by_trial[trial] = FinalResult.of(counted_as(result), told=result.reward)

    @property
    def repeated(self) -> tuple[str, ...]:
        """Trials with more than one final result, which nothing that tbench does leaves behind."""
        return tuple(
            f"{task} seed {seed}: {', '.join('no verdict' if each is None else f'{each:g}' for each in found)}"
            for task, seed in self.by_trial
            if (found := self._repeated.get((task, seed)))
        )


def counted_as(result: TrialResult) -> TrialResult:
    """A final result as it counts: with a person's hand in it there is no verdict, as it says nothing of the model."""
    if not result.human_touched or result.reward is None:
        return result
    message = f"a person had a hand in it, so its reward {result.reward:g} does not count"
    error = ErrorInfo(stage=Stage.AGENT, type=HUMAN_TOUCHED, blame=Blame.USER, retryable=False, message=message)
    without: dict[str, Any] = {"reward": None, "reward_all_steps": None, "metrics": {}, "error": error}
    return result.model_copy(update=without)
