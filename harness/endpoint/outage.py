"""Outages of the endpoint: found out once for all requests of a model, and sat out by all of them.

A request that fails says little: it may be the request. When a probe fails as well, the endpoint is away. From then on
one prober asks for all, and nobody's retry budget is spent, until the endpoint is back or has been away for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal

from pydantic import Field

from harness.endpoint.retry import TransientError
from harness.trajectory import Frozen

__all__ = ["AwayTooLongError", "Flight", "Outage", "OutagePolicy", "Presence"]

Presence = Literal["away", "back", "given_up"]
"""What an endpoint has become: no longer there, there again, or away for longer than it is waited for."""


class OutagePolicy(Frozen):
    """How long an endpoint may be away, and how its return is noticed. All times in seconds."""

    max_sec: float = Field(default=3600.0, ge=0)
    """Longest outage that is sat out; also the most that one request waits in all. With 0, an outage is a failure like
    any other."""
    probe_timeout_sec: float = Field(default=10.0, gt=0)
    first_pause_sec: float = Field(default=1.0, ge=0)
    """Pause before the second probe; grows by half with each."""
    longest_pause_sec: float = Field(default=10.0, gt=0)
    move_on_sec: float = Field(default=30.0, ge=0)
    """Seconds of an outage after which a request under way is given up that has another server to go to."""
    spread_sec: float = Field(default=3.0, ge=0)
    """Time over which those who waited come back, so that they do not come all at once."""
    most: int = Field(default=5, ge=1)
    """Most outages of one request, which is then given up: it may be what brings the server down."""

    def patience_sec(self, attempt_sec: float) -> float:
        """Longest time that a request spends on outages, including the attempts that met them."""
        if self.max_sec == 0:
            return 0.0
        return (
            self.max_sec + self.probe_timeout_sec + self.most * (attempt_sec + self.probe_timeout_sec + self.spread_sec)
        )


class AwayTooLongError(Exception):
    """Raised where the endpoint was away for too long, or too often, for a request."""


class Flight:
    """One attempt under way; `lost` where the server that had it is gone, and another has come in its place."""

    def __init__(self, elsewhere: bool = False) -> None:
        self.lost = False
        self.elsewhere = elsewhere
        """Whether it has another server to go to."""


class Outage:
    """Watches one endpoint. `probe` returns where it answers, and raises TransientError where it does not.

    `say` is told in words when an outage begins and ends, and `on_change` what the endpoint has become. `gave_up` says
    why, once an outage lasted longer than allowed; later ones are not sat out.
    """

    def __init__(
        self, probe: Callable[[], Awaitable[None]], policy: OutagePolicy, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.policy = policy
        self.gave_up: str | None = None
        self.on_change: Callable[[Presence], None] = lambda _: None
        self._probe = probe
        self._say = say
        self._looking: asyncio.Task[bool] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()
        self._in_flight: dict[Flight, asyncio.Timeout] = {}

    @property
    def is_away(self) -> bool:
        return self._watch is not None and not self._watch.done()

    async def wait(self) -> None:
        """Wait until the endpoint is there or has been given up; returns at once where it is not known to be away."""
        await self.over(None)

    async def over(self, timeout_sec: float | None) -> bool:
        """Whether the outage under way, if any, ends within `timeout_sec`, or is given up."""
        watch = self._watch
        if watch is None:
            return True
        done, _ = await asyncio.wait({watch}, timeout=timeout_sec)
        if done:
            watch.result()
        return bool(done)

    async def close(self) -> None:
        """End the probing."""
        for task in (self._looking, self._watch):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})

    def request(self, *, waits: bool = True) -> RequestAbsence:
        """What the attempts of one request ask about outages. One that does not wait gets AwayTooLongError at once."""
        return RequestAbsence(self, waits)

    @contextlib.asynccontextmanager
    async def attempt(self, timeout_sec: float, *, elsewhere: bool = False) -> AsyncIterator[Flight]:
        """A context manager that bounds one attempt. Raises TimeoutError, also when the attempt is lost."""
        flight = Flight(elsewhere)
        async with asyncio.timeout(timeout_sec) as limit:
            self._in_flight[flight] = limit
            try:
                yield flight
            finally:
                del self._in_flight[flight]

    @property
    def has_requests(self) -> bool:
        """Whether attempts are under way."""
        return bool(self._in_flight)

    async def look(self) -> None:
        """Find out whether it is away, where nobody has found that out by a request."""
        await self.is_to_blame_for(TransientError("nothing heard"))

    def heard(self) -> None:
        """Note that a request was answered."""
        self._heard.set()

    async def is_to_blame_for(self, failure: TransientError) -> bool:
        """Whether an attempt failed because the endpoint is away; probes it, unless that is known."""
        if self.policy.max_sec == 0 or failure.answered:
            return False
        if self.is_away:
            return True
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="look at the endpoint")
        return await asyncio.shield(self._looking)

    async def _look(self) -> bool:
        failure = await self._failing()
        if failure is None:
            return False
        if self.gave_up is None:
            self._watch = asyncio.create_task(self._until_back(failure), name="wait for the endpoint")
        return True

    async def is_there(self) -> bool:
        """Whether it answers now."""
        return not self.is_away and await self._failing() is None

    async def _failing(self) -> TransientError | None:
        """The endpoint's failure now; None where it answers."""
        try:
            async with asyncio.timeout(self.policy.probe_timeout_sec):
                await self._probe()
        except TransientError as failure:
            return None if failure.answered else failure
        except TimeoutError:
            return TransientError(f"no answer within {self.policy.probe_timeout_sec:g} s")
        return None

    async def _until_back(self, failure: TransientError) -> None:
        policy, since, pause_sec, closed = self.policy, time.monotonic(), self.policy.first_pause_sec, False
        self._heard.clear()
        self._tell("away", f"away: {failure.reason.rstrip('.')}; pausing")
        found: TransientError | None = failure
        while found is not None:
            failure = found
            closed |= failure.refused
            left_sec = policy.max_sec - (time.monotonic() - since)
            if left_sec <= 0:
                self._give_up(time.monotonic() - since, failure)
                return
            # What was under way may still be answered behind a port that is closed: that is no return.
            if await self._hears_within(min(pause_sec, left_sec)) and not closed:
                break
            if time.monotonic() - since >= policy.move_on_sec:
                self._lose_what_is_in_flight(only_with_elsewhere=True)
            pause_sec = min(1.5 * pause_sec, policy.longest_pause_sec)
            found = await self._failing()
        self._tell("back", f"back after {time.monotonic() - since:.0f} s")
        if closed:
            self._lose_what_is_in_flight()

    async def _hears_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._heard.wait()
        heard = self._heard.is_set()
        self._heard.clear()
        return heard

    def _give_up(self, seconds: float, failure: TransientError) -> None:
        self.gave_up = (
            f"the endpoint was away for {seconds:.0f} s, longer than --max-outage ({failure.reason.rstrip('.')})"
        )
        self._tell("given_up", f"away for {seconds:.0f} s, longer than --max-outage: given up")

    def _tell(self, presence: Presence, words: str) -> None:
        self._say(words)
        self.on_change(presence)

    def _lose_what_is_in_flight(self, *, only_with_elsewhere: bool = False) -> None:
        """Mark attempts under way as lost: what listens now is another process, which knows nothing of them, or they
        are answered sooner elsewhere."""
        now = asyncio.get_running_loop().time()
        for flight, limit in self._in_flight.items():
            if not limit.expired() and (flight.elsewhere or not only_with_elsewhere):
                flight.lost = True
                limit.reschedule(now)


