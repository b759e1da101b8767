"""Creates the control socket of a run, listens on it, and removes it; `serve` answers the clients."""

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
"""Longest line of a request."""
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Function that answers one client until it disconnects."""


@contextlib.asynccontextmanager
async def listening(directory: Path, serve: Serve, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Listen on the control socket of a run directory during the block; only this user can connect.

    The run locks its directory, so an existing socket is a leftover. If no socket can be made, the run continues
    without it, with a message.
    """
    try:
        listener = _listen(directory)
    except OSError as error:
        say(
            f"{directory / SOCKET_NAME}: cannot be created, so this run cannot be controlled: {error.strerror or error}"
        )
        yield
        return
    clients: set[asyncio.Task[None]] = set()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        clients.add(task)
        try:
            if server.is_serving():  # a client that connects at the last moment is not served
                await serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the run is over; asyncio would print it if re-raised
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
    """Create a socket in the directory that only this user can connect to. Raises OSError."""
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
    """Yield a short path to the socket, through a descriptor: the system limits paths to 107 bytes. Raises OSError."""
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET_NAME}"
    finally:
        os.close(folder)
