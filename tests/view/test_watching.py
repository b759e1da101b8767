"""Runs below a folder, as they stand, on the board."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from live_runs import RunBeingWritten
from run_trees import a_result, write_run

from tbench.events import RunStarted
from tbench.storage.read_run import StoredRun
from tbench.storage.record_directory import RecordDirectory
from tbench.storage.run_files import JOURNAL_NAME, RUN
from tbench.view.board import NewsBoard
from tbench.view.watching import RunWatch, open_run


class Watched:
    """A watch whose clock is set by hand."""

    def __init__(self, *roots: Path, **options: Any) -> None:
        self.now = (roots[0].stat().st_mtime) + 10
        self.changes: list[bool] = []
        self.board = NewsBoard()
        self.watch = RunWatch(roots, self.board, on_change=self.changes.append, clock=lambda: self.now, **options)
        self.watch.readers = 1

    def look(self, after: float = 60.0) -> None:
        """Look so often that every recording has had its turn."""
        self.now += after
        for _ in range(17):
            self.watch.look()

    def posted(self, kind: str) -> list[Mapping[str, Any]]:
        return [value for key, value in self.board.everything().items() if key.startswith(f"{kind} ")]

    @property
    def run(self) -> Mapping[str, Any]:
        (only,) = self.posted("run")
        return only


def text_of(tile: Mapping[str, Any]) -> str:
    return "\n".join(row if isinstance(row, str) else "".join(row[::2]) for row in tile["rows"])


def test_a_run_appears_with_the_terminals_of_its_trials_and_goes_on(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.look()
    assert watched.posted("run") == []
    with RunBeingWritten(tmp_path / "deep" / "r", ("a", "b")) as run:
        run.begin("a", 0)
        run.step("a", 0, 1, "hello\r\n$ ")
        run.enter("b", 0, "queued")
        watched.look()
        assert (watched.run["state"], watched.run["phases"]["agent"], watched.run["phases"]["queued"]) == (
            "running",
            1,
            1,
        )
        (tile,) = watched.posted("trial")
        assert (tile["task"], tile["step"], text_of(tile)) == ("a", 2, "hello\n$")
        run.step("a", 0, 2, "\x1b[32mPASSED\x1b[0m\r\n")
        watched.look()
        (tile,) = watched.posted("trial")
        assert tile["rows"][-2:] == [["$ ", "", "PASSED", "i2"], ""]
        run.judge("a", 0, 1.0)
        watched.look(1)
        (tile,) = watched.posted("trial")
        assert (tile["mark"], tile["words"]) == ("pass", "reward 1")
        watched.look(9)
        assert watched.posted("trial") == []
        run.end()
        watched.look()
        assert watched.run["state"] == "ended"
    assert True in watched.changes
    watched.look(700)
    assert watched.posted("run") == []


def test_verdicts_lead_to_the_pages_that_there_are(tmp_path: Path) -> None:
    watched = Watched(tmp_path, trial_link_of=lambda run, *trial: f"{run.name} {trial}" if trial[0] == "a" else None)
    with RunBeingWritten(tmp_path / "r", ("a", "b")) as run:
        for task in ("a", "b"):
            run.begin(task, 1)
            run.judge(task, 1, 1.0)
        watched.look()
    assert [each["page"] for each in watched.run["verdicts"]] == [None, "r ('a', 1, 1)"]


def test_a_recording_grows_also_where_the_journal_says_nothing(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    with RunBeingWritten(tmp_path / "r") as run:
        run.begin("a", 0)
        watched.look()
        with (tmp_path / "r/trials/a/seed-0/session.cast").open("a") as cast:
            cast.write('[1.0, "o", "from within"]\n')
        watched.look()
        assert text_of(watched.posted("trial")[0]) == "from within"


def test_a_later_attempt_has_its_own_terminal(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    with RunBeingWritten(tmp_path / "r") as run:
        run.begin("a", 0)
        run.step("a", 0, 1, "first\r\n")
        run.judge("a", 0, None, final=False)
        run.begin("a", 0, attempt=2)
        run.step("a", 0, 1, "second\r\n")
        watched.look()
        assert text_of(watched.posted("trial")[0]) == "second\n"


def test_a_run_whose_process_is_gone_is_cut_off_until_somebody_goes_on_with_it(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    with RunBeingWritten(tmp_path / "r") as run:
        run.begin("a", 0)
        watched.look()
        assert len(watched.posted("trial")) == 1
    watched.look()
    assert (watched.run["state"], watched.run["path"]) == ("killed", str(tmp_path / "r"))
    assert watched.posted("trial") == []
    again = RecordDirectory.go_on(tmp_path / "r", RUN)
    again.append(JOURNAL_NAME, RunStarted(run="r", trials=2).model_dump_json())
    watched.look()
    assert watched.run["state"] == "running"
    again.close()


def test_runs_that_ended_or_were_killed_long_ago_are_no_news(tmp_path: Path) -> None:
    write_run(tmp_path / "old", [a_result("a", 0, 1.0)], {"a": None}, [0])
    with RunBeingWritten(tmp_path / "killed"):
        pass
    os.utime(tmp_path / "killed" / JOURNAL_NAME, (1, 1))
    watched = Watched(tmp_path)
    watched.look()
    assert watched.posted("run") == []


@pytest.mark.parametrize(
    "content", ['{"status": "running"}', '{"status": "running", "tasks": 3, "seeds": []}', "{", "[]"]
)
def test_a_run_that_is_half_written_is_named_and_the_others_go_on(tmp_path: Path, content: str) -> None:
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "run.json").write_text(content)
    watched = Watched(tmp_path)
    with RunBeingWritten(tmp_path / "r"):
        watched.look()
        assert watched.run["name"] == "r"
    notes = watched.board.everything()["notes"]["texts"]
    assert ["half/run.json" in note for note in notes] == [True] * (content != "[]")


@pytest.mark.parametrize("task", ["../../elsewhere", "{0}/elsewhere", "no\0file", ""])
def test_a_journal_that_leads_out_of_its_run_leads_nowhere(tmp_path: Path, task: str) -> None:
    (tmp_path / "elsewhere" / "seed-0").mkdir(parents=True)
    (tmp_path / "elsewhere" / "seed-0" / "session.cast").write_text('{"width": 80}\n[0, "o", "secret"]\n')
    watched = Watched(tmp_path)
    with RunBeingWritten(tmp_path / "r") as run:
        run.enter(task.format(tmp_path), 0, "queued", "agent")
        watched.look()
        assert watched.posted("trial")[0]["rows"] == []


def test_nobody_looking_costs_no_recording(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.watch.readers = 0
    with RunBeingWritten(tmp_path / "r") as run:
        run.begin("a", 0)
        run.step("a", 0, 1, "hello\r\n")
        watched.look()
        assert watched.posted("trial")[0]["rows"] == []
        watched.watch.interest()
        watched.look(1)
        assert text_of(watched.posted("trial")[0]) == "hello\n"


def test_of_a_run_of_another_version_the_plan_is_known(tmp_path: Path) -> None:
    said = {"schema_version": 99, "status": "running", "run": "r", "tasks": [{"name": "a"}], "seeds": [0, 1]}
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "run.json").write_text(json.dumps(said))
    found = open_run(tmp_path / "later")
    assert isinstance(found, StoredRun)
    assert (found.name, found.planned) == ("r", 2)
