"""Finds run directories below folders, and tells by sizes and times of their files whether they have changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tbench.storage.run_files import CONFIG_NAME, RESULTS_NAME

_STAMPED = (CONFIG_NAME, RESULTS_NAME)


@dataclass(frozen=True, slots=True)
class FoundDirectory:
    """A directory with a run in it, as it was when it was looked at."""

    path: Path
    device: int
    """Number of the file system that it lies in."""
    stamp: str
    """Sizes in bytes and times in ns of run.json and results.jsonl; another one says that the run has changed."""


@dataclass(slots=True)
class FoundRuns:
    """What lies below some folders."""

    directories: list[FoundDirectory] = field(default_factory=list)
    unread: dict[Path, str] = field(default_factory=dict)
    """Folders that could not be looked into, and why."""


def find_runs(roots: list[Path]) -> FoundRuns:
    """The run directories at or below `roots`, which are absolute paths.

    Nothing is looked for within a run, nor in folders whose name begins with a dot. Links to folders are followed,
    and each directory is found once, by its own name where it has one below `roots`.
    """
    found = FoundRuns()
    pending, linked = list(reversed(roots)), list[Path]()
    seen: set[tuple[int, int]] = set()
    while pending or linked:
        folder = pending.pop() if pending else linked.pop()
        try:
            status = folder.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            pending += sorted(_look_into(folder, status.st_dev, found, linked), reverse=True)
        except OSError as error:
            found.unread[folder] = error.strerror or str(error)
    return found


def _look_into(folder: Path, device: int, found: FoundRuns, linked: list[Path]) -> Iterator[Path]:
    """The folders in this one; a run has none to be looked into."""
    with os.scandir(folder) as entries:
        listed = list(entries)
    if any(entry.name in _STAMPED for entry in listed):
        found.directories.append(FoundDirectory(folder, device, stamp(folder)))
        return
    for entry in listed:
        path = folder / entry.name
        try:
            if entry.name.startswith(".") or not entry.is_dir():
                continue
        except OSError as error:  # a link in a circle, or to where nobody may look
            found.unread[path] = error.strerror or str(error)
            continue
        if entry.is_symlink():
            linked.append(path)
        else:
            yield path


def stamp(run: Path) -> str:
    """What tells whether a run directory has changed. Raises OSError."""
    return " ".join(f"{name}:{_stamp_of_file(run / name)}" for name in _STAMPED)


def _stamp_of_file(file: Path) -> str:
    try:
        status = file.stat()
    except FileNotFoundError:
        return "-"
    return f"{status.st_size}:{status.st_mtime_ns}"


def device_of_nearest(path: Path) -> int | None:
    """The device of the nearest folder above a path that is gone; None where that cannot be told.

    Where it is another one than that of the path itself, a disk is not mounted.
    """
    for parent in path.parents:
        try:
            return parent.stat().st_dev
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None
