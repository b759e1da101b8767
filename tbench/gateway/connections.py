"""Connections from inside a sandbox, over the standard streams of one program in it (images/tools/gateway.c).

The program listens on a port of the container's own loopback. So neither a network nor a shared directory is needed,
and nothing outside of the container can connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from harness.concurrency import cancel
from harness.errors import TerminalLost, TerminalUnreachable
from harness.stream import ByteStream, Connect

PROGRAM = "gateway"
"""Name of the program among the tools of every sandbox."""
_FRAME = struct.Struct(">II")
_CHUNK = 1 << 16
_LARGEST_FRAME = 1 << 20
_MAX_UNREAD = 40 << 20
"""Maximum number of bytes that a server may leave unread; then the connection that exceeds it is closed."""
_MAX_OPEN = 128
"""Maximum number of connections of one sandbox. The program allows fewer, but an agent that runs as the same user can
write to the program's output."""
_START_SEC = 30.0
_UNREACHABLE_SEC = 120.0
"""Longest time for which the sandbox may be out of reach."""
_PAUSE_SEC = 0.5
_MAX_STARTS = 100


class _Lost(Exception):
    """The program or the connection to it has ended."""


class Connections:
    """Hands connections made to a port inside a sandbox to protocols of the event loop.

    The program is started again, on the same port, if it or the connection to it is lost.
    """

    def __init__(self, connect: Connect, program: str, make_protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        self._connect, self._program, self._make_protocol = connect, program, make_protocol
        self._open: dict[int, asyncio.StreamWriter] = {}
        self._pumps: set[asyncio.Task[None]] = set()
        self._buffer = bytearray()

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[tuple[int, asyncio.Task[None]]]:
        """Listen within the block. Yields the port, and a task that ends only with an exception: TerminalUnreachable if
        the sandbox is out of reach, TerminalLost if something in the sandbox keeps ending the program. Raises
        TerminalUnreachable and what `connect` raises.
        """
        try:
            stream, port = await self._start(0)
        except (_Lost, ConnectionError, TimeoutError) as error:
            raise TerminalUnreachable(f"the gateway's program does not start: {error}") from error
        serving = asyncio.create_task(self._serve(stream, port), name="gateway")
        try:
            yield port, serving
        finally:
            await cancel(serving)

    async def _serve(self, stream: ByteStream, port: int) -> None:
        for _ in range(_MAX_STARTS):
            try:
                await self._pass_on(stream)
            except (_Lost, ConnectionError) as lost:
                why: Exception = lost
            finally:
                await self._drop_all()
                await stream.close()
            ends = time.monotonic() + _UNREACHABLE_SEC
            while True:
                try:
                    stream, _ = await self._start(port)
                    break
                except (_Lost, ConnectionError, TimeoutError) as error:
                    if time.monotonic() > ends:
                        words = f"the gateway's program was lost ({why}): {error}"
                        raise (TerminalLost if isinstance(error, _Lost) else TerminalUnreachable)(words) from error
                await asyncio.sleep(_PAUSE_SEC)
        raise TerminalLost(f"the gateway's program was lost {_MAX_STARTS} times")

    async def _start(self, port: int) -> tuple[ByteStream, int]:
        """Start the program on a port, 0 for any, and return its streams and the port. Raises _Lost."""
        async with asyncio.timeout(_START_SEC):
            stream = await self._connect([self._program, str(port)], {})
            try:
                self._buffer.clear()
                while (frame := self._next_frame()) is None:
                    await self._read(stream)
                return stream, int(frame[1])
            except BaseException:
                await stream.close()
                raise

    async def _read(self, stream: ByteStream) -> None:
        if not (data := await stream.read()):
            raise _Lost("it has ended")
        self._buffer += data

    def _next_frame(self) -> tuple[int, bytes] | None:
        if len(self._buffer) < _FRAME.size:
            return None
        number, size = _FRAME.unpack_from(self._buffer)
        if size > _LARGEST_FRAME:
            raise _Lost("it sends nonsense")
        if len(self._buffer) < (end := _FRAME.size + size):
            return None
        payload = bytes(self._buffer[_FRAME.size : end])
        del self._buffer[:end]
        return number, payload

    async def _pass_on(self, stream: ByteStream) -> None:
        """Pass frames on to the connections. Raises _Lost at the end of the stream."""
        while True:
            while (frame := self._next_frame()) is not None:
                number, payload = frame
                writer = self._open.get(number)
                if payload and writer is None:
                    if len(self._open) >= _MAX_OPEN:
                        await stream.write(_FRAME.pack(number, 0))
                        continue
                    writer = await self._accept(stream, number)
                if writer is None or writer.is_closing():
                    continue
                if not payload:
                    writer.write_eof()
                    continue
                writer.write(payload)
                unread = sum(each.transport.get_write_buffer_size() for each in self._open.values())
                if writer.transport.get_write_buffer_size() and unread > _MAX_UNREAD:
                    writer.transport.abort()
            await self._read(stream)

    async def _accept(self, stream: ByteStream, number: int) -> asyncio.StreamWriter:
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._make_protocol, theirs)
        except BaseException:
            ours.close()
            raise
        reader, writer = await asyncio.open_connection(sock=ours)
        self._open[number] = writer
        pump = asyncio.create_task(self._send_back(stream, number, reader), name=f"gateway connection {number}")
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)
        return writer

    async def _send_back(self, stream: ByteStream, number: int, reader: asyncio.StreamReader) -> None:
        """Forward a server's answers, and the end of its connection."""
        # If the stream is lost, the task that reads from it reports that.
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                await stream.write(_FRAME.pack(number, len(data)) + data)
        with contextlib.suppress(ConnectionError):
            await stream.write(_FRAME.pack(number, 0))
        if (writer := self._open.pop(number, None)) is not None:
            writer.close()

    async def _drop_all(self) -> None:
        for pump in list(self._pumps):
            await cancel(pump)
        for writer in self._open.values():
            writer.transport.abort()
        self._open.clear()
