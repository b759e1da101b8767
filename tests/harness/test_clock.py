"""clock: charged and uncharged time of an agent add up to the wall time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

import pytest

from harness.clock import Clock
from harness.errors import ContextLimitReached, EndpointUnavailable, HarnessError, RequestRefused
from harness.trajectory import Reply

PATIENCE_SEC = 60.0
Query = Callable[[], Awaitable[Reply]]


def replying(waited_sec: float, after_sec: float = 0.0) -> Query:
    async def query() -> Reply:
        await asyncio.sleep(after_sec)
        return Reply(content="x", waited_sec=waited_sec)

    return query


def failing(error: HarnessError, after_sec: float = 0.0) -> Query:
    async def query() -> Reply:
        await asyncio.sleep(after_sec)
        raise error

    return query


def refusal(waited_sec: float) -> ContextLimitReached:
    error = ContextLimitReached("too long")
    error.waited_sec = waited_sec
    return error


async def test_waiting_is_summed_over_replies_outages_of_the_terminal_and_refused_prompts() -> None:
    async with Clock(60) as clock:
        await clock.ask(replying(2), PATIENCE_SEC)
        clock.extend(120)
        clock.extend(-115)  # that much of it was not needed
        with pytest.raises(ContextLimitReached):
            await clock.ask(failing(refusal(3)), PATIENCE_SEC)
    assert clock.waited_sec == pytest.approx(10)


async def test_time_that_another_process_has_spent_counts_from_then_on() -> None:
    async with Clock(1000, waited_sec=7) as clock:
        clock.set_spent(990)
        assert 990 <= clock.spent_sec < 1000
        assert clock.waited_sec == 7
    with pytest.raises(TimeoutError):
        async with Clock(1000) as clock:
            clock.set_spent(1001)
            await asyncio.sleep(60)


@pytest.mark.parametrize("limit_sec", [None, 60.0])
async def test_all_of_a_query_that_failed_was_waiting(limit_sec: float | None) -> None:
    for error in (EndpointUnavailable("refused"), RequestRefused("no", 404)):
        async with Clock(limit_sec) as clock:
            started = time.monotonic()
            with pytest.raises(type(error)):
                await clock.ask(failing(error, after_sec=0.05), PATIENCE_SEC)
            took = time.monotonic() - started
        assert 0.04 < clock.waited_sec <= took


async def test_an_outage_before_a_refused_prompt_is_not_charged() -> None:
    async with Clock(0.05) as clock:
        with pytest.raises(ContextLimitReached):
            await clock.ask(failing(refusal(waited_sec=30), after_sec=0.1), PATIENCE_SEC)
        await asyncio.sleep(0.05)
    assert not clock.expired


async def test_a_query_that_fails_after_the_agents_time_is_no_timeout() -> None:
    async with Clock(0.05) as clock:
        with pytest.raises(EndpointUnavailable):
            await clock.ask(failing(EndpointUnavailable("refused"), after_sec=0.1), PATIENCE_SEC)
        await asyncio.sleep(0.05)  # what the agent does on its way out
    assert not clock.expired


async def test_what_a_query_took_beyond_the_limit_and_the_patience_was_no_work() -> None:
    clock = Clock(0.1)
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        async with clock:
            await clock.ask(replying(0, after_sec=60), patience_sec=0.6)
    worked = time.monotonic() - started - clock.waited_sec
    assert worked == pytest.approx(0.1, abs=0.4)
    assert clock.waited_sec >= 0.6


async def test_the_wall_time_less_the_waiting_is_what_the_limit_counts() -> None:
    """With 0.3 s for work, and outages ten times as long."""
    clock = Clock(0.3)
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        async with clock:
            await clock.ask(replying(waited_sec=0.5, after_sec=0.5), PATIENCE_SEC)
            clock.extend(60)
            await asyncio.sleep(0.5)
            clock.extend(0.5 - 60)
            await asyncio.sleep(60)
    assert clock.waited_sec == pytest.approx(1.0)
    assert time.monotonic() - started - clock.waited_sec == pytest.approx(0.3, abs=0.25)


async def test_an_outage_that_ends_while_the_clock_strikes_does_no_harm() -> None:
    clock = Clock(0.02)
    with pytest.raises(TimeoutError):
        async with clock:
            try:
                await asyncio.sleep(60)
            finally:
                clock.extend(-1)


async def test_a_stopped_clock_does_not_strike_and_has_as_much_left_afterwards() -> None:
    clock = Clock(0.15)
    with pytest.raises(TimeoutError):
        async with clock:
            with clock.stopped():
                await asyncio.sleep(0.3)
            assert not clock.expired
            await asyncio.sleep(5)
    assert clock.expired
    assert clock.waited_sec >= 0.3


async def test_a_clock_without_a_limit_can_be_stopped() -> None:
    async with Clock(None) as clock:
        with clock.stopped():
            await asyncio.sleep(0.01)
        assert clock.waited_sec > 0


@pytest.mark.parametrize("stops", ["within the query", "around the query", "in a stop"])
async def test_a_moment_that_is_waiting_for_two_reasons_counts_once(stops: str) -> None:
    async with Clock(60) as clock:

        async def held() -> Reply:
            with clock.stopped():
                await asyncio.sleep(0.05)
            raise EndpointUnavailable("refused")

        started = time.monotonic()
        with contextlib.suppress(EndpointUnavailable):
            if stops == "within the query":
                await clock.ask(held, PATIENCE_SEC)
            elif stops == "around the query":
                with clock.stopped():
                    await clock.ask(failing(EndpointUnavailable("refused"), after_sec=0.05), PATIENCE_SEC)
            else:
                with clock.stopped():
                    await held()
        took = time.monotonic() - started
    assert 0.04 < clock.waited_sec <= took


@pytest.mark.parametrize("within", ["its begin", "its end", "both"])
async def test_what_an_outage_puts_off_is_put_off_also_while_the_clock_is_stopped(within: str) -> None:
    async def outage(may_stop: str, seconds: float) -> None:
        with clock.stopped() if within in (may_stop, "both") else contextlib.nullcontext():
            clock.extend(seconds)

    async with asyncio.timeout(10):
        async with Clock(5) as clock:
            await outage("its begin", 600)
            await outage("its end", 10 - 600)  # it took ten seconds
            await asyncio.sleep(0.01)
        assert not clock.expired
        with pytest.raises(TimeoutError):
            async with Clock(0.01) as clock:
                await outage("its begin", 600)
                await outage("its end", -600)  # it was none
                await asyncio.Future()
    assert clock.expired
