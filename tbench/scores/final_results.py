"""Collects the final results of a run's trials, and finds trials that failed on an overloaded machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, Self

from harness.reply_stats import ReplyStats
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
    WentOn,
)
from tbench.text import counted

HUMAN_TOUCHED, WENT_ON = "human_touched", "went_on"
"""Error types of trials that do not count: a person intervened, or an interrupted trial continued differently."""
_EMPTY: Mapping[str, Any] = {}


@lru_cache(maxsize=4096)
def shared_counts(counts: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    """Return one shared dict for equal counts, which saves memory over thousands of trials."""
    return dict(counts) or _EMPTY


class CompactReplies(NamedTuple):
    """The fields of `ReplyStats` in a third of the memory."""

    total: int
    models: Mapping[str, int]
    fingerprints: Mapping[str, int]
    weights: Mapping[str, int]
    signs: Mapping[str, int]
    first: str | None

    @classmethod
    def from_stats(cls, seen: ReplyStats) -> CompactReplies:
        if not seen.total:
            return _NO_REPLIES
        counts = (seen.models, seen.fingerprints, seen.weights, seen.signs)
        return cls._make((seen.total, *(shared_counts(tuple(each.items())) for each in counts), seen.first))


_NO_REPLIES = CompactReplies(0, _EMPTY, _EMPTY, _EMPTY, _EMPTY, None)


class CompactTimings(NamedTuple):
    """The fields of `Timings` in a third of the memory."""

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
    def from_timings(cls, timings: Timings) -> Self:
        return cls(*(getattr(timings, name) for name in cls._fields))


@dataclass(frozen=True, slots=True)
class FinalResult:
    """The fields of a trial's final result that a summary needs, named as in `TrialResult`."""

    task: str
    seed: int
    attempt: int
    reward: float | None
    reported_reward: float | None
    """The reward in the result's line, even if it does not count."""
    passed: bool
    metrics: Mapping[str, float]
    outcome: Outcome | None
    error: ErrorInfo | None
    steps: int
    tokens: tuple[int, int, int | None, int]
    replies_from: Mapping[str, int]
    replies: CompactReplies
    timings: CompactTimings
    started_at: datetime
    human_touched: bool
    went_on: tuple[WentOn, ...]
    integrity: Integrity
    host: HostSample | None
    """None for a solved trial, where it is not needed."""
    task_steps: tuple[TaskStepResult, ...]
    reward_all_steps: float | None

    @classmethod
    def from_result(cls, result: TrialResult, reported_reward: float | None) -> Self:
        usage = result.usage
        changed: dict[str, Any] = {
            "reported_reward": reported_reward,
            "metrics": result.metrics or _EMPTY,
            "tokens": (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.uncounted),
            "replies_from": result.replies_from or _EMPTY,
            "replies": CompactReplies.from_stats(result.replies),
            "timings": CompactTimings.from_timings(result.timings),
            "integrity": NOTHING_SEEN if result.integrity == NOTHING_SEEN else result.integrity,
            "host": None if result.passed else result.host,
        }
        return cls(*(changed[name] if name in changed else getattr(result, name) for name in cls.__slots__))


class FinalResults:
    """Collects a run's results one by one, and keeps only the final result of each trial."""

    def __init__(self, results: Iterable[TrialResult] = ()) -> None:
        self.by_trial: dict[tuple[str, int], FinalResult] = {}
        """The final result of each task and seed; if there are several, the highest attempt's, or the last line's."""
        self._others: dict[tuple[str, int, int], FinalResult] = {}
        """Results that do not count, by task, seed and attempt."""
        self.results = 0
        """Number of all results, final or not."""
        self.names: dict[str, set[str | None]] = {"run": set(), "model": set(), "agent": set()}
        """Runs, models and agents found in the results."""
        self._repeated: dict[tuple[str, int], list[float | None]] = {}
        for result in results:
            self.add(result)

    def add(self, result: TrialResult) -> None:
        self.results += 1
        for field, names in self.names.items():
            names.add(getattr(result, field))
        trial = (result.task, result.seed)
        if not result.final:
            self._others[*trial, result.attempt] = FinalResult.from_result(result, result.reward)
            return
        if (before := self.by_trial.get(trial)) is not None:
            self._repeated.setdefault(trial, [before.reported_reward]).append(result.reward)
        found = FinalResult.from_result(exclude_uncounted(result), reported_reward=result.reward)
        last, other = (found, before) if before is None or result.attempt >= before.attempt else (before, found)
        self.by_trial[trial] = last
        if other is not None:
            self._others[*trial, other.attempt] = other

    @property
    def attempts(self) -> tuple[FinalResult, ...]:
        """Every attempt with a result once, whether it counts or not; also one that was verified again."""
        finals = {(each.task, each.seed, each.attempt): each for each in self.by_trial.values()}
        return tuple((self._others | finals).values())

    @property
    def repeated(self) -> tuple[str, ...]:
        """Trials with more than one final result, each with all its rewards; tbench itself never writes these."""
        return tuple(
            f"{task} seed {seed}: {', '.join('no verdict' if each is None else f'{each:g}' for each in found)}"
            for task, seed in self.by_trial
            if (found := self._repeated.get((task, seed)))
        )


