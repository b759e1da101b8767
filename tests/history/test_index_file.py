"""The file of the index: concurrent and killed processes, damage, other schemas, foreign files."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from full_disk import files_end_at
from run_trees import write_nights

from tbench.errors import UsageError
from tbench.history.database import INDEX_NAME, SCHEMA_VERSION
from tbench.history.index import RunHistory

UPDATE = """
import os, signal, sys
from pathlib import Path
from tbench.history.index import RunHistory

def statement(text):
    global left
    left -= text.startswith(sys.argv[3])
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

left = int(sys.argv[4])
with RunHistory.open(Path(sys.argv[2])) as history:
    history._connection.set_trace_callback(statement)
    history.update(Path(sys.argv[1]))
"""


def updating(runs: Path, killed_at: str = "", times: int = 0) -> subprocess.Popen[bytes]:
    """A process that updates the index; it is killed before the statement that is so many times one that begins so."""
    return subprocess.Popen([sys.executable, "-c", UPDATE, runs, runs / INDEX_NAME, killed_at, str(times)])


def updated(runs: Path, name: str = INDEX_NAME) -> tuple[tuple[str, ...], str]:
    """A change to the file, and the result of an update."""
    with RunHistory.open(runs / name) as history:
        changes = history.update(runs)
        return (*history.notes, *changes.notes), changes.words


def content(runs: Path) -> list[object]:
    with closing(sqlite3.connect(runs / INDEX_NAME)) as index:
        assert index.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert index.execute("PRAGMA foreign_key_check").fetchall() == []
        columns = "runs.path, runs.score, task, seed, reward, models.name"
        tables = "trials JOIN runs ON runs.id = run_id JOIN models ON models.id = model_id"
        return index.execute(f"SELECT {columns} FROM {tables} ORDER BY runs.path, task, seed").fetchall()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_nights(tmp_path, 6, 3, 2, models=2)
    return tmp_path


@pytest.mark.parametrize("before", ["nothing", "a damaged one"])
def test_two_processes_may_bring_it_up_to_date_at_once(runs: Path, before: str) -> None:
    if before != "nothing":
        (runs / INDEX_NAME).write_bytes(b"damage" * 1000)
    processes = [updating(runs) for _ in range(2)]
    for process in processes:
        process.wait(timeout=60)
    assert [process.returncode for process in processes] == [0, 0]
    assert len(content(runs)) == 36
    assert updated(runs) == ((), "6 unchanged")


def test_killed_updates_leave_a_sound_index_that_the_next_one_completes(runs: Path) -> None:
    there = 0
    for statement, times, added in (("INSERT INTO trials", 8, 1), ("COMMIT", 2, 1), ("INSERT INTO tasks", 2, 0)):
        process = updating(runs, statement, times)
        process.wait(timeout=60)
        assert process.returncode == -signal.SIGKILL
        there += added
        assert len(content(runs)) == 6 * there
    with RunHistory.open(runs / INDEX_NAME) as history:
        assert all(row.scored == 6 for row in history.runs())
        assert history.update(runs).words == f"{6 - there} added, {there} unchanged"
    whole = content(runs)
    (runs / INDEX_NAME).unlink()
    updated(runs)
    assert content(runs) == whole and len(whole) == 36


@pytest.mark.parametrize("damage", ["beginning", "middle", "half", "text"])
def test_a_damaged_index_is_rebuilt(runs: Path, damage: str) -> None:
    updated(runs)
    whole = content(runs)
    file = runs / INDEX_NAME
    data = bytearray(file.read_bytes())
    noise = random.Random(1).randbytes(len(data))
    match damage:
        case "beginning":
            data[:2048] = noise[:2048]
        case "middle":
            data[4096:] = noise[4096:]
        case "half":
            del data[len(data) // 2 :]
        case "text":
            data = bytearray(b"nothing of the kind\n")
    file.write_bytes(data)
    notes, words = updated(runs)
    assert "was damaged" in notes[0] and words == "6 added"
    assert content(runs) == whole


def test_damage_found_by_a_query_is_reported_with_its_remedy(runs: Path) -> None:
    updated(runs)
    file = runs / INDEX_NAME
    with closing(sqlite3.connect(file)) as index:
        (page,) = index.execute("SELECT rootpage FROM sqlite_master WHERE name = 'tasks_by_name'").fetchone()
        (size,) = index.execute("PRAGMA page_size").fetchone()
    with file.open("r+b") as opened:
        opened.seek((page - 1) * size)
        opened.write(b"\xff" * size)
    with RunHistory.open(file) as history, pytest.raises(UsageError, match="rebuild it with: tbench history --re"):
        history.task("task-000")


def test_an_index_of_another_schema_is_rebuilt(runs: Path) -> None:
    updated(runs)
    for version in (SCHEMA_VERSION - 1, SCHEMA_VERSION + 1):
        set_version(runs, version)
        notes, words = updated(runs)
        assert "from another version of tbench" in notes[0] and words == "6 added"
    assert len(content(runs)) == 36


def test_an_index_whose_tables_do_not_match_its_version_is_rebuilt(runs: Path) -> None:
    updated(runs)
    with closing(sqlite3.connect(runs / INDEX_NAME)) as index, index:
        index.execute("UPDATE meta SET value = 'another' WHERE key = 'schema_hash'")
    assert updated(runs)[1] == "6 added"


def set_version(runs: Path, version: int) -> None:
    with closing(sqlite3.connect(runs / INDEX_NAME)) as index, index:
        index.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (version,))


def test_a_file_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as other, other:
        other.execute("CREATE TABLE mine (x)")
    for name, why in (("notes.txt", "not a history of tbench"), ("other.sqlite", "database of another program")):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(UsageError, match=f"{name}: .*{why}.*name another file with --index"):
            RunHistory.open(tmp_path / name)
        assert (tmp_path / name).read_bytes() == before
    with pytest.raises(UsageError, match=r"cannot be written .*name another file with --index"):
        RunHistory.open(tmp_path / "absent" / "index.sqlite")
    with pytest.raises(UsageError, match="Is a directory; name another"):
        (tmp_path / "folder").mkdir()
        RunHistory.open(tmp_path / "folder")


def test_a_full_disk_is_one_line_and_costs_nothing_but_what_was_not_written(runs: Path) -> None:
    with RunHistory.open(runs / INDEX_NAME) as history:
        with files_end_at(60_000), pytest.raises(UsageError, match=r"sqlite: cannot be written"):
            history.update(runs)
        there = len(history.runs())
        assert there < 6
        assert history.update(runs).words == ", ".join(
            filter(None, (f"{6 - there} added", f"{there} unchanged" if there else ""))
        )
    assert len(content(runs)) == 36


def test_a_new_index_has_its_application_id_in_the_header(tmp_path: Path) -> None:
    with RunHistory.open(tmp_path / "index.sqlite"):
        assert b"tbh1" in (tmp_path / "index.sqlite").read_bytes()[:100]
