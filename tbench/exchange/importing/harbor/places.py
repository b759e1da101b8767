"""Where jobs and trials of Harbor are below a directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tbench.errors import UsageError
from tbench.exchange.importing.foreign_files import is_directory, is_file, object_or_none
from tbench.text import names_shown, visible_line

CONFIG, RESULT, LOCK = "config.json", "result.json", "lock.json"
_FOLDERS_OF_A_TRIAL = ("agent", "verifier", "artifacts")
_FILES_OF_A_TRIAL = ("trial.log", "exception.txt")
_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class JobPlace:
    """A job's directory, or trials that were named one by one."""

    name: str
    directory: Path | None
    trials: tuple[Path, ...]
    links: tuple[str, ...] = ()
    """Names of entries that are links, and were left alone."""


def find_jobs(paths: Sequence[Path]) -> list[JobPlace]:
    """The jobs that directories hold or are; trials that are named one by one are one job. Raises UsageError."""
    jobs: list[JobPlace] = []
    trials: list[Path] = []
    for path in (path.resolve() for path in paths):
        if not path.is_dir():
            raise UsageError(f"{path}: no such directory; give a job of Harbor, a directory of jobs, or trials")
        if _is_trial(path):
            trials.append(path)
        else:
            jobs += _jobs_in(path)
    if trials:
        parents = {trial.parent for trial in trials}
        name = trials[0].name if len(trials) == 1 else parents.pop().name if len(parents) == 1 else "trials"
        jobs.append(JobPlace(name, None, tuple(dict.fromkeys(trials))))
    return jobs


def _jobs_in(path: Path) -> list[JobPlace]:
    if (job := _job(path)) is not None:
        return [job]
    found = [job for folder in _folders(path) if (job := _job(folder)) is not None]
    if found:
        return found
    if is_file(path / CONFIG):
        raise UsageError(f"{path}: a job without any trial; there is nothing to import")
    raise UsageError(
        f"{path}: neither a job nor a trial of Harbor; give a directory with a {RESULT} per trial, "
        "or one of jobs (mostly in jobs/)"
    )


def _job(path: Path) -> JobPlace | None:
    trials = tuple(folder for folder in _folders(path) if _is_trial(folder))
    links = tuple(sorted(entry.name for entry in path.iterdir() if entry.is_symlink()))
    return JobPlace(path.name, path, trials, links) if trials else None


def _folders(path: Path) -> Iterator[Path]:
    try:
        entries = sorted(path.iterdir())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; check its permissions") from None
    return (entry for entry in entries if is_directory(entry) and not entry.name.startswith("."))


def _is_trial(path: Path) -> bool:
    if any(is_file(path / name) for name in _FILES_OF_A_TRIAL):
        return True
    if any(_is_trial_itself(path / name) for name in _FOLDERS_OF_A_TRIAL):
        return True
    config = object_or_none(path / CONFIG)
    if config is not None and isinstance(config.get("task"), dict):
        return True
    return is_file(path / RESULT) and b'"task_name"' in _head(path / RESULT)


def _is_trial_itself(folder: Path) -> bool:
    """Whether `folder` belongs to a trial, and is no trial or job that happens to have such a name."""
    return is_directory(folder) and not is_file(folder / CONFIG) and not is_file(folder / RESULT)


def _head(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(_HEAD_BYTES)
    except OSError:
        return b""


def links_note(job: JobPlace) -> str | None:
    """What is said of links in a job's directory."""
    return f"links were not followed: {visible_line(names_shown(job.links))}" if job.links else None
