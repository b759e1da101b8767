"""The stream of one exec: a hijacked HTTP connection, taken apart into what a process prints."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import IO, Any

from harness.turns import cancel
from tbench.sandbox.container_proxy import Masks
from tbench.sandbox.docker import sdk

_READ_AHEAD_BYTES = 1 << 20
"""Limit of unread output; above it the engine has to wait, and with it the process."""
_FED_AT_ONCE_BYTES = 1 << 20
_STREAM_HEADER = struct.Struct(">BxxxL")
_STDERR = 2


class ExecStream(asyncio.Protocol):
    """The raw socket of one exec, taken apart into stdout (read) and stderr (kept for diagnosis)."""

    def __init__(self, exec_id: str, raw: Any, *, is_tty: bool = False, masks: Masks | None = None) -> None:
        """`is_tty` says that the process has a terminal, so that its output comes without frames.

        What `masks` hide does not come out.
        """
        self._masks = masks or Masks(())
        self._masked = self._masks.stream()
        self.exec_id = exec_id
        self.errors = ""
        self._raw = raw  # keeps the HTTP response alive, and with it the socket
        self._is_tty = is_tty
        self._socket = sdk.socket_of(raw)
        self._socket.setblocking(False)
        self._buffer = bytearray(sdk.bytes_already_read(raw))
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._take: Callable[[bytes], float] | None = None
        """Receiver of all output at once; a task that reads would wake later, and several times in each step."""
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._lost = asyncio.Event()
        self._failed: Exception | None = None
        """The exception that ended the stream in a callback; None for an ordinary end."""

    async def attach(self) -> ExecStream:
        """Hand the socket to the event loop; where that is cancelled, the stream is closed."""
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, sock=self._socket)
        except BaseException:
            self.release()
            raise
        return self

    # -- what the event loop calls -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
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
        # Resetting is how an engine hangs up on input that nobody has read; what was printed has come before.
        self._failed = None if isinstance(exc, OSError) else exc
        for event in (self._lost, self._news, self._writable):
            event.set()

    # -- what a terminal or a command calls --------------------------------------------------------

    async def read(self) -> bytes:
        out = await self.read_output()
        if not out:
            self._raise_errors()
        return out

    async def read_output(self) -> bytes:
        """The next piece of stdout; b"" at the end, whatever stderr said."""
        while not (out := self._take_frames()):
            if self._lost.is_set():
                return self._masked.rest()
            self._news.clear()
            self._resume()
            await self._news.wait()
        return out

    async def pass_on(self, take: Callable[[bytes], float]) -> None:
        """Hand all output to `take` until the end, as `harness.stream.ByteStream` says."""
        self._take = take
        self._hand_over(take)
        self._resume()
        await self._lost.wait()
        self._take = None
        if rest := self._masked.rest():
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

    def _take_frames(self) -> bytes:
        """Take the payload of all complete frames: stream number, three zeros, length, payload (Docker API)."""
        if self._is_tty:
            out = bytes(self._buffer)
            self._buffer.clear()
            return out
        position, pieces = 0, []
        buffer = self._buffer
        while len(buffer) - position >= _STREAM_HEADER.size:
            kind, length = _STREAM_HEADER.unpack_from(buffer, position)
            end = position + _STREAM_HEADER.size + length
            if end > len(buffer):
                break
            payload = bytes(buffer[position + _STREAM_HEADER.size : end])
            if kind == _STDERR:
                said = self.errors + payload.decode("utf-8", "replace")
                self.errors = self._masks.masked_text(said)[-2000:]
            else:
                pieces.append(payload)
            position = end
        del buffer[:position]
        return self._masked.take(b"".join(pieces))

    async def write(self, data: bytes) -> None:
        """Write `data`; returns when the unsent rest is small enough to be buffered. Raises ConnectionError."""
        if self._lost.is_set() or self._transport is None:
            raise ConnectionResetError("the stream of an exec has ended")
        self._transport.write(data)
        await self._writable.wait()

    def end_input(self) -> None:
        """Close the process's standard input, behind all that was written."""
        if self._transport is not None and not self._lost.is_set():
            self._transport.write_eof()

    @contextlib.asynccontextmanager
    async def fed(self, source: IO[bytes]) -> AsyncIterator[None]:
        """Give the process the whole of `source` as its input while the block reads; at the end the stream is closed.

        Both happen at once: a process that prints as it reads would otherwise wait for us as we for it.
        """
        feeding = asyncio.create_task(_feed(self._socket, source), name="stdin of an exec")
        try:
            yield
        finally:
            try:
                await cancel(feeding)
            finally:
                await self.close()

    async def close(self) -> None:
        try:
            if self._transport is not None:
                self._transport.abort()
                await self._lost.wait()
        finally:
            self.release()

    def release(self) -> None:
        """Close the socket of a stream that no event loop reads; else nothing but the garbage collector would."""
        sdk.release(self._raw)
        self._socket.close()


async def _feed(stream: socket.socket, source: IO[bytes]) -> None:
    """Send a file on a descriptor of its own: a process that ignores its input must not cost us its output."""
    with contextlib.suppress(OSError), stream.dup() as stdin:
        while data := source.read(_FED_AT_ONCE_BYTES):
            await asyncio.get_running_loop().sock_sendall(stdin, data)
        stdin.shutdown(socket.SHUT_WR)
