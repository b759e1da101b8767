"""Workers process all items with limited concurrency, and end together."""

from __future__ import annotations

import asyncio

import pytest

from tbench.proxies.workers import for_each


async def test_every_item_is_worked_on_and_no_more_at_once_than_allowed() -> None:
    done: list[int] = []
    busy = most = 0

    async def work(item: int) -> None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(0)
        busy -= 1
        done.append(item)

    await for_each(range(20), work, 3)
    assert (sorted(done), most) == (list(range(20)), 3)


async def test_nothing_to_do_is_done_at_once() -> None:
    async def work(item: object) -> None:
        raise AssertionError

    await for_each([], work, 3)


async def test_an_exception_stops_the_others_and_is_raised() -> None:
    ended: list[int] = []

    async def work(item: int) -> None:
        if item == 2:
            raise OSError("the disk is full")
        try:
            await asyncio.Future()
        finally:
            ended.append(item)

    with pytest.raises(OSError, match="the disk is full"):
        await for_each([0, 1, 2, 3], work, 3)
    assert ended == [0, 1]


async def test_being_cancelled_leaves_no_worker() -> None:
    async def work(item: int) -> None:
        await asyncio.Future()

    working = asyncio.create_task(for_each([1, 2, 3], work, 2))
    await asyncio.sleep(0)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert asyncio.all_tasks() == {asyncio.current_task()}
