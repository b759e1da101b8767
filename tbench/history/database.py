"""The SQLite file of a history: made where it is missing, made anew where it is damaged or of another schema.

Whatever SQLite says is raised as a UsageError of one line, but for damage, of which the index itself takes care.
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
from tbench.locks import locked
from tbench.storage.run_files import CONFIG_NAME, RESULTS_NAME
from tbench.text import one_line

SCHEMA_VERSION = 3
"""Version of the tables and of what is computed for them; an index of another one is made anew."""
INDEX_NAME = ".tbench-history.sqlite"
"""Name of the index in the folder of the runs."""
_APPLICATION_ID = 0x7462_6831
"""What SQLite's header says of whose file it is: `tbh1`."""
_MAGIC, _APPLICATION_ID_AT = b"SQLite format 3\0", 68
_BUSY_SEC = 60.0
_PRAGMAS = ("synchronous = NORMAL", "foreign_keys = ON", "cache_size = -32768", "temp_store = MEMORY")
"""With synchronous = NORMAL a machine that fails costs the last transactions at most, never the file."""


def index_of(folders: Sequence[Path]) -> Path:
    """Where the index of some folders of runs is, unless another place is said: in the first; for a run, beside it."""
    first = folders[0]
    is_run = (first / CONFIG_NAME).exists() or (first / RESULTS_NAME).exists()
    return (first.resolve().parent if is_run else first) / INDEX_NAME


class Damaged(UsageError):
    """The file is no sound SQLite database any more."""


@cache
def schema() -> tuple[str, ...]:
    """The statements that make the tables."""
    text = (Path(__file__).parent / "schema.sql").read_text(encoding="utf-8")
    bare = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return tuple(statement.strip() for statement in bare.split(";") if statement.strip())


def _schema_hash() -> str:
    return hashlib.sha256("\n".join(schema()).encode()).hexdigest()[:16]


@contextlib.contextmanager
def told(file: Path) -> Iterator[None]:
    """Raise what SQLite says within the block as a UsageError, or as Damaged."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise Damaged(f"{file}: {one_line(str(error))}") from None
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            words = f"another process has been writing to it for {_BUSY_SEC:.0f} s; try again later"
        elif code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_IOERR):
            words = f"cannot be written ({one_line(str(error))}); name another file with --index"
        elif code == sqlite3.SQLITE_FULL:
            words = "cannot be written: no space is left on the disk"
        else:
            raise  # a bug of ours
        raise UsageError(f"{file}: {words}") from None


def connect(file: Path) -> tuple[sqlite3.Connection, tuple[str, ...]]:
    """The connection to an index, and what was done to the file, a sentence each.

    Raises UsageError for a file that is none of tbench's own, or cannot be written.
    """
    head = _head(file)
    try:
        if head and not head.startswith(_MAGIC):
            raise Damaged(f"{file}: no SQLite database")
        return _open(file)
    except Damaged:
        if not _is_known(file, head):
            words = "is no history of tbench's (nothing is overwritten); name another file with --index"
            raise UsageError(f"{file}: {words}") from None
        replace_damaged(file)
        connection, _ = _open(file)
        return connection, (f"{file}: was damaged, and is made anew of the run directories",)


def _head(file: Path) -> bytes:
    """The first bytes of the file; empty where there is none. Raises UsageError."""
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
    """Remove a damaged file, unless another process has already made a sound one of it. Raises UsageError."""
    try:
        with _alone_in(file.parent):  # two processes may have found the same damage
            if _is_damaged(file):
                for suffix in ("", "-wal", "-shm", "-journal"):
                    file.with_name(file.name + suffix).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{file}: damaged, and cannot be replaced: {error.strerror or error}") from None


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """One process at a time is in such a block. Raises OSError."""
    directory = os.open(folder, os.O_RDONLY)
    try:
        with locked(folder / INDEX_NAME, directory, _BUSY_SEC):
            yield
    finally:
        os.close(directory)


def _is_damaged(file: Path) -> bool:
    if not file.exists():
        return False
    try:
        with told(file), contextlib.closing(sqlite3.connect(file, timeout=_BUSY_SEC)) as connection:
            return bool(connection.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",))
    except Damaged:
        return True


def _open(file: Path) -> tuple[sqlite3.Connection, tuple[str, ...]]:
    with told(file):
        connection = sqlite3.connect(file, timeout=_BUSY_SEC, isolation_level=None)
        try:
            _refuse_strangers(connection, file)
            for pragma in _PRAGMAS:
                connection.execute(f"PRAGMA {pragma}")
            if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                with _alone_in(file.parent):  # nobody waits for this change of SQLite's: it fails where others read
                    connection.execute("PRAGMA journal_mode = WAL")
            return connection, _with_tables(connection, file)
        except BaseException:
            connection.close()
            raise


def _refuse_strangers(connection: sqlite3.Connection, file: Path) -> None:
    """Raise UsageError for a database of something else. One without tables may become an index."""
    connection.execute("BEGIN")  # both as of one moment: another process may be making the tables
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    has_tables = connection.execute("SELECT 1 FROM sqlite_master").fetchone() is not None
    connection.execute("COMMIT")
    if has_tables and application_id != _APPLICATION_ID:
        words = "is an SQLite database of something else (nothing is overwritten)"
        raise UsageError(f"{file}: {words}; name another file with --index")


def _with_tables(connection: sqlite3.Connection, file: Path) -> tuple[str, ...]:
    if _meta(connection) == _own_meta():
        return ()
    with transaction(connection):
        before = _meta(connection)
        if before == _own_meta():  # another process was faster
            return ()
        make_tables(connection)
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute("PRAGMA wal_checkpoint")  # whose file it is, is from now on in the file's own header
    return (f"{file}: has the tables of another tbench, and is made anew of the run directories",) if before else ()


def _meta(connection: sqlite3.Connection) -> dict[str, str]:
    """Which tables a file says that it has; empty for one without tables."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is None:
        return {}
    return dict(connection.execute("SELECT key, value FROM meta"))


def _own_meta() -> dict[str, str]:
    return {"schema_version": str(SCHEMA_VERSION), "schema_hash": _schema_hash()}


def make_tables(connection: sqlite3.Connection) -> None:
    """Make all tables, empty, within a transaction; those that were there are dropped."""
    connection.execute("PRAGMA defer_foreign_keys = ON")  # until the end of this transaction
    there = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    for (name,) in there.fetchall():
        connection.execute(f'DROP TABLE "{name}"')
    for statement in schema():
        connection.execute(statement)
    connection.executemany("INSERT INTO meta VALUES (?, ?)", _own_meta().items())


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All changes of the block, or none of them. One process at a time is in such a block; the others wait."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    connection.execute("COMMIT")
