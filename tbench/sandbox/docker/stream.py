"""The stream of one exec: a hijacked HTTP connection with multiplexed output of a process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import IO, Any

from tbench.sandbox.container_proxy import Masks
from tbench.sandbox.docker import sdk
from tbench.sandbox.stream import INPUT_CHUNK_BYTES, OutputStream

_STREAM_HEADER = struct.Struct(">BxxxL")
_STDERR = 2


class ExecStream(OutputStream):
    """The raw socket of one exec, demultiplexed into stdout (read) and stderr (kept for diagnosis)."""

    def __init__(self, exec_id: str, raw: Any, *, is_tty: bool = False, masks: Masks | None = None) -> None:
        """`is_tty`: the process has a terminal, so that its output has no frames and is not masked."""
        super().__init__(masks)
        self.exec_id = exec_id
        self._raw = raw  # keeps the HTTP response alive, and with it the socket
        self._is_tty = is_tty
        self._socket = sdk.exec_socket(raw)
        self._socket.setblocking(False)
        self._buffer += sdk.bytes_already_read(raw)

    async def attach(self) -> ExecStream:
        """Attach the socket to the event loop; if that is cancelled, the stream is closed."""
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, sock=self._socket)
        except BaseException:
            self.release()
            raise
        return self

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
                self._add_errors(payload)
            else:
                pieces.append(payload)
            position = end
        del buffer[:position]
        return self._masked.take(b"".join(pieces))

    async def write(self, data: bytes) -> None:
        if self._lost.is_set() or not isinstance(self._transport, asyncio.WriteTransport):
            raise ConnectionResetError("the stream of an exec has ended")
        self._transport.write(data)
        await self._writable.wait()

    def end_input(self) -> None:
        if isinstance(self._transport, asyncio.WriteTransport) and not self._lost.is_set():
            self._transport.write_eof()

    async def _feed(self, source: IO[bytes]) -> None:
        """Send the source through a duplicated descriptor, so that errors of the input do not end the output."""
        with contextlib.suppress(OSError), self._socket.dup() as stdin:
            while data := source.read(INPUT_CHUNK_BYTES):
                await asyncio.get_running_loop().sock_sendall(stdin, data)
            stdin.shutdown(socket.SHUT_WR)

    async def close(self) -> None:
        try:
            if isinstance(self._transport, asyncio.WriteTransport):
                self._transport.abort()
                await self._lost.wait()
        finally:
            self.release()

    def release(self) -> None:
        """Close the socket of a stream that is not attached to an event loop."""
        sdk.release(self._raw)
        self._socket.close()
