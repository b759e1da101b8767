"""A command as a process of a night: kept by a small process that ends it with the night, however the night ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tbench.text import one_line

PYTHON = (sys.executable, "-P", "-m")
"""Runs a module of this installation, whatever folders lie where the night is started."""
_TAIL_BYTES = 8192
_GRACE_SEC = 15.0
"""Seconds beyond its own bounds after which the keeper itself is killed."""


class KeptProcess:
    """A command under way; as a context manager, it has ended with all of its group at the end of the block."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, begins_at: int, stop_sec: float) -> None:
        self._process = process
        self._log = log
        self._begins_at = begins_at
        self._stop_sec = stop_sec

    @classmethod
    async def start(
        cls, command: Sequence[str], log: Path, *, stop_sec: float, env: Mapping[str, str] | None = None, lock: int
    ) -> Self:
        """Start a command whose output is appended to `log`.

        `lock` is a descriptor that the keeper inherits and holds until nothing is left of the command. Raises OSError
        where the log cannot be written; a command that cannot be started ends with 127, and its log says why.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            begins_at = output.tell()
            process = await asyncio.create_subprocess_exec(
                *(*PYTHON, "tbench.nightly.keeper", str(stop_sec), *command),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **(env or {})},
                start_new_session=True,
                pass_fds=(lock,),
            )
        return cls(process, log, begins_at, stop_sec)

    @property
    def code(self) -> int | None:
        """The command's exit code; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait for the command's end, without a deadline; gives its exit code."""
        return await self._process.wait()

    async def stop(self) -> int:
        """End the command and its group: SIGTERM, then SIGKILL; gives the exit code. May be called again."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return await asyncio.wait_for(self._process.wait(), self._stop_sec + _GRACE_SEC)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            return await self._process.wait()

    def output(self) -> str:
        """The end of what the command has written so far."""
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._begins_at, size - _TAIL_BYTES))
            return log.read().decode("utf-8", "replace")
        return ""

    def last_words(self, lines: int = 3) -> str:
        """The last lines of it as one; says so where there are none."""
        found = [line.strip() for line in self.output().splitlines() if line.strip()]
        return one_line(" | ".join(found[-lines:]), 400) if found else "it wrote nothing"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
