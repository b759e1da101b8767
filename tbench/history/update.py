"""Updates the index with new and changed runs, and exports chosen runs to a new SQLite file."""

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
from tbench.history.records import PROXIES, ProxyRecord, Row, RunReader, RunRecord, read_proxy, read_record
from tbench.history.rows import Changes
from tbench.text import counted, names_text, one_line

StoreFunction = Callable[[sqlite3.Connection, str], None]
"""Writes rows under an index path, within a transaction. Raises sqlite3.Error or UNSTORABLE."""
UNSTORABLE = (OverflowError, UnicodeEncodeError, sqlite3.IntegrityError)
"""Exceptions for values that SQLite cannot store, such as integers over 64 bits and invalid text."""
_DATASET_COLUMNS = ("name", "version", "source", "url", "commit", "digest", "tasks")


def read_directory(found: FoundDirectory, reader: RunReader) -> StoreFunction:
    """Read a directory; return a function that stores it. Raises UsageError."""
    if found.manifest in PROXIES:
        proxy = read_proxy(found.path, found.manifest)
        return lambda connection, path: store_proxy(connection, path, proxy)
    run = read_record(found.path, reader)
    return lambda connection, path: store_run(connection, path, run)


@contextlib.contextmanager
def storable(path: Path) -> Iterator[None]:
    """Turn exceptions that a directory's content causes, while it is read and stored, into UsageError."""
    try:
        yield
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply") from None
    except UNSTORABLE as error:
        raise UsageError(f"{path}: contains a value that SQLite cannot store ({error})") from None


