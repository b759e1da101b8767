"""Turns of the event loop, taken so that what hundreds of trials begin at the same moment holds nobody up."""

from __future__ import annotations

import asyncio
from collections import deque
from weakref import WeakKeyDictionary


class Turns:
    """Lets those who wait go on in order, one per turn of the loop.

    A loop that is busy turns slower, so new work starts only as fast as the work under way leaves room for.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Return in a turn of the loop that is nobody else's."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._give)
        await turn

    def _give(self) -> None:
        turn = self._waiting.popleft()
        if not turn.done():  # cancelled meanwhile
            turn.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._give)


_OF_LOOP: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


async def take_turn() -> None:
    """Return in a turn of this event loop that is nobody else's."""
    await _OF_LOOP.setdefault(asyncio.get_running_loop(), Turns()).take()
