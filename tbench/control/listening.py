"""The control socket of a run: made, listened on, and taken away. Others answer what is said on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

SOCKET_NAME = "control.sock"
"""Name of the socket in the run directory."""
LINE_LIMIT_BYTES = 1 << 16
"""Longest line of either side."""
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Answers one client until it goes away."""


@contextlib.asynccontextmanager
async def listening(directory: Path, serve: Serve, say: Callable[[str], None]) -> AsyncIterator[None]:
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

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        clients.add(task)
        try:
            if server.is_serving():  # one that came in at the last moment is served nothing
                await serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the run is over; raised on, asyncio would print it
        finally:
            clients.discard(task)
            writer.close()

    server = await asyncio.start_unix_server(take, sock=listener, limit=LINE_LIMIT_BYTES)
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
