"""The output of a command in a sandbox, as it arrives in the event loop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import IO

from harness.concurrency import cancel
from tbench.sandbox.container_proxy import Masks

_READ_AHEAD_BYTES = 1 << 20
"""Maximum of unread output; beyond it reading stops, and the process has to wait."""
INPUT_CHUNK_BYTES = 1 << 20


class OutputStream(asyncio.Protocol, ABC):
    """The streams of one command: stdout is read, stderr kept for diagnosis. Subclasses connect and write."""

    def __init__(self, masks: Masks | None = None) -> None:
        self._masks = masks or Masks(())
        self._masked = self._masks.stream()
        self.errors = ""
        self._buffer = bytearray()
        self._transport: asyncio.ReadTransport | None = None
        self._paused = False
        self._take: Callable[[bytes], float] | None = None
        """Callback for output; faster than a reading task, which would wake up later and several times per step."""
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._lost = asyncio.Event()
        self._failed: Exception | None = None
        """The exception that ended the stream in a callback; None for an ordinary end."""

    # -- called by the event loop ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.ReadTransport)
        self._transport = transport
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._take is not None:
            self._hand_over(self._take)
            return
        if len(self._buffer) > _READ_AHEAD_BYTES:
            self._pause()
        self._news.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        # An engine resets a connection with unread input; all output has arrived before that.
        self._failed = None if isinstance(exc, OSError) else exc
        for event in (self._lost, self._news, self._writable):
            event.set()

    # -- called by terminals and commands ----------------------------------------------------------

    async def read(self) -> bytes:
        out = await self.read_output()
        if not out:
            self._raise_errors()
        return out

    async def read_output(self) -> bytes:
        """Read the next piece of stdout; b"" at the end, even if there was output on stderr."""
        while not (out := self._take_frames()):
            if self._lost.is_set():
                return self._masked.flush()
            self._news.clear()
            self._resume()
            await self._news.wait()
        return out

    async def pass_on(self, take: Callable[[bytes], float]) -> None:
        """Pass all output to `take` until the end; see `harness.stream.ByteStream`."""
        self._take = take
        self._hand_over(take)
        self._resume()
        await self._lost.wait()
        self._take = None
        if rest := self._masked.flush():
            take(rest)
        if self._failed is not None:
            raise self._failed
        self._raise_errors()

    def _raise_errors(self) -> None:
        if self.errors.strip():
            raise ConnectionResetError(self.errors.strip()[-300:])

    def _hand_over(self, take: Callable[[bytes], float]) -> None:
        out = self._take_frames()
        if out and (pause_sec := take(out)):
            self._pause()
            asyncio.get_running_loop().call_later(pause_sec, self._resume)

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def _add_errors(self, printed: bytes) -> None:
        self.errors = self._masks.mask_text(self.errors + printed.decode("utf-8", "replace"))[-2000:]

    def _take_frames(self) -> bytes:
        """Consume what has arrived; returns the part that is stdout."""
        out = bytes(self._buffer)
        self._buffer.clear()
        return self._masked.take(out)

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Write `data`; returns when the unsent rest fits into the buffer. Raises ConnectionError."""

    @abstractmethod
    def end_input(self) -> None:
        """Close the command's standard input after all data has been written."""

    @asynccontextmanager
    async def feed(self, source: IO[bytes]) -> AsyncIterator[None]:
        """Write all of `source` to the command's input while the block reads, then close the stream.

        Concurrently, to avoid a deadlock with a command that prints while it reads.
        """
        feeding = asyncio.create_task(self._feed(source), name="stdin of a command")
        try:
            yield
        finally:
            try:
                await cancel(feeding)
            finally:
                await self.close()

    @abstractmethod
    async def _feed(self, source: IO[bytes]) -> None:
        """Write all of `source` and end the input; errors of the input do not end the output."""

    @abstractmethod
    async def close(self) -> None:
        """Close the stream, and end the command if that is possible. Never raises."""
