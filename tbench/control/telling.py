"""Sends orders to a run through its control socket. Uses no data classes, because their import takes too long."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

from tbench.control.listener import LINE_LIMIT_BYTES, SOCKET_NAME, short_path
from tbench.errors import UsageError

ANSWER_SEC = 20.0
MAX_BYTES = 64 << 20
"""Longest answer: about 10,000 trials."""


def tell(directory: Path, order: str, **fields: str | int | bool | None) -> str:
    """Send an order (the `do` of a request in tbench.control.wire) to a run, and return its answer, which is one line.

    Raises UsageError if the run refuses, or is not running.
    """
    line = exchange(
        directory, json.dumps({"do": order, **fields}, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    )
    answer = None
    with contextlib.suppress(ValueError):
        answer = json.loads(line)
    if not isinstance(answer, dict) or not isinstance(words := answer.get("words"), str):
        raise unreadable(directory, line)
    if answer.get("ok") is not True:
        raise UsageError(words)
    return words


def exchange(directory: Path, request: bytes) -> bytes:
    """Send a line to the run in this directory, and return the line of its answer. Raises UsageError."""
    with as_usage_errors(directory), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_SEC)
        with short_path(directory) as path:
            connection.connect(path)
        connection.sendall(request)
        return _line(connection)


def _line(connection: socket.socket) -> bytes:
    parts, size = [], 0
    while size < MAX_BYTES and (part := connection.recv(LINE_LIMIT_BYTES)):
        parts.append(part)
        size += len(part)
        if part.endswith(b"\n"):
            break
    return b"".join(parts)


def unreadable(directory: Path, line: bytes) -> UsageError:
    """Return the error of an answer that cannot be read."""
    why = "it is of another version" if line else "the run has ended"
    return UsageError(f"{directory / SOCKET_NAME}: its answer cannot be read: {why}")


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
            f"{where}: no answer within {ANSWER_SEC:.0f} s; the run's process is suspended or busy"
        ) from None
    except OSError as error:
        raise UsageError(f"{where}: cannot be reached: {error.strerror or error}") from None


def runs_under_way(folder: Path) -> list[Path]:
    """List the run directories in a folder that have a control socket, by name; or the folder itself, if it has one."""
    if (folder / SOCKET_NAME).is_socket():
        return [folder]
    with contextlib.suppress(OSError):
        return sorted(each for each in folder.iterdir() if (each / SOCKET_NAME).is_socket())
    return []
