"""What keeps those who ask from going on."""

from __future__ import annotations

import asyncio
from typing import Literal

Waits = Literal["query", "reply"]
"""What waits for somebody, from the beginning or from where nothing is done again: the next query, or each reply."""


class Hold:
    """Whether those who ask may go on."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    @property
    def is_set(self) -> bool:
        """Whether they have to wait."""
        return not self._open.is_set()

    def set(self) -> None:
        self._open.clear()

    def lift(self) -> None:
        self._open.set()

    async def over(self) -> None:
        """Return when they may go on."""
        await self._open.wait()
