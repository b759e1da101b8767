"""Multiplexes byte streams over an exchange of messages between a node's actor and this machine.

A message is (stream, kind, data). Each stream has a window of unacknowledged bytes, so that neither a fast engine nor a
fast client fills the memory of the other side. Uses only the standard library, since nodes need not have tbench.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

Message = tuple[int, str, bytes]
"""Kinds: open; data; end (of the data); taken (acknowledges a number of bytes, in decimal); reset."""
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

WINDOW_BYTES = 1 << 20
_ACKNOWLEDGED_BYTES = WINDOW_BYTES // 4
"""Bytes per acknowledgement; one for each message would double the number of messages."""
_READ_BYTES = 1 << 16
_BATCH_BYTES = 4 << 20
_GATHER_SEC, _MAX_GATHER_SEC = 1e-4, 1e-2
"""Seconds to wait for more messages, per stream and at most; an exchange costs far more than a message."""


class Stream:
    """One stream, with a connection on this side."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.free_bytes = WINDOW_BYTES
        """Bytes that may be sent before the next acknowledgement."""
        self.is_free = asyncio.Event()
        self.incoming: asyncio.Queue[bytes | None] = asyncio.Queue()
        """Data to be written to the connection; None for the end."""
        self.writer: asyncio.StreamWriter | None = None
        self.task: asyncio.Task[None] | None = None


class Channel:
    """One side of the streams. `connect` is called for each stream opened by the other side."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]] | None = None) -> None:
        self._connect = connect
        self._streams: dict[int, Stream] = {}
        self._outgoing: list[Message] = []
        self._news = asyncio.Event()
        self._last = 0
        self._is_closed = False

    # -- messages ----------------------------------------------------------------------------------

    async def batch(self) -> list[Message]:
        """Wait for messages to send, and return a batch of them."""
        await self._news.wait()
        if len(self._streams) > 1:
            await asyncio.sleep(min(_MAX_GATHER_SEC, _GATHER_SEC * len(self._streams)))
        size, count = 0, 0
        for _, _, data in self._outgoing:
            size, count = size + len(data), count + 1
            if size >= _BATCH_BYTES:
                break
        taken, self._outgoing = self._outgoing[:count], self._outgoing[count:]
        if not self._outgoing:
            self._news.clear()
        return taken

    def take(self, messages: Sequence[Message]) -> None:
        """Process messages from the other side."""
        for number, kind, data in messages:
            if kind == "open" and self._connect is not None and not self._is_closed:
                stream = self._streams[number] = Stream(number)
                stream.task = asyncio.create_task(self._open(stream, self._connect))
                continue
            known = self._streams.get(number)
            if known is None:
                continue  # ended on this side, which the other side does not know yet
            if kind == "data":
                known.incoming.put_nowait(data)
            elif kind == "end":
                known.incoming.put_nowait(None)
            elif kind == "taken":
                known.free_bytes += int(data)
                known.is_free.set()
            elif known.task is not None:
                known.task.cancel()

    def _send(self, stream: Stream, kind: str, data: bytes = b"") -> None:
        self._outgoing.append((stream.number, kind, data))
        self._news.set()

    # -- streams -----------------------------------------------------------------------------------

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Open a stream for a connection on this side, and forward it until both directions have ended."""
        if self._is_closed:
            writer.transport.abort()
            return
        self._last += 1
        stream = self._streams[self._last] = Stream(self._last)
        stream.task = asyncio.current_task()
        self._send(stream, "open")
        with contextlib.suppress(asyncio.CancelledError):  # after a reset, or when the channel closes
            await self._pump(stream, (reader, writer))

    async def _open(self, stream: Stream, connect: Callable[[], Awaitable[Connection]]) -> None:
        try:
            connection = await connect()
        except OSError:
            self._drop(stream, is_broken=True)
            return
        await self._pump(stream, connection)

    async def _pump(self, stream: Stream, connection: Connection) -> None:
        """Forward both directions of a connection."""
        reader, stream.writer = connection
        directions = [asyncio.create_task(self._outward(stream, reader)), asyncio.create_task(self._inward(stream))]
        is_broken = True
        try:
            await asyncio.gather(*directions)
            is_broken = False
        except OSError:
            pass
        finally:
            for direction in directions:
                direction.cancel()
            self._drop(stream, is_broken=is_broken)

    async def _outward(self, stream: Stream, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(_READ_BYTES):
            while stream.free_bytes <= 0:
                stream.is_free.clear()
                await stream.is_free.wait()
            stream.free_bytes -= len(data)
            self._send(stream, "data", data)
        self._send(stream, "end")

    async def _inward(self, stream: Stream) -> None:
        writer = stream.writer
        assert writer is not None
        taken = 0
        while (data := await stream.incoming.get()) is not None:
            writer.write(data)
            await writer.drain()
            taken += len(data)
            if taken >= _ACKNOWLEDGED_BYTES:
                self._send(stream, "taken", b"%d" % taken)
                taken = 0
        writer.write_eof()

    def _drop(self, stream: Stream, *, is_broken: bool) -> None:
        """Close a stream; the other side of a broken one is reset."""
        if self._streams.pop(stream.number, None) is not None and is_broken:
            self._send(stream, "reset")
        if stream.writer is not None:
            if is_broken:
                stream.writer.transport.abort()
            else:
                stream.writer.close()

    def close(self) -> None:
        """Abort all streams, and accept no others."""
        self._is_closed = True
        for stream in list(self._streams.values()):
            if stream.task is not None:
                stream.task.cancel()
