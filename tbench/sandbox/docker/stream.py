"""The stream of one exec: a hijacked HTTP connection with multiplexed output of a process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import IO, Any

from harness.concurrency import cancel
from tbench.sandbox.container_proxy import Masks
from tbench.sandbox.docker import sdk

_READ_AHEAD_BYTES = 1 << 20
"""Maximum of unread output; beyond it reading stops, and the process has to wait."""
_INPUT_CHUNK_BYTES = 1 << 20
_STREAM_HEADER = struct.Struct(">BxxxL")
_STDERR = 2


class ExecStream(asyncio.Protocol):
    """The raw socket of one exec, demultiplexed into stdout (read) and stderr (kept for diagnosis)."""

    def __init__(self, exec_id: str, raw: Any, *, is_tty: bool = False, masks: Masks | None = None) -> None:
        """`is_tty`: the process has a terminal, so that its output has no frames and is not masked."""
        self._masks = masks or Masks(())
        self._masked = self._masks.stream()
        self.exec_id = exec_id
        self.errors = ""
        self._raw = raw  # keeps the HTTP response alive, and with it the socket
        self._is_tty = is_tty
        self._socket = sdk.exec_socket(raw)
        self._socket.setblocking(False)
        self._buffer = bytearray(sdk.bytes_already_read(raw))
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._take: Callable[[bytes], float] | None = None
        """Callback for output; faster than a reading task, which would wake up later and several times per step."""
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._lost = asyncio.Event()
        self._failed: Exception | None = None
        """The exception that ended the stream in a callback; None for an ordinary end."""

    async def attach(self) -> ExecStream:
        """Attach the socket to the event loop; if that is cancelled, the stream is closed."""
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, sock=self._socket)
        except BaseException:
            self.release()
            raise
        return self

    # -- called by the event loop ------------------------------------------------------------------

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
        # The engine resets a connection with unread input; all output has arrived before that.
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

    def _take_frames(self) -> bytes:
        """Consume complete frames (stream number, three zeros, length, payload; Docker API); return their stdout."""
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
                errors = self.errors + payload.decode("utf-8", "replace")
                self.errors = self._masks.mask_text(errors)[-2000:]
            else:
                pieces.append(payload)
            position = end
        del buffer[:position]
        return self._masked.take(b"".join(pieces))

    async def write(self, data: bytes) -> None:
        """Write `data`; returns when the unsent rest fits into the buffer. Raises ConnectionError."""
        if self._lost.is_set() or self._transport is None:
            raise ConnectionResetError("the stream of an exec has ended")
        self._transport.write(data)
        await self._writable.wait()

    def end_input(self) -> None:
        """Close the process's standard input after all data has been written."""
        if self._transport is not None and not self._lost.is_set():
            self._transport.write_eof()

    @contextlib.asynccontextmanager
    async def feed(self, source: IO[bytes]) -> AsyncIterator[None]:
        """Write all of `source` to the process's input while the block reads, then close the stream.

        Concurrently, to avoid a deadlock with a process that prints while it reads.
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
        """Close the socket of a stream that is not attached to an event loop."""
        sdk.release(self._raw)
        self._socket.close()


async def _feed(stream: socket.socket, source: IO[bytes]) -> None:
    """Send a file through a duplicated descriptor, so that errors of the input do not end the output."""
    with contextlib.suppress(OSError), stream.dup() as stdin:
        while data := source.read(_INPUT_CHUNK_BYTES):
            await asyncio.get_running_loop().sock_sendall(stdin, data)
        stdin.shutdown(socket.SHUT_WR)
