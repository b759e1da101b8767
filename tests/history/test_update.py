"""Export of chosen runs to one SQLite file, which is written atomically."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from run_trees import write_nights

from tbench.cli.export import export
from tbench.errors import UsageError
from tbench.history.database import INDEX_NAME
from tbench.history.index import RunHistory
from tbench.history.update import export_sqlite


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_nights(tmp_path / "runs", 3, 2, 2)
    return tmp_path / "runs"


def rows(file: Path, table: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(file)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return sorted(database.execute(f"SELECT * FROM {table}").fetchall())


def test_an_export_has_the_rows_of_the_index(runs: Path, tmp_path: Path) -> None:
    with RunHistory.open(runs / INDEX_NAME) as history:
        history.update(runs)
        assert export_sqlite([runs], tmp_path / "all.sqlite") == (3, ())
        for table in ("tasks", "trials", "models", "datasets"):
            assert rows(tmp_path / "all.sqlite", table) == rows(runs / INDEX_NAME, table) != []
    names = [(row[0], Path(row[1]).name, *row[2:]) for row in rows(tmp_path / "all.sqlite", "runs")]
    assert names == rows(runs / INDEX_NAME, "runs")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.sqlite", "runs"]


def test_some_runs_are_exported_each_once_and_bare_results_too(runs: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.jsonl"
    bare.write_text('{"task": "a", "seed": 0, "reward": 1}\n')
    chosen = [runs / "night-0000", runs / ".." / "runs" / "night-0000", runs / "night-0002", bare]
    assert export_sqlite(chosen, tmp_path / "some.sqlite") == (3, ())
    assert [Path(row[1]).name for row in rows(tmp_path / "some.sqlite", "runs")] == [
        "night-0000",
        "night-0002",
        "bare.jsonl",
    ]


def test_files_are_overwritten_only_on_request(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine"
    file.write_text("mine")
    with pytest.raises(UsageError, match="mine: already exists; overwrite it with --overwrite"):
        export_sqlite([runs], file)
    assert file.read_text() == "mine"
    assert export_sqlite([runs], file, overwrite=True)[0] == 3
    with pytest.raises(UsageError, match="is a directory"):
        export_sqlite([runs], tmp_path, overwrite=True)


def test_what_fails_leaves_the_file_as_it_was(runs: Path, tmp_path: Path) -> None:
    export_sqlite([runs], tmp_path / "all.sqlite")
    before = (tmp_path / "all.sqlite").read_bytes()
    (runs / "night-0001" / "run.json").write_text("{")
    with pytest.raises(UsageError, match=r"run\.json: not JSON"):
        export_sqlite([runs / "night-0000", runs / "night-0001"], tmp_path / "all.sqlite", overwrite=True)
    assert (tmp_path / "all.sqlite").read_bytes() == before
    count, (note,) = export_sqlite([runs], tmp_path / "others.sqlite")
    assert count == 2 and "night-0001/run.json: not JSON" in note
    for path, why in (
        (tmp_path / "absent", "no such run directory"),
        (tmp_path / "empty", "is not a run directory and contains none"),
    ):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(UsageError, match=why):
            export_sqlite([path], tmp_path / "none.sqlite")
    with pytest.raises(UsageError, match="cannot be written"):
        export_sqlite([runs], tmp_path / "absent" / "x.sqlite")
    assert not (tmp_path / "none.sqlite").exists() and not list(tmp_path.glob(".*"))


def test_an_export_is_no_index(runs: Path, tmp_path: Path) -> None:
    export_sqlite([runs], tmp_path / "all.sqlite")
    with pytest.raises(UsageError, match="an SQLite database of another program"):
        RunHistory.open(tmp_path / "all.sqlite")


def test_the_command_prints_how_many_runs_it_wrote(runs: Path, tmp_path: Path) -> None:
    shutil.rmtree(runs / "night-0001")
    (runs / "broken").mkdir()
    (runs / "broken" / "run.json").write_text("{")
    done = CliRunner().invoke(export, ["sqlite", str(runs), "-o", str(tmp_path / "all.sqlite")])
    assert done.exit_code == 0
    assert done.stdout == f"2 runs written to {tmp_path / 'all.sqlite'}\n"
    assert "broken/run.json: not JSON" in done.stderr
