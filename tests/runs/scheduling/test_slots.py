"""slots: how many may work at once, also where the number changes meanwhile."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from tbench.runs.scheduling.slots import Slots


class Crowd:
    """Counts who is in."""

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


async def test_a_larger_number_lets_in_those_who_wait_in_their_order() -> None:
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


async def test_a_smaller_number_turns_nobody_out_and_lets_in_nobody_before_enough_have_left() -> None:
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


async def test_a_smaller_number_counts_also_where_nobody_is_in() -> None:
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
def test_whatever_becomes_of_the_number_and_of_those_who_wait_the_last_number_holds(
    sizes: list[int], cancelled: set[int]
) -> None:
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
