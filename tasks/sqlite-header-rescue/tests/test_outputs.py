"""Opens a copy of the recovered file alone and compares its rows with those that had been committed."""

import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

DATABASE = Path("/app/stock.db")


def committed_items() -> list[tuple]:
    rows = {n: [n, f"item-{n:03}", "ABCDEF"[n % 6], n * 7 % 23, 95 + n * n % 401] for n in range(1, 61)}
    for row in rows.values():
        row[3] += 5 if row[2] == "C" else 0
    rows[17][1], rows[17][4] = "item-17b", 1999
    return [tuple(row) for n, row in rows.items() if n not in (8, 29, 50)]


def committed_moves() -> list[tuple]:
    early = [(n, n * 11 % 60 + 1, n % 9 - 4, f"count {n}") for n in range(1, 31)]
    return early + [(n, n, -n, "late") for n in range(31, 34)]


def query(statement: str) -> list[tuple]:
    """The rows of one statement, asked of a copy that has no other file beside it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copyfile(DATABASE, Path(folder) / "copy.db")
        with closing(sqlite3.connect(f"file:{copy}?immutable=1", uri=True)) as connection:
            return connection.execute(statement).fetchall()


def test_the_file_is_sound() -> None:
    assert query("PRAGMA integrity_check") == [("ok",)]


def test_the_schema_is_as_it_was() -> None:
    names = query("SELECT type, name, tbl_name FROM sqlite_master")
    assert ("table", "items", "items") in names and ("table", "moves", "moves") in names
    assert ("index", "moves_by_item", "moves") in names
    assert [row[1] for row in query("PRAGMA table_info(items)")] == ["id", "name", "shelf", "quantity", "cents"]
    assert [row[1] for row in query("PRAGMA table_info(moves)")] == ["id", "item", "change", "note"]
    assert [row[2] for row in query("PRAGMA index_info(moves_by_item)")] == ["item"]


def test_every_committed_item_is_there() -> None:
    assert query("SELECT id, name, shelf, quantity, cents FROM items ORDER BY id") == committed_items()


def test_every_committed_move_is_there() -> None:
    assert query("SELECT id, item, change, note FROM moves ORDER BY id") == committed_moves()
