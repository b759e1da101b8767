"""Commands in one container of an engine: each is an exec with a stream."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import socket
import struct
import time
from functools import partial
from typing import IO, Any

from tbench.errors import TrialError
from tbench.sandbox.backend import TtyStream
from tbench.sandbox.commands import EXEC_SEC, Command, Commands
from tbench.sandbox.container_proxy import Masks
from tbench.sandbox.docker import sdk
from tbench.sandbox.docker.create import engine_error, engine_errors
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.stream import INPUT_CHUNK_BYTES, OutputStream

_END_SEC = 2
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


class EngineCommands(Commands):
    """Starts commands in one container of an engine."""

    def __init__(
        self,
        engine: Engine,
        container: str,
        *,
        is_fresh: bool = False,
        masks: Masks | None = None,
    ) -> None:
        """`is_fresh`: the agent never works in the container. `masks` apply to output, except on terminals."""
        super().__init__(is_fresh=is_fresh)
        self._masks = masks
        self._engine = engine
        self._container = container

    async def tty(self, command: Command, size: tuple[int, int]) -> TtyStream:
        stream = await self.open(command, tty=True)
        made = _Tty(self._engine, stream)
        await made.resize(*size)
        return made

    async def open(
        self, command: Command, *, deadline_sec: float = EXEC_SEC, outage_sec: float | None = None, tty: bool = False
    ) -> ExecStream:
        engine, argv = self._engine, list(command.argv)
        outage_sec = engine.outage_sec if outage_sec is None else outage_sec
        limits: dict[str, Any] = {"deadline_sec": deadline_sec, "outage_sec": outage_sec}
        variables, where = dict(command.environment), command.workdir
        creating = partial(engine.api.exec_create, self._container, argv, stdin=True, tty=tty, user=command.user)
        try:
            async with asyncio.timeout(deadline_sec + outage_sec):
                created = await engine.call(creating, environment=variables, workdir=where, **limits)
                starting = partial(_start_exec, engine.api, created["Id"], tty, self._masks)
                stream = await engine.call(starting, **limits, dispose=ExecStream.release)
                return await stream.attach()
        except (EngineError, TimeoutError) as error:
            status = getattr(error, "status", None)
            if status in (404, 409):
                raise TrialError("sandbox_lost", f"the container is gone or ended: {error}") from error
            if status is not None and await self._has_ended():  # a 500 during a removal
                raise TrialError("sandbox_lost", f"the container ended: {error}") from error
            raise engine_error(error, f"starting {shlex.join(argv[:3])}", "sandbox_failed") from error

    async def _exit_code(self, stream: OutputStream) -> int | None:
        assert isinstance(stream, ExecStream)
        # The stream may end a moment before the engine notices the end of the process.
        ends_at = time.monotonic() + _END_SEC
        while True:
            # The engine forgets an exec when its container is gone and when the engine restarts.
            with engine_errors("inspecting a command", "sandbox_lost"):
                state = await self._engine.call(self._engine.api.exec_inspect, stream.exec_id)
            if not state["Running"] or time.monotonic() > ends_at:
                code: int | None = state["ExitCode"]
                return code
            await asyncio.sleep(0.02)

    async def _has_ended(self) -> bool:
        try:
            await self._engine.call(self._engine.api.wait, self._container, timeout=_END_SEC)
        except EngineError as error:
            return error.status == 404
        return True


def _start_exec(api: Any, exec_id: str, tty: bool, masks: Masks | None) -> ExecStream:
    return ExecStream(exec_id, api.exec_start(exec_id, socket=True, tty=tty), is_tty=tty, masks=masks)


class _Tty(TtyStream):
    """A command on a terminal."""

    def __init__(self, engine: Engine, stream: ExecStream) -> None:
        self._engine = engine
        self._stream = stream

    async def read(self) -> bytes:
        return await self._stream.read_output()

    async def write(self, data: bytes) -> None:
        await self._stream.write(data)

    async def resize(self, rows: int, columns: int) -> None:
        # Fails if the process has ended, which its reader notices anyway.
        with contextlib.suppress(EngineError):
            await self._engine.call(self._engine.api.exec_resize, self._stream.exec_id, height=rows, width=columns)

    async def close(self) -> None:
        await self._stream.close()
