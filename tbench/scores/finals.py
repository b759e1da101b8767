"""The final results of a run's trials, taken in one by one, and which of them failed on a machine under pressure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, Self

from harness.replies import RepliesSeen
from harness.trajectory import Frozen, Outcome
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
from tbench.text import counted

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


# Trials that failed on a machine under pressure: they may say more of the machine than of the agent.

PRESSING_LOAD = 2.0
"""Load average per cpu above which a trial counts as one under pressure: everything took twice as long."""
PRESSING_STALL = 0.2
"""Share of ten seconds in which something waited for memory above which a trial counts as one under pressure."""
PRESSING_JUMP_SEC = 5.0
"""Jump of the clock during one trial, in seconds, above which it counts as one under pressure."""


class Pressure(Frozen):
    """Trials that were not solved, and what the machine went through in those that had it under pressure."""

    timeouts: int
    """Trials with the outcome agent_timeout or the error verifier_timeout."""
    under_pressure: int
    """The timeouts in which a threshold was passed: PRESSING_LOAD, PRESSING_STALL, PRESSING_JUMP_SEC."""
    failed: int = 0
    """Trials with a reward below 1 and no timeout: a test may have limits of its own."""
    failed_under_pressure: int = 0
    load_max: float | None
    memory_stall_max: float | None
    clock_jump_sec: float
    """The largest jump in one trial. No limit counts it, but what ran in the container may have noticed."""

    @property
    def words(self) -> str:
        """The finding in one line."""
        signs = []
        if self.load_max is not None and self.load_max > PRESSING_LOAD:
            signs.append(f"load up to {self.load_max:.1f} per cpu")
        if self.memory_stall_max is not None and self.memory_stall_max > PRESSING_STALL:
            signs.append(f"waiting for memory up to {100 * self.memory_stall_max:.0f} % of the time")
        if self.clock_jump_sec > PRESSING_JUMP_SEC:
            signs.append(f"clocks jumped by up to {self.clock_jump_sec:.0f} s")
        happened = [
            f"{count} of {counted(total, noun)}"
            for count, total, noun in (
                (self.under_pressure, self.timeouts, "timeout"),
                (self.failed_under_pressure, self.failed, "failed trial"),
            )
            if count
        ]
        return f"{' and '.join(happened)} happened under pressure: {', '.join(signs)}"


def pressure_of(results: Iterable[FinalResult]) -> Pressure | None:
    """What failed under pressure among `results`; None where nothing did."""
    unsolved = [result for result in results if not result.passed]
    timeouts = [result for result in unsolved if _hit_a_time_limit(result)]
    failed = [result for result in unsolved if result.reward is not None and not _hit_a_time_limit(result)]
    pressed_timeouts, pressed_failures = _pressed(timeouts), _pressed(failed)
    pressed = [*pressed_timeouts, *pressed_failures]
    if not pressed:
        return None
    loads = [host.load_max for host in pressed if host.load_max is not None]
    stalls = [host.memory_stall_max for host in pressed if host.memory_stall_max is not None]
    return Pressure(
        timeouts=len(timeouts),
        under_pressure=len(pressed_timeouts),
        failed=len(failed),
        failed_under_pressure=len(pressed_failures),
        load_max=max(loads, default=None),
        memory_stall_max=max(stalls, default=None),
        clock_jump_sec=max(host.clock_jump_sec for host in pressed),
    )


def _hit_a_time_limit(result: FinalResult) -> bool:
    in_verifier = result.error is not None and result.error.type == "verifier_timeout"
    return in_verifier or result.outcome is Outcome.AGENT_TIMEOUT


def _pressed(results: Iterable[FinalResult]) -> list[HostSample]:
    return [result.host for result in results if result.host is not None and _is_pressing(result.host)]


def _is_pressing(host: HostSample) -> bool:
    return (
        (host.load_max or 0) > PRESSING_LOAD
        or (host.memory_stall_max or 0) > PRESSING_STALL
        or host.clock_jump_sec > PRESSING_JUMP_SEC
    )
