"""Many byte streams over one exchange of messages: what a node's actor and this machine have between them.

A message is (stream, kind, data). Each side may have so many bytes under way on a stream before the other has passed
them on, so that neither a fast engine nor a fast client fills the memory of the other side. Of the standard library
alone: the actor's side runs where no tbench need be.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

Message = tuple[int, str, bytes]
"""Kinds: open; data; end (there will be no more data); taken (so many bytes were passed on, in decimal); reset."""
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

WINDOW_BYTES = 1 << 20
_TAKEN_BYTES = WINDOW_BYTES // 4
"""How many bytes are passed on before the other side is told: a message for each would double the messages."""
_READ_BYTES = 1 << 16
_BATCH_BYTES = 4 << 20
_GATHER_SEC, _MOST_GATHER_SEC = 1e-4, 1e-2
"""How long more messages are waited for, for each stream: an exchange costs far more than a message."""


class Stream:
    """One stream: what is read of this side's connection, and what is written to it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.free_bytes = WINDOW_BYTES
        """How much more may be sent before the other side has passed something on."""
        self.is_free = asyncio.Event()
        self.incoming: asyncio.Queue[bytes | None] = asyncio.Queue()
        """What is to be written; None for the end."""
        self.writer: asyncio.StreamWriter | None = None
        self.task: asyncio.Task[None] | None = None


class Channel:
    """One side of the streams. `connect` is called for each that the other side opens."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]] | None = None) -> None:
        self._connect = connect
        self._streams: dict[int, Stream] = {}
        self._outgoing: list[Message] = []
        self._news = asyncio.Event()
        self._last = 0
        self._is_closed = False

    # -- messages ----------------------------------------------------------------------------------

    async def batch(self) -> list[Message]:
        """What there is to send, as soon as there is something."""
        await self._news.wait()
        if len(self._streams) > 1:
            await asyncio.sleep(min(_MOST_GATHER_SEC, _GATHER_SEC * len(self._streams)))
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
        """Take what the other side has sent."""
        for number, kind, data in messages:
            if kind == "open" and self._connect is not None and not self._is_closed:
                stream = self._streams[number] = Stream(number)
                stream.task = asyncio.create_task(self._opened(stream, self._connect))
                continue
            known = self._streams.get(number)
            if known is None:
                continue  # it has ended here, and the other side does not know yet
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

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Open a stream for a connection of this side, and carry it until both ends are done."""
        if self._is_closed:
            writer.transport.abort()
            return
        self._last += 1
        stream = self._streams[self._last] = Stream(self._last)
        stream.task = asyncio.current_task()
        self._send(stream, "open")
        with contextlib.suppress(asyncio.CancelledError):  # by a reset, or because the channel closes
            await self._both_ways(stream, (reader, writer))

    async def _opened(self, stream: Stream, connect: Callable[[], Awaitable[Connection]]) -> None:
        try:
            connection = await connect()
        except OSError:
            self._drop(stream, tells=True)
            return
        await self._both_ways(stream, connection)

    async def _both_ways(self, stream: Stream, connection: Connection) -> None:
        reader, stream.writer = connection
        ways = [asyncio.create_task(self._outward(stream, reader)), asyncio.create_task(self._inward(stream))]
        tells = True
        try:
            await asyncio.gather(*ways)
            tells = False  # both ends were told
        except OSError:
            pass
        finally:
            for way in ways:
                way.cancel()
            self._drop(stream, tells=tells)

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
            if taken >= _TAKEN_BYTES:
                self._send(stream, "taken", b"%d" % taken)
                taken = 0
        writer.write_eof()

    def _drop(self, stream: Stream, *, tells: bool) -> None:
        if self._streams.pop(stream.number, None) is not None and tells:
            self._send(stream, "reset")
        if stream.writer is not None:
            if tells:
                stream.writer.transport.abort()
            else:
                stream.writer.close()

    def close(self) -> None:
        """End all streams, at once, and take no other."""
        self._is_closed = True
        for stream in list(self._streams.values()):
            if stream.task is not None:
                stream.task.cancel()
