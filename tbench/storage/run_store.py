"""Writes a run directory: run.json, the append-only journal and results, and the files of each trial.

Files are the truth; each is written whole or not at all, journal and results line by line.
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from harness.trajectory import Trajectory
from tbench.errors import UsageError
from tbench.events import Event, Note, TrialFinished, TrialStep
from tbench.files import refuse_to_overwrite, safe_relative, write_atomically, write_json
from tbench.results import TrialResult
from tbench.storage.lines import LineFile

CONFIG_NAME, RESULTS_NAME, JOURNAL_NAME = "run.json", "results.jsonl", "journal.jsonl"


class RunStore:
    """The directory of one run while it is being written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._journal: LineFile | None = None
        self._results: LineFile | None = None
        self._unwritten: list[str] = []

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> RunStore:
        """Raises UsageError when the directory holds anything, or cannot be written."""
        refuse_to_overwrite(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            store = cls(path)
            store.write_config(config)
            store._open_files()
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
        return store

    @classmethod
    def open(cls, path: Path) -> RunStore:
        """Go on with a run. Raises UsageError when it cannot be written, or another process is at it."""
        store = cls(path)
        try:
            store._open_files()
        except BlockingIOError:
            raise UsageError(f"{path}: this run is still going on; wait for its end, or end it first") from None
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
        return store

    def _open_files(self) -> None:
        self._journal = LineFile(self.path / JOURNAL_NAME, locked=True)
        self._results = LineFile(self.path / RESULTS_NAME)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """run.json. Raises OSError."""
        write_json(self.path / CONFIG_NAME, config)

    def trial_dir(self, task: str, seed: int, attempt: int = 1) -> Path:
        path = self.path / "trials" / task / f"seed-{seed}"
        return path if attempt == 1 else path / f"attempt-{attempt}"

    def attempts(self, task: str, seed: int) -> dict[int, Path]:
        """Directories of all attempts that left anything, by number; one that was cut short has no result.json."""
        first = self.trial_dir(task, seed)
        found = {1: first} if first.is_dir() and any(_is_not_an_attempt(path) for path in first.iterdir()) else {}
        for path in first.glob("attempt-*"):
            if (number := path.name.removeprefix("attempt-")).isdecimal():
                found[int(number)] = path
        return found

    def on_event(self, event: Event) -> None:
        """Journal everything but the steps (they are in the trajectory); append finished trials to the results.

        Never raises: what cannot be written (a full disk) costs the journal a line, and a result waits in memory.
        """
        if isinstance(event, TrialStep | Note):
            return
        if self._journal is not None:
            with contextlib.suppress(OSError):
                self._journal.append(event.model_dump_json())
        if isinstance(event, TrialFinished):
            self.append_result(event.result)

    def append_result(self, result: TrialResult) -> None:
        """One line of results.jsonl, now or as soon as it can be written."""
        self._unwritten.append(result.model_dump_json())
        self._write_results()

    def _write_results(self) -> None:
        if self._results is None:
            return
        with contextlib.suppress(OSError):
            while self._unwritten:
                self._results.append(self._unwritten[0])
                del self._unwritten[0]

    @property
    def unwritten(self) -> int:
        """Results that could not be written yet."""
        return len(self._unwritten)

    def supersede(self, trials: Container[str]) -> None:
        """The results so far of these trials (by id) are no longer final: others follow. Raises OSError."""
        path = self.path / RESULTS_NAME
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for line in lines:
            if line.get("trial") in trials:
                line["final"] = False
        text = "".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n" for line in lines)
        if self._results is not None:
            self._results.close()
        write_atomically(path, text.encode("utf-8", "replace"))
        self._results = LineFile(path)

    def write_trial(
        self, directory: Path, result: TrialResult, trajectory: Trajectory | None, files: Mapping[str, bytes]
    ) -> None:
        """The trial's files; result.json comes last, so its presence says that the rest is there.

        Raises OSError. A path that is too long for this file system is left out, unless it is the verifier's: what an
        agent leaves in /logs/agent must not turn its verdict into an error.
        """
        for name, data in files.items():
            try:
                write_atomically(directory / safe_relative(name), data)
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG or name.startswith("verifier/"):
                    raise
        if trajectory is not None:
            write_atomically(
                directory / "trajectory.json", trajectory.model_dump_json(indent=1).encode("utf-8", "replace")
            )
        write_atomically(directory / "result.json", (result.model_dump_json(indent=2) + "\n").encode())

    def close(self) -> None:
        self._write_results()
        for file in (self._journal, self._results):
            if file is not None:
                file.close()
        self._journal = self._results = None


def _is_not_an_attempt(path: Path) -> bool:
    return not path.name.startswith("attempt-")
