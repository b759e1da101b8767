"""What a command in a container prints: kept in memory, or written into a file, up to a limit."""

from __future__ import annotations

import asyncio
from typing import IO

BEGAN = b"\1"
"""Output before that of a command; without it, not even a shell could be started."""


class CommandOutput:
    """Takes the output of one command. What comes before the command has begun is the engine's own, and is kept."""

    def __init__(self, sink: IO[bytes] | None, limit_bytes: int) -> None:
        self.has_begun = False
        self.was_cut = False
        """Whether there was more than the limit."""
        self._sink = sink
        self._left = limit_bytes
        self._kept = bytearray()

    @property
    def kept(self) -> bytes:
        return bytes(self._kept)

    async def take(self, data: bytes) -> bool:
        """Take a piece of output; returns whether more is wanted. Raises OSError where the file cannot be written."""
        if not self.has_begun and not self._kept and data.startswith(BEGAN):
            self.has_begun, data = True, data[len(BEGAN) :]
        self.was_cut = len(data) > self._left
        data = data[: self._left]
        self._left -= len(data)
        if self._sink is None or not self.has_begun:
            self._kept += data
        else:
            # In a thread: a slow disk must not hold up the other trials' terminals.
            await asyncio.to_thread(self._sink.write, data)
        return not self.was_cut
