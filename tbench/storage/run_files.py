"""Names of the files and directories of a run and its trials."""

from __future__ import annotations

from pathlib import Path

from tbench.storage.record_directory import Layout

CONFIG_NAME, RESULTS_NAME, JOURNAL_NAME, LOG_NAME = "run.json", "results.jsonl", "journal.jsonl", "run.log"
NOTES_NAME = "notes.jsonl"
"""Notes that people write about trials and tasks."""
CONFIRMED_NAME = "confirmed.json"
"""Causes of failed trials that forks confirmed (tbench.explaining.confirmations)."""
BEGUN_NAME = "begun.json"
"""Copy of run.json from the start of the run. It is never rewritten, so it survives if run.json is damaged."""
TRIALS_NAME = "trials"
"""Folder of the files of all trials."""
TRIAL_RESULT_NAME, TRAJECTORY_NAME, STEPS_NAME = "result.json", "trajectory.json", "steps.jsonl"
CHECKPOINTS_NAME = "checkpoints.jsonl"
"""The state of a trial's conversation while the trial is under way (harness.checkpoint)."""
ENDED_NAME = "ended.json"
"""The verdict of a task step that has ended, while its trial is under way."""
RECORDING_NAME = "session.cast"
"""Recording of a trial's terminal, an asciicast of version 2."""
REPLAYED_NAME = "replayed.json"
"""Record of the replayed steps of another trial: their number, `steps`, and the first difference, `differs`."""
RUN = Layout("run", CONFIG_NAME, (JOURNAL_NAME, RESULTS_NAME))


def is_run(path: Path) -> bool:
    """Whether a directory is a run directory, even if it has lost its run.json."""
    return any((path / name).is_file() for name in (CONFIG_NAME, BEGUN_NAME))


def is_abandoned(run: Path) -> bool:
    """Whether no process works on a run; False also if that is unknown."""
    try:
        return not RUN.is_locked(run)
    except OSError:
        return False


def trial_directory(run: Path, task: str, seed: int, attempt: int = 1) -> Path:
    """Return the directory of an attempt; later attempts are inside the directory of the first."""
    first = run.joinpath(TRIALS_NAME, task, f"seed-{seed}")
    return first if attempt == 1 else first / f"attempt-{attempt}"


def step_directory(trial: Path, name: str) -> Path:
    """Return the directory of a task step inside its trial's directory."""
    return trial / "steps" / name


def inside_trials(run: Path, directory: Path) -> Path | None:
    """Resolve the directory of a trial or task step; None if it is missing or outside the run.

    Names may contain `..` and NUL.
    """
    try:
        if not directory.is_dir():  # as in runs whose trials were pruned; `resolve` looks at every folder of the path
            return None
        resolved = directory.resolve()
        return resolved if resolved.is_relative_to((run / TRIALS_NAME).resolve()) else None
    except (OSError, ValueError, RuntimeError):
        return None


def attempts(run: Path, task: str, seed: int) -> dict[int, Path]:
    """Return the directories of all attempts with any file, by number; interrupted ones have no result.json."""
    first = trial_directory(run, task, seed)
    has_files = first.is_dir() and any(not path.name.startswith("attempt-") for path in first.iterdir())
    found = {1: first} if has_files else {}
    for path in first.glob("attempt-*"):
        if (number := path.name.removeprefix("attempt-")).isdecimal():
            found[int(number)] = path
    return found
