"""Decides when a run stops early: the endpoint is gone or never answered, no machine is left, or a stop is planned."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Protocol

from tbench.config.settings import ScheduleConfig
from tbench.config.values import duration_sec
from tbench.events import Event, TrialStep, TrialVerdict

FIRST_TRIALS = 3
"""Number of first trials that stop the run if all end with endpoint errors and no request was answered."""
ENDPOINT_ERRORS = {"endpoint_refused", "endpoint_unavailable", "never_answered", "request_too_large"}


class EndpointGate(Protocol):
    """Availability of the endpoint, awaited before each trial: `harness.endpoint.outage.Outage`."""

    @property
    def gave_up(self) -> str | None:
        """Why the endpoint was given up; None if it was not."""

    async def wait(self) -> None:
        """Wait until the endpoint is available, or given up."""


class PlannedStop:
    """A stop of a run that keeps the sandboxes of its trials, so that they can be continued."""

    def __init__(self, began: datetime | None = None) -> None:
        """`began` is when the command began; now by default."""
        self.reason = ""
        """Why the run was stopped; empty if it was not."""
        self._began = began or datetime.now()
        self._task: asyncio.Task[object] | None = None

    def begin(self, reason: str) -> bool:
        """Stop the run, once; return False before it has begun and after its end."""
        if self._task is None:
            return False
        if not self.reason:
            self.reason = reason
            self._task.cancel()
        return True

    @contextlib.contextmanager
    def stopping(self, schedule: ScheduleConfig) -> Iterator[None]:
        """Let the run in the block be stopped, and stop it at the time that its schedule sets."""
        self._task = asyncio.current_task()
        timers = [
            asyncio.get_running_loop().call_later((at - datetime.now()).total_seconds(), self.begin, reason)
            for reason, at in _stops(schedule, self._began)
        ]
        try:
            yield
        finally:
            self._task = None
            for timer in timers:
                timer.cancel()


def _stops(schedule: ScheduleConfig, began: datetime) -> Iterator[tuple[str, datetime]]:
    """Yield the stops that a schedule plans for a command: the reason and the time of each."""
    if schedule.stop_after is not None:
        yield f"--for {schedule.stop_after}", began + timedelta(seconds=duration_sec(schedule.stop_after))
    if schedule.stop_at is not None:
        hour, minute = map(int, schedule.stop_at.split(":"))
        at = began.replace(hour=hour, minute=minute, second=0, microsecond=0)
        yield f"--until {schedule.stop_at}", at if at > began else at + timedelta(days=1)


class StopPolicy:
    """Decides from the events of a run whether another trial may start. Running trials are never stopped."""

    def __init__(
        self,
        planned: int,
        gate: EndpointGate | None = None,
        say: Callable[[str], None] = lambda _: None,
        *,
        no_machine: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`planned` is the run's number of trials; `say` is called once, when the run stops.

        `no_machine` returns why no machine is left for trials; None while there is one.
        """
        self._no_machine = no_machine
        self._planned = planned
        self._gate = gate
        self._say = say
        self._answered = False
        self._failed: set[str] = set()
        self._ended: set[str] = set()
        self._never_answered: str | None = None
        self._has_announced = False

    @property
    def reason(self) -> str | None:
        """Why the run stops early; None while it continues."""
        return (self._gate.gave_up if self._gate is not None else None) or self._never_answered or self._no_machine()

    async def may_start(self) -> bool:
        """Return whether another trial may start; waits while the endpoint is unavailable."""
        if self._gate is not None:
            await self._gate.wait()
        if self.reason is None:
            return True
        if not self._has_announced:
            self._has_announced = True
            self._say(f"stopping: {self.reason}; running trials finish first")
        return False

    def on_event(self, event: Event) -> None:
        """Record answered requests and finished trials."""
        if isinstance(event, TrialStep):
            self._answered |= event.step > 1  # a second step follows an answer
        elif isinstance(event, TrialVerdict):
            result = event.result
            self._answered |= result.steps > 0
            self._ended.add(result.trial)
            if result.error is not None and result.error.type in ENDPOINT_ERRORS:
                self._failed.add(result.trial)
                self._give_up_if_never_answered(result.error.message)

    def _give_up_if_never_answered(self, last_error: str) -> None:
        # In a run with few trials, fewer than FIRST_TRIALS can fail at the endpoint.
        enough = min(FIRST_TRIALS, self._planned - len(self._ended - self._failed))
        if self._answered or self._never_answered is not None or len(self._failed) < enough:
            return
        trials = "trial" if len(self._failed) == 1 else f"{len(self._failed)} trials"
        self._never_answered = (
            f"the first {trials} ended with endpoint errors, and no request was answered; last error: {last_error}"
        )
