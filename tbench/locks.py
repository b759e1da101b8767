"""Locks between processes: flock, or on file systems without it, a lock file that names its holder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

_LOG = logging.getLogger(__name__)
NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
"""Errors of file systems without flock. Any other error is raised, because the lock may still be held."""
_POLL_SEC = 0.1
Flock = Callable[[int, int], None]


class Held(BlockingIOError):
    """Another process holds the lock; the message names it, if known."""


class FileLock:
    """Exclusive lock on a file, held from construction until `release` or the end of the process."""

    def __init__(self, path: Path, descriptor: int, flock: Flock = fcntl.flock) -> None:
        """Lock the file `path`, which is open as `descriptor`. Raises Held, or OSError if locking fails.

        Closing the descriptor releases a flock, too.
        """
        self._lock_file: Path | None = None
        self._own = b""
        try:
            flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Held from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            self._take_lock_file(lock_file_for(path))
        else:
            # Another machine that mounts the same files without flock may hold the lock by a lock file.
            if (holder := _holder(lock_file_for(path))) is not None:
                flock(descriptor, fcntl.LOCK_UN)
                raise Held(holder)

    def _take_lock_file(self, lock_file: Path) -> None:
        _warn_once(lock_file.parent)
        self._own = json.dumps(_this_process()).encode()
        while True:
            try:
                descriptor = os.open(lock_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            except FileExistsError:
                if (holder := _holder(lock_file)) is not None:
                    raise Held(holder) from None
                continue
            with os.fdopen(descriptor, "wb") as file:
                file.write(self._own)
            self._lock_file = lock_file
            return

    def release(self) -> None:
        """Remove the lock file, if this lock has one."""
        with contextlib.suppress(OSError):
            if self._lock_file is not None and self._lock_file.read_bytes() == self._own:
                self._lock_file.unlink()
        self._lock_file = None


@contextlib.contextmanager
def hold_lock(
    path: Path, descriptor: int, wait_sec: float = 0.0, waiting: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Hold a file's lock within the block, waiting up to `wait_sec` for it. Raises Held and OSError like FileLock.

    `waiting` is called once if another process holds the lock.
    """
    ends_at, pause, is_reported = time.monotonic() + wait_sec, threading.Event(), False
    while True:
        try:
            lock = FileLock(path, descriptor)
            break
        except Held:
            if not is_reported:
                waiting()
            is_reported = True
            if time.monotonic() >= ends_at:
                raise
            pause.wait(_POLL_SEC)
    try:
        yield
    finally:
        lock.release()


def is_held(path: Path, descriptor: int, flock: Flock = fcntl.flock) -> bool:
    """Whether a process holds the lock of a file. Raises OSError if that cannot be determined.

    A flock is tested by taking it for a moment in shared mode, so that several tests do not disturb each other.
    """
    try:
        flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    else:
        flock(descriptor, fcntl.LOCK_UN)
    try:
        return _holder(lock_file_for(path)) is not None
    except Held:
        return True


def lock_file_for(path: Path) -> Path:
    """Return the path of the lock file that names the holder on file systems without flock."""
    return path.with_name(f".{path.name}.lock")


def _holder(lock_file: Path) -> str | None:
    """Describe the holder named by a lock file; None if there is none. Removes the lock file of a dead process."""
    try:
        content = lock_file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        fields = json.loads(content)
        host, machine, pid, begun = fields["host"], fields["machine"], int(fields["pid"]), fields["begun"]
    except (ValueError, TypeError, KeyError):  # being written, or lost in a power cut
        return f"a process holds its lock file {lock_file}; remove that file if no tbench is running here"
    if machine == _machine() and _is_gone(pid, begun):
        _remove(lock_file, content)
        return _holder(lock_file)
    return f"process {pid} on {host} holds its lock file {lock_file}; remove that file if the process is gone"


def _remove(lock_file: Path, content: bytes) -> None:
    """Remove the lock file of a dead process, unless another process has replaced it. Raises OSError."""
    guard = lock_file.with_name(f"{lock_file.name}.removing")
    try:
        guard.mkdir()
    except FileExistsError:
        raise Held(f"another process is removing {lock_file}; remove {guard} if no tbench is running here") from None
    try:
        if lock_file.read_bytes() == content:
            lock_file.unlink()
    except FileNotFoundError:
        pass
    finally:
        guard.rmdir()


def _this_process() -> dict[str, str | int | None]:
    pid = os.getpid()
    return {"host": socket.gethostname(), "machine": _machine(), "pid": pid, "begun": _begun(pid)}


def _machine() -> str:
    """Return an id of the boot and pid namespace: where it is the same, process ids can be compared."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return socket.gethostname()


def _begun(pid: int) -> str | None:
    """Return the start time of a process in clock ticks since boot; None if unknown."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19]
    return None


def _is_gone(pid: int, begun: str | None) -> bool:
    """Whether the process with this id and start time does not exist any more."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # the process belongs to another user
        pass
    now = _begun(pid)
    return now is not None and begun is not None and now != begun


@cache
def _warn_once(folder: Path) -> None:
    _LOG.warning("%s: this file system does not support locks; using lock files instead", folder)
