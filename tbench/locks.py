"""Locks between processes: those of the file system, and where it has none a file beside that names its holder."""

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
"""How file systems say that they have no locks. Whatever else they say is an error: a lock may be held all the same."""
_BETWEEN_LOOKS_SEC = 0.1
Flock = Callable[[int, int], None]


class Held(BlockingIOError):
    """Another process has the lock; the message says which, where that is known."""


class FileLock:
    """The lock of a file, from its making until `release`, or until this process ends."""

    def __init__(self, path: Path, descriptor: int, flock: Flock = fcntl.flock) -> None:
        """Take the lock of the file `path`, which is open as `descriptor`. Raises Held, and OSError where that fails.

        Closing the descriptor gives up a lock of the file system, too.
        """
        self._note: Path | None = None
        self._own = b""
        try:
            flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Held from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            self._take(note_of(path))
        else:
            # Where another machine has mounted the same files without locks, it has left a note.
            if (holder := _holder(note_of(path))) is not None:
                flock(descriptor, fcntl.LOCK_UN)
                raise Held(holder)

    def _take(self, note: Path) -> None:
        _say_once(note.parent)
        self._own = json.dumps(_this_process()).encode()
        while True:
            try:
                descriptor = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            except FileExistsError:
                if (holder := _holder(note)) is not None:
                    raise Held(holder) from None
                continue
            with os.fdopen(descriptor, "wb") as file:
                file.write(self._own)
            self._note = note
            return

    def release(self) -> None:
        """Remove the note, if there is one."""
        with contextlib.suppress(OSError):
            if self._note is not None and self._note.read_bytes() == self._own:
                self._note.unlink()
        self._note = None


@contextlib.contextmanager
def locked(path: Path, descriptor: int, wait_sec: float = 0.0) -> Iterator[None]:
    """Hold the lock of a file within the block, once it is to be had. Raises Held, and OSError as FileLock does."""
    ends_at, pause = time.monotonic() + wait_sec, threading.Event()
    while True:
        try:
            lock = FileLock(path, descriptor)
            break
        except Held:
            if time.monotonic() >= ends_at:
                raise
            pause.wait(_BETWEEN_LOOKS_SEC)
    try:
        yield
    finally:
        lock.release()


def is_held(path: Path, descriptor: int, flock: Flock = fcntl.flock) -> bool:
    """Whether a process has the lock of a file. Raises OSError where that cannot be seen.

    Of a lock of the file system it is seen by taking it together with others that look, for a moment.
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
        return _holder(note_of(path)) is not None
    except Held:
        return True


def note_of(path: Path) -> Path:
    """Where it is noted who has the lock of a file on a file system without locks."""
    return path.with_name(f".{path.name}.lock")


def _holder(note: Path) -> str | None:
    """Who has the lock by its note, in words; None where nobody has. The note of a process that is gone is removed."""
    try:
        seen = note.read_bytes()
    except FileNotFoundError:
        return None
    try:
        said = json.loads(seen)
        host, machine, pid, begun = said["host"], said["machine"], int(said["pid"]), said["begun"]
    except (ValueError, TypeError, KeyError):  # it is just being written, or a power cut took its content
        return f"some process has it by its file {note}; remove that if no tbench works here"
    if machine == _machine() and _is_gone(pid, begun):
        _remove(note, seen)
        return _holder(note)
    return f"process {pid} of {host} has it by its file {note}; remove that if this process is gone"


def _remove(note: Path, seen: bytes) -> None:
    """Remove the note of a process that is gone, unless another has taken its place. Raises OSError."""
    guard = note.with_name(f"{note.name}.removing")
    try:
        guard.mkdir()
    except FileExistsError:
        raise Held(f"another process is just removing {note}; remove {guard} if no tbench works here") from None
    try:
        if note.read_bytes() == seen:
            note.unlink()
    except FileNotFoundError:
        pass
    finally:
        guard.rmdir()


def _this_process() -> dict[str, str | int | None]:
    pid = os.getpid()
    return {"host": socket.gethostname(), "machine": _machine(), "pid": pid, "begun": _begun(pid)}


def _machine() -> str:
    """What is the same for all processes whose numbers can be compared: of one start of a machine, of one container."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return socket.gethostname()


def _begun(pid: int) -> str | None:
    """When a process began, by this machine's own clock; None where that is not to be seen."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19]
    return None


def _is_gone(pid: int, begun: str | None) -> bool:
    """Whether no process of this machine is the one that had this number and began then."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is somebody else's
        pass
    now = _begun(pid)
    return now is not None and begun is not None and now != begun


@cache
def _say_once(folder: Path) -> None:
    _LOG.warning("%s: its file system has no locks; files that say who writes stand in for them", folder)