class RequestAbsence:
    """Sits outages out for one request: a `harness.endpoint.retry.Absence`."""

    def __init__(self, outage: Outage, waits: bool = True) -> None:
        self._outage = outage
        self._waits = waits
        self._waited_sec = 0.0
        self._times = 0

    async def until_there(self) -> None:
        """Sit out an outage under way. Raises AwayTooLongError, as `was_away` does."""
        if self._outage.is_away:
            await self._sit_out()

    async def was_away(self, failure: TransientError) -> bool:
        """Whether an attempt failed because of an outage, which has then been sat out."""
        if not (failure.lost or await self._outage.is_to_blame_for(failure)):
            return False
        if failure.lost and not self._waits and not self._outage.is_away:
            return True  # it is back already
        await self._sit_out()
        return True

    async def _sit_out(self) -> None:
        outage, policy = self._outage, self._outage.policy
        if not self._waits:
            raise AwayTooLongError(outage.gave_up or "the endpoint is away")
        self._times += 1
        if self._times > policy.most:
            raise AwayTooLongError(f"the endpoint went away {self._times} times under this request")
        began = time.monotonic()
        is_over = await outage.over(policy.max_sec + policy.probe_timeout_sec - self._waited_sec)
        self._waited_sec += time.monotonic() - began
        if outage.gave_up is not None:
            raise AwayTooLongError(outage.gave_up)
        if not is_over:
            words = "longer than --max-outage, though not at once"
            raise AwayTooLongError(f"this request waited {self._waited_sec:.0f} s for the endpoint, {words}")
        await asyncio.sleep(random.uniform(0, policy.spread_sec))
