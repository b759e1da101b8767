"""Writes chosen runs into one new SQLite file, with the tables of a history."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from tbench.errors import UsageError
from tbench.history.database import make_tables, transaction
from tbench.history.directories import FoundDirectory, find_runs
from tbench.history.storing import UNSTORABLE, read_directory
from tbench.text import one_line


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
