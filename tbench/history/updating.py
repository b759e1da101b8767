"""Brings the tables up to date with the run directories: one transaction per run that is new or has changed."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tbench.errors import UsageError
from tbench.history.database import transaction
from tbench.history.directories import FoundDirectory, FoundRuns, device_of_nearest, find_runs
from tbench.history.rows import Changes
from tbench.history.storing import UNSTORABLE, read_directory
from tbench.text import counted, names_shown

Progress = Callable[[int, int], None]
"""Told how many of how many directories that are new or have changed were read."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A directory as the index has it."""

    device: int
    stamp: str
    problem: str | None


class Places:
    """Paths as the index has them: relative to its folder where they lie in it, so that the folder can be moved."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(self, path: Path) -> str:
        return str(path.relative_to(self.folder) if path.is_relative_to(self.folder) else path)

    def path(self, place: str) -> Path:
        return self.folder / place


class Update:
    """One update of an index. Call it once."""

    def __init__(self, connection: sqlite3.Connection, places: Places, progress: Progress | None) -> None:
        self._connection = connection
        self._places = places
        self._progress = progress or (lambda read, of: None)
        self._counts: Counter[str] = Counter()
        self._notes: list[str] = []

    def __call__(self, roots: Sequence[Path]) -> Changes:
        """Look at `roots`, which are absolute. Raises sqlite3.Error."""
        known = self._known()
        there = self._those_there(roots, known)
        found = find_runs(there)
        self._notes += [f"{folder}: cannot be looked into ({why})" for folder, why in found.unread.items()]
        self._read(found.directories, known)
        self._forget(there, known, found)
        if self._counts["added"] or self._counts["changed"] or self._counts["forgotten"]:
            self._remove_unused()
        counts = {name: self._counts[name] for name in ("added", "changed", "unchanged", "forgotten", "unreadable")}
        return Changes(**counts, notes=tuple(self._notes))

    def _known(self) -> dict[str, _Known]:
        rows = self._connection.execute("SELECT path, device, stamp, problem FROM directories")
        return {path: _Known(*values) for path, *values in rows}

    def _those_there(self, roots: Iterable[Path], known: Mapping[str, _Known]) -> list[Path]:
        there = []
        for root in roots:
            if root.is_dir():
                there.append(root)
                continue
            kept = sum(self._places.path(place).is_relative_to(root) for place in known)
            self._notes.append(f"{root}: is not there; the history keeps {counted(kept, 'run')} of it")
        return there

    # -- reading ---------------------------------------------------------------------------------

    def _read(self, directories: Iterable[FoundDirectory], known: Mapping[str, _Known]) -> None:
        stale = []
        for each in directories:
            before = known.get(self._places.place(each.path))
            # What could not be read is tried again: permissions and disks leave no trace in a stamp.
            if before is None or before.stamp != each.stamp or before.problem:
                stale.append((each, before))
                continue
            self._counts["unchanged"] += 1
            if before.device != each.device:
                self._set_device(each)
        for number, (each, before) in enumerate(stale, start=1):
            self._read_one(each, before)
            self._progress(number, len(stale))

    def _set_device(self, each: FoundDirectory) -> None:
        values = (each.device, self._places.place(each.path))
        self._connection.execute("UPDATE directories SET device = ? WHERE path = ?", values)

    def _read_one(self, each: FoundDirectory, before: _Known | None) -> None:
        place = self._places.place(each.path)
        problem = None
        try:
            store = read_directory(each)
            with transaction(self._connection):
                store(self._connection, place)
                self._store_directory(place, each, None)
        except (UsageError, RecursionError) as error:
            problem = str(error) or "nested too deeply"
        except UNSTORABLE as error:
            problem = f"{each.path}: holds what no index can hold ({error})"
        if problem is None:
            self._counts["added" if before is None else "changed"] += 1
            return
        with transaction(self._connection):
            known = "SELECT path FROM runs UNION ALL SELECT path FROM proxies"
            if self._connection.execute(f"SELECT 1 FROM ({known}) WHERE path = ?", (place,)).fetchone():
                problem += "; the history keeps what it read of it before"
            self._store_directory(place, each, problem)
        self._counts["unreadable"] += 1
        self._notes.append(problem)

    def _store_directory(self, place: str, each: FoundDirectory, problem: str | None) -> None:
        values = (place, each.device, each.stamp, problem)
        self._connection.execute("INSERT OR REPLACE INTO directories VALUES (?, ?, ?, ?)", values)

    # -- forgetting ------------------------------------------------------------------------------

    def _forget(self, roots: Sequence[Path], known: Mapping[str, _Known], found: FoundRuns) -> None:
        still = {self._places.place(each.path) for each in found.directories}
        gone, kept = list[str](), list[str]()
        for place, before in known.items():
            path = self._places.path(place)
            if place in still or not any(path.is_relative_to(root) for root in roots):
                continue
            hidden = any(path.is_relative_to(folder) for folder in found.unread)
            (kept if hidden or _is_unmounted(path, before.device) else gone).append(place)
        if kept:
            self._notes.append(
                f"{names_shown(kept, 3)}: cannot be looked at (a disk that is not mounted?); the history keeps them; "
                "--rebuild forgets them"
            )
        if gone:
            with transaction(self._connection):
                for place in gone:
                    for table in ("runs", "proxies"):
                        had = self._connection.execute(f"DELETE FROM {table} WHERE path = ?", (place,)).rowcount
                        self._counts["forgotten"] += had
                    self._connection.execute("DELETE FROM directories WHERE path = ?", (place,))

    def _remove_unused(self) -> None:
        with transaction(self._connection):
            for table, column, users in (
                ("models", "model_id", ("runs", "proxies")),
                ("datasets", "dataset_id", ("runs",)),
            ):
                used = " UNION ".join(f"SELECT {column} FROM {user} WHERE {column} IS NOT NULL" for user in users)
                self._connection.execute(f"DELETE FROM {table} WHERE id NOT IN ({used})")


def _is_unmounted(path: Path, device: int) -> bool:
    """Whether what lies at a path that is gone, or was found another way, may be on a disk that is not there."""
    return not os.path.exists(path) and device_of_nearest(path) != device  # noqa: PTH110 - no exception for any path
