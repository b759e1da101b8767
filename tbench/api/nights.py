"""Stored runs as nights of one benchmark, for the gate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from tbench.errors import UsageError
from tbench.results import UNKNOWN_TIME
from tbench.scores.gate.nights import Night, run_identity
from tbench.scores.summarise import MixedResults, refuse_mixed
from tbench.storage.comparable import fingerprint
from tbench.storage.read_run import RunUnreadable, StoredRun, read_run
from tbench.storage.run_files import CONFIG_NAME, RESULTS_NAME
from tbench.storage.summaries import rewards_of


class StillRunning(UsageError, ValueError):
    """A run that goes on, or was cut: it is no night yet."""


@dataclass(frozen=True, slots=True)
class StoredNight:
    """A night, and the run that it was read from."""

    run: StoredRun
    night: Night

    def called(self, name: str) -> StoredNight:
        """The same under another name."""
        return replace(self, night=replace(self.night, name=name))


def night_of(run: StoredRun) -> Night:
    """A stored run as a night.

    Raises StillRunning for a run that has not come to its end, RunUnreadable for results of several models or agents,
    which are no one run, and for a run without tasks or seeds.
    """
    where = run.path if run.path.name == run.name else f"{run.path} ({run.name})"
    if run.document is not None and run.document.status == "running":
        raise StillRunning(
            f"{where}: is still going on, or was cut; wait for its end, `tbench resume` it, or leave it out"
        )
    try:
        refuse_mixed(run.results)
    except MixedResults as error:
        raise RunUnreadable(f"{where}: {error}") from None
    if not run.planned_tasks or not run.planned_seeds:
        raise RunUnreadable(f"{where}: has no tasks or no seeds; leave it out")
    table, began = rewards_of(run), begun_at(run)
    identity = run_identity(run.name, run.model, began) if run.document is not None else ""
    return Night(run.name, began, table, run.task_hashes, fingerprint(run), identity)


def begun_at(run: StoredRun) -> str:
    """When a run began, as ISO date and time; empty where that is not known."""
    if run.document is not None and run.document.created_at:
        return run.document.created_at
    times = [result.started_at for result in run.results if result.started_at != UNKNOWN_TIME]
    return min(times).isoformat() if times else ""


def read_nights(paths: Iterable[Path]) -> tuple[list[StoredNight], list[str]]:
    """The runs at `paths`, oldest first, and what was left out, one sentence each.

    A path is a run, or a directory of runs; what in such a directory is no night yet, or cannot be read, is left out.
    Runs of one name are called by their paths. Where it is not known of all when they began, they stay in the order in
    which they are given. Raises RunUnreadable and StillRunning for a run that was named itself, and UsageError for a
    directory without any.
    """
    nights: list[StoredNight] = []
    left_out: list[str] = []
    for path in paths:
        if path.is_file() or _is_run(path):
            nights.append(_read(path))
            continue
        found = list(_runs_in(path))
        if not found:
            raise UsageError(f"{path}: no run is in it; give run directories, or a directory of them")
        for each in found:
            try:
                nights.append(_read(each))
            except (RunUnreadable, StillRunning) as problem:
                left_out.append(f"left out: {problem}")
    names = Counter(each.night.name for each in nights)
    nights = [each if names[each.night.name] == 1 else each.called(str(each.run.path)) for each in nights]
    begun = [_time(each.night) for each in nights]
    known = [time for time in begun if time is not None]
    if len(known) == len(nights):
        nights = [nights[at] for at in sorted(range(len(nights)), key=known.__getitem__)]
    return nights, left_out


def _is_run(path: Path) -> bool:
    return (path / CONFIG_NAME).is_file() or (path / RESULTS_NAME).is_file()


def _runs_in(path: Path) -> Iterator[Path]:
    """The runs directly in a directory, by name."""
    if not path.is_dir():
        raise RunUnreadable(f"{path}: no such run directory; check the path")
    yield from (each for each in sorted(path.iterdir()) if each.is_dir() and _is_run(each))


def _read(path: Path) -> StoredNight:
    run = read_run(path)
    return StoredNight(run, night_of(run))


def _time(night: Night) -> datetime | None:
    try:
        time = datetime.fromisoformat(night.begun)
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.astimezone()
