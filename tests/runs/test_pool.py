"""Bounded concurrency: nothing hangs, nothing is lost, everything has cleaned up when it returns."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.runs.pool import Slots, run_all

BOUND_SEC = 20


@pytest.fixture(autouse=True)
async def tidy(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """Check that no test leaves an asyncio task, or an asyncio error message."""
    with caplog.at_level(logging.WARNING, "asyncio"):
        yield
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


class Work:
    """Counts items that begin, end and are cancelled; every item waits for `gate`."""

    def __init__(self, *, open_: bool = False) -> None:
        self.gate = asyncio.Event()
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.cleaned: list[int] = []
        self.active = 0
        self.most = 0
        if open_:
            self.gate.set()

    async def __call__(self, item: int) -> None:
        self.begun.append(item)
        self.active += 1
        self.most = max(self.most, self.active)
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
            self.ended.append(item)
        finally:
            # Cleaning up takes turns of the loop too, as removing a container does.
            for _ in range(5):
                await asyncio.sleep(0)
            self.active -= 1
            self.cleaned.append(item)


async def ticks(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_all_items_are_worked_on_and_never_more_than_size_at_once() -> None:
    work = Work(open_=True)
    async with asyncio.timeout(BOUND_SEC):
        await run_all(range(20), work, Slots(3))
    assert sorted(work.ended) == list(range(20))
    assert work.most == 3


async def test_items_begin_in_order() -> None:
    work = Work(open_=True)
    async with asyncio.timeout(BOUND_SEC):
        await run_all(range(20), work, Slots(3))
    assert work.begun == list(range(20))


async def test_nothing_to_do_is_done_at_once() -> None:
    async with asyncio.timeout(BOUND_SEC):
        await run_all([], Work(), Slots(3))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 10, 50])
@pytest.mark.parametrize("size", [1, 3, 100])
async def test_a_cancelled_pool_ends_and_has_cleaned_up(count: int, size: int) -> None:
    work = Work()
    running = asyncio.create_task(run_all(range(20), work, Slots(size)))
    await ticks(count)
    running.cancel()
    async with asyncio.timeout(BOUND_SEC):
        with pytest.raises(asyncio.CancelledError):
            await running
    assert work.active == 0
    assert sorted(work.begun) == sorted(work.cleaned)
    assert work.ended == []


async def test_a_pool_cancelled_when_some_are_done_keeps_them_and_starts_no_more() -> None:
    done: list[int] = []
    stuck = asyncio.Event()

    async def work(item: int) -> None:
        if item == 3:
            stuck.set()
            await asyncio.Event().wait()
        done.append(item)

    running = asyncio.create_task(run_all(range(10), work, Slots(1)))
    async with asyncio.timeout(BOUND_SEC):
        await stuck.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert done == [0, 1, 2]


async def test_a_second_bug_during_the_stop_is_reported_too() -> None:
    async def buggy(item: int) -> None:
        try:
            await ticks(3 if item == 0 else 100)
        finally:
            raise ZeroDivisionError(f"item {item}")

    async with asyncio.timeout(BOUND_SEC):
        with pytest.raises(ZeroDivisionError, match="item 0") as raised:
            await run_all(range(2), buggy, Slots(2))
    (other,) = raised.value.__notes__
    assert other.startswith("another failed as well: Traceback") and other.endswith("ZeroDivisionError: item 1")


async def test_a_timeout_around_a_pool_stops_its_children() -> None:
    work = Work()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await run_all(range(5), work, Slots(2))
    assert work.active == 0


@pytest.mark.parametrize(("size", "culprit"), [(1, 0), (1, 5), (2, 0), (2, 1), (10, 0), (10, 7), (99, 19)])
async def test_a_bug_in_the_work_stops_everything_and_is_raised(size: int, culprit: int) -> None:
    work = Work()

    async def buggy(item: int) -> None:
        if item == culprit:
            await ticks(3)
            raise ZeroDivisionError(f"item {item}")
        # A single worker must get past the items before the culprit; otherwise they wait and have to be stopped.
        if size > 1:
            await work(item)

    async with asyncio.timeout(BOUND_SEC):
        with pytest.raises(ZeroDivisionError, match=f"item {culprit}"):
            await run_all(range(20), buggy, Slots(size))
    assert work.active == 0
    assert len(work.begun) <= size
    assert sorted(work.begun) == sorted(work.cleaned)


async def test_work_that_cancels_itself_does_not_stop_the_others() -> None:
    done: list[int] = []

    async def work(item: int) -> None:
        if item == 1:
            raise asyncio.CancelledError
        done.append(item)

    async with asyncio.timeout(BOUND_SEC):
        await run_all(range(4), work, Slots(1))
    assert done == [0, 2, 3]


async def test_a_cancellation_during_cleanup_still_waits_for_it() -> None:
    cleaning, may_end = asyncio.Event(), asyncio.Event()
    cleaned: list[int] = []

    async def work(item: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await may_end.wait()
            cleaned.append(item)

    running = asyncio.create_task(run_all(range(2), work, Slots(2)))
    await ticks(5)
    running.cancel()
    async with asyncio.timeout(BOUND_SEC):
        await cleaning.wait()
        running.cancel()
        await ticks(5)
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert sorted(cleaned) == [0, 1]


# slots: how many may work at once, also where the number changes meanwhile.


class Crowd:
    """Counts the holders."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.inside: list[int] = []
        self.most = 0
        self._leave: dict[int, asyncio.Event] = {}

    async def come(self, number: int) -> None:
        self._leave[number] = asyncio.Event()
        async with self._slots:
            self.inside.append(number)
            await self._leave[number].wait()
            self.inside.remove(number)

    def leave(self, number: int) -> None:
        self._leave[number].set()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_larger_number_admits_the_waiting_in_order() -> None:
    slots = Slots(1)
    crowd = Crowd(slots)
    tasks = [asyncio.create_task(crowd.come(number)) for number in range(5)]
    await settle()
    assert crowd.inside == [0]
    slots.resize(3)
    await settle()
    assert crowd.inside == [0, 1, 2]
    for number in range(5):
        crowd.leave(number)
    await asyncio.gather(*tasks)


