"""The byte stream under a terminal: the interface to the process that runs tmux (a container's exec, a local one)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol


class ByteStream(Protocol):
    """The standard input and output of a process."""

    async def read(self) -> bytes:
        """Return the next bytes; b"" at the end."""

    async def pass_on(self, take: Callable[[bytes], float]) -> None:
        """Pass everything read to `take` until the end; `take` returns the seconds to pause before the next read."""
        while data := await self.read():
            if pause_sec := take(data):
                await asyncio.sleep(pause_sec)

    async def write(self, data: bytes) -> None:
        """Send bytes. Raises ConnectionError if the other side is gone."""

    async def close(self) -> None:
        """Close the stream. Never raises."""


Connect = Callable[[Sequence[str], Mapping[str, str]], Awaitable[ByteStream]]
"""Starts argv, with extra environment variables, where the terminal runs."""


class LocalProcess(ByteStream):
    """A ByteStream over a process on this machine, for tests and for debugging without a container."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def connect(cls, argv: Sequence[str], environment: Mapping[str, str]) -> LocalProcess:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=dict(environment),
        )
        return cls(process)

    async def read(self) -> bytes:
        assert self._process.stdout is not None
        return await self._process.stdout.read(1 << 16)

    async def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
