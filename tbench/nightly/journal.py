"""Records of nights: one JSON file per night, rewritten after each stage, and the lock of the directory."""

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
from tbench.files import read_object_or_none, writable, write_json
from tbench.locks import NO_LOCKS, Held, hold_lock
from tbench.nightly.configuration import natural_key
from tbench.storage.record_directory import first_problem

JOURNAL_VERSION = 1
RECORD_NAME, LOG_NAME, SUMMARY_NAME = "night.json", "night.log", "summary.md"
_LOCK, _PROCESSES_LOCK = ".lock", ".processes"
_POLL_SEC = 0.2
_NAME = re.compile(r"\w[\w.-]{0,79}")

StageName = Literal["serve", "run", "proxies", "index", "render", "compare", "gate", "prune", "site", "notify"]
Status = Literal["running", "done", "abandoned"]
NIGHT_STAGES: tuple[StageName, ...] = ("index", "render", "compare", "gate", "prune", "site", "notify")
"""Stages after those of all checkpoints."""


class StageRecord(Frozen):
    """How a stage ended."""

    state: Literal["done", "failed", "skipped"]
    words: str = ""
    """The outcome, or why the stage failed, in one line."""
    code: int = 0
    """Exit code that the stage gives the night."""
    ended_at: str = ""
    seconds: float = 0.0


class CheckpointRecord(Frozen):
    """A checkpoint of the night."""

    lane: str
    checkpoint: str
    slug: str
    """Name of the checkpoint in names of files and directories."""
    run: str
    """Name of its run directory below `runs/`."""
    stages: dict[str, StageRecord] = Field(default={})

    def is_done(self, stage: StageName) -> bool:
        return stage in self.stages and self.stages[stage].state != "failed"

    @property
    def has_run(self) -> bool:
        """Whether the run finished, possibly with too few verdicts."""
        run = self.stages.get("run")
        return run is not None and (run.state == "done" or run.code == exit_codes.TOO_FEW_VERDICTS)


class NightRecord(Frozen):
    """A night: the checkpoints and seeds fixed when it began, and the outcome of its stages."""

    schema_version: int = JOURNAL_VERSION
    name: str
    number: int
    """Number of the night, from 0; nights are ordered by it."""
    begun_at: str
    ended_at: str | None = None
    status: Status = "running"
    """`abandoned`: interrupted, and another night has begun since."""
    first_seed: int
    seeds: int
    checkpoints: tuple[CheckpointRecord, ...] = ()
    stages: dict[str, StageRecord] = Field(default={})
    comparisons: dict[str, list[str]] = Field(default={})
    """Lines that compare a run's score with other runs, by run."""
    proxies: dict[str, str] = Field(default={})
    """Score of each proxy of the night as text, by its directory's name."""
    gates: dict[str, dict[str, Any]] = Field(default={})
    """The gate's verdict as JSON, with its `lines` and the explanation (`explained`), by series."""
    exit_code: int | None = None
    pruned: bool = False

    def is_done(self, stage: StageName) -> bool:
        return stage in self.stages and self.stages[stage].state != "failed"


def now() -> str:
    """Return the current time with time zone, to the second."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


class Nights:
    """The directory of a nightly benchmark: `runs/`, `proxies/`, `nights/NAME/`, `history.sqlite`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs = path / "runs"
        self.proxies = path / "proxies"
        self.index = path / "history.sqlite"

    @property
    def has_nights(self) -> bool:
        """Whether a night has begun; a directory called `nights` alone does not prove it."""
        return any(map(_is_record, self.path.glob(f"nights/*/{RECORD_NAME}")))

    def night_directory(self, name: str) -> Path:
        """Return the directory of one night. Raises UsageError for a name that is not a valid file name."""
        if not _NAME.fullmatch(name):
            raise UsageError(f"--night {name}: not a valid name; use letters, digits, dots and dashes")
        return self.path / "nights" / name

    def read(self, name: str) -> NightRecord | None:
        """Return the record of a night; None if it never began. Raises UsageError if the record cannot be read."""
        file = self.night_directory(name) / RECORD_NAME
        try:
            return NightRecord.model_validate_json(file.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise UsageError(f"{file}: cannot be read: {error.strerror or error}") from None
        except ValidationError as error:
            problem = first_problem(error, "file")
            raise UsageError(
                f"{file}: {problem}; it is damaged or from another version: move its directory away"
            ) from None

    def all(self) -> list[NightRecord]:
        """Return all nights in the order in which they began. Raises UsageError."""
        folder = self.path / "nights"
        names = sorted((path.name for path in folder.glob("*") if _NAME.fullmatch(path.name)), key=natural_key)
        found = [record for name in names if (record := self.read(name)) is not None]
        return sorted(found, key=lambda night: night.number)

    def write(self, record: NightRecord) -> None:
        """Write a night's record atomically. Raises UsageError."""
        file = self.night_directory(record.name) / RECORD_NAME
        with writable(file, "free some space and start the same night again"):
            write_json(file, record.model_dump(mode="json"))

    @contextlib.contextmanager
    def lock(self) -> Iterator[int]:
        """Lock the directory for one night. Yields the descriptor that processes of the night must inherit.

        Raises UsageError if another night is under way, or the directory is not writable.
        """
        with contextlib.ExitStack() as stack:
            try:
                with writable(self.path):
                    self.path.mkdir(parents=True, exist_ok=True)
                    lock, processes = (_open_lock(self.path / name, stack) for name in (_LOCK, _PROCESSES_LOCK))
                    stack.enter_context(hold_lock(self.path / _LOCK, lock))
            except Held as held:
                message = "a night is already under way here; wait for its end, or stop it"
                raise UsageError(f"{self.path}: {message}{f' ({held})' if held.args else ''}") from None
            yield processes


async def wait_for_earlier_processes(processes: int, deadline_sec: float, say: Callable[[str], None]) -> None:
    """Wait until all processes of a killed night have ended, and take their lock.

    They hold the lock as long as one of them has the inherited descriptor open. Raises UsageError at the deadline.
    """
    ends_at = time.monotonic() + deadline_sec
    is_reported = False
    while not _try_lock(processes):
        if not is_reported:
            say("waiting for processes of a killed night to end")
            is_reported = True
        if time.monotonic() > ends_at:
            raise UsageError(
                "processes of a killed night are still running; find tbench.nightly.supervisor with ps, and kill it"
            )
        await asyncio.sleep(_POLL_SEC)


def _is_record(file: Path) -> bool:
    """Whether a file looks like the record of a night, of any version."""
    return "schema_version" in (read_object_or_none(file) or {})


def _open_lock(path: Path, stack: contextlib.ExitStack) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    stack.callback(os.close, descriptor)
    return descriptor


def _try_lock(processes: int) -> bool:
    """Take the lock that all processes of a night inherit; on a file system without locks assume that it is free."""
    try:
        fcntl.flock(processes, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        return error.errno in NO_LOCKS
    return True
