"""Finds directories of runs and proxies below folders, and detects changes by sizes and times of files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tbench.history.records import PROXIES, RESULT_NAME
from tbench.storage.run_files import CONFIG_NAME, NOTES_NAME, RESULTS_NAME

_RUN_FILES = (CONFIG_NAME, RESULTS_NAME)


@dataclass(frozen=True, slots=True)
class FoundDirectory:
    """A directory of a run or a proxy, as it was when found."""

    path: Path
    device: int
    """Device number of its file system."""
    stamp: str
    """Sizes in bytes and times in ns of its files; a different stamp means that they have changed."""
    manifest: str = CONFIG_NAME
    """Name of the file that identifies its kind; a run's may be missing."""


@dataclass(slots=True)
class FoundRuns:
    """Runs and proxies below some folders."""

    directories: list[FoundDirectory] = field(default_factory=list)
    unread: dict[Path, str] = field(default_factory=dict)
    """Folders that could not be read, with the reason."""


def find_runs(roots: list[Path]) -> FoundRuns:
    """Find the directories of runs and proxies at or below `roots`, which are absolute paths.

    Folders inside a run, and those whose name begins with a dot, are skipped. Links to folders are followed; each
    directory is found once, by its real path if that is below `roots`.
    """
    found = FoundRuns()
    pending, linked = list(reversed(roots)), list[Path]()
    seen: set[tuple[int, int]] = set()
    while pending or linked:
        folder = pending.pop() if pending else linked.pop()
        try:
            str(folder).encode()
            status = folder.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            pending += sorted(_scan(folder, status.st_dev, found, linked), reverse=True)
        except UnicodeEncodeError:
            found.unread[folder] = "its name is not valid text; rename it"
        except FileNotFoundError:  # removed just now
            continue
        except OSError as error:
            found.unread[folder] = error.strerror or str(error)
    return found


def _scan(folder: Path, device: int, found: FoundRuns, linked: list[Path]) -> Iterator[Path]:
    """Scan a folder and yield the folders in it to be scanned; nothing if it is itself a run or proxy."""
    with os.scandir(folder) as entries:
        listed = list(entries)
    names = {entry.name for entry in listed}
    if not names.isdisjoint(_RUN_FILES):
        found.directories.append(FoundDirectory(folder, device, stamp(folder, (*_RUN_FILES, NOTES_NAME))))
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
        except OSError as error:  # a circular link, or no permission
            found.unread[path] = error.strerror or str(error)
            continue
        if entry.is_symlink():
            linked.append(path)
        else:
            yield path


def stamp(directory: Path, names: Iterable[str]) -> str:
    """Return sizes and times of these files, which change when the files do. Raises OSError."""
    stamps = []
    for name in names:
        try:
            status = (directory / name).stat()
            stamps.append(f"{name}:{status.st_size}:{status.st_mtime_ns}")
        except FileNotFoundError:
            stamps.append(f"{name}:-")
    return " ".join(stamps)


def device_of_nearest(path: Path) -> int | None:
    """Return the device of the nearest existing folder above a path that is gone; None if unknown.

    If it differs from the path's former device, a disk is not mounted.
    """
    for parent in path.parents:
        try:
            return parent.stat().st_dev
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None
