"""Outages of the endpoint: detected once for all requests of a model, which then wait for its return.

A failed request may be the request's own fault. If a probe fails as well, the endpoint is down. From then on a single
task probes it, and no request's retry budget is spent, until the endpoint is back or has been down for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from harness.endpoint.retry import TransientError
from harness.trajectory import Frozen

__all__ = ["EndpointState", "Outage", "OutagePolicy", "OutageTooLongError", "PendingAttempt"]

EndpointState = Literal["away", "back", "given_up"]
"""New state of an endpoint: away, back, or away for longer than allowed."""


class OutagePolicy(Frozen):
    """Policy for waiting for an endpoint that is down. All times in seconds."""

    max_sec: float = Field(default=3600.0, ge=0)
    """Longest outage to wait for; also the longest total wait of one request. With 0, an outage is a failure like any
    other."""
    probe_timeout_sec: float = Field(default=10.0, gt=0)
    first_pause_sec: float = Field(default=1.0, ge=0)
    """Pause before the second probe; it grows by half with each further probe."""
    longest_pause_sec: float = Field(default=10.0, gt=0)
    move_on_sec: float = Field(default=30.0, ge=0)
    """Seconds of an outage after which a pending request is aborted if it can go to another server."""
    spread_sec: float = Field(default=3.0, ge=0)
    """Time over which waiting requests are resumed, so that they do not arrive all at once."""
    most: int = Field(default=5, ge=1)
    """Maximum number of outages of one request; then it fails, as it may be the cause."""

    def patience_sec(self, attempt_sec: float) -> float:
        """Longest time that a request spends on outages, including the attempts that met them."""
        if self.max_sec == 0:
            return 0.0
        return (
            self.max_sec + self.probe_timeout_sec + self.most * (attempt_sec + self.probe_timeout_sec + self.spread_sec)
        )


class OutageTooLongError(Exception):
    """Raised if the endpoint was down for too long, or too often, for a request."""


@dataclass(eq=False)
class PendingAttempt:
    """One pending attempt; `lost` if its server is gone, perhaps replaced by a new one."""

    has_alternative: bool
    """Whether it can go to another server."""
    lost: bool = False


class Outage:
    """Tracks the outages of one endpoint. `probe` raises TransientError if the endpoint does not answer.

    `say` receives a message when an outage begins and ends, and `on_change` the new state. `gave_up` is the reason once
    an outage lasted longer than allowed; later outages are not waited for.
    """

    def __init__(
        self, probe: Callable[[], Awaitable[None]], policy: OutagePolicy, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.policy = policy
        self.gave_up: str | None = None
        self.on_change: Callable[[EndpointState], None] = lambda _: None
        self._probe = probe
        self._say = say
        self._checking: asyncio.Task[bool] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._answered = asyncio.Event()
        self._pending: dict[PendingAttempt, asyncio.Timeout] = {}

    @property
    def is_away(self) -> bool:
        return self._watch is not None and not self._watch.done()

    async def wait(self) -> None:
        """Wait until the endpoint is back or given up; returns at once if it is not known to be down."""
        await self.wait_for_end(None)

    async def wait_for_end(self, timeout_sec: float | None) -> bool:
        """Wait up to `timeout_sec`; return whether the current outage, if any, has ended or was given up."""
        watch = self._watch
        if watch is None:
            return True
        done, _ = await asyncio.wait({watch}, timeout=timeout_sec)
        if done:
            watch.result()
        return bool(done)

    async def close(self) -> None:
        """Stop probing."""
        for task in (self._checking, self._watch):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})

    def request(self, *, waits: bool = True) -> RequestOutages:
        """Return the outage handler of one request; unless `waits`, an outage raises OutageTooLongError at once."""
        return RequestOutages(self, waits)

    @contextlib.asynccontextmanager
    async def attempt(self, timeout_sec: float, *, has_alternative: bool = False) -> AsyncIterator[PendingAttempt]:
        """Bound one attempt with a context manager. Raises TimeoutError, also if the attempt is lost."""
        pending = PendingAttempt(has_alternative)
        async with asyncio.timeout(timeout_sec) as limit:
            self._pending[pending] = limit
            try:
                yield pending
            finally:
                del self._pending[pending]

    @property
    def has_pending(self) -> bool:
        """Whether attempts are pending."""
        return bool(self._pending)

    async def check(self) -> None:
        """Check whether the endpoint is down, without a failed request."""
        await self.is_cause_of(TransientError("nothing heard"))

    def note_answer(self) -> None:
        """Record that a request was answered."""
        self._answered.set()

    async def is_cause_of(self, failure: TransientError) -> bool:
        """Whether an attempt failed because the endpoint is down; probes the endpoint if that is not known."""
        if self.policy.max_sec == 0 or failure.answered:
            return False
        if self.is_away:
            return True
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check(), name="check the endpoint")
        return await asyncio.shield(self._checking)

    async def _check(self) -> bool:
        failure = await self._probe_failure()
        if failure is None:
            return False
        if self.gave_up is None:
            self._watch = asyncio.create_task(self._wait_until_back(failure), name="wait for the endpoint")
        return True

    async def is_reachable(self) -> bool:
        """Whether the endpoint answers now."""
        return not self.is_away and await self._probe_failure() is None

    async def _probe_failure(self) -> TransientError | None:
        """Probe the endpoint and return its failure; None if it answers."""
        try:
            async with asyncio.timeout(self.policy.probe_timeout_sec):
                await self._probe()
        except TransientError as failure:
            return None if failure.answered else failure
        except TimeoutError:
            return TransientError(f"no answer within {self.policy.probe_timeout_sec:g} s")
        return None

    async def _wait_until_back(self, failure: TransientError) -> None:
        policy, since, pause_sec, closed = self.policy, time.monotonic(), self.policy.first_pause_sec, False
        self._answered.clear()
        self._report("away", f"away: {failure.reason.rstrip('.')}; pausing")
        found: TransientError | None = failure
        while found is not None:
            failure = found
            closed |= failure.refused
            left_sec = policy.max_sec - (time.monotonic() - since)
            if left_sec <= 0:
                self._give_up(time.monotonic() - since, failure)
                return
            # Pending requests may still be answered although the port is closed: an answer then does not end the
            # outage.
            if await self._answered_within(min(pause_sec, left_sec)) and not closed:
                break
            if time.monotonic() - since >= policy.move_on_sec:
                self._abort_pending(only_with_alternative=True)
            pause_sec = min(1.5 * pause_sec, policy.longest_pause_sec)
            found = await self._probe_failure()
        self._report("back", f"back after {time.monotonic() - since:.0f} s")
        if closed:
            self._abort_pending()

    async def _answered_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._answered.wait()
        heard = self._answered.is_set()
        self._answered.clear()
        return heard

    def _give_up(self, seconds: float, failure: TransientError) -> None:
        self.gave_up = (
            f"the endpoint was down for {seconds:.0f} s, longer than --max-outage ({failure.reason.rstrip('.')})"
        )
        self._report("given_up", f"away for {seconds:.0f} s, longer than --max-outage: given up")

    def _report(self, state: EndpointState, words: str) -> None:
        self._say(words)
        self.on_change(state)

    def _abort_pending(self, *, only_with_alternative: bool = False) -> None:
        """Abort pending attempts: a new server process does not know them, or another server answers them sooner."""
        now = asyncio.get_running_loop().time()
        for pending, limit in self._pending.items():
            if not limit.expired() and (pending.has_alternative or not only_with_alternative):
                pending.lost = True
                limit.reschedule(now)


@dataclass
class RequestOutages:
    """Waits for the end of outages on behalf of one request: a `harness.endpoint.retry.OutageHandler`."""

    _outage: Outage
    _waits: bool
    _waited_sec: float = 0.0
    _times: int = 0

    async def wait_while_away(self) -> None:
        """Wait for the end of a current outage. Raises OutageTooLongError, like `was_away`."""
        if self._outage.is_away:
            await self._wait_out()

    async def was_away(self, failure: TransientError) -> bool:
        """Whether an attempt failed because of an outage. Waits for its end."""
        if not (failure.lost or await self._outage.is_cause_of(failure)):
            return False
        if failure.lost and not self._waits and not self._outage.is_away:
            return True  # it is back already
        await self._wait_out()
        return True

    async def _wait_out(self) -> None:
        outage, policy = self._outage, self._outage.policy
        if not self._waits:
            raise OutageTooLongError(outage.gave_up or "the endpoint is away")
        self._times += 1
        if self._times > policy.most:
            raise OutageTooLongError(f"the endpoint went away {self._times} times during this request")
        began = time.monotonic()
        is_over = await outage.wait_for_end(policy.max_sec + policy.probe_timeout_sec - self._waited_sec)
        self._waited_sec += time.monotonic() - began
        if outage.gave_up is not None:
            raise OutageTooLongError(outage.gave_up)
        if not is_over:
            words = "in total longer than --max-outage"
            raise OutageTooLongError(f"this request waited {self._waited_sec:.0f} s for the endpoint, {words}")
        await asyncio.sleep(random.uniform(0, policy.spread_sec))
