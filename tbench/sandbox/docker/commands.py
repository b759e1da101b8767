"""Commands in one container of an engine: each is an exec with a stream."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tbench.errors import TrialError
from tbench.sandbox.backend import TtyStream
from tbench.sandbox.commands import EXEC_SEC, Commands
from tbench.sandbox.container_proxy import Masks
from tbench.sandbox.docker.create import engine_error, engine_errors
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.stream import ExecStream
from tbench.sandbox.stream import OutputStream

_END_SEC = 2


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

    async def tty(
        self, argv: Sequence[str], environment: Mapping[str, str], *, user: str, workdir: str, size: tuple[int, int]
    ) -> TtyStream:
        stream = await self.open(argv, user=user, workdir=workdir, environment=environment, tty=True)
        made = _Tty(self._engine, stream)
        await made.resize(*size)
        return made

    async def open(
        self,
        argv: Sequence[str],
        *,
        user: str,
        workdir: str,
        environment: Mapping[str, str],
        deadline_sec: float = EXEC_SEC,
        outage_sec: float | None = None,
        tty: bool = False,
    ) -> ExecStream:
        """Start a command and return its stream; waits up to `outage_sec` for an engine that is down.

        Raises TrialError (sandbox_lost, sandbox_failed, engine_unreachable).
        """
        engine = self._engine
        outage_sec = engine.outage_sec if outage_sec is None else outage_sec
        options: dict[str, Any] = {"user": user, "workdir": workdir, "environment": dict(environment), "tty": tty}
        try:
            async with asyncio.timeout(deadline_sec + outage_sec):
                created = await engine.call(
                    engine.api.exec_create, self._container, list(argv), stdin=True, **options,
                    deadline_sec=deadline_sec, outage_sec=outage_sec,
                )  # fmt: skip
                stream = await engine.call(
                    partial(_start_exec, engine.api, created["Id"], tty, self._masks),
                    deadline_sec=deadline_sec,
                    outage_sec=outage_sec,
                    dispose=ExecStream.release,
                )
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
