"""Writes a run as a job directory of Harbor: records, logs of agent and verifier, trajectories as ATIF."""

from __future__ import annotations

import shutil
from pathlib import Path

from tbench.errors import UsageError
from tbench.exchange.atif.document import atif_document
from tbench.exchange.chosen import ExportedTrial, LeftOut, TrialChoice, exported_trials
from tbench.exchange.harbor.records import job_config, job_id_of, job_record, trial_config, trial_name, trial_record
from tbench.files import safe_relative, write_json
from tbench.results import TrialResult
from tbench.storage.read_run import StoredRun
from tbench.storage.run_files import TRAJECTORY_NAME

_RENAMED = {"stdout.txt": "test-stdout.txt"}
"""Files of the verifier that Harbor calls otherwise."""
_COPIED = ("agent", "verifier", "artifacts")


def write_harbor_job(run: StoredRun, choice: TrialChoice, directory: Path, job: Path, left_out: LeftOut) -> int:
    """Write the chosen trials as a job into `directory`, which will be at `job`, and return how many.

    Raises UsageError where two trials would have one name, and OSError.
    """
    job, job_id, written = job.resolve(), job_id_of(run), list[TrialResult]()
    for trial in exported_trials(run, choice, left_out, needs_trajectory=False):
        place = directory / trial_name(trial.result)
        if place.exists():
            raise UsageError(f"{run.path}: {trial.result.trial} is there twice; remove one of its results")
        place.mkdir(parents=True)
        _write_trial(trial, place)
        write_json(place / "config.json", trial_config(trial, job, job_id))
        record = trial_record(trial, job, job_id)
        if (exception := record["exception_info"]) is not None:
            text = (
                exception["exception_traceback"] or f"{exception['exception_type']}: {exception['exception_message']}"
            )
            (place / "exception.txt").write_text(f"{text}\n", encoding="utf-8", errors="replace")
        write_json(place / "result.json", record)
        written.append(trial.result)
    if written:
        write_json(directory / "config.json", job_config(run, job))
        write_json(directory / "result.json", job_record(run, job_id, written))
    return len(written)


def _write_trial(trial: ExportedTrial, place: Path) -> None:
    """Write what each part of the trial has left: all of it, or a step of its task."""
    steps = [step.name for step in trial.result.task_steps if step.begun]
    for name in steps:
        _copy_logs(trial.directory / "steps" / name, place / "steps" / safe_relative(name))
    if not steps:
        _copy_logs(trial.directory, place)
    for part in trial.parts:
        target = place if part.task_step is None else place / "steps" / safe_relative(part.task_step.name)
        if (document := atif_document(trial, part)) is not None:
            write_json(target / "agent" / TRAJECTORY_NAME, document)


def _copy_logs(directory: Path, place: Path) -> None:
    """Copy the logs of agent and verifier, and the recording; links stay links."""
    for name in _COPIED:
        if (directory / name).is_dir() and not (directory / name).is_symlink():
            shutil.copytree(directory / name, place / name, symlinks=True)
    for old, new in _RENAMED.items():
        if (file := place / "verifier" / old).is_file():
            file.replace(place / "verifier" / new)
    if (directory / "session.cast").is_file():
        (place / "agent").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(directory / "session.cast", place / "agent" / "recording.cast")
