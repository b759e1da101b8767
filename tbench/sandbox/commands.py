"""Commands in one container: each is a stream, whose output and end are checked."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from tbench.errors import Origin, TrialError
from tbench.results import Stage
from tbench.sandbox.backend import BUSYBOX, TOOLS, ExecResult, TtyStream
from tbench.sandbox.stream import OutputStream
from tbench.text import one_line

BEGAN = b"\1"
"""First byte of a command's output; if it is missing, not even a shell could be started."""
END = "TBENCH_END"
"""Environment variable with the mark that images/tools/limit.c prints after a command's output."""


_TOLD = 4
"""Number of digits after a mark."""


class EndOfOutput:
    """Finds the mark at the end of a command's output; the mark is missing if the connection was cut.

    The mark is followed by one digit, which says whether the command reached its time limit, and three digits of its
    exit code.
    """

    def __init__(self) -> None:
        # The first byte occurs only once, so that the mark is found even after an incomplete one.
        self.mark = f"\4{secrets.token_hex(12)}"
        self._mark = self.mark.encode()
        self._held = b""
        self.at_limit: bool | None = None
        """Whether the command reached its time limit; None before the end."""
        self.exit_code: int | None = None
        self.found_at = 0.0
        """Monotonic time at which the mark was found."""

    @property
    def is_missing(self) -> bool:
        """Whether the mark has not been found."""
        return self.at_limit is None

    def strip(self, data: bytes) -> bytes:
        """Return the output in the next piece of data, without the mark, and without the possible beginning of one."""
        if not self.is_missing:
            return data
        data = self._held + data
        before, _, behind = data.partition(self._mark)
        if len(behind) >= _TOLD and behind[:_TOLD].isdigit():
            self.at_limit, self.exit_code, self._held = behind.startswith(b"1"), int(behind[1:_TOLD]), b""
            self.found_at = time.monotonic()
            return before + behind[_TOLD:]
        # The mark's first byte occurs in it only once.
        at = data.rfind(self._mark[:1], max(0, len(data) - len(self._mark) - _TOLD))
        if at < 0 or not (self._mark.startswith(data[at:]) or data.startswith(self._mark, at)):
            at = len(data)
        self._held = data[at:]
        return data[:at]

    def flush(self) -> bytes:
        """Return the bytes held back, at the end of the stream."""
        held, self._held = self._held, b""
        return held


class CommandOutput:
    """Collects the output of one command, or writes it to a file. Output before BEGAN is the engine's, and is kept."""

    def __init__(self, sink: IO[bytes] | None, limit_bytes: int, end: EndOfOutput) -> None:
        self.has_begun = False
        self.was_cut = False
        """Whether the output exceeded the limit."""
        self._sink = sink
        self._left = limit_bytes
        self._end = end
        self._kept = bytearray()

    @property
    def kept(self) -> bytes:
        return bytes(self._kept)

    async def take(self, data: bytes) -> bool:
        """Take a piece of output; returns whether to read on. Raises OSError if the file cannot be written."""
        return await self._take(self._end.strip(data))

    async def finish(self) -> None:
        """Mark the output as ended. Raises OSError as `take` does."""
        await self._take(self._end.flush())

    async def _take(self, data: bytes) -> bool:
        if not self.has_begun and not self._kept and data.startswith(BEGAN):
            self.has_begun, data = True, data[len(BEGAN) :]
        self.was_cut = len(data) > self._left
        data = data[: self._left]
        self._left -= len(data)
        if self._sink is None or not self.has_begun:
            self._kept += data
        elif data:
            # In a thread: a slow disk must not hold up the other trials' terminals.
            await asyncio.to_thread(self._sink.write, data)
        return not self.was_cut


OUTPUT_BYTES = 64 << 20
EXEC_SEC = 60.0
"""Deadline for starting a command."""
_SIGNALLED = 128
_LATE_SEC = 2.0
"""Time for which background processes of an ended command may still print; the same as Docker's."""


async def _read(stream: OutputStream, end: EndOfOutput) -> bytes:
    """Read more output; after the command's end only briefly, since a process that it left may hold the output open."""
    if end.is_missing:
        return await stream.read_output()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, end.found_at + _LATE_SEC - time.monotonic())):
            return await stream.read_output()
    return b""


