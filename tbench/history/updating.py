"""Writes runs into the tables: those that are new or have changed, or chosen ones into a new file."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbench.errors import UsageError
from tbench.history.database import make_tables, transaction
from tbench.history.directories import FoundDirectory, FoundRuns, device_of_nearest, find_runs
from tbench.history.records import PROXIES, ProxyRecord, Row, RunRecord, read_proxy, read_record
from tbench.history.rows import Changes
from tbench.text import counted, names_shown, one_line

# Writes the rows of a run or a proxy into the tables, in place of those that were there.

Store = Callable[[sqlite3.Connection, str], None]
"""Writes what was read within a transaction, under a path as the index has it. Raises sqlite3.Error or UNSTORABLE."""
UNSTORABLE = (OverflowError, UnicodeEncodeError, sqlite3.IntegrityError)
"""What SQLite raises for a number of more than 64 bits, and for text that is none."""
_DATASET_COLUMNS = ("name", "version", "source", "url", "commit", "digest", "tasks")


def read_directory(found: FoundDirectory) -> Store:
    """Read a directory; gives what stores it. Raises UsageError."""
    if found.manifest in PROXIES:
        proxy = read_proxy(found.path, found.manifest)
        return lambda connection, place: store_proxy(connection, place, proxy)
    run = read_record(found.path)
    return lambda connection, place: store_run(connection, place, run)


def store_run(connection: sqlite3.Connection, place: str, record: RunRecord) -> None:
    """Write the rows of a run in place of those it had, within a transaction. Raises sqlite3.Error."""
    before = connection.execute("SELECT id FROM runs WHERE path = ?", (place,)).fetchone()
    for table in ("runs", "proxies"):
        connection.execute(f"DELETE FROM {table} WHERE path = ?", (place,))
    row = {
        "id": before[0] if before else None,
        "path": place,
        "model_id": _model_id(connection, record.model),
        "dataset_id": _dataset_id(connection, record.dataset),
        **record.run,
    }
    run_id = _insert(connection, "runs", row)
    for table, rows in (("tasks", record.tasks), ("trials", record.trials)):
        if rows:
            columns = ", ".join(rows[0])
            marks = ", ".join("?" * len(rows[0]))
            statement = f"INSERT INTO {table} (run_id, {columns}) VALUES ({run_id}, {marks})"
            connection.executemany(statement, (tuple(each.values()) for each in rows))


def store_proxy(connection: sqlite3.Connection, place: str, record: ProxyRecord) -> None:
    """Write the row of a proxy in place of the one it had, within a transaction. Raises sqlite3.Error."""
    connection.execute("DELETE FROM runs WHERE path = ?", (place,))
    before = connection.execute("SELECT id FROM proxies WHERE path = ?", (place,)).fetchone()
    connection.execute("DELETE FROM proxies WHERE path = ?", (place,))
    row = {"id": before[0] if before else None, "path": place, "model_id": _model_id(connection, record.model)}
    _insert(connection, "proxies", row | record.row)


def _insert(connection: sqlite3.Connection, table: str, row: Row) -> int:
    columns = ", ".join(f'"{column}"' for column in row)
    marks = ", ".join("?" * len(row))
    inserted = connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", tuple(row.values()))
    assert inserted.lastrowid is not None
    return inserted.lastrowid


def _model_id(connection: sqlite3.Connection, name: str | None) -> int | None:
    if name is None:
        return None
    found = connection.execute("SELECT id FROM models WHERE name = ?", (name,)).fetchone()
    return found[0] if found else _insert(connection, "models", {"name": name})


def _dataset_id(connection: sqlite3.Connection, dataset: Mapping[str, Any] | None) -> int | None:
    if dataset is None:
        return None
    conditions = " AND ".join(f'"{column}" IS ?' for column in _DATASET_COLUMNS)
    values = tuple(dataset.get(column) for column in _DATASET_COLUMNS)
    found = connection.execute(f"SELECT id FROM datasets WHERE {conditions}", values).fetchone()
    return found[0] if found else _insert(connection, "datasets", dict(dataset))


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


# Writes chosen runs into one new SQLite file, with the tables of a history.


def export_sqlite(paths: Sequence[Path], file: Path, *, overwrite: bool = False) -> tuple[int, tuple[str, ...]]:
    """Write the runs and proxies at or below `paths`; gives their number, and a note on each that could not be read.

    The file is there when all of it is written. Raises UsageError, also where the file is there already and `overwrite`
    is not said, and for a path of `paths` itself that cannot be read.
    """
    if file.is_dir() or (file.exists() and not overwrite):
        what = "is a directory" if file.is_dir() else "is there already; overwrite it with --overwrite"
        raise UsageError(f"{file}: {what}, or name another file with --output")
    directories = list(_chosen(paths))
    notes: list[str] = []
    with _new_database(file) as connection:
        make_tables(connection)
        for each in directories:
            try:
                _add(connection, each)
            except UsageError as error:
                if each.path in paths:
                    raise
                notes.append(str(error))
        if len(notes) == len(directories):
            raise UsageError(f"none of the runs can be read; the first: {notes[0]}")
    return len(directories) - len(notes), tuple(notes)


def _chosen(paths: Sequence[Path]) -> Iterator[FoundDirectory]:
    """What lies at or below `paths`, each directory once. Raises UsageError for a path with nothing."""
    seen: dict[Path, None] = {}
    for path in paths:
        if path.is_file():
            found = [FoundDirectory(path, 0, "")]  # bare results
        elif path.is_dir():
            found = find_runs([path]).directories
        else:
            raise UsageError(f"{path}: no such run directory; check the path")
        if not found:
            raise UsageError(f"{path}: neither a run directory nor one that holds some")
        for each in found:
            if each.path.resolve() not in seen:
                seen[each.path.resolve()] = None
                yield each


def _add(connection: sqlite3.Connection, each: FoundDirectory) -> None:
    """Read a directory and store it. Raises UsageError."""
    try:
        read_directory(each)(connection, str(each.path))
    except RecursionError:
        raise UsageError(f"{each.path}: nested too deeply") from None
    except UNSTORABLE as error:
        raise UsageError(f"{each.path}: holds what no SQLite file can hold ({error})") from None


@contextlib.contextmanager
def _new_database(file: Path) -> Iterator[sqlite3.Connection]:
    """A database in one transaction that is at `file` when the block has ended; if it fails, nothing is changed."""
    beside = file.with_name(f".{file.name}.writing-{os.getpid()}")
    try:
        with contextlib.closing(sqlite3.connect(beside, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = MEMORY")
            connection.execute("PRAGMA foreign_keys = ON")
            with transaction(connection):
                yield connection
        beside.replace(file)
    except (OSError, sqlite3.OperationalError) as error:
        words = error.strerror if isinstance(error, OSError) else None
        raise UsageError(f"{file}: cannot be written: {words or one_line(str(error))}") from None
    finally:
        beside.unlink(missing_ok=True)
