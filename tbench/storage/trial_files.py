"""Writes the files of a trial: its steps as they come, the rest at its end."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path

from harness.trajectory import Step, Trajectory
from tbench.files import in_directory, safe_relative, write_atomically
from tbench.results import TrialResult
from tbench.storage.lines import LineFile
from tbench.storage.run_files import STEPS_NAME, TRAJECTORY_NAME, TRIAL_RESULT_NAME
from tbench.text import visible

_NO_STEPS = b'\n "steps": [],'
"""The steps of an indented trajectory without any; found nowhere else, as a line end in a string is escaped."""


class StepLog:
    """Appends steps to the steps.jsonl of a trial, which is made with the first one.

    A file that cannot be written any more (a full disk) ends the log, not the trial: `problem` says why.
    """

    def __init__(self, directory: Path) -> None:
        self.problem: str | None = None
        self._path = directory / STEPS_NAME
        self._file: LineFile | None = None
        self._is_over = False

    def append(self, step: Step) -> None:
        """Append a step. Never raises."""
        if self._is_over:
            return
        try:
            if self._file is None:
                self._file = in_directory(self._path.parent, lambda: LineFile(self._path, empty=True))
            self._file.append(step.model_dump_json())
        except OSError as error:
            self.problem = error.strerror or str(error)
            self.close()

    def close(self) -> None:
        """Close the file; steps that come later are ignored."""
        self._is_over = True
        if self._file is not None:
            self._file.close()


def write_trial(
    directory: Path, result: TrialResult, trajectory: Trajectory | None, files: Mapping[str, bytes]
) -> None:
    """Write the trial's files; result.json comes last, so its presence says that the rest is there. Raises OSError."""
    write_files(directory, trajectory, files)
    data = (visible(result.model_dump_json(indent=2)) + "\n").encode()
    write_atomically(directory / TRIAL_RESULT_NAME, data, durable=True)


def write_files(directory: Path, trajectory: Trajectory | None, files: Mapping[str, bytes]) -> None:
    """Write what a trial, or one step of its task, has left, but no result.

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
        write_atomically(directory / TRAJECTORY_NAME, _trajectory_json(trajectory, directory / STEPS_NAME))


def _trajectory_json(trajectory: Trajectory, steps_file: Path) -> bytes:
    """The trajectory as JSON, with the lines of `steps_file` as they are if it holds all steps."""
    lines = _whole_lines(steps_file, len(trajectory.steps))
    if not lines:
        return trajectory.model_dump_json(indent=1).encode("utf-8", "replace")
    frame = trajectory.model_copy(update={"steps": ()}).model_dump_json(indent=1).encode("utf-8", "replace")
    at = frame.rindex(_NO_STEPS)  # from the end: what follows is short, and the messages are long
    before, after = memoryview(frame)[:at], memoryview(frame)[at + len(_NO_STEPS) :]
    return b"".join((before, b'\n "steps": [\n  ', lines[:-1].replace(b"\n", b",\n  "), b"\n ],", after))


def _whole_lines(path: Path, count: int) -> bytes:
    """The content of a file with so many whole lines; empty where it has others, or cannot be read."""
    try:
        content = path.read_bytes()
    except OSError:
        return b""
    return content if content.endswith(b"\n") and content.count(b"\n") == count else b""
