"""Finds directories of runs and proxies below folders, and tells by sizes and times of files whether they changed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tbench.history.records import PROXIES, RESULT_NAME
from tbench.storage.run_files import CONFIG_NAME, RESULTS_NAME

_OF_RUNS = (CONFIG_NAME, RESULTS_NAME)


@dataclass(frozen=True, slots=True)
class FoundDirectory:
    """A directory with a run or a proxy in it, as it was when it was looked at."""

    path: Path
    device: int
    """Number of the file system that it lies in."""
    stamp: str
    """Sizes in bytes and times in ns of its files; another one says that they have changed."""
    manifest: str = CONFIG_NAME
    """Name of the file that says what it is; that of a run may be missing."""


@dataclass(slots=True)
class FoundRuns:
    """What lies below some folders."""

    directories: list[FoundDirectory] = field(default_factory=list)
    unread: dict[Path, str] = field(default_factory=dict)
    """Folders that could not be looked into, and why."""


def find_runs(roots: list[Path]) -> FoundRuns:
    """The directories of runs and proxies at or below `roots`, which are absolute paths.

    Nothing is looked for within a run, nor in folders whose name begins with a dot. Links to folders are followed,
    and each directory is found once, by its own name where it has one below `roots`.
    """
    found = FoundRuns()
    pending, linked = list(reversed(roots)), list[Path]()
    seen: set[tuple[int, int]] = set()
    while pending or linked:
        folder = pending.pop() if pending else linked.pop()
        if not _is_text(folder):
            found.unread[folder] = "its name is no text; rename it"
            continue
        try:
            status = folder.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            pending += sorted(_look_into(folder, status.st_dev, found, linked), reverse=True)
        except FileNotFoundError:  # removed just now
            continue
        except OSError as error:
            found.unread[folder] = error.strerror or str(error)
    return found


def _is_text(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _look_into(folder: Path, device: int, found: FoundRuns, linked: list[Path]) -> Iterator[Path]:
    """The folders in this one; a run has none to be looked into."""
    with os.scandir(folder) as entries:
        listed = list(entries)
    names = {entry.name for entry in listed}
    if not names.isdisjoint(_OF_RUNS):
        found.directories.append(FoundDirectory(folder, device, stamp(folder, _OF_RUNS)))
        return
    if manifest := next((name for name in PROXIES if name in names), None):
        stamped = stamp(folder, (manifest, RESULT_NAME))
        found.directories.append(FoundDirectory(folder, device, stamped, manifest))
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


def stamp(directory: Path, names: Iterable[str]) -> str:
    """What tells whether these files have changed. Raises OSError."""
    return " ".join(f"{name}:{_stamp_of_file(directory / name)}" for name in names)


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
