"""Trials that failed on a machine under pressure: they may say more of the machine than of the agent."""

from __future__ import annotations

from collections.abc import Iterable

from harness.trajectory import Frozen, Outcome
from tbench.results import HostSample
from tbench.scores.finals import FinalResult
from tbench.text import counted

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
