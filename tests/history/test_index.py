"""The index of runs always agrees with the run directories, whatever happens to them or to it."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from run_trees import FIRST_NIGHT, a_result, write_run

from tbench.errors import UsageError
from tbench.history.database import INDEX_NAME
from tbench.history.index import RunHistory
from tbench.results import Blame, ErrorInfo, Stage, Timings

KILLED = Path(__file__).parents[1] / "data" / "killed-run" / "run"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def history(runs: Path) -> Iterator[RunHistory]:
    with RunHistory.open(runs / INDEX_NAME) as opened:
        yield opened


def night(runs: Path, number: int, reward: float | None = 1.0, *, tasks: str = "ab", **more: str) -> Path:
    begun = FIRST_NIGHT + timedelta(days=number)
    results = [a_result(task, seed, reward, begun) for task in tasks for seed in (0, 1)]
    return write_run(runs / f"night-{number}", results, {t: f"hash-{t}" for t in tasks}, (0, 1), begun=begun, **more)


def names(history: RunHistory) -> list[str]:
    return [row.name for row in history.runs()]


def change(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(statement)


def test_the_seconds_of_tasks_are_means_over_models_of_trials_that_came_to_their_end(
    runs: Path, history: RunHistory
) -> None:
    night(runs, 1, tasks="ab")
    night(runs, 2, None, tasks="c")
    slow = [a_result("a", 0, 1.0, timings=Timings(wall_sec=72.0))]
    write_run(runs / "slow", slow, {"a": "hash-a"}, (0,), model="other")
    history.update(runs)
    assert history.expected_sec() == {"a": 48.0, "b": 36.0}


def test_runs_are_listed_newest_first_with_what_they_came_to(runs: Path, history: RunHistory) -> None:
    night(runs, 1, 0.5)
    night(runs, 2, None)
    night(runs / "of-another-model", 3, model="other")
    assert history.update(runs).words == "3 added"
    assert names(history) == ["night-3", "night-2", "night-1"]
    newest, without, first = history.runs()
    assert (first.path, first.model, first.agent, first.dataset) == (runs / "night-1", "m", "tests", "bundled")
    assert (first.score, first.score_std, first.per_seed, first.coverage) == (0.5, 0.0, (0.5, 0.5), 1.0)
    assert (first.begun_at, first.wall_sec, first.day) == ("2026-01-02T22:00:00.000Z", 3600.0, "2026-01-02")
    assert (first.seeds, first.tasks, first.planned, first.prompt_tokens) == ((0, 1), 2, 4, 28000)
    assert (without.score, without.errors, without.coverage, without.per_seed) == (None, 4, 0.0, ())
    assert newest.fingerprint == first.fingerprint and newest.model == "other"


def test_a_run_that_did_not_change_is_not_read_again(runs: Path, history: RunHistory) -> None:
    paths = [night(runs, number) for number in range(3)]
    history.update(runs)
    before = {path: (path / "run.json").stat() for path in paths}
    # As long and as old as before: nothing but reading it would tell.
    (paths[0] / "run.json").write_text("x" * before[paths[0]].st_size)
    os.utime(paths[0] / "run.json", ns=(before[paths[0]].st_atime_ns, before[paths[0]].st_mtime_ns))
    assert history.update(runs).words == "3 unchanged"


def test_a_run_that_goes_on_is_read_again_as_it_grows(runs: Path, history: RunHistory) -> None:
    run = write_run(runs / "night", [a_result("a", 0, 1.0)], {"a": "x"}, (0, 1), status="running")
    history.update(runs)
    (before,) = history.runs()
    assert (before.status, before.missing, before.score) == ("running", 1, 0.5)
    with (run / "results.jsonl").open("a") as file:
        file.write(a_result("a", 1, 0.5, run="night", model="m").model_dump_json() + "\n")
        file.write('{"torn')
    assert history.update(runs).words == "1 changed"
    (after,) = history.runs()
    assert (after.missing, after.score) == (0, 0.75)
    assert history.table("night").rows == ((1.0, 0.5),)


def test_what_is_read_again_takes_the_place_of_what_was_there(runs: Path, history: RunHistory) -> None:
    night(runs, 1, tasks="abc", model="old")
    history.update(runs)
    shutil.rmtree(runs / "night-1")
    night(runs, 1, tasks="bd", model="new")
    history.update(runs)
    with closing(sqlite3.connect(history.file)) as index:
        assert index.execute("SELECT task FROM tasks ORDER BY task").fetchall() == [("b",), ("d",)]
        assert index.execute("SELECT count(*) FROM trials").fetchone() == (4,)
        assert index.execute("SELECT name FROM models").fetchall() == [("new",)]


def test_a_killed_run_and_imported_results_are_runs_like_others(runs: Path, history: RunHistory) -> None:
    shutil.copytree(KILLED, runs / "killed")
    (runs / "bare").mkdir()
    lines = [{"task": "a", "seed": seed, "reward": seed, "model": "m"} for seed in (0, 1)]
    (runs / "bare" / "results.jsonl").write_text("\n".join(map(json.dumps, lines)))
    shutil.copytree(runs / "bare", runs / "with-a-plan")
    (runs / "with-a-plan" / "run.json").write_text('{"tasks": [{"name": "a"}, {"name": "b"}], "seeds": [0, 1]}')
    assert history.update(runs).added == 3
    own, *imported = history.runs()
    assert (own.name, own.imported, own.scored, own.status) == ("run", False, 3, "running")
    assert {(row.name, row.imported, row.model, row.begun_at, row.score) for row in imported} == {
        ("bare", True, "m", None, 0.5),
        ("with-a-plan", True, "m", None, 0.25),
    }


def test_the_details_of_an_imported_run_are_known(runs: Path, history: RunHistory) -> None:
    (runs / "job").mkdir()
    (runs / "job" / "results.jsonl").write_text('{"task": "a", "seed": 0, "reward": 1}\n')
    plan = {
        "run": "job",
        "imported": {"format": "harbor"},
        "model": "m",
        "agent": "theirs",
        "status": "interrupted",
        "seeds": [0, 1],
        "tasks": [{"name": "a", "hash": "h"}],
        "created_at": "2026-01-01T00:00:00Z",
        "ended_at": "2026-01-01T00:01:00+00:00",
        "dataset": {"name": "d", "version": "1", "source": "s", "tasks": 9},
    }
    (runs / "job" / "run.json").write_text(json.dumps(plan))
    history.update(runs)
    (row,) = history.runs(dataset="d@1")
    assert (row.imported, row.status, row.model, row.agent) == (True, "interrupted", "m", "theirs")
    assert (row.begun_at, row.wall_sec, row.planned, row.score) == ("2026-01-01T00:00:00.000Z", 60.0, 2, 0.5)
    assert history.hashes("job") == {"a": "h"}


def test_a_directory_that_is_no_readable_run_is_a_note(runs: Path, history: RunHistory) -> None:
    night(runs, 1)
    (runs / "broken").mkdir()
    (runs / "broken" / "run.json").write_text("{")
    (runs / "empty").mkdir()
    (runs / "empty" / "run.json").write_text('{"tasks": [], "seeds": [0]}')
    (runs / "huge").mkdir()
    (runs / "huge" / "results.jsonl").write_text(f'{{"task": "a", "seed": {2**70}, "reward": 1}}\n')
    for _ in range(2):  # the second time out of the index
        changes = history.update(runs)
        assert changes.unreadable == 3
        said = "\n".join(sorted(changes.notes))
        assert "broken/run.json: not JSON" in said and "empty: its plan has no task" in said
        assert "huge: contains a value that SQLite cannot store" in said
    assert names(history) == ["night-1"]


def test_a_run_that_cannot_be_read_any_more_keeps_its_figures(runs: Path, history: RunHistory) -> None:
    path = night(runs, 1)
    history.update(runs)
    (path / "results.jsonl").write_text("garbage\n" * 2)
    (note,) = history.update(runs).notes
    assert "results.jsonl:1: not JSON" in note and note.endswith("the history keeps its earlier content")
    assert history.runs()[0].score == 1.0
    night(runs, 1, 0.0)
    assert history.update(runs).words == "1 changed"
    assert history.runs()[0].score == 0.0


def test_a_run_that_could_not_be_read_is_tried_again(runs: Path, history: RunHistory) -> None:
    file = night(runs, 1) / "results.jsonl"
    whole, before = file.read_bytes(), file.stat()
    for content, words in ((whole.replace(b"{", b"[", 1), "1 unreadable"), (whole, "1 changed"), (b"", "1 unchanged")):
        file.write_bytes(content.ljust(len(whole), b"\n"))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert history.update(runs).words == words


def test_a_name_that_is_no_text_is_a_note(runs: Path, history: RunHistory) -> None:
    night(runs, 1)
    (runs / "night-1").rename(runs / os.fsdecode(b"night-\xff"))
    night(runs, 2)
    (note,) = history.update(runs).notes
    assert note.endswith("cannot be read (its name is not valid text; rename it)")
    assert names(history) == ["night-2"]


def test_a_run_that_is_gone_is_forgotten(runs: Path, history: RunHistory) -> None:
    night(runs, 1)
    night(runs, 2, model="gone")
    history.update(runs)
    shutil.rmtree(runs / "night-2")
    assert history.update(runs).words == "1 unchanged, 1 forgotten"
    assert names(history) == ["night-1"]
    with closing(sqlite3.connect(history.file)) as index:
        assert index.execute("SELECT name FROM models").fetchall() == [("m",)]


def test_only_what_lay_below_a_root_that_is_there_is_forgotten(runs: Path, history: RunHistory, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    night(runs, 1)
    night(elsewhere, 2)
    history.update(runs, elsewhere)
    assert [row.path for row in history.runs(under=[elsewhere])] == [elsewhere / "night-2"]
    assert [row.path for row in history.runs(under=[runs])] == [runs / "night-1"]
    assert len(history.runs(under=[tmp_path])) == 2
    shutil.rmtree(elsewhere)
    assert history.update(runs) == history.update(runs)
    assert names(history) == ["night-2", "night-1"]
    (note,) = history.update(elsewhere).notes
    assert note == f"{elsewhere}: does not exist; the history keeps 1 run of it"
    assert names(history) == ["night-2", "night-1"]


def test_a_disk_that_is_not_mounted_does_not_empty_the_history(runs: Path, history: RunHistory) -> None:
    (runs / "disk").mkdir()
    night(runs / "disk", 1)
    history.update(runs)
    change(history.file, "UPDATE directories SET device = device + 1")  # as if it had been another disk
    shutil.rmtree(runs / "disk" / "night-1")
    changes = history.update(runs)
    assert changes.forgotten == 0 and "not mounted" in changes.notes[0] and "disk/night-1" in changes.notes[0]
    assert names(history) == ["night-1"]


def test_a_folder_that_cannot_be_looked_into_keeps_its_runs(runs: Path, history: RunHistory) -> None:
    night(runs / "inner", 1)
    history.update(runs)
    shutil.move(runs / "inner", runs / "moved")
    (runs / "inner").symlink_to("inner")  # ELOOP, also for root
    changes = history.update(runs)
    assert changes.words == "1 added"
    (runs / "inner").unlink()
    assert history.update(runs).words == "1 unchanged, 1 forgotten"


def test_links_are_followed_and_each_directory_is_one_run(runs: Path, history: RunHistory, tmp_path: Path) -> None:
    night(tmp_path / "other-disk", 1)
    (runs / "far").symlink_to(tmp_path / "other-disk")
    night(runs, 2)
    (runs / "a-latest").symlink_to("night-2")
    (runs / "circle").symlink_to(runs)
    assert history.update(runs).added == 2
    assert [row.path for row in history.runs()] == [runs / "night-2", runs / "far" / "night-1"]


def test_a_folder_that_was_moved_with_its_index_is_known_as_before(runs: Path, tmp_path: Path) -> None:
    night(runs, 1)
    with RunHistory.open(runs / INDEX_NAME) as history:
        history.update(runs)
    moved = runs.rename(tmp_path / "moved")
    with RunHistory.open(moved / INDEX_NAME) as history:
        assert history.update(moved).words == "1 unchanged"
        assert history.runs()[0].path == moved / "night-1"


def test_runs_can_be_chosen(runs: Path, history: RunHistory) -> None:
    night(runs, 1)
    night(runs, 2, model="other")
    night(runs, 3, source="tasks-of-mine")
    history.update(runs)

    def chosen(**by: str) -> list[str]:
        return [row.name for row in history.runs(**by)]  # type: ignore[arg-type]

    assert chosen(model="other") == ["night-2"]
    assert chosen(dataset="tasks-of-mine") == ["night-3"]
    assert [row.name for row in history.runs(limit=1)] == ["night-3"]


def test_one_run_is_found_by_directory_or_by_a_name_that_it_has_alone(runs: Path, history: RunHistory) -> None:
    first, second = night(runs / "x", 1, 0.25), night(runs / "y", 1, 0.75)
    night(runs, 2)
    history.update(runs)
    assert history.run(first).score == 0.25 and history.run(second).score == 0.75
    assert history.run("night-2").path == runs / "night-2"
    assert history.hashes(first) == {"a": "hash-a", "b": "hash-b"}
    with pytest.raises(UsageError, match="night-1: 2 runs have this name"):
        history.run("night-1")
    with pytest.raises(UsageError, match="nothing: no such run in the history"):
        history.table("nothing")


def test_a_task_is_followed_over_all_runs(runs: Path, history: RunHistory) -> None:
    night(runs, 1, 0.0)
    night(runs, 2, None)
    night(runs, 3, tasks="b")
    history.update(runs)
    newest, first = history.task("a")
    assert (newest.name, newest.mean_reward, newest.scored, newest.rewards) == ("night-2", None, 0, {0: None, 1: None})
    assert (first.mean_reward, first.hash, first.planned, first.mean_steps) == (0.0, "hash-a", 2, 7.0)
    assert len(history.task("b")) == 3 and history.task("c") == ()


def test_the_trials_of_a_task_are_given_run_by_run(runs: Path, history: RunHistory) -> None:
    night(runs, 1, 0.0)
    night(runs, 2, None)
    night(runs, 3, tasks="b")
    history.update(runs)
    found = history.trials_by_run("a")
    assert {path.name: [(each.seed, each.status) for each in trials] for path, trials in found.items()} == {
        "night-1": [(0, "fail"), (1, "fail")],
        "night-2": [(0, "error"), (1, "error")],
    }
    assert {each.task for trials in found.values() for each in trials} == {"a"}
    assert history.trials_by_run("c") == {}


def test_the_trials_of_a_run_are_read_as_far_as_they_are_wanted(runs: Path, history: RunHistory) -> None:
    error = ErrorInfo(stage=Stage.IMAGE, type="PullFailed", blame=Blame.INFRA, retryable=True, message="limit")
    results = [a_result("a", 0, 1.0), a_result("a", 1, 0.5, attempt=2), a_result("b", 0, None, error=error)]
    run = write_run(runs / "r", results, {"a": "h", "b": "h", "c": "h"}, (0, 1))
    history.update(runs)
    first, second, failed = history.trials(run)
    assert (first.task, first.seed, first.status, first.reward) == ("a", 0, "pass", 1.0)
    assert (second.attempt, second.status) == (2, "partial")
    assert (failed.status, failed.error, failed.error_blame, failed.reward) == ("error", "PullFailed", "infra", None)
    assert history.trials(run, tasks=["a", "c"]) == (first, second)
    assert history.trials(run, status="error") == (failed,)
    assert history.trials(run, tasks=[]) == ()
    (group,) = history.errors(run)
    assert (group.type, group.count, group.example_message) == ("PullFailed", 1, "limit")


def test_everything_can_be_read_again(runs: Path, history: RunHistory) -> None:
    night(runs, 1)
    history.update(runs)
    history.clear()
    assert history.runs() == ()
    assert history.update(runs).words == "1 added"
