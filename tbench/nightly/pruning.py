"""Removes what is large of old nights: recordings, trajectories, steps, server logs. Results stay, for the history.

Only files with names that tbench gives them go, below run directories that a night's own record names: no link is
followed, and what is being written stays.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from tbench.locks import FileLock
from tbench.nightly.journal import NightRecord, Nights
from tbench.storage.run_files import CONFIG_NAME, JOURNAL_NAME, STEPS_NAME, TRAJECTORY_NAME

_LARGE = frozenset({"session.cast", STEPS_NAME, TRAJECTORY_NAME})


def prune_night(nights: Nights, night: NightRecord) -> tuple[int, list[str]]:
    """Remove the large files of a night; gives their bytes, and a line for each run that was left alone."""
    freed, problems = 0, list[str]()
    for each in night.checkpoints:
        run = nights.runs / each.run
        if not run.exists():
            continue
        with _unwritten(run, each.run) as why_not:
            if why_not:
                problems.append(f"{run}: not pruned: {why_not}")
                continue
            removed = sum(map(_removed, _large_files(run / "trials")))
            if removed:
                _mark_as_changed(run / "trials")
            freed += removed
    for log in sorted(nights.of(night.name).glob("serve-*.log")):
        freed += _removed(log)
    return freed, problems


@contextlib.contextmanager
def _unwritten(run: Path, name: str) -> Iterator[str]:
    """Why a run directory is to be left alone; empty where it is not, and then nobody writes to it meanwhile."""
    if run.is_symlink() or not _is_called(run, name):
        yield "it is not the run that this night has made"
        return
    try:
        journal = (run / JOURNAL_NAME).open("r+b")
    except OSError as error:
        yield f"{JOURNAL_NAME}: {error.strerror or error}"
        return
    with journal:
        try:
            lock = FileLock(run / JOURNAL_NAME, journal.fileno())
        except OSError as error:
            yield f"it is being written{f' ({error})' if error.args else ''}"
            return
        try:
            yield ""
        finally:
            lock.release()


def _is_called(run: Path, name: str) -> bool:
    try:
        document = json.loads((run / CONFIG_NAME).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("run") == name


def _large_files(trials: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(trials):  # which follows no links to folders
        yield from (Path(folder, name) for name in names if name in _LARGE)


def _mark_as_changed(folder: Path) -> None:
    """Give a folder another time, for the pages that were made of what lay in it."""
    with contextlib.suppress(OSError):
        os.utime(folder)


def _removed(file: Path) -> int:
    """Remove a file that is one; gives its bytes."""
    with contextlib.suppress(OSError):
        if not file.is_symlink() and file.is_file():
            size = file.stat().st_size
            file.unlink()
            return size
    return 0
