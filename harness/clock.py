"""An agent's clock: wall time without the time lost to failures of the endpoint or the terminal's connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Self

from harness.concurrency import loop_time, take_turn
from harness.errors import ContextLimitReached, EndpointError
from harness.trajectory import Reply


class Clock:
    """A context manager around an agent's work. It raises TimeoutError after `limit_sec`; None means no limit.

    The limit applies to wall time less `waited_sec`, the time of failed requests and pauses beyond the agent's control.
    """

    def __init__(
        self, limit_sec: float | None, *, spent_sec: float = 0.0, waited_sec: float = 0.0, replies: int = 0
    ) -> None:
        """`spent_sec`, `waited_sec` and `replies` are the counts of another process that began the agent's work."""
        self._limit_sec, self._spent_before = limit_sec, spent_sec
        self._timeout = asyncio.Timeout(None)
        self._began: float | None = None
        self._ends_at: float | None = None
        """Event loop time of the timeout, not counting a stop in progress."""
        self._stops, self._stopped_at = 0, 0.0
        self.waited_sec = waited_sec
        self.replies = replies
        """Number of replies to queries, including late ones."""

    async def __aenter__(self) -> Self:
        self._began = loop_time() - self.waited_sec
        self._timeout = asyncio.timeout(None if self._limit_sec is None else self._limit_sec - self._spent_before)
        self._ends_at = self._timeout.when()
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._timeout.__aexit__(kind, error, trace)

    @property
    def expired(self) -> bool:
        return self._timeout.expired()

    @property
    def spent_sec(self) -> float:
        """Seconds to which the limit applies."""
        spent_sec = 0.0 if self._began is None else loop_time() - self._began - self._uncounted_sec()
        return self._spent_before + spent_sec

    def extend(self, seconds: float) -> None:
        """Extend the limit by time beyond the agent's control since its beginning; a negative value shortens it."""
        if self._began is not None:
            self.waited_sec += seconds
            self._postpone(seconds)

    def set_spent(self, seconds: float) -> None:
        """Continue as if `seconds` had been spent so far."""
        more = seconds - self.spent_sec
        self._spent_before += more
        self._postpone(-more)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock during a block; afterwards as much time is left as before."""
        if self._timeout.expired():
            yield
            return
        if not self._stops:
            self._stopped_at = loop_time()
            self._timeout.reschedule(None)
        self._stops += 1
        try:
            yield
        finally:
            self._stops -= 1
            if not self._stops:
                self.extend(loop_time() - self._stopped_at)

    async def ask(self, query: Callable[[], Awaitable[Reply]], patience_sec: float) -> Reply:
        """Make one query on this clock.

        The limit is extended by the model's patience meanwhile, so that an outage ends as the endpoint's error and not
        as a timeout, which would be scored.
        """
        try:
            return await self._ask(query, patience_sec)
        finally:
            # Hundreds of trials whose replies arrive at once would block the loop for all others.
            await take_turn()

    async def _ask(self, query: Callable[[], Awaitable[Reply]], patience_sec: float) -> Reply:
        began, before = loop_time(), self._uncounted_sec()
        self._postpone(patience_sec)
        try:
            reply = await query()
        except ContextLimitReached as refusal:
            self._postpone(-patience_sec)  # the agent may ask again
            self.extend(refusal.waited_sec)
            raise
        except EndpointError:
            # The limit stays extended: only the endpoint's error shall end this agent.
            self.waited_sec += max(0.0, loop_time() - began - (self._uncounted_sec() - before))
            raise
        except asyncio.CancelledError:
            if self._ends_at is not None and not self._stops:
                # The time since the end of the agent's own limit counts as waiting: the agent did no work then.
                self.waited_sec += max(0.0, loop_time() - (self._ends_at - patience_sec))
            raise
        self.replies += 1
        self._postpone(-patience_sec)
        self.extend(reply.waited_sec)
        if self._ends_at is not None and not self._stops and loop_time() > self._ends_at:
            # Wait here for the timeout, so that a late reply is not executed.
            await asyncio.get_running_loop().create_future()
        return reply

    def _uncounted_sec(self) -> float:
        """Return the uncounted seconds so far, including a stop in progress."""
        return self.waited_sec + (loop_time() - self._stopped_at if self._stops else 0.0)

    def _postpone(self, seconds: float) -> None:
        # An expired timeout cannot be rescheduled.
        if self._ends_at is not None and not self._timeout.expired():
            self._ends_at += seconds
            if not self._stops:
                self._timeout.reschedule(self._ends_at)
