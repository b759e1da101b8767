"""The SQLite file of the index: created if missing, rebuilt if damaged or from another schema.

Errors of SQLite are raised as UsageError with one line, except damage, which the index handles itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from tbench.errors import UsageError
from tbench.locks import hold_lock
from tbench.storage.run_files import CONFIG_NAME, RESULTS_NAME
from tbench.text import one_line

SCHEMA_VERSION = 3
"""Version of the tables and their computed values; an index of another version is rebuilt."""
INDEX_NAME = ".tbench-history.sqlite"
"""File name of the index in the folder of the runs."""
_APPLICATION_ID = 0x7462_6831
"""Application id in SQLite's header: `tbh1`."""
_MAGIC, _APPLICATION_ID_AT = b"SQLite format 3\0", 68
_BUSY_SEC = 60.0
_PRAGMAS = ("synchronous = NORMAL", "foreign_keys = ON", "cache_size = -32768", "temp_store = MEMORY")
"""With synchronous = NORMAL a crash of the machine may lose the last transactions, but never damages the file."""


def default_index(folders: Sequence[Path]) -> Path:
    """Return the default index of some folders of runs: in the first folder, or next to it if it is a run."""
    first = folders[0]
    is_run = (first / CONFIG_NAME).exists() or (first / RESULTS_NAME).exists()
    return (first.resolve().parent if is_run else first) / INDEX_NAME


class DamagedIndex(UsageError):
    """The file is no longer an intact SQLite database."""


@cache
def schema() -> tuple[str, ...]:
    """Return the statements that create the tables."""
    text = (Path(__file__).parent / "schema.sql").read_text(encoding="utf-8")
    bare = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return tuple(statement.strip() for statement in bare.split(";") if statement.strip())


@contextlib.contextmanager
def sqlite_errors(file: Path) -> Iterator[None]:
    """Raise SQLite's errors within the block as UsageError, or as DamagedIndex."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise DamagedIndex(f"{file}: {one_line(str(error))}") from None
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            message = f"another process has been writing to it for {_BUSY_SEC:.0f} s; try again later"
        elif code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_IOERR):
            message = f"cannot be written ({one_line(str(error))}); name another file with --index"
        elif code == sqlite3.SQLITE_FULL:
            message = "cannot be written: no space left on the disk"
        else:
            raise  # a bug in tbench
        raise UsageError(f"{file}: {message}") from None


def connect(file: Path) -> tuple[sqlite3.Connection, tuple[str, ...]]:
    """Connect to an index; return the connection, and a sentence for each repair of the file.

    Raises UsageError for a file that is not an index of tbench, or is not writable.
    """
    head = _head(file)
    try:
        if head and not head.startswith(_MAGIC):
            raise DamagedIndex(f"{file}: not an SQLite database")
        return _open_index(file)
    except DamagedIndex:
        if not _is_known(file, head):
            remedy = "it was not overwritten; name another file with --index"
            raise UsageError(f"{file}: not a history of tbench; {remedy}") from None
        replace_damaged(file)
        connection, _ = _open_index(file)
        return connection, (f"{file}: was damaged, and is rebuilt from the run directories",)


def _head(file: Path) -> bytes:
    """Return the first bytes of the file; empty if it does not exist. Raises UsageError."""
    try:
        with file.open("rb") as opened:
            return opened.read(100)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}; name another file with --index") from None


def _is_known(file: Path, head: bytes) -> bool:
    """Whether a file that cannot be read was an index."""
    application_id = int.from_bytes(head[_APPLICATION_ID_AT : _APPLICATION_ID_AT + 4], "big")
    return file.name == INDEX_NAME or application_id == _APPLICATION_ID


def replace_damaged(file: Path) -> None:
    """Remove a damaged file, unless another process has already replaced it. Raises UsageError."""
    try:
        with _exclusive(file.parent):  # two processes may have detected the same damage
            if _is_damaged(file):
                for suffix in ("", "-wal", "-shm", "-journal"):
                    file.with_name(file.name + suffix).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{file}: damaged, and cannot be replaced: {error.strerror or error}") from None


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Let only one process at a time execute this block. Raises OSError."""
    directory = os.open(folder, os.O_RDONLY)
    try:
        with hold_lock(folder / INDEX_NAME, directory, _BUSY_SEC):
            yield
    finally:
        os.close(directory)


def _is_damaged(file: Path) -> bool:
    if not file.exists():
        return False
    try:
        with sqlite_errors(file), contextlib.closing(sqlite3.connect(file, timeout=_BUSY_SEC)) as connection:
            return bool(connection.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",))
    except DamagedIndex:
        return True


def _open_index(file: Path) -> tuple[sqlite3.Connection, tuple[str, ...]]:
    with sqlite_errors(file):
        connection = sqlite3.connect(file, timeout=_BUSY_SEC, isolation_level=None)
        try:
            _reject_foreign(connection, file)
            for pragma in _PRAGMAS:
                connection.execute(f"PRAGMA {pragma}")
            if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                with _exclusive(file.parent):  # fails at once while others read
                    connection.execute("PRAGMA journal_mode = WAL")
            return connection, _ensure_tables(connection, file)
        except BaseException:
            connection.close()
            raise


def _reject_foreign(connection: sqlite3.Connection, file: Path) -> None:
    """Raise UsageError for a database of another program. One without tables may become an index."""
    connection.execute("BEGIN")  # read both consistently: another process may be creating the tables
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    has_tables = connection.execute("SELECT 1 FROM sqlite_master").fetchone() is not None
    connection.execute("COMMIT")
    if has_tables and application_id != _APPLICATION_ID:
        remedy = "it was not overwritten; name another file with --index"
        raise UsageError(f"{file}: an SQLite database of another program; {remedy}")


def _ensure_tables(connection: sqlite3.Connection, file: Path) -> tuple[str, ...]:
    if _meta(connection) == _expected_meta():
        return ()
    with transaction(connection):
        before = _meta(connection)
        if before == _expected_meta():  # another process was faster
            return ()
        make_tables(connection)
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute("PRAGMA wal_checkpoint")  # writes the application id into the header of the file itself
    return (f"{file}: is from another version of tbench, and is rebuilt from the run directories",) if before else ()


def _meta(connection: sqlite3.Connection) -> dict[str, str]:
    """Return version and hash of the schema of a file; empty for one without tables."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is None:
        return {}
    return dict(connection.execute("SELECT key, value FROM meta"))


def _expected_meta() -> dict[str, str]:
    digest = hashlib.sha256("\n".join(schema()).encode()).hexdigest()[:16]
    return {"schema_version": str(SCHEMA_VERSION), "schema_hash": digest}


def make_tables(connection: sqlite3.Connection) -> None:
    """Create all tables, empty, within a transaction; existing ones are dropped."""
    connection.execute("PRAGMA defer_foreign_keys = ON")  # until the end of this transaction
    existing = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    for (name,) in existing.fetchall():
        connection.execute(f'DROP TABLE "{name}"')
    for statement in schema():
        connection.execute(statement)
    connection.executemany("INSERT INTO meta VALUES (?, ?)", _expected_meta().items())


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Execute the block in one transaction, which excludes other writing processes."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    connection.execute("COMMIT")
