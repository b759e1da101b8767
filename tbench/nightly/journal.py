"""What a night has done so far: one JSON file per night, written whole after each stage, and the lock of them all."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from harness.trajectory import Frozen
from tbench import exit_codes
from tbench.errors import UsageError
from tbench.files import write_json
from tbench.locks import NO_LOCKS, FileLock, Held
from tbench.nightly.reading import natural
from tbench.storage.record_directory import first_problem

JOURNAL_VERSION = 1
RECORD_NAME, LOG_NAME, SUMMARY_NAME = "night.json", "night.log", "summary.md"
_LOCK, _PROCESSES_LOCK = ".lock", ".processes"
_POLL_SEC = 0.2
_NAME = re.compile(r"\w[\w.-]{0,79}")

StageName = Literal["serve", "run", "proxies", "index", "render", "compare", "gate", "prune", "site", "notify"]
Status = Literal["running", "done", "abandoned"]
NIGHT_STAGES: tuple[StageName, ...] = ("index", "render", "compare", "gate", "prune", "site", "notify")
"""The stages that follow once all checkpoints have had theirs."""


class StageRecord(Frozen):
    """How a stage ended."""

    state: Literal["done", "failed", "skipped"]
    words: str = ""
    """One line: what it found, or why it failed."""
    code: int = 0
    """The exit code that it asks of the night."""
    ended_at: str = ""
    seconds: float = 0.0


class CheckpointRecord(Frozen):
    """A checkpoint of the night."""

    lane: str
    checkpoint: str
    slug: str
    """Its name in the names of files and directories."""
    run: str
    """Name of its run directory below `runs/`."""
    stages: dict[str, StageRecord] = Field(default={})

    def is_done(self, stage: StageName) -> bool:
        return stage in self.stages and self.stages[stage].state != "failed"

    @property
    def has_run(self) -> bool:
        """Whether its run came to its end, be it with too few verdicts."""
        run = self.stages.get("run")
        return run is not None and (run.state == "done" or run.code == exit_codes.UNCOVERED)


class NightRecord(Frozen):
    """A night: what it is to run, fixed when it began, and what has become of it."""

    schema_version: int = JOURNAL_VERSION
    name: str
    number: int
    """Counts nights from 0. The seeds follow it."""
    begun_at: str
    ended_at: str | None = None
    status: Status = "running"
    """`abandoned` was cut short, and another night has begun since."""
    first_seed: int
    seeds: int
    checkpoints: tuple[CheckpointRecord, ...] = ()
    stages: dict[str, StageRecord] = Field(default={})
    comparisons: dict[str, list[str]] = Field(default={})
    """By run what became of the score since other runs, in words."""
    proxies: dict[str, str] = Field(default={})
    """What each proxy of the night came to, in words, by its directory's name."""
    gates: dict[str, dict[str, Any]] = Field(default={})
    """The gate's verdict by lane, as JSON, with its `lines`."""
    exit_code: int | None = None
    pruned: bool = False

    def is_done(self, stage: StageName) -> bool:
        return stage in self.stages and self.stages[stage].state != "failed"


def now() -> str:
    """This moment with its time zone, to the second."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


class Nights:
    """The directory of a nightly benchmark: `runs/`, `proxies/`, `nights/NAME/`, `history.sqlite`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs = path / "runs"
        self.proxies = path / "proxies"
        self.index = path / "history.sqlite"

    @property
    def has_begun(self) -> bool:
        """Whether there is a night; a folder of another kind may have one that is called `nights`, too."""
        return any(self.path.glob(f"nights/*/{RECORD_NAME}"))

    def of(self, name: str) -> Path:
        """The directory of one night. Raises UsageError for a name that cannot be a file's."""
        if not _NAME.fullmatch(name):
            raise UsageError(f"--night {name}: letters, digits, dots and dashes make a night's name")
        return self.path / "nights" / name

    def read(self, name: str) -> NightRecord | None:
        """The record of a night; None where it never began. Raises UsageError where it cannot be understood."""
        file = self.of(name) / RECORD_NAME
        try:
            return NightRecord.model_validate_json(file.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise UsageError(f"{file}: cannot be read: {error.strerror or error}") from None
        except ValidationError as error:
            words = first_problem(error, "file")
            raise UsageError(
                f"{file}: {words}; it is of another version, or damaged: move its directory away"
            ) from None

    def all(self) -> list[NightRecord]:
        """All nights in the order in which they began. Raises UsageError."""
        folder = self.path / "nights"
        names = sorted((path.name for path in folder.glob("*") if _NAME.fullmatch(path.name)), key=natural)
        found = [record for name in names if (record := self.read(name)) is not None]
        return sorted(found, key=lambda night: night.number)

    def write(self, record: NightRecord) -> None:
        """Write a night's record, whole or not at all. Raises UsageError."""
        file = self.of(record.name) / RECORD_NAME
        try:
            write_json(file, record.model_dump(mode="json"))
        except OSError as error:
            words = f"cannot be written: {error.strerror or error}; make room, and start the same night again"
            raise UsageError(f"{file}: {words}") from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the directory: one night at a time. Gives the descriptor that processes of the night have to inherit.

        Raises UsageError where another night is under way, or the directory cannot be written.
        """
        with contextlib.ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                lock, processes = (_opened(self.path / name, stack) for name in (_LOCK, _PROCESSES_LOCK))
                stack.callback(FileLock(self.path / _LOCK, lock).release)
            except Held as held:
                words = "a night is under way here; wait for its end, or end it first"
                raise UsageError(f"{self.path}: {words}{f' ({held})' if held.args else ''}") from None
            except OSError as error:
                raise UsageError(f"{self.path}: cannot be written: {error.strerror or error}") from None
            yield processes


async def wait_for_earlier_processes(processes: int, deadline_sec: float, say: Callable[[str], None]) -> None:
    """Wait until nothing is left of the processes of a night that was killed; then its lock is ours.

    It is theirs as long as one of them has the descriptor that it inherited. Raises UsageError at the deadline.
    """
    ends_at = time.monotonic() + deadline_sec
    said = False
    while not _is_ours(processes):
        if not said:
            say("what a night that was killed has started is still ending; waiting for it")
            said = True
        if time.monotonic() > ends_at:
            raise UsageError(
                "processes of a night that was killed are still there; find tbench.nightly.keeper with ps, and end it"
            )
        await asyncio.sleep(_POLL_SEC)


def _opened(path: Path, stack: contextlib.ExitStack) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    stack.callback(os.close, descriptor)
    return descriptor


def _is_ours(processes: int) -> bool:
    """Take the lock that all processes of a night inherit. A file system without locks tells nothing of them."""
    try:
        fcntl.flock(processes, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        return error.errno in NO_LOCKS
    return True
