"""Decides when a run stops by itself, and why: its endpoint is gone or never answered, or no machine is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tbench.events import Event, TrialStep, TrialVerdict

FIRST_TRIALS = 3
"""Number of first trials that, all ended by the endpoint's errors with no request answered, stop the run."""
ENDPOINT_ERRORS = {"endpoint_refused", "endpoint_unavailable", "never_answered", "request_too_large"}


class Gate(Protocol):
    """The endpoint's availability, which trials wait for before they start: `harness.endpoint.outage.Outage`."""

    @property
    def gave_up(self) -> str | None:
        """Why the endpoint was given up; None while it was not."""

    async def wait(self) -> None:
        """Return when the endpoint is there or has been given up."""


class Stopping:
    """Decides whether another trial may start, from the events of a run. Trials under way are never stopped."""

    def __init__(
        self,
        planned: int,
        gate: Gate | None = None,
        say: Callable[[str], None] = lambda _: None,
        *,
        machines: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`planned` is how many trials the run has; `say` is called once, when it stops.

        `machines` tells why no machine is left on which a trial could be; None while there is one.
        """
        self._machines = machines
        self._planned = planned
        self._gate = gate
        self._say = say
        self._answered = False
        self._failed: set[str] = set()
        self._ended: set[str] = set()
        self._never_answered: str | None = None
        self._has_said_so = False

    @property
    def reason(self) -> str | None:
        """Why the run stops; None while it goes on."""
        return (self._gate.gave_up if self._gate is not None else None) or self._never_answered or self._machines()

    async def may_start(self) -> bool:
        """Whether another trial may start; waits while the endpoint is away."""
        if self._gate is not None:
            await self._gate.wait()
        if self.reason is None:
            return True
        if not self._has_said_so:
            self._has_said_so = True
            self._say(f"stopping: {self.reason}; trials under way come to their end first")
        return False

    def on_event(self, event: Event) -> None:
        """Notice answers, and trials that ended."""
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
        # Trials that ended in another way say nothing about the endpoint, and need not be waited for.
        enough = min(FIRST_TRIALS, self._planned - len(self._ended - self._failed))
        if self._answered or self._never_answered is not None or len(self._failed) < enough:
            return
        trials = "trial" if len(self._failed) == 1 else f"{len(self._failed)} trials"
        self._never_answered = (
            f"the first {trials} ended with the endpoint's errors and no request was answered; last: {last_error}"
        )
