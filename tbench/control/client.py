"""Clients of a run's control socket: for one request, or for many on one connection without blocking."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from tbench.control.listener import short_path
from tbench.control.telling import ANSWER_SEC, MAX_BYTES, as_usage_errors, exchange, unreadable
from tbench.control.wire import Answer, Attach, Request, as_line
from tbench.errors import UsageError


def ask(directory: Path, request: Request) -> Answer:
    """Send a request to the run in this directory. Raises UsageError if it is not running, or refuses."""
    line = exchange(directory, as_line(request))
    return _accepted(line, unreadable(directory, line))


class AttachedTerminal:
    """Connection to a trial's terminal, which sends the screen whenever it changes."""

    def __init__(self, first: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.first = first
        self._reader, self._writer = reader, writer

    async def next(self) -> Answer | None:
        """Wait for the next screen; None if the terminal was closed."""
        with contextlib.suppress(OSError, ValidationError):
            if line := await self._reader.readline():
                return Answer.model_validate_json(line)
        return None

    def type(self, keys: bytes) -> None:
        """Send keys; they are typed if the terminal was taken and the agent is idle."""
        self._writer.write(keys)


@contextlib.asynccontextmanager
async def attach(directory: Path, request: Attach) -> AsyncIterator[AttachedTerminal]:
    """Attach to a terminal during the block; `request.drawn` must be true. Raises UsageError like `ask`."""
    with as_usage_errors(directory):
        with short_path(directory) as path:
            reader, writer = await asyncio.open_unix_connection(path, limit=MAX_BYTES)
        writer.write(as_line(request))
        try:
            async with asyncio.timeout(ANSWER_SEC):
                line = await reader.readline()
        except BaseException:
            writer.close()
            raise
    try:
        yield AttachedTerminal(_accepted(line, unreadable(directory, line)), reader, writer)
    finally:
        writer.close()


def _accepted(line: bytes, unreadable: UsageError) -> Answer:
    """Return the answer in a line. Raises UsageError for a refusal, and `unreadable` for anything else."""
    try:
        answer = Answer.model_validate_json(line)
    except ValidationError:
        raise unreadable from None
    if not answer.ok:
        raise UsageError(answer.words)
    return answer


# Several requests on one connection, without blocking.

_TALK_ANSWER_SEC = 1200.0
"""Longest wait for an answer: a model may have to reply first."""
_CONNECT_SEC = 10.0


class ControlConnectionClosed(UsageError):
    """The run has ended, or has closed the connection."""


class ControlConnection:
    """A client's connection to a run, an asynchronous context manager; requests are answered in order."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Connect. Raises UsageError if no run is running in the directory."""
        with as_usage_errors(self._directory), short_path(self._directory) as path:
            async with asyncio.timeout(_CONNECT_SEC):
                self._reader, self._writer = await asyncio.open_unix_connection(path, limit=MAX_BYTES)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def ask(self, request: Request) -> Answer:
        """Send a request and return its answer.

        Raises UsageError if the run refuses, and ControlConnectionClosed if it has ended.

        After a cancelled request, the connection must not be used again.
        """
        async with self._turn, asyncio.timeout(_TALK_ANSWER_SEC):
            try:
                self._writer.write(as_line(request))
                await self._writer.drain()
            except OSError:
                raise self._closed_error("the run has ended") from None
            return await self.next()

    async def next(self) -> Answer:
        """Wait for the next answer, if a request has several. Raises as `ask` does."""
        try:
            line = await self._reader.readline()
        except ValueError:
            raise self._closed_error("an answer is too long") from None
        except OSError:
            line = b""
        if not line:
            raise self._closed_error("the run has ended")
        return _accepted(line, self._closed_error("the run is of another version of tbench"))

    def _closed_error(self, why: str) -> ControlConnectionClosed:
        return ControlConnectionClosed(f"{self._directory}: {why}")
