"""The run's side of its control socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from pydantic import ValidationError

from tbench.control.wire import (
    LINE_LIMIT_BYTES,
    SOCKET_NAME,
    Abort,
    Answer,
    Attach,
    Continue,
    Controls,
    Debug,
    ListTrials,
    Onlooker,
    Pause,
    ReadScreen,
    Request,
    Say,
    SetConcurrency,
    TypeKeys,
    as_line,
    read_request,
)
from tbench.errors import UsageError
from tbench.text import one_line

_ANSWER_SEC = 10.0
"""Longest time for a client to take an answer; then it is left alone."""
_KEYS_BYTES = 1 << 14
"""The most that is typed at once."""


@contextlib.asynccontextmanager
async def controlled(directory: Path, controls: Controls, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Listen on the control socket of a run directory during the block, with nobody but this user at the other end.

    The directory is locked by the run: a socket that is there was left by one that is gone. A run whose directory
    takes no socket goes on without one, and says so.
    """
    try:
        listener = _listen(directory)
    except OSError as error:
        say(f"{directory / SOCKET_NAME}: cannot be made, so this run cannot be spoken to: {error.strerror or error}")
        yield
        return
    clients: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        clients.add(task)
        try:
            if server.is_serving():  # one that came in at the last moment is served nothing
                await _serve(reader, writer, controls)
        except asyncio.CancelledError:
            pass  # the run is over; raised on, asyncio would print it
        finally:
            clients.discard(task)
            writer.close()

    server = await asyncio.start_unix_server(serve, sock=listener, limit=LINE_LIMIT_BYTES)
    try:
        yield
    finally:
        server.close()
        for task in tuple(clients):
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        with contextlib.suppress(OSError):
            (directory / SOCKET_NAME).unlink()


def _listen(directory: Path) -> socket.socket:
    """A socket in the directory, open to this user alone. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        (directory / SOCKET_NAME).unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with short_path(directory) as path:
            listener.bind(path)
        listener.listen()
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


@contextlib.contextmanager
def short_path(directory: Path) -> Iterator[str]:
    """The socket's path by way of a descriptor: the system takes no more than 107 bytes. Raises OSError."""
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET_NAME}"
    finally:
        os.close(folder)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, controls: Controls) -> None:
    """Answer one client until it goes away."""
    try:
        while line := await _line(reader):
            if not await _served(line, reader, writer, controls):
                break
    except TimeoutError:
        writer.transport.abort()  # it takes nothing, so what it was to get would stay here
    except OSError:
        pass


async def _line(reader: asyncio.StreamReader) -> bytes:
    """The next line; empty at the end, and where a line is too long to be a request."""
    try:
        return await reader.readline()
    except ValueError:
        return b""


async def _served(line: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, controls: Controls) -> bool:
    """Do what a line asks for; whether other lines may follow. Raises OSError, and TimeoutError for a stuck client."""
    try:
        request = read_request(line)
        if isinstance(request, Attach):
            async with controls.attach(request.trial, take=request.take, drawn=request.drawn) as onlooker:
                await _show(onlooker, reader, writer)
            return False
        answer = await _done(request, controls)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "request"
        answer = Answer(ok=False, words=one_line(f"{where}: {first['msg']}"))
    except UsageError as error:
        answer = Answer(ok=False, words=one_line(str(error)))
    await _send(writer, as_line(answer))
    return True


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(_ANSWER_SEC):
        await writer.drain()


async def _show(onlooker: Onlooker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Let somebody look on until they leave or the terminal is closed. Raises OSError and TimeoutError."""

    async def pass_on() -> None:
        while data := await onlooker.next():
            await _send(writer, data)

    async def take_keys() -> None:
        while data := await reader.read(_KEYS_BYTES):
            await onlooker.type(data)

    ways = {asyncio.create_task(pass_on(), name="showing"), asyncio.create_task(take_keys(), name="taking keys")}
    try:
        ended, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
    for way in ended:
        way.result()


async def _done(request: Request, controls: Controls) -> Answer:
    """Do what is asked, which may take a while: the requests of one client are answered in order."""
    match request:
        case ListTrials():
            return Answer(ok=True, state=controls.state())
        case Pause(trial=trial, now=now):
            return Answer(ok=True, words=controls.pause(trial, now=now))
        case Continue(trial=trial):
            return Answer(ok=True, words=controls.go_on(trial))
        case Abort(trial=trial):
            return Answer(ok=True, words=controls.abort(trial))
        case Say(trial=trial, text=text):
            return Answer(ok=True, words=controls.say(trial, text))
        case SetConcurrency(number=number):
            return Answer(ok=True, words=controls.resize(number))
        case ReadScreen(trial=trial):
            return Answer(ok=True, screen=await controls.screen(trial))
        case TypeKeys(trial=trial, keys=keys):
            return Answer(ok=True, words=await controls.type(trial, keys))
        case Debug(trial=trial, after=after, version=version):
            return Answer(ok=True, debug=await controls.debug(trial, after=after, version=version))
        case Attach():
            raise AssertionError("is no request with one answer")
        case _:
            return Answer(ok=True, words=await controls.decide(request))
