"""Keeps a command: a small process that ends the command's whole process group when whoever started it goes away.

`python -m tbench.nightly.keeper STOP_SEC COMMAND…`. Its standard input is a pipe of which the starter holds the other
end. When that is closed, also by `kill -9` of the starter, the group gets SIGTERM, and SIGKILL STOP_SEC later; so it
does when the command has ended and left processes behind. The exit code is the command's, 128 + N for signal N, 127 for
a command that cannot be started. The keeper is in a session of its own, so that a Ctrl-C reaches only the starter.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

_POLL_SEC = 0.05
_LAST_SEC = 5.0
"""Seconds that killed processes have to vanish."""


async def keep(stop_sec: float, command: Sequence[str]) -> int:
    """Run the command until it ends or the pipe does; returns its exit code."""
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL, process_group=0)
    except OSError as error:
        os.write(2, f"{command[0]}: cannot be started: {error.strerror or error}\n".encode())
        return 127
    ended = asyncio.create_task(process.wait())
    left = asyncio.create_task(_starter_is_gone())
    await asyncio.wait({ended, left}, return_when=asyncio.FIRST_COMPLETED)
    await _end_group(process.pid, stop_sec, ended)
    left.cancel()
    code = await ended
    return code if code >= 0 else 128 - code


async def _starter_is_gone() -> None:
    """Wait for the end of the pipe."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(1024):
        pass


async def _end_group(group: int, stop_sec: float, ended: asyncio.Task[int]) -> None:
    """End what is left of the command's process group."""
    for number, seconds in ((signal.SIGTERM, stop_sec), (signal.SIGKILL, _LAST_SEC)):
        if not _signalled(group, number):
            return
        ends_at = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < ends_at and (_signalled(group, 0) or not ended.done()):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SEC)


def _signalled(group: int, number: int) -> bool:
    """Send a signal to the group; False where nothing is left of it."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # only processes of others are left in it
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(asyncio.run(keep(float(sys.argv[1]), sys.argv[2:])))