def exclude_uncounted(result: TrialResult) -> TrialResult:
    """Return the result, without its reward if that does not count.

    The reward does not count if a person intervened, or if the trial continued after an interruption in a terminal
    that differed.
    """
    uncounted = next((each for each in result.went_on if not each.counts), None)
    if result.reward is None or not (result.human_touched or uncounted):
        return result
    why = "a person intervened in the trial" if uncounted is None else f"after a cut it was {uncounted.words}"
    type_, blame = (HUMAN_TOUCHED, Blame.USER) if uncounted is None else (WENT_ON, Blame.INFRA)
    message = f"{why}, so its reward {result.reward:g} does not count"
    error = ErrorInfo(stage=Stage.AGENT, type=type_, blame=blame, retryable=False, message=message)
    without: dict[str, Any] = {"reward": None, "reward_all_steps": None, "metrics": {}, "error": error}
    return result.model_copy(update=without)


# Trials that failed on a machine under pressure: the machine may be the cause, not the agent.

PRESSURE_LOAD = 2.0
"""Load average per cpu above which a trial counts as under pressure: everything took twice as long."""
PRESSURE_STALL = 0.2
"""Share of ten seconds spent waiting for memory above which a trial counts as under pressure."""
PRESSURE_JUMP_SEC = 5.0
"""Clock jump during one trial, in seconds, above which the trial counts as under pressure."""


class Pressure(Frozen):
    """Unsolved trials, how many of them ran under pressure, and the worst values measured in these."""

    timeouts: int
    """Trials with the outcome agent_timeout or the error verifier_timeout."""
    under_pressure: int
    """Timeouts in which PRESSURE_LOAD, PRESSURE_STALL or PRESSURE_JUMP_SEC was exceeded."""
    failed: int = 0
    """Trials with a reward below 1 and no timeout; their tests may have time limits, too."""
    failed_under_pressure: int = 0
    load_max: float | None
    memory_stall_max: float | None
    clock_jump_sec: float
    """Largest clock jump in one trial. Jumps shorten no limit of tbench, but may affect programs in the container."""

    @property
    def words(self) -> str:
        """The finding in one line."""
        signs = []
        if self.load_max is not None and self.load_max > PRESSURE_LOAD:
            signs.append(f"load up to {self.load_max:.1f} per cpu")
        if self.memory_stall_max is not None and self.memory_stall_max > PRESSURE_STALL:
            signs.append(f"waiting for memory up to {100 * self.memory_stall_max:.0f} % of the time")
        if self.clock_jump_sec > PRESSURE_JUMP_SEC:
            signs.append(f"clocks jumped by up to {self.clock_jump_sec:.0f} s")
        happened = [
            f"{count} of {counted(total, noun)}"
            for count, total, noun in (
                (self.under_pressure, self.timeouts, "timeout"),
                (self.failed_under_pressure, self.failed, "failed trial"),
            )
            if count
        ]
        return f"{' and '.join(happened)} ran on an overloaded machine: {', '.join(signs)}"


def count_pressure(results: Iterable[FinalResult]) -> Pressure | None:
    """Count the results that failed under pressure; None if there are none."""
    unsolved = [result for result in results if not result.passed]
    timeouts = [result for result in unsolved if _hit_a_time_limit(result)]
    failed = [result for result in unsolved if result.reward is not None and not _hit_a_time_limit(result)]
    pressed_timeouts, pressed_failures = _hosts_under_pressure(timeouts), _hosts_under_pressure(failed)
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


def _hosts_under_pressure(results: Iterable[FinalResult]) -> list[HostSample]:
    return [result.host for result in results if result.host is not None and is_under_pressure(result.host)]


def is_under_pressure(host: HostSample) -> bool:
    """Whether a machine was under pressure during a trial."""
    return (
        (host.load_max or 0) > PRESSURE_LOAD
        or (host.memory_stall_max or 0) > PRESSURE_STALL
        or host.clock_jump_sec > PRESSURE_JUMP_SEC
    )
