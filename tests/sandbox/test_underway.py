"""underway: notes about trials keep their sandboxes after a cut, for a while."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tbench.locks import FileLock
from tbench.sandbox.underway import UnderWay, forget, trials_under_way, why_kept


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "journal.jsonl").write_text("")
    return tmp_path


def note(keep_sec: float = 3600.0) -> UnderWay:
    now = time.time()
    return UnderWay(
        trial="t.s0.x", task="t", seed=0, attempt=1, sandbox="abc", entered_at=now, keep_sec=keep_sec,
        started_at=datetime.fromtimestamp(now, UTC),
    )  # fmt: skip


def test_a_note_is_read_again_until_it_is_forgotten(run: Path) -> None:
    note().write(run)
    (found,) = trials_under_way(run)
    assert (found.sandbox, found.phase) == ("abc", "agent")
    forget(run, "t.s0.x")
    forget(run, "t.s0.x")
    assert [*trials_under_way(run)] == []


def test_a_note_of_another_version_protects_as_well(run: Path) -> None:
    note().write(run)
    path = run / "underway" / "t.s0.x.json"
    path.write_text(path.read_text().replace("{", '{"later": 1,', 1))
    assert why_kept(run, "t.s0.x", "abc")[0]


def test_a_damaged_note_protects_nothing(run: Path) -> None:
    note().write(run)
    (run / "underway" / "t.s0.x.json").write_text('{"trial": "t')
    assert [*trials_under_way(run)] == []
    assert why_kept(run, "t.s0.x", "abc") == ("", False)


def test_after_a_cut_a_sandbox_is_kept_for_a_while(run: Path) -> None:
    note().write(run)
    why, goes_on = why_kept(run, "t.s0.x", "abc")
    assert "tbench resume" in why
    assert not goes_on
    assert why_kept(run, "t.s0.x")[0], "a network of it"
    assert why_kept(run, "t.s0.x", "from before a replay") == ("", False)
    assert why_kept(run, "other.s0.x", "abc") == ("", False)
    for path in (run / "journal.jsonl", run / "underway" / "t.s0.x.json"):
        os.utime(path, (time.time() - 4000,) * 2)
    assert why_kept(run, "t.s0.x", "abc") == ("", False)


def test_a_run_that_goes_on_keeps_its_sandboxes_in_any_case(run: Path) -> None:
    note(keep_sec=0).write(run)
    journal = run / "journal.jsonl"
    with journal.open("ab") as file:
        lock = FileLock(journal, file.fileno())
        assert why_kept(run, "t.s0.x", "abc")[1]
        lock.release()


def test_without_its_directory_nothing_is_kept(tmp_path: Path) -> None:
    assert why_kept(tmp_path / "gone", "t.s0.x", "abc") == ("", False)