def store_run(connection: sqlite3.Connection, path: str, record: RunRecord) -> None:
    """Replace the rows of a run, within a transaction. Raises sqlite3.Error."""
    before = connection.execute("SELECT id FROM runs WHERE path = ?", (path,)).fetchone()
    for table in ("runs", "proxies"):
        connection.execute(f"DELETE FROM {table} WHERE path = ?", (path,))
    row = {
        "id": before[0] if before else None,
        "path": path,
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


def store_proxy(connection: sqlite3.Connection, path: str, record: ProxyRecord) -> None:
    """Replace the row of a proxy, within a transaction. Raises sqlite3.Error."""
    connection.execute("DELETE FROM runs WHERE path = ?", (path,))
    before = connection.execute("SELECT id FROM proxies WHERE path = ?", (path,)).fetchone()
    connection.execute("DELETE FROM proxies WHERE path = ?", (path,))
    row = {"id": before[0] if before else None, "path": path, "model_id": _model_id(connection, record.model)}
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
"""Called with the number of directories read so far, and the number to be read in all."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A directory as recorded in the index."""

    device: int
    stamp: str
    problem: str | None


class IndexPaths:
    """Converts paths to those stored in the index: relative if inside its folder, so that the folder can be moved."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def to_stored(self, path: Path) -> str:
        return str(path.relative_to(self.folder) if path.is_relative_to(self.folder) else path)

    def path(self, stored: str) -> Path:
        return self.folder / stored


class IndexUpdate:
    """One update of an index. Call it once."""

    def __init__(
        self, connection: sqlite3.Connection, paths: IndexPaths, progress: Progress | None, reader: RunReader
    ) -> None:
        self._connection = connection
        self._paths = paths
        self._reader = reader
        self._progress = progress or (lambda read, of: None)
        self._counts: Counter[str] = Counter()
        self._notes: list[str] = []

    def __call__(self, roots: Sequence[Path]) -> Changes:
        """Update the index from `roots`, which are absolute paths. Raises sqlite3.Error."""
        rows = self._connection.execute("SELECT path, device, stamp, problem FROM directories")
        known = {path: _Known(*values) for path, *values in rows}
        existing = [root for root in roots if root.is_dir()]
        for root in roots:
            if root not in existing:
                kept = sum(self._paths.path(stored).is_relative_to(root) for stored in known)
                self._notes.append(f"{root}: does not exist; the history keeps {counted(kept, 'run')} of it")
        found = find_runs(existing)
        self._notes += [f"{folder}: cannot be read ({why})" for folder, why in found.unread.items()]
        self._read(found.directories, known)
        self._forget(existing, known, found)
        if self._counts["added"] or self._counts["changed"] or self._counts["forgotten"]:
            self._remove_unused()
        counts = {name: self._counts[name] for name in ("added", "changed", "unchanged", "forgotten", "unreadable")}
        return Changes(**counts, notes=tuple(self._notes))

    # -- reading ---------------------------------------------------------------------------------

    def _read(self, directories: Iterable[FoundDirectory], known: Mapping[str, _Known]) -> None:
        stale = []
        for each in directories:
            before = known.get(self._paths.to_stored(each.path))
            # Unreadable directories are tried again: a stamp does not show changes of permissions and mounts.
            if before is None or before.stamp != each.stamp or before.problem:
                stale.append((each, before))
                continue
            self._counts["unchanged"] += 1
            if before.device != each.device:
                values = (each.device, self._paths.to_stored(each.path))
                self._connection.execute("UPDATE directories SET device = ? WHERE path = ?", values)
        for number, (each, before) in enumerate(stale, start=1):
            self._read_one(each, before)
            self._progress(number, len(stale))

    def _read_one(self, each: FoundDirectory, before: _Known | None) -> None:
        stored = self._paths.to_stored(each.path)
        try:
            with storable(each.path):
                store = read_directory(each, self._reader)
                with transaction(self._connection):
                    store(self._connection, stored)
                    self._store_directory(stored, each, None)
            self._counts["added" if before is None else "changed"] += 1
            return
        except UsageError as error:
            problem = str(error)
        with transaction(self._connection):
            known = "SELECT path FROM runs UNION ALL SELECT path FROM proxies"
            if self._connection.execute(f"SELECT 1 FROM ({known}) WHERE path = ?", (stored,)).fetchone():
                problem += "; the history keeps its earlier content"
            self._store_directory(stored, each, problem)
        self._counts["unreadable"] += 1
        self._notes.append(problem)

    def _store_directory(self, stored: str, each: FoundDirectory, problem: str | None) -> None:
        values = (stored, each.device, each.stamp, problem)
        self._connection.execute("INSERT OR REPLACE INTO directories VALUES (?, ?, ?, ?)", values)

    # -- forgetting ------------------------------------------------------------------------------

    def _forget(self, roots: Sequence[Path], known: Mapping[str, _Known], found: FoundRuns) -> None:
        present = {self._paths.to_stored(each.path) for each in found.directories}
        gone, kept = list[str](), list[str]()
        for stored, before in known.items():
            path = self._paths.path(stored)
            if stored in present or not any(path.is_relative_to(root) for root in roots):
                continue
            hidden = any(path.is_relative_to(folder) for folder in found.unread)
            is_there = os.path.exists(path)  # noqa: PTH110 - no exception for any path
            is_unmounted = not is_there and device_of_nearest(path) != before.device
            (kept if hidden or is_unmounted else gone).append(stored)
        if kept:
            self._notes.append(
                f"{names_text(kept, 3)}: cannot be read (a disk that is not mounted?); the history keeps them; "
                "--rebuild removes them"
            )
        if gone:
            with transaction(self._connection):
                for stored in gone:
                    for table in ("runs", "proxies"):
                        removed = self._connection.execute(f"DELETE FROM {table} WHERE path = ?", (stored,)).rowcount
                        self._counts["forgotten"] += removed
                    self._connection.execute("DELETE FROM directories WHERE path = ?", (stored,))

    def _remove_unused(self) -> None:
        with transaction(self._connection):
            for table, column, users in (
                ("models", "model_id", ("runs", "proxies")),
                ("datasets", "dataset_id", ("runs",)),
            ):
                used = " UNION ".join(f"SELECT {column} FROM {user} WHERE {column} IS NOT NULL" for user in users)
                self._connection.execute(f"DELETE FROM {table} WHERE id NOT IN ({used})")


def export_sqlite(paths: Sequence[Path], file: Path, *, overwrite: bool = False) -> tuple[int, tuple[str, ...]]:
    """Export the runs and proxies at or below `paths`; return their number, and a note on each unreadable one.

    The file is written atomically. Raises UsageError, also if the file exists and not `overwrite`, and if a path of
    `paths` itself cannot be read.
    """
    if file.is_dir() or (file.exists() and not overwrite):
        problem = "is a directory" if file.is_dir() else "already exists; overwrite it with --overwrite"
        raise UsageError(f"{file}: {problem}, or name another file with --output")
    directories = list(_find_directories(paths))
    notes: list[str] = []
    with _new_database(file) as connection:
        make_tables(connection)
        for each in directories:
            try:
                with storable(each.path):
                    read_directory(each, RunReader())(connection, str(each.path))
            except UsageError as error:
                if each.path in paths:
                    raise
                notes.append(str(error))
        if len(notes) == len(directories):
            raise UsageError(f"none of the runs can be read; the first problem: {notes[0]}")
    return len(directories) - len(notes), tuple(notes)


def _find_directories(paths: Sequence[Path]) -> Iterator[FoundDirectory]:
    """Yield the runs and proxies at or below `paths`, each once. Raises UsageError for a path without any."""
    seen: dict[Path, None] = {}
    for path in paths:
        if path.is_file():
            found = [FoundDirectory(path, 0, "")]  # bare results
        elif path.is_dir():
            found = find_runs([path]).directories
        else:
            raise UsageError(f"{path}: no such run directory; check the path")
        if not found:
            raise UsageError(f"{path}: is not a run directory and contains none")
        for each in found:
            if each.path.resolve() not in seen:
                seen[each.path.resolve()] = None
                yield each


@contextlib.contextmanager
def _new_database(file: Path) -> Iterator[sqlite3.Connection]:
    """Create a database in one transaction; it replaces `file` if the block succeeds."""
    temporary = file.with_name(f".{file.name}.writing-{os.getpid()}")
    try:
        with contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = MEMORY")
            connection.execute("PRAGMA foreign_keys = ON")
            with transaction(connection):
                yield connection
        temporary.replace(file)
    except (OSError, sqlite3.OperationalError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise UsageError(f"{file}: cannot be written: {reason or one_line(str(error))}") from None
    finally:
        temporary.unlink(missing_ok=True)
