"""Writes a run directory: run.json, whole or not at all, the append-only journal and the results, line by line."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Container, Iterable
from pathlib import Path

from tbench.config.document import RunDocument
from tbench.events import Event, Note, TrialFinished
from tbench.files import write_json
from tbench.results import TrialResult
from tbench.storage.record_directory import RecordDirectory
from tbench.storage.run_files import BEGUN_NAME, JOURNAL_NAME, RESULTS_NAME, RUN, attempts, trial_directory


class RunStore:
    """The directory of one run while it is being written."""

    def __init__(self, records: RecordDirectory, hide: Callable[[str], str]) -> None:
        """`hide` takes secrets out of notes, which may quote anything."""
        self.path = records.path
        self._records: RecordDirectory | None = records
        """The open directory; None after `close`."""
        self.hide = hide
        self._unwritten: list[str] = []

    @classmethod
    def create(cls, path: Path, document: RunDocument, hide: Callable[[str], str] = str) -> RunStore:
        """Begin a run. Raises UsageError when the directory holds anything, or cannot be written."""
        content = document.model_dump(mode="json")
        store = cls(RecordDirectory.create(path, RUN, content), hide)
        with contextlib.suppress(OSError):  # a full disk, which the run will notice
            write_json(path / BEGUN_NAME, content)
        return store

    @classmethod
    def open(cls, path: Path, hide: Callable[[str], str] = str) -> RunStore:
        """Go on with a run. Raises UsageError when it cannot be written, or another process writes to it."""
        return cls(RecordDirectory.go_on(path, RUN), hide)

    def write_document(self, document: RunDocument) -> None:
        """Write run.json. Raises OSError."""
        assert self._records is not None
        self._records.write_manifest(document.model_dump(mode="json"))

    def trial_dir(self, task: str, seed: int, attempt: int = 1) -> Path:
        return trial_directory(self.path, task, seed, attempt)

    def attempts(self, task: str, seed: int) -> dict[int, Path]:
        """Directories of all attempts that left any file, by number."""
        return attempts(self.path, task, seed)

    def on_event(self, event: Event) -> None:
        """Append each event to the journal, and each finished trial to the results.

        Never raises: on a full disk the journal loses a line, and a result waits in memory.
        """
        if self._records is None:
            return
        if isinstance(event, Note):
            event = Note(text=self.hide(event.text))
        with contextlib.suppress(OSError):
            self._records.append(JOURNAL_NAME, event.model_dump_json())
        if isinstance(event, TrialFinished):
            self.append_result(event.result)

    def append_result(self, result: TrialResult) -> None:
        """Append a line to results.jsonl, now or as soon as it can be written."""
        self._unwritten.append(result.model_dump_json())
        self._write_results()

    def _write_results(self) -> None:
        if self._records is None:
            return
        with contextlib.suppress(OSError):
            while self._unwritten:
                self._records.append(RESULTS_NAME, self._unwritten[0])
                del self._unwritten[0]

    @property
    def unwritten(self) -> int:
        """Number of results that could not be written yet."""
        return len(self._unwritten)

    def supersede(self, trials: Container[str], by: Iterable[TrialResult] = ()) -> None:
        """Mark the results so far of these trials (by id) as not final: those that are given, or later ones, follow.

        Raises OSError; then all is as it was.
        """
        assert self._records is not None
        lines = [json.loads(line) for line in (self.path / RESULTS_NAME).read_bytes().split(b"\n") if line]
        for line in lines:
            if line.get("trial") in trials:
                line["final"] = False
        before = (json.dumps(line, separators=(",", ":"), ensure_ascii=False) for line in lines)
        self._records.rewrite(RESULTS_NAME, (*before, *(result.model_dump_json() for result in by)))

    def close(self) -> None:
        """Give up the lock. Events that come later are ignored."""
        self._write_results()
        if self._records is not None:
            self._records.close()
            self._records = None
