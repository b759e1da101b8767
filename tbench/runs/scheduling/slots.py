"""How many trials may be under way at once: a number that may change while they are."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Slots:
    """A context manager that holds one of so many slots. Those who wait get theirs in order."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._free = asyncio.Semaphore(number)
        self._owed = 0
        """Slots that are to go: whoever has or gets one next pays with it."""

    def resize(self, number: int) -> None:
        """Have another number of slots from now on. Whoever holds one keeps it."""
        self._owed -= number - self.number
        self.number = number
        while self._owed < 0:
            self._owed += 1
            self._free.release()

    async def __aenter__(self) -> None:
        await self._free.acquire()
        while self._owed:
            self._owed -= 1
            await self._free.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._owed:
            self._owed -= 1
        else:
            self._free.release()
