"""Commands in a container: each is a process of the runtime, whose streams are pipes into the container."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import struct
import termios
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from tbench.errors import TrialError
from tbench.sandbox.backend import TtyStream
from tbench.sandbox.commands import EXEC_SEC, Command, Commands
from tbench.sandbox.container_proxy import Masks
from tbench.sandbox.oci.accounts import find_user
from tbench.sandbox.oci.spec import process_spec
from tbench.sandbox.oci.store import State, Store
from tbench.sandbox.recipe import SandboxRecipe
from tbench.sandbox.stream import INPUT_CHUNK_BYTES, OutputStream

_END_SEC = 2.0
_STDIN, _STDOUT, _STDERR = range(3)


class ProcessStream(OutputStream, asyncio.SubprocessProtocol):
    """The streams of one process."""

    def __init__(self, masks: Masks | None, spec: Path) -> None:
        """`spec` is the file that describes the command; it is removed when the stream is closed."""
        super().__init__(masks)
        self._spec = spec
        self._process: asyncio.SubprocessTransport | None = None
        self._open = {_STDOUT, _STDERR}
        self._exited = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._process = transport
        self._writable.set()
        reading = transport.get_pipe_transport(_STDOUT)
        assert isinstance(reading, asyncio.ReadTransport)
        self._transport = reading

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        if fd == _STDOUT:
            self.data_received(data)
        else:
            self._add_errors(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if fd == _STDIN:
            self._writable.set()
        elif not self._open:
            super().connection_lost(exc)

    def process_exited(self) -> None:
        self._exited.set()

    @property
    def _stdin(self) -> asyncio.WriteTransport | None:
        pipe = None if self._process is None else self._process.get_pipe_transport(_STDIN)
        return pipe if isinstance(pipe, asyncio.WriteTransport) and not pipe.is_closing() else None

    async def write(self, data: bytes) -> None:
        if self._lost.is_set() or (pipe := self._stdin) is None:
            raise ConnectionResetError("the stream of a command has ended")
        pipe.write(data)
        await self._writable.wait()

    def end_input(self) -> None:
        if (pipe := self._stdin) is not None:
            pipe.close()

    async def _feed(self, source: IO[bytes]) -> None:
        with contextlib.suppress(ConnectionError):
            while data := source.read(INPUT_CHUNK_BYTES):
                await self.write(data)
            self.end_input()

    async def exit_code(self) -> int | None:
        """Return the exit code, for a signal 128 plus its number; None if the command still runs or was cut off."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SEC):
                await self._exited.wait()
        code = None if self._process is None else self._process.get_returncode()
        return code if code is None or code >= 0 else None

    async def close(self) -> None:
        if self._lost.is_set():
            await self.exit_code()  # it ends by itself, and its exit code would be lost
        if self._process is not None:
            self._process.close()
        self._spec.unlink(missing_ok=True)


class OciCommands(Commands):
    """Starts commands in one container."""

    def __init__(self, store: Store, directory: Path, recipe: SandboxRecipe, state: State, layers: Sequence[Path],
                 variables: Mapping[str, str], masks: Masks | None = None) -> None:  # fmt: skip
        """`layers` are the container's files, its own first; every command gets `variables`."""
        super().__init__(is_fresh=recipe.is_fresh)
        self._store, self._directory, self._recipe, self._state = store, directory, recipe, state
        self._layers, self._variables, self._masks = layers, variables, masks

    async def open(
        self, command: Command, *, deadline_sec: float = EXEC_SEC, outage_sec: float | None = None
    ) -> ProcessStream:
        spec = self._write_spec(command)
        loop = asyncio.get_running_loop()
        _, stream = await loop.subprocess_exec(
            lambda: ProcessStream(self._masks, spec), *self._exec(spec), start_new_session=True
        )
        return stream

    async def tty(self, command: Command, size: tuple[int, int]) -> TtyStream:
        console = {"height": size[0], "width": size[1]}
        command = replace(command, environment={"TERM": "xterm", **command.environment})
        spec = self._write_spec(command, terminal=True, consoleSize=console)
        outer, inner = pty.openpty()
        try:
            # The runtime passes on sizes of its own terminal, which has to be its controlling one.
            process = await asyncio.create_subprocess_exec(
                "setsid", "--ctty", *self._exec(spec), stdin=inner, stdout=inner, stderr=inner
            )
        finally:
            os.close(inner)
        made = _Tty(outer, process, spec)
        await made.resize(*size)
        return made

    def _exec(self, spec: Path) -> list[str]:
        name = self._directory.name
        return [*self._store.as_root(self._state.pid), *self._store.runtime("exec", "--process", str(spec), name)]

    def _write_spec(self, command: Command, **more: Any) -> Path:
        """Write the description of a command to a file. Raises TrialError(sandbox_lost, task_invalid)."""
        if not self._state.is_running:
            raise TrialError("sandbox_lost", "the container is gone or ended")
        who = find_user(self._layers, command.user or self._recipe.image.user)
        spec = self._directory / f"exec-{uuid.uuid4().hex}.json"
        environment = {**self._variables, **command.environment}
        described = process_spec(self._recipe, command.argv, who, command.workdir, environment)
        try:
            spec.write_text(json.dumps({**described, **more}))
        except OSError as error:
            raise TrialError("sandbox_lost", f"the container is gone: {error}") from None
        return spec

    async def _exit_code(self, stream: OutputStream) -> int | None:
        assert isinstance(stream, ProcessStream)
        return await stream.exit_code()

    async def _has_ended(self) -> bool:
        ends_at = time.monotonic() + _END_SEC
        while self._state.is_running:
            if time.monotonic() > ends_at:
                return False
            await asyncio.sleep(0.02)
        return True


class _Tty(TtyStream):
    """A command on a terminal."""

    def __init__(self, terminal: int, process: asyncio.subprocess.Process, spec: Path) -> None:
        self._terminal, self._process, self._spec = terminal, process, spec
        os.set_blocking(terminal, False)

    async def read(self) -> bytes:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        while True:
            try:
                return os.read(self._terminal, 1 << 16)
            except BlockingIOError:
                ready.clear()
                loop.add_reader(self._terminal, ready.set)
                try:
                    await ready.wait()
                finally:
                    loop.remove_reader(self._terminal)
            except OSError:  # the end of a terminal
                return b""

    async def write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._terminal, data) :]
            except BlockingIOError:
                await asyncio.sleep(0.01)
            except OSError as error:
                raise ConnectionResetError("the terminal has ended") from error

    async def resize(self, rows: int, columns: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    async def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        os.close(self._terminal)
        self._spec.unlink(missing_ok=True)