@dataclass(frozen=True)
class Command:
    """A command to be started in a container."""

    argv: Sequence[str]
    user: str
    """The image's own if empty."""
    workdir: str
    environment: Mapping[str, str]


class Commands(ABC):
    """Runs commands in one container; a backend's own class starts them."""

    def __init__(self, *, is_fresh: bool = False) -> None:
        """`is_fresh`: the agent never works in the container."""
        self._is_fresh = is_fresh

    @abstractmethod
    async def open(
        self, command: Command, *, deadline_sec: float = EXEC_SEC, outage_sec: float | None = None
    ) -> OutputStream:
        """Start a command and return its stream; waits up to `outage_sec` for an engine that is down.

        Raises TrialError (sandbox_lost, sandbox_failed, engine_unreachable).
        """

    @abstractmethod
    async def tty(self, command: Command, size: tuple[int, int]) -> TtyStream:
        """Start a command on a new terminal of `size` (rows, columns). Raises TrialError as `open` does."""

    @abstractmethod
    async def _exit_code(self, stream: OutputStream) -> int | None:
        """Return the exit code of a command whose stream has ended; None if it is still running."""

    @abstractmethod
    async def _has_ended(self) -> bool:
        """Whether the container has ended; may wait briefly, since its processes die first."""

    async def run(
        self,
        script: str,
        *,
        timeout_sec: float,
        user: str,
        environment: Mapping[str, str],
        source: IO[bytes],
        sink: IO[bytes] | None,
        limit_bytes: int,
    ) -> ExecResult:
        """Run a shell script to its end, with `source` as its input; output is written to `sink`, or returned.

        Raises TrialError (sandbox_lost, sandbox_failed, task_invalid, engine_unreachable), and OSError if the disk of
        `sink` is full.
        """
        limit = max(1, round(timeout_sec))
        stream, end = await self.script(f"printf '\\1'\n{script}", limit_sec=limit, user=user, environment=environment)
        output = CommandOutput(sink, limit_bytes, end)
        started = time.monotonic()
        try:
            async with asyncio.timeout(limit + 30):
                async with stream.feed(source):
                    while (data := await _read(stream, end)) and await output.take(data):
                        pass
                    if not output.was_cut:
                        await output.finish()
                if output.was_cut:
                    return ExecResult(None, output.kept, was_cut=True)
                code = await self._exit_code(stream) if end.exit_code is None else end.exit_code
        except TimeoutError:
            return ExecResult(None, output.kept, timed_out=True)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            raise TrialError("sandbox_lost", f"the stream of a command broke: {error}") from error
        timed_out = end.at_limit
        if timed_out is None:
            timed_out = time.monotonic() - started >= limit and code in (None, 124, 137, 143)
        if (code in (None, 137) or not output.has_begun) and not timed_out and await self._has_ended():
            raise TrialError("sandbox_lost", "the container ended while a command was running")
        if end.is_missing and not timed_out and (code is None or (output.has_begun and code < _SIGNALLED)):
            # The limit program keeps the output open and prints the mark at the end, unless it was killed itself.
            raise TrialError("engine_unreachable", "the connection to the engine was cut while a command was running")
        # A successful command has begun, even if other output came before its first byte.
        if not output.has_begun and not timed_out and code != 0:
            message = one_line((output.kept.decode("utf-8", "replace") + stream.errors).strip(), 200)
            if "unable to find user" in message:
                raise TrialError("task_invalid", f"{message}: the image has no user {user!r}", stage=Stage.SANDBOX)
            why = f"no command can be started in the container ({code}): {message}"
            raise TrialError("sandbox_failed", why, origin=Origin("exec", self._is_fresh, ran=True))
        return ExecResult(code, output.kept, timed_out)

    async def script(
        self, script: str, *, limit_sec: int, user: str, environment: Mapping[str, str]
    ) -> tuple[OutputStream, EndOfOutput]:
        """Start a shell script with a time limit; returns its stream and the finder of its end. Raises like `open`."""
        # Enforced inside the container, since the API cannot end an exec; readers add their own limit with a margin.
        argv = [f"{TOOLS}/bin/limit", str(limit_sec), BUSYBOX, "sh", "-c", script]
        end = EndOfOutput()
        return await self.open(Command(argv, user, "/", {**environment, END: end.mark})), end
