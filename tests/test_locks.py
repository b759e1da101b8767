"""Locks between processes, on file systems that have them and on those that have none."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tbench.locks import NO_LOCKS, FileLock, Held, is_held, lock_file_for

COMPETE = """
import os, sys
from pathlib import Path
from tbench.locks import FileLock, Held

def no_locks(descriptor, how):
    raise OSError(int(sys.argv[2]), "no locks here")

file, rounds, dies = Path(sys.argv[1]), int(sys.argv[3]), sys.argv[4] == "dies"
descriptor = os.open(file, os.O_RDWR)
print("ready", flush=True)
sys.stdin.readline()
while rounds:
    try:
        lock = FileLock(file, descriptor, no_locks)
    except Held:
        continue
    if dies:
        os._exit(9)
    count = int(file.read_text() or 0)
    file.write_text(str(count + 1))
    lock.release()
    rounds -= 1
"""


def failing(number: int) -> Callable[[int, int], None]:
    def flock(descriptor: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    return flock


def started(file: Path, number: int, rounds: int, how: str = "") -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", COMPETE, str(file), str(number), str(rounds), how]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "journal.jsonl").touch()
    return tmp_path / "journal.jsonl"


@pytest.fixture
def descriptor(file: Path) -> Iterator[int]:
    opened = os.open(file, os.O_RDWR)
    yield opened
    os.close(opened)


@pytest.mark.parametrize("number", sorted(NO_LOCKS), ids=errno.errorcode.get)
def test_without_locks_a_file_beside_stands_in_for_one(file: Path, descriptor: int, number: int) -> None:
    none = failing(number)
    assert not is_held(file, descriptor, none)
    lock = FileLock(file, descriptor, none)
    assert is_held(file, descriptor, none)
    with pytest.raises(Held, match=f"process {os.getpid()} on "):
        FileLock(file, descriptor, none)
    lock.release()
    assert not is_held(file, descriptor, none)
    FileLock(file, descriptor, none).release()
    assert [each.name for each in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("number", [errno.EIO, errno.EBADF, errno.ESTALE, errno.EPERM])
def test_what_else_a_file_system_says_is_no_lock_and_no_leave_to_go_on(
    file: Path, descriptor: int, number: int
) -> None:
    for look in (FileLock, is_held):
        with pytest.raises(OSError, match=r"^\[Errno") as caught:
            look(file, descriptor, failing(number))
        assert caught.value.errno == number and not isinstance(caught.value, Held)
    assert not lock_file_for(file).exists()


@pytest.mark.parametrize("leftover", [False, True], ids=["new", "after a process that died"])
def test_processes_that_compete_are_in_one_after_the_other(file: Path, leftover: bool) -> None:
    if leftover:
        dead = started(file, errno.ENOLCK, 1, "dies")
        dead.communicate("go\n", timeout=60)
        assert dead.returncode == 9 and lock_file_for(file).exists()
    processes = [started(file, errno.ENOLCK, 50) for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=120)
        assert process.returncode == 0
    assert file.read_text() == "150"
    assert [each.name for each in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"\0" * 64,
        b'{"host": "node-2", "machine": "another boot pid:[1]", "pid": 1, "begun": "7"}',
        b'{"host": "node-2"}',
    ],
    ids=["just being written", "after a power cut", "of another machine", "of another version"],
)
@pytest.mark.parametrize("flock", [failing(errno.ENOSYS), fcntl.flock], ids=["without locks", "with locks"])
def test_a_note_of_no_one_knows_whom_is_respected_and_named(
    file: Path, descriptor: int, note: bytes, flock: Callable[[int, int], None]
) -> None:
    lock_file_for(file).write_bytes(note)
    with pytest.raises(Held, match=f"its lock file {lock_file_for(file)}; remove that file if"):
        FileLock(file, descriptor, flock)
    assert is_held(file, descriptor, flock)
    assert lock_file_for(file).read_bytes() == note
    lock_file_for(file).unlink()
    FileLock(file, descriptor, flock).release()


def test_a_process_that_has_the_number_of_a_dead_one_is_not_it(file: Path, descriptor: int) -> None:
    FileLock(file, descriptor, failing(errno.ENOLCK))
    said = json.loads(lock_file_for(file).read_bytes())
    lock_file_for(file).write_text(json.dumps({**said, "begun": "1"}))
    FileLock(file, descriptor, failing(errno.ENOLCK)).release()


def test_a_lock_of_the_file_system_leaves_no_file_beside(file: Path, descriptor: int) -> None:
    lock = FileLock(file, descriptor)
    other = os.open(file, os.O_RDWR)
    try:
        with pytest.raises(Held):
            FileLock(file, other)
        assert is_held(file, other)
    finally:
        os.close(other)
    assert not lock_file_for(file).exists()
    lock.release()
