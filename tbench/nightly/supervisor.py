"""Runs a command, and ends its whole process group when the parent process goes away.

`python -m tbench.nightly.supervisor STOP_SEC COMMAND…`. Standard input is a pipe whose other end the parent holds.
When it is closed, even by `kill -9` of the parent, the group gets SIGTERM, and STOP_SEC later SIGKILL; the same happens
to processes left behind when the command has ended. The exit code is the command's, 128 + N for signal N, 127 for a
command that cannot be started. The supervisor has its own session, so that Ctrl-C reaches only the parent.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

_POLL_SEC = 0.05
_LAST_SEC = 5.0
"""Seconds until killed processes must have vanished."""


async def supervise(stop_sec: float, command: Sequence[str]) -> int:
    """Run the command until it ends or the pipe is closed; return its exit code."""
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL, process_group=0)
    except OSError as error:
        os.write(2, f"{command[0]}: cannot be started: {error.strerror or error}\n".encode())
        return 127
    ended = asyncio.create_task(process.wait())
    orphaned = asyncio.create_task(_parent_is_gone())
    await asyncio.wait({ended, orphaned}, return_when=asyncio.FIRST_COMPLETED)
    await _end_group(process.pid, stop_sec, ended)
    orphaned.cancel()
    code = await ended
    return code if code >= 0 else 128 - code


async def _parent_is_gone() -> None:
    """Wait until the pipe is closed."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(1024):
        pass


async def _end_group(group: int, stop_sec: float, ended: asyncio.Task[int]) -> None:
    """End the remaining processes of the command's group."""
    for number, seconds in ((signal.SIGTERM, stop_sec), (signal.SIGKILL, _LAST_SEC)):
        if not _signal_group(group, number):
            return
        ends_at = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < ends_at and (_signal_group(group, 0) or not ended.done()):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SEC)


def _signal_group(group: int, number: int) -> bool:
    """Send a signal to the group; return False if it has no process left."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # only processes of other users are left
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(asyncio.run(supervise(float(sys.argv[1]), sys.argv[2:])))
