"""turns: waiting tasks resume in order, one per iteration of the loop."""

from __future__ import annotations

import asyncio
import time

import pytest
from lost_cancellations import moments_lost

from harness.concurrency import Repeated, Turns, all_of, cancel, wait_until_ended


async def count_turns(turns: list[int]) -> None:
    while True:
        turns[0] += 1
        await asyncio.sleep(0)


async def test_no_two_go_on_in_the_same_turn() -> None:
    turns, loop_turns, begun = Turns(), [0], []

    async def begin(number: int) -> None:
        await turns.take()
        begun.append((number, loop_turns[0]))

    counting = asyncio.create_task(count_turns(loop_turns))
    await asyncio.gather(*map(begin, range(20)))
    counting.cancel()
    assert [number for number, _ in begun] == list(range(20))
    assert len({turn for _, turn in begun}) == 20


async def test_who_is_cancelled_while_waiting_holds_no_one_up() -> None:
    turns = Turns()
    waiting = [asyncio.create_task(turns.take()) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[3].cancel()
    await asyncio.wait(waiting)
    assert [task.cancelled() for task in waiting] == [True, False, False, True, False]
    await asyncio.wait_for(turns.take(), 20)


class Tidies:
    """A task that needs some iterations to end after its cancellation."""

    def __init__(self) -> None:
        self.has_tidied = False

    async def work(self) -> None:
        try:
            await asyncio.Future()
        finally:
            for _ in range(4):
                await asyncio.sleep(0)
            self.has_tidied = True


async def test_no_cancellation_is_lost_while_a_task_is_ended_and_the_task_comes_to_its_end() -> None:
    begun = list[Tidies]()

    async def work() -> None:
        begun.append(Tidies())
        child = asyncio.create_task(begun[-1].work())
        try:
            await asyncio.sleep(0)
        finally:
            await cancel(child)

    assert await moments_lost(work) == []
    # The first two are cancelled before they begin.
    assert all(each.has_tidied for each in begun[2:])


async def test_what_others_make_is_waited_for_however_often_the_waiter_is_cancelled() -> None:
    may_end = asyncio.Event()
    making = asyncio.create_task(may_end.wait())
    waiting = asyncio.create_task(wait_until_ended(making))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    may_end.set()
    await asyncio.wait({waiting})
    assert waiting.cancelled() and making.result()


async def test_what_a_task_raised_is_raised_where_it_is_ended() -> None:
    async def fail() -> None:
        raise ValueError("a bug")

    child = asyncio.create_task(fail())
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="a bug"):
        await cancel(child)


async def test_the_first_failure_ends_what_is_done_beside_it_and_no_cancellation_is_lost_meanwhile() -> None:
    begun = list[Tidies]()

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("a failure")

    async def work() -> None:
        begun.append(Tidies())
        with pytest.raises(ValueError, match="a failure"):
            await all_of(begun[-1].work(), fail())

    await work()
    assert begun[0].has_tidied
    assert await moments_lost(work) == []
    await all_of()


async def test_a_call_is_repeated_during_a_block_and_made_once_more_if_it_is_cancelled() -> None:
    calls: list[float] = []

    async def work(sec: float) -> None:
        with Repeated(lambda: calls.append(time.monotonic()), 0.1):
            await asyncio.sleep(sec)

    await work(0.05)
    assert not calls
    working = asyncio.create_task(work(60))
    await asyncio.sleep(0.35)
    before = len(calls)
    assert 1 <= before <= 3
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    assert len(calls) == before + 1
    await asyncio.sleep(0.2)
    assert len(calls) == before + 1
