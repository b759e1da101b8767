"""Clients of a run's control socket: for one request, or for many on one connection without blocking."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from tbench.control.listener import LINE_LIMIT_BYTES, SOCKET_NAME, short_path
from tbench.control.wire import Answer, Attach, Request, as_line
from tbench.errors import UsageError

_ANSWER_SEC = 20.0
MAX_BYTES = 64 << 20
"""Longest answer: about 10,000 trials."""


def ask(directory: Path, request: Request) -> Answer:
    """Send a request to the run in this directory. Raises UsageError if it is not running, or refuses."""
    where = directory / SOCKET_NAME
    with as_usage_errors(directory), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_ANSWER_SEC)
        with short_path(directory) as path:
            connection.connect(path)
        connection.sendall(as_line(request))
        line = _line(connection)
    return _answer(line, where)


@contextlib.contextmanager
def as_usage_errors(directory: Path) -> Iterator[None]:
    """Turn connection errors into UsageErrors that say why the run cannot be reached."""
    where = directory / SOCKET_NAME
    try:
        yield
    except ConnectionRefusedError:
        with contextlib.suppress(OSError):
            where.unlink()
        raise UsageError(
            f"{directory}: its run was killed (removed a stale socket); to continue it: tbench resume {directory}"
        ) from None
    except FileNotFoundError:
        raise UsageError(f"{directory}: no run is under way here; tbench ps lists running runs") from None
    except TimeoutError:
        raise UsageError(
            f"{where}: no answer within {_ANSWER_SEC:.0f} s; the run's process is suspended or busy"
        ) from None
    except OSError as error:
        raise UsageError(f"{where}: cannot be reached: {error.strerror or error}") from None


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
    """Attach to a terminal during the block; `request` asks for drawn screens. Raises UsageError as `ask` does."""
    with as_usage_errors(directory):
        with short_path(directory) as path:
            reader, writer = await asyncio.open_unix_connection(path, limit=MAX_BYTES)
        writer.write(as_line(request))
        try:
            async with asyncio.timeout(_ANSWER_SEC):
                line = await reader.readline()
        except BaseException:
            writer.close()
            raise
    try:
        yield AttachedTerminal(_answer(line, directory / SOCKET_NAME), reader, writer)
    finally:
        writer.close()


def _line(connection: socket.socket) -> bytes:
    parts, size = [], 0
    while size < MAX_BYTES and (part := connection.recv(LINE_LIMIT_BYTES)):
        parts.append(part)
        size += len(part)
        if part.endswith(b"\n"):
            break
    return b"".join(parts)


def _answer(line: bytes, where: Path) -> Answer:
    try:
        answer = Answer.model_validate_json(line)
    except ValidationError:
        why = "it is of another version" if line else "the run has ended"
        raise UsageError(f"{where}: its answer cannot be read: {why}") from None
    if not answer.ok:
        raise UsageError(answer.words)
    return answer


def runs_under_way(folder: Path) -> list[Path]:
    """List the run directories in a folder that have a control socket, by name; or the folder itself if it is one."""
    if (folder / SOCKET_NAME).is_socket():
        return [folder]
    with contextlib.suppress(OSError):
        return sorted(each for each in folder.iterdir() if (each / SOCKET_NAME).is_socket())
    return []


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
        try:
            answer = Answer.model_validate_json(line)
        except ValidationError:
            raise self._closed_error("the run is of another version of tbench") from None
        if not answer.ok:
            raise UsageError(answer.words)
        return answer

    def _closed_error(self, why: str) -> ControlConnectionClosed:
        return ControlConnectionClosed(f"{self._directory}: {why}")
