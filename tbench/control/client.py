"""Clients of a run's control socket: one request, or many on one connection without blocking."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from tbench.control.listening import LINE_LIMIT_BYTES, SOCKET_NAME, short_path
from tbench.control.wire import Answer, Attach, Request, as_line
from tbench.errors import UsageError

_ANSWER_SEC = 20.0
MOST_BYTES = 64 << 20
"""Longest answer: that about 10,000 trials."""


def ask(directory: Path, request: Request) -> Answer:
    """Send a request to the run in this directory. Raises UsageError where it is not under way, or says no."""
    where = directory / SOCKET_NAME
    with told_as_usage(directory), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_ANSWER_SEC)
        with short_path(directory) as path:
            connection.connect(path)
        connection.sendall(as_line(request))
        line = _line(connection)
    return _answer(line, where)


@contextlib.contextmanager
def told_as_usage(directory: Path) -> Iterator[None]:
    """Say in words why the run in this directory cannot be reached. Raises UsageError."""
    where = directory / SOCKET_NAME
    try:
        yield
    except ConnectionRefusedError:
        with contextlib.suppress(OSError):
            where.unlink()
        raise UsageError(
            f"{directory}: its run was killed (a stale socket was removed); go on with it: tbench resume {directory}"
        ) from None
    except FileNotFoundError:
        raise UsageError(f"{directory}: no run is under way here; tbench ps lists those that are") from None
    except TimeoutError:
        raise UsageError(
            f"{where}: no answer within {_ANSWER_SEC:.0f} s; the run's process is stopped or busy"
        ) from None
    except OSError as error:
        raise UsageError(f"{where}: cannot be reached: {error.strerror or error}") from None


class Attached:
    """The way to a trial's terminal, which is drawn anew as it changes."""

    def __init__(self, first: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.first = first
        self._reader, self._writer = reader, writer

    async def next(self) -> Answer | None:
        """The screen as it has become; None where the terminal was closed."""
        with contextlib.suppress(OSError, ValidationError):
            if line := await self._reader.readline():
                return Answer.model_validate_json(line)
        return None

    def type(self, keys: bytes) -> None:
        """Type, where the terminal was taken and is held."""
        self._writer.write(keys)


@contextlib.asynccontextmanager
async def attached(directory: Path, request: Attach) -> AsyncIterator[Attached]:
    """Look on at a terminal during the block; `request` asks for drawn screens. Raises UsageError as `ask` does."""
    with told_as_usage(directory):
        with short_path(directory) as path:
            reader, writer = await asyncio.open_unix_connection(path, limit=MOST_BYTES)
        writer.write(as_line(request))
        try:
            async with asyncio.timeout(_ANSWER_SEC):
                line = await reader.readline()
        except BaseException:
            writer.close()
            raise
    try:
        yield Attached(_answer(line, directory / SOCKET_NAME), reader, writer)
    finally:
        writer.close()


def _line(connection: socket.socket) -> bytes:
    parts, size = [], 0
    while size < MOST_BYTES and (part := connection.recv(LINE_LIMIT_BYTES)):
        parts.append(part)
        size += len(part)
        if part.endswith(b"\n"):
            break
    return b"".join(parts)


def _answer(line: bytes, where: Path) -> Answer:
    try:
        answer = Answer.model_validate_json(line)
    except ValidationError:
        what = "of another version" if line else "and the run ended meanwhile"
        raise UsageError(f"{where}: its answer cannot be read, {what}") from None
    if not answer.ok:
        raise UsageError(answer.words)
    return answer


def runs_under_way(folder: Path) -> list[Path]:
    """The run directories in a folder that have a control socket, by name; the folder itself where it is one."""
    if (folder / SOCKET_NAME).is_socket():
        return [folder]
    with contextlib.suppress(OSError):
        return sorted(each for each in folder.iterdir() if (each / SOCKET_NAME).is_socket())
    return []


# A longer talk with a run under way: several requests on one connection, without blocking anybody.

_TALK_ANSWER_SEC = 1200.0
"""Longest time for an answer: a model may be asked before it."""
_CONNECT_SEC = 10.0


class TalkOver(UsageError):
    """Raised where the run has ended, or has closed the connection."""


class Talk:
    """One client's connection to a run, an asynchronous context manager; its requests are answered in order."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Connect. Raises UsageError where no run is under way in the directory."""
        with told_as_usage(self._directory), short_path(self._directory) as path:
            async with asyncio.timeout(_CONNECT_SEC):
                self._reader, self._writer = await asyncio.open_unix_connection(path, limit=MOST_BYTES)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def ask(self, request: Request) -> Answer:
        """Send a request and wait for its answer. Raises UsageError where the run says no, TalkOver at the end.

        Who is cancelled meanwhile must not ask again on this connection.
        """
        async with self._turn, asyncio.timeout(_TALK_ANSWER_SEC):
            try:
                self._writer.write(as_line(request))
                await self._writer.drain()
            except OSError:
                raise self._over("the run has ended") from None
            return await self.next()

    async def next(self) -> Answer:
        """The next answer, where a request has several. Raises as `ask` does."""
        try:
            line = await self._reader.readline()
        except ValueError:
            raise self._over("an answer is longer than any should be") from None
        except OSError:
            line = b""
        if not line:
            raise self._over("the run has ended")
        try:
            answer = Answer.model_validate_json(line)
        except ValidationError:
            raise self._over("the run answers in words of another version") from None
        if not answer.ok:
            raise UsageError(answer.words)
        return answer

    def _over(self, why: str) -> TalkOver:
        return TalkOver(f"{self._directory}: {why}")
