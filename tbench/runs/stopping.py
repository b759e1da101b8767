"""When a run stops by itself, and why: its endpoint is gone, or never answered to begin with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tbench.events import Event, TrialStep, TrialVerdict

FIRST_TRIALS = 3
"""So many trials that end with an endpoint's error before any request was answered: there is no point in going on."""
_ENDPOINT_ERRORS = {"endpoint_refused", "endpoint_unavailable"}


class Gate(Protocol):
    """What has to be there before a trial starts: `harness.outage.Outage`."""

    gave_up: str | None
    """Why it will not be there any more."""

    async def wait(self) -> None:
        """Until it is there, or has been given up."""


class Stopping:
    """Asked before each trial; told of what happens as a subscriber. Trials under way are not its affair."""

    def __init__(self, planned: int, gate: Gate | None = None, say: Callable[[str], None] = lambda _: None) -> None:
        """`planned`: how many trials the run has. `say` hears once that it stops."""
        self._planned = planned
        self._gate = gate
        self._say = say
        self._answered = False
        self._failed: set[str] = set()
        self._ended: set[str] = set()
        self._hopeless: str | None = None
        self._said = False

    @property
    def reason(self) -> str | None:
        """Why the run stops; None while it goes on."""
        return (self._gate.gave_up if self._gate is not None else None) or self._hopeless

    async def may_start(self) -> bool:
        """Whether another trial may start; waits while the endpoint is away."""
        if self._gate is not None:
            await self._gate.wait()
        if self.reason is None:
            return True
        if not self._said:
            self._said = True
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
            if result.error is not None and result.error.type in _ENDPOINT_ERRORS:
                self._failed.add(result.trial)
                self._judge(result.error.message)

    def _judge(self, words: str) -> None:
        # Trials that ended otherwise say nothing of the endpoint, and need not be waited for.
        enough = min(FIRST_TRIALS, self._planned - len(self._ended - self._failed))
        if self._answered or self._hopeless is not None or len(self._failed) < enough:
            return
        trials = "trial" if len(self._failed) == 1 else f"{len(self._failed)} trials"
        self._hopeless = (
            f"the first {trials} ended with the endpoint's errors and no request was answered; last: {words}"
        )
