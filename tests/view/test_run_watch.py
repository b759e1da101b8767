"""Running runs below a folder, as they are published to live pages."""

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
from tbench.view.live_state import LiveState
from tbench.view.run_watch import RunWatch, open_run


class Watched:
    """RunWatch with a clock that the test sets."""

    def __init__(self, *roots: Path, **options: Any) -> None:
        self.now = (roots[0].stat().st_mtime) + 10
        self.changes: list[bool] = []
        self.state = LiveState()
        self.watch = RunWatch(roots, self.state, on_change=self.changes.append, clock=lambda: self.now, **options)
        self.watch.readers = 1

    def poll(self, after: float = 60.0) -> None:
        """Poll often enough that every recording has been checked."""
        self.now += after
        for _ in range(17):
            self.watch.poll()

    def posted(self, kind: str) -> list[Mapping[str, Any]]:
        return [value for key, value in self.state.snapshot().items() if key.startswith(f"{kind} ")]

    @property
    def run(self) -> Mapping[str, Any]:
        (only,) = self.posted("run")
        return only


def text_of(tile: Mapping[str, Any]) -> str:
    return "\n".join(row if isinstance(row, str) else "".join(row[::2]) for row in tile["rows"])


def test_a_run_appears_with_the_terminals_of_its_trials_and_is_followed(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.poll()
    assert watched.posted("run") == []
    with RunBeingWritten(tmp_path / "deep" / "r", ("a", "b")) as run:
        run.begin("a", 0)
        run.step("a", 0, 1, "hello\r\n$ ")
        run.enter("b", 0, "queued")
        watched.poll()
        assert (watched.run["state"], watched.run["phases"]["agent"], watched.run["phases"]["queued"]) == (
            "running",
            1,
            1,
        )
        (tile,) = watched.posted("trial")
        assert (tile["task"], tile["step"], text_of(tile)) == ("a", 2, "hello\n$")
        run.step("a", 0, 2, "\x1b[32mPASSED\x1b[0m\r\n")
        watched.poll()
        (tile,) = watched.posted("trial")
        assert tile["rows"][-2:] == [["$ ", "", "PASSED", "i2"], ""]
        run.judge("a", 0, 1.0)
        watched.poll(1)
        (tile,) = watched.posted("trial")
        assert (tile["mark"], tile["words"]) == ("pass", "reward 1")
        watched.poll(9)
        assert watched.posted("trial") == []
        run.end()
        watched.poll()
        assert watched.run["state"] == "ended"
    assert True in watched.changes
    watched.poll(700)
    assert watched.posted("run") == []


def test_verdicts_link_to_the_pages_that_exist(tmp_path: Path) -> None:
    watched = Watched(tmp_path, trial_link_of=lambda run, *trial: f"{run.name} {trial}" if trial[0] == "a" else None)
    with RunBeingWritten(tmp_path / "r", ("a", "b")) as run:
        for task in ("a", "b"):
            run.begin(task, 1)
            run.judge(task, 1, 1.0)
        watched.poll()
    assert [each["page"] for each in watched.run["verdicts"]] == [None, "r ('a', 1, 1)"]


def test_a_growing_recording_is_noticed_without_journal_events(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    with RunBeingWritten(tmp_path / "r") as run:
        run.begin("a", 0)
        watched.poll()
        with (tmp_path / "r/trials/a/seed-0/session.cast").open("a") as cast:
            cast.write('[1.0, "o", "from within"]\n')
        watched.poll()
        assert text_of(watched.posted("trial")[0]) == "from within"


def test_a_later_attempt_has_its_own_terminal(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    with RunBeingWritten(tmp_path / "r") as run:
        run.begin("a", 0)
        run.step("a", 0, 1, "first\r\n")
        run.judge("a", 0, None, final=False)
        run.begin("a", 0, attempt=2)
        run.step("a", 0, 1, "second\r\n")
        watched.poll()
        assert text_of(watched.posted("trial")[0]) == "second\n"


def test_a_run_whose_process_is_gone_is_killed_until_it_is_resumed(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    with RunBeingWritten(tmp_path / "r") as run:
        run.begin("a", 0)
        watched.poll()
        assert len(watched.posted("trial")) == 1
    watched.poll()
    assert (watched.run["state"], watched.run["path"]) == ("killed", str(tmp_path / "r"))
    assert watched.posted("trial") == []
    again = RecordDirectory.go_on(tmp_path / "r", RUN)
    again.append(JOURNAL_NAME, RunStarted(run="r", trials=2).model_dump_json())
    watched.poll()
    assert watched.run["state"] == "running"
    again.close()


def test_runs_that_ended_or_were_killed_long_ago_are_not_shown(tmp_path: Path) -> None:
    write_run(tmp_path / "old", [a_result("a", 0, 1.0)], {"a": None}, [0])
    with RunBeingWritten(tmp_path / "killed"):
        pass
    os.utime(tmp_path / "killed" / JOURNAL_NAME, (1, 1))
    watched = Watched(tmp_path)
    watched.poll()
    assert watched.posted("run") == []


@pytest.mark.parametrize(
    "content", ['{"status": "running"}', '{"status": "running", "tasks": 3, "seeds": []}', "{", "[]"]
)
def test_a_run_that_is_half_written_is_named_and_the_others_are_shown(tmp_path: Path, content: str) -> None:
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "run.json").write_text(content)
    watched = Watched(tmp_path)
    with RunBeingWritten(tmp_path / "r"):
        watched.poll()
        assert watched.run["name"] == "r"
    notes = watched.state.snapshot()["notes"]["texts"]
    assert ["half/run.json" in note for note in notes] == [True] * (content != "[]")


@pytest.mark.parametrize("task", ["../../elsewhere", "{0}/elsewhere", "no\0file", ""])
def test_a_task_name_in_a_journal_cannot_lead_out_of_the_run(tmp_path: Path, task: str) -> None:
    (tmp_path / "elsewhere" / "seed-0").mkdir(parents=True)
    (tmp_path / "elsewhere" / "seed-0" / "session.cast").write_text('{"width": 80}\n[0, "o", "secret"]\n')
    watched = Watched(tmp_path)
    with RunBeingWritten(tmp_path / "r") as run:
        run.enter(task.format(tmp_path), 0, "queued", "agent")
        watched.poll()
        assert watched.posted("trial")[0]["rows"] == []


def test_without_readers_no_recording_is_read(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.watch.readers = 0
    with RunBeingWritten(tmp_path / "r") as run:
        run.begin("a", 0)
        run.step("a", 0, 1, "hello\r\n")
        watched.poll()
        assert watched.posted("trial")[0]["rows"] == []
        watched.watch.poll_often()
        watched.poll(1)
        assert text_of(watched.posted("trial")[0]) == "hello\n"


def test_the_plan_of_a_run_of_another_version_is_known(tmp_path: Path) -> None:
    document = {"schema_version": 99, "status": "running", "run": "r", "tasks": [{"name": "a"}], "seeds": [0, 1]}
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "run.json").write_text(json.dumps(document))
    found = open_run(tmp_path / "later")
    assert isinstance(found, StoredRun)
    assert (found.name, found.planned) == ("r", 2)
