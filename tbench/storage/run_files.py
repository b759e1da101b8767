"""Names of the files of a run, and which directory belongs to which attempt at a trial."""

from __future__ import annotations

from pathlib import Path

from tbench.storage.record_directory import Layout

CONFIG_NAME, RESULTS_NAME, JOURNAL_NAME, LOG_NAME = "run.json", "results.jsonl", "journal.jsonl", "run.log"
BEGUN_NAME = "begun.json"
"""run.json as the run began. It is never written again, so that it is whole where run.json was lost."""
TRIAL_RESULT_NAME, TRAJECTORY_NAME, STEPS_NAME = "result.json", "trajectory.json", "steps.jsonl"
RECORDING_NAME = "session.cast"
"""The recording of a trial's terminal, an asciicast of version 2."""
REPLAYED_NAME = "replayed.json"
"""What a trial has done again of another one: `steps`, how many, and `differs`, the first difference in words."""
RUN = Layout("run", CONFIG_NAME, (JOURNAL_NAME, RESULTS_NAME))


def is_run(path: Path) -> bool:
    """Whether a directory is a run's, be it one that has lost its run.json."""
    return any((path / name).is_file() for name in (CONFIG_NAME, BEGUN_NAME))


def is_abandoned(run: Path) -> bool:
    """Whether no process works on a run; False also where that cannot be seen."""
    try:
        return not RUN.is_locked(run)
    except OSError:
        return False


def trial_directory(run: Path, task: str, seed: int, attempt: int = 1) -> Path:
    """The directory of an attempt at a trial; that of a later attempt lies in that of the first."""
    first = run / "trials" / task / f"seed-{seed}"
    return first if attempt == 1 else first / f"attempt-{attempt}"


def step_directory(trial: Path, name: str) -> Path:
    """The directory of a step of a task that has several, in that of its trial."""
    return trial / "steps" / name


def inside_trials(run: Path, directory: Path) -> Path | None:
    """The directory of a trial or a step, where it is there and inside the run: their names may hold `..`, and nul."""
    try:
        place = directory.resolve()
        return place if place.is_relative_to((run / "trials").resolve()) and place.is_dir() else None
    except (OSError, ValueError, RuntimeError):
        return None


def attempts(run: Path, task: str, seed: int) -> dict[int, Path]:
    """Directories of all attempts that left any file, by number; one that was cut short has no result.json."""
    first = trial_directory(run, task, seed)
    found = {1: first} if first.is_dir() and any(_is_not_an_attempt(path) for path in first.iterdir()) else {}
    for path in first.glob("attempt-*"):
        if (number := path.name.removeprefix("attempt-")).isdecimal():
            found[int(number)] = path
    return found


def _is_not_an_attempt(path: Path) -> bool:
    return not path.name.startswith("attempt-")
