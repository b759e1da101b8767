"""What a command in a container prints: kept in memory, or written into a file, up to a limit."""

from __future__ import annotations

import asyncio
import secrets
from typing import IO

BEGAN = b"\1"
"""Output before that of a command; without it, not even a shell could be started."""
END = "TBENCH_END"
"""Variable with what is printed behind the output of a command (images/tools/limit.c)."""


class EndOfOutput:
    """Finds the end of a command's output, which is a mark: where a connection was cut, there is none.

    Behind the mark is one byte, which says whether the command had reached its limit.
    """

    def __init__(self) -> None:
        # No beginning of it is an end of it as well, so that it is found behind a part of itself.
        self.mark = f"\4{secrets.token_hex(12)}"
        self._mark = self.mark.encode()
        self._held = b""
        self.at_limit: bool | None = None
        """Whether the command had reached its limit; None where the end has not come."""

    @property
    def is_missing(self) -> bool:
        """Whether the end should have come, but has not."""
        return self.at_limit is None

    def strip(self, data: bytes) -> bytes:
        """The output in the next piece of what has come, without the mark, and without what may be its beginning."""
        if not self.is_missing:
            return data
        data = self._held + data
        before, _, behind = data.partition(self._mark)
        if behind:
            self.at_limit, self._held = behind.startswith(b"1"), b""
            return before + behind[1:]
        # It begins with a byte that is not in it again.
        at = data.rfind(self._mark[:1], max(0, len(data) - len(self._mark)))
        if at < 0 or not self._mark.startswith(data[at:]):
            at = len(data)
        self._held = data[at:]
        return data[:at]

    def rest(self) -> bytes:
        """What was held back, where nothing more comes."""
        held, self._held = self._held, b""
        return held


class CommandOutput:
    """Takes the output of one command. What comes before the command has begun is the engine's own, and is kept."""

    def __init__(self, sink: IO[bytes] | None, limit_bytes: int, end: EndOfOutput) -> None:
        self.has_begun = False
        self.was_cut = False
        """Whether there was more than the limit."""
        self._sink = sink
        self._left = limit_bytes
        self._end = end
        self._kept = bytearray()

    @property
    def kept(self) -> bytes:
        return bytes(self._kept)

    async def take(self, data: bytes) -> bool:
        """Take a piece of output; returns whether more is wanted. Raises OSError where the file cannot be written."""
        return await self._take(self._end.strip(data))

    async def finish(self) -> None:
        """Take it that nothing more comes. Raises OSError as `take` does."""
        await self._take(self._end.rest())

    async def _take(self, data: bytes) -> bool:
        if not self.has_begun and not self._kept and data.startswith(BEGAN):
            self.has_begun, data = True, data[len(BEGAN) :]
        self.was_cut = len(data) > self._left
        data = data[: self._left]
        self._left -= len(data)
        if self._sink is None or not self.has_begun:
            self._kept += data
        elif data:
            # In a thread: a slow disk must not hold up the other trials' terminals.
            await asyncio.to_thread(self._sink.write, data)
        return not self.was_cut
