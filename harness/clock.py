"""An agent's wall time, to which failures of the endpoint and of the way to the terminal do not count."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Self

from harness.errors import ContextLimitReached, EndpointError
from harness.trajectory import Reply
from harness.turns import take_turn


class Clock:
    """A context manager around an agent that raises TimeoutError at the end of `limit_sec`; None is no limit.

    What counts towards the limit is the wall time less `waited_sec`: the sum of failed requests and of waiting, which
    are not the agent's doing.
    """

    def __init__(self, limit_sec: float | None) -> None:
        self._timeout = asyncio.timeout(limit_sec)
        self._ends_at = self._timeout.when()
        """When it strikes, but for a stop that is under way."""
        self._stops, self._stopped_at = 0, 0.0
        self.waited_sec = 0.0
        self.replies = 0
        """How many the queries gave, those included that came too late."""

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._timeout.__aexit__(kind, error, trace)

    @property
    def expired(self) -> bool:
        return self._timeout.expired()

    def shift(self, seconds: float) -> None:
        """Put the end off by time that is not the agent's doing; a negative one brings it closer."""
        self.waited_sec += seconds
        self._put_off(seconds)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock for a block that is not the agent's doing; afterwards it has as much left as before."""
        if self._timeout.expired():
            yield
            return
        if not self._stops:
            self._stopped_at = _now()
            self._timeout.reschedule(None)
        self._stops += 1
        try:
            yield
        finally:
            self._stops -= 1
            if not self._stops:
                self.shift(_now() - self._stopped_at)

    async def ask(self, query: Callable[[], Awaitable[Reply]], patience_sec: float) -> Reply:
        """Make one query on this clock.

        Meanwhile the end is put off by the model's patience, so that an outage ends as the endpoint's error and not
        as a timeout, which would be scored.
        """
        try:
            return await self._ask(query, patience_sec)
        finally:
            # Hundreds of trials whose replies come at the same moment would hold up all the others.
            await take_turn()

    async def _ask(self, query: Callable[[], Awaitable[Reply]], patience_sec: float) -> Reply:
        began, before = _now(), self._waited()
        self._put_off(patience_sec)
        try:
            reply = await query()
        except ContextLimitReached as refusal:
            self._put_off(-patience_sec)  # the agent may ask again
            self.shift(refusal.waited_sec)
            raise
        except EndpointError:
            # The end stays put off: nothing but the endpoint shall end this agent.
            self.waited_sec += max(0.0, _now() - began - (self._waited() - before))
            raise
        except asyncio.CancelledError:
            self._leave_out_what_came_after(patience_sec)
            raise
        self.replies += 1
        self._put_off(-patience_sec)
        self.shift(reply.waited_sec)
        if self._ends_at is not None and not self._stops and _now() > self._ends_at:
            # The clock strikes here, and nothing of a late reply is executed.
            await asyncio.get_running_loop().create_future()
        return reply

    def _leave_out_what_came_after(self, patience_sec: float) -> None:
        """Count as waiting what lay beyond the limit when the clock struck at the end of patience: it was no work."""
        if self._ends_at is not None and not self._stops:
            self.waited_sec += max(0.0, _now() - (self._ends_at - patience_sec))

    def _waited(self) -> float:
        """What does not count so far, with a stop that is under way."""
        return self.waited_sec + (_now() - self._stopped_at if self._stops else 0.0)

    def _put_off(self, seconds: float) -> None:
        # One that has struck cannot be set any more.
        if self._ends_at is not None and not self._timeout.expired():
            self._ends_at += seconds
            if not self._stops:
                self._timeout.reschedule(self._ends_at)


def _now() -> float:
    return asyncio.get_running_loop().time()
