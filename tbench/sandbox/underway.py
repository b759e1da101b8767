"""Notes about running trials, in their run's directory: they help to find a sandbox again after an interruption.

A note is removed with its sandbox. After an interruption, it protects the sandbox from other runs' cleaning for a
while.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, ValidationError

from harness.trajectory import Frozen, Outcome
from tbench.files import in_directory, write_atomically
from tbench.locks import is_held
from tbench.results import ImageOrigin, WentOn

_FOLDER, _JOURNAL = "underway", "journal.jsonl"


class UnderWay(Frozen):
    """A running trial, and its results so far. Times in seconds."""

    # Another version that could not read a note would remove its sandbox.
    model_config = ConfigDict(extra="ignore")

    trial: str
    task: str
    seed: int
    attempt: int
    sandbox: str
    """Id of the sandbox for `Reopens.reopen`; empty if a separate verifier no longer needs it."""
    machine: str = ""
    place: str = ""
    """Engine and host that made the sandbox, for messages."""
    phase: Literal["agent", "verifier"] = "agent"
    entered_at: float
    """Unix time at which the phase began, in this process."""
    keep_sec: float
    """Time for which the sandbox is kept after an interruption."""
    started_at: datetime
    queue_sec: float = 0.0
    sandbox_sec: float = 0.0
    agent_sec: float = 0.0
    wall_sec: float = 0.0
    """Time of the trial until the phase began, without the times between two processes."""
    image_id: str | None = None
    image_origin: ImageOrigin | None = None
    outcome: Outcome | None = None
    """Outcome of the agent, once it has ended."""
    human_touched: bool = False
    went_on: tuple[WentOn, ...] = ()
    """Earlier interruptions."""

    def write(self, run: Path) -> None:
        """Write the note atomically. Raises OSError."""
        path, data = _path(run, self.trial), self.model_dump_json().encode()
        in_directory(path.parent, lambda: write_atomically(path, data))


def _path(run: Path, trial: str) -> Path:
    return run / _FOLDER / f"{trial}.json"


def forget(run: Path, trial: str) -> None:
    """Remove a trial's note, if there is one. Never raises."""
    path = _path(run, trial)
    with contextlib.suppress(OSError):
        path.unlink()
        path.parent.rmdir()  # unless there are others


def trials_under_way(run: Path) -> Iterator[UnderWay]:
    """Read the notes in a run's directory; notes that cannot be read are left out."""
    for path in sorted((run / _FOLDER).glob("*.json")):
        with contextlib.suppress(OSError, ValidationError):
            yield UnderWay.model_validate_json(path.read_bytes())


def why_kept(run: Path, trial: str, sandbox: str = "") -> tuple[str, bool]:
    """Return why an interrupted trial's `sandbox` is kept, and whether another process has resumed its run.

    The text is empty if it is not kept. An empty `sandbox` stands for a part of one, such as a network.
    """
    path = _path(run, trial)
    try:
        note, written_at = UnderWay.model_validate_json(path.read_bytes()), path.stat().st_mtime
        if sandbox and sandbox != note.sandbox:
            return "", False  # the trial has a later sandbox
        with (run / _JOURNAL).open("rb") as journal:
            if is_held(run / _JOURNAL, journal.fileno()):
                return f"{run} is still running", True
            cut_at = max(written_at, (run / _JOURNAL).stat().st_mtime)
    except (OSError, ValidationError):
        return "", False
    if time.time() > (until := cut_at + note.keep_sec):
        return "", False
    shown = datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"its trial was interrupted; kept until {shown}: tbench resume {run} continues it, --kept removes it", False