async def test_a_smaller_number_evicts_no_holder_and_admits_none_before_enough_have_left() -> None:
    slots = Slots(3)
    crowd = Crowd(slots)
    tasks = [asyncio.create_task(crowd.come(number)) for number in range(5)]
    await settle()
    slots.resize(1)
    await settle()
    assert crowd.inside == [0, 1, 2]
    crowd.leave(0)
    crowd.leave(1)
    await settle()
    assert crowd.inside == [2]
    crowd.leave(2)
    await settle()
    assert crowd.inside == [3]
    crowd.leave(3)
    crowd.leave(4)
    await asyncio.gather(*tasks)


async def test_a_smaller_number_holds_for_free_slots_too() -> None:
    slots = Slots(4)
    slots.resize(1)
    crowd = Crowd(slots)
    tasks = [asyncio.create_task(crowd.come(number)) for number in range(2)]
    await settle()
    assert crowd.inside == [0]
    crowd.leave(0)
    crowd.leave(1)
    await asyncio.gather(*tasks)


@given(sizes=st.lists(st.integers(1, 6), max_size=8), cancelled=st.sets(st.integers(0, 11)))
def test_after_any_resizing_and_cancelling_the_last_number_holds(sizes: list[int], cancelled: set[int]) -> None:
    async def play() -> None:
        slots = Slots(2)
        crowd = Crowd(slots)
        tasks = [asyncio.create_task(crowd.come(number)) for number in range(12)]
        for at, size in enumerate(sizes):
            slots.resize(size)
            await settle()
            for number in cancelled:
                if number % len(sizes) == at:
                    tasks[number].cancel()
        await settle()
        for number in range(12):
            crowd.leave(number)
        await asyncio.gather(*tasks, return_exceptions=True)
        # Afterwards exactly so many get in.
        again = Crowd(slots)
        late = [asyncio.create_task(again.come(number)) for number in range(12)]
        await settle()
        assert len(again.inside) == slots.number
        for number in range(12):
            again.leave(number)
        await settle()
        for number in range(12):
            again.leave(number)
        await asyncio.gather(*late)

    asyncio.run(play())
