"""Writes a run directory: run.json, the append-only journal, the results, and the files of each trial."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Callable, Container, Iterable, Mapping
from itertools import islice
from pathlib import Path

from harness.checkpoint import Saved, checkpoint_line
from harness.trajectory import Step, Trajectory
from tbench.config.document import RunDocument
from tbench.events import Event, Note, TrialFinished
from tbench.files import in_directory, safe_relative, write_atomically, write_json
from tbench.results import TrialResult
from tbench.storage.record_directory import LineFile, RecordDirectory
from tbench.storage.run_files import (
    BEGUN_NAME,
    JOURNAL_NAME,
    RESULTS_NAME,
    RUN,
    STEPS_NAME,
    TRAJECTORY_NAME,
    TRIAL_RESULT_NAME,
    attempts,
    trial_directory,
)
from tbench.text import escape_invisible


class RunStore:
    """The directory of one run while it is being written."""

    def __init__(self, records: RecordDirectory, hide: Callable[[str], str]) -> None:
        """`hide` removes secrets from notes, which may quote anything."""
        self.path = records.path
        self._records: RecordDirectory | None = records
        """Open directory; None after `close`."""
        self.hide = hide
        self._unwritten: list[str] = []

    @classmethod
    def create(cls, path: Path, document: RunDocument, hide: Callable[[str], str] = str) -> RunStore:
        """Create the directory of a new run. Raises UsageError if it is not empty or cannot be written."""
        content = document.model_dump(mode="json")
        store = cls(RecordDirectory.create(path, RUN, content), hide)
        with contextlib.suppress(OSError):  # a full disk, which the run will notice
            write_json(path / BEGUN_NAME, content)
        return store

    @classmethod
    def open(cls, path: Path, hide: Callable[[str], str] = str) -> RunStore:
        """Open an existing run. Raises UsageError if it cannot be written, or if another process writes to it."""
        return cls(RecordDirectory.go_on(path, RUN), hide)

    def write_document(self, document: RunDocument) -> None:
        """Write run.json. Raises OSError."""
        assert self._records is not None
        self._records.write_manifest(document.model_dump(mode="json"))

    def trial_dir(self, task: str, seed: int, attempt: int = 1) -> Path:
        return trial_directory(self.path, task, seed, attempt)

    def attempts(self, task: str, seed: int) -> dict[int, Path]:
        """Return the directories of all attempts with any file, by number."""
        return attempts(self.path, task, seed)

    def on_event(self, event: Event) -> None:
        """Append each event to the journal, and each finished trial to the results.

        Never raises: on a full disk the journal loses lines, and results are kept in memory.
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
        """Append a line to results.jsonl, once the file can be written."""
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
        """Mark the existing results of these trials (by id) as not final, and append the results `by`.

        Raises OSError; then nothing has changed.
        """
        assert self._records is not None
        lines = [json.loads(line) for line in (self.path / RESULTS_NAME).read_bytes().split(b"\n") if line]
        for line in lines:
            if line.get("trial") in trials:
                line["final"] = False
        before = (json.dumps(line, separators=(",", ":"), ensure_ascii=False) for line in lines)
        self._records.rewrite(RESULTS_NAME, (*before, *(result.model_dump_json() for result in by)))

    def close(self) -> None:
        """Release the lock. Later events are ignored."""
        self._write_results()
        if self._records is not None:
            self._records.close()
            self._records = None


# Files of a trial: steps are written one by one, everything else at the end

_NO_STEPS = b'\n "steps": [],'
"""Empty list of steps in an indented trajectory; it occurs only once, because line ends in strings are escaped."""


class StepLog:
    """Appends steps to a trial's steps.jsonl, or checkpoints to their file, which is created with the first one.

    A write error (a full disk) ends the log, not the trial; `problem` has the reason.
    """

    def __init__(self, directory: Path, name: str = STEPS_NAME, lines: int = 0) -> None:
        """Keep the first `lines` lines, which an earlier process has written."""
        self.problem: str | None = None
        self._path, self._lines = directory / name, lines
        self._file: LineFile | None = None
        self._is_over = False

    def append(self, step: Step | Saved) -> None:
        """Append a step or checkpoint. Never raises."""
        if self._is_over:
            return
        try:
            if self._file is None:
                self._file = in_directory(self._path.parent, self._open)
            if isinstance(step, Step):
                # model_dump_json would take 50 % longer.
                self._file.append(step.__pydantic_serializer__.to_json(step).decode())
            else:
                self._file.append_bytes(checkpoint_line(step))
        except OSError as error:
            self.problem = error.strerror or str(error)
            self.close()

    def _open(self) -> LineFile:
        if self._lines:
            with self._path.open("r+b") as file:
                file.truncate(sum(len(line) for line in islice(file, self._lines)))
        return LineFile(self._path, empty=not self._lines)

    def close(self) -> None:
        """Close the file; later steps are ignored."""
        self._is_over = True
        if self._file is not None:
            self._file.close()


def write_trial(
    directory: Path, result: TrialResult, trajectory: Trajectory | None, files: Mapping[str, bytes]
) -> None:
    """Write the trial's files, result.json last, so that all others exist if it does. Raises OSError."""
    write_files(directory, trajectory, files)
    data = (escape_invisible(result.model_dump_json(indent=2)) + "\n").encode()
    write_atomically(directory / TRIAL_RESULT_NAME, data, durable=True)


def write_files(directory: Path, trajectory: Trajectory | None, files: Mapping[str, bytes]) -> None:
    """Write the files of a trial or task step, without the result.

    Raises OSError. A path that is too long for the file system is skipped, unless it belongs to the verifier: files
    that an agent creates in /logs/agent must not turn its verdict into an error.
    """
    for name, data in files.items():
        try:
            write_atomically(directory / safe_relative(name), data)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG or name.startswith("verifier/"):
                raise
    if trajectory is not None:
        write_atomically(directory / TRAJECTORY_NAME, _trajectory_json(trajectory, directory / STEPS_NAME))


def _trajectory_json(trajectory: Trajectory, steps_file: Path) -> bytes:
    """Serialise the trajectory as JSON, reusing the lines of `steps_file` if it has all steps."""
    lines = _whole_lines(steps_file, len(trajectory.steps))
    if not lines:
        return trajectory.model_dump_json(indent=1).encode("utf-8", "replace")
    frame = trajectory.model_copy(update={"steps": ()}).model_dump_json(indent=1).encode("utf-8", "replace")
    at = frame.rindex(_NO_STEPS)  # from the end, because the messages before it are long
    before, after = memoryview(frame)[:at], memoryview(frame)[at + len(_NO_STEPS) :]
    return b"".join((before, b'\n "steps": [\n  ', lines[:-1].replace(b"\n", b",\n  "), b"\n ],", after))


def _whole_lines(path: Path, count: int) -> bytes:
    """Return the content of a file if it has exactly `count` complete lines; otherwise empty."""
    try:
        content = path.read_bytes()
    except OSError:
        return b""
    return content if content.endswith(b"\n") and content.count(b"\n") == count else b""
