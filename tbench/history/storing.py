"""Writes the rows of a run or a proxy into the tables, in place of those that were there."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any

from tbench.history.directories import FoundDirectory
from tbench.history.proxies import PROXIES, ProxyRecord, read_proxy
from tbench.history.records import Row, RunRecord, read_record

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
