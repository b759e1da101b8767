"""`tbench history`: its lists, and errors for wrong folders, tasks and files."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from run_trees import FIRST_NIGHT, a_result, write_run

from tbench.cli import main
from tbench.history.database import INDEX_NAME
from tbench.history.index import RunHistory

Here = Callable[..., tuple[int, str, str]]


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """Run the command in this process; return exit code, stdout and stderr."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tbench", "history", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        assert isinstance(end.value.code, int)
        return end.value.code, *capsys.readouterr()

    return call


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    for number, (model, rewards) in enumerate([("m", (1.0, 0.5)), ("m", (0.0, None)), ("other", (1.0, 1.0))]):
        begun = FIRST_NIGHT + timedelta(days=number)
        results = [a_result("tidy-notes", seed, reward, begun) for seed, reward in enumerate(rewards)]
        tasks = {"tidy-notes": "0123456789abcdef" if number else "f" * 16}
        write_run(folder / f"night-{number}", results, tasks, (0, 1), begun=begun, model=model)
    return folder


def test_the_runs_of_a_folder_are_listed_newest_first(history: Here, runs: Path) -> None:
    code, out, err = history(runs)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "run      begun             model  dataset          score  coverage  k  tokens        wall",
        "night-2  2026-01-03 22:00  other  bundled  100.0 ± 0.0 %       2/2  2     15k  1 h 00 min",
        "night-1  2026-01-02 22:00  m      bundled    0.0 ± 0.0 %       1/2  2     15k  1 h 00 min",
        "night-0  2026-01-01 22:00  m      bundled  75.0 ± 35.4 %       2/2  2     15k  1 h 00 min",
        "note: tasks of night-1 (2026-01-02) compared with night-0 (2026-01-01): changed content of tidy-notes",
    ]
    assert (runs / ".tbench-history.sqlite").is_file()


def test_runs_are_chosen_by_model_dataset_and_number(history: Here, runs: Path) -> None:
    def listed(*arguments: str) -> list[str]:
        return [line.split()[0] for line in history(runs, *arguments)[1].splitlines()[1:]]

    assert listed("--model", "other") == ["night-2"]
    assert listed("--dataset", "bundled", "--limit", "1") == ["night-2"]
    assert history(runs, "--dataset", "bundled@1")[1] == "no runs\n"


def test_one_task_is_followed_over_the_runs(history: Here, runs: Path) -> None:
    code, out, _ = history(runs, "--task", "tidy-notes")
    assert code == 0
    assert out.splitlines() == [
        "run      begun             model  content          mean  solved  steps  by seed",
        "night-2  2026-01-03 22:00  other  0123456789ab  100.0 %     2/2    7.0  1 1",
        "night-1  2026-01-02 22:00  m      0123456789ab    0.0 %     0/2    7.0  0 ERR",
        "night-0  2026-01-01 22:00  m      ffffffffffff   75.0 %     1/2    7.0  1 0.50",
        "note: content changed from night-1 (2026-01-02) on: ffffffffffff to 0123456789ab; "
        "earlier results are of another task",
    ]
    code, _, err = history(runs, "--task", "tidy-note")
    assert (code, err) == (2, "tbench: tidy-note: not a task of any run; did you mean tidy-notes?\n")


def test_all_of_it_is_json_for_programs(history: Here, runs: Path) -> None:
    listed = json.loads(history(runs, "--json")[1])
    assert listed["changes"] == {"added": 3, "changed": 0, "unchanged": 0, "forgotten": 0, "unreadable": 0}
    assert [(run["name"], run["score"], run["coverage"]) for run in listed["runs"]] == [
        ("night-2", 1.0, 1.0),
        ("night-1", 0.0, 0.5),
        ("night-0", 0.75, 1.0),
    ]
    assert len(listed["remarks"]) == 1
    task = json.loads(history(runs, "--json", "--task", "tidy-notes")[1])
    assert task["points"][1]["rewards"] == {"0": 0.0, "1": None}


def test_of_many_remarks_the_newest_are_printed(history: Here, tmp_path: Path) -> None:
    for number in range(13):
        begun = FIRST_NIGHT + timedelta(days=number)
        results = [a_result("a", 0, 1.0, begun)]
        write_run(tmp_path / f"night-{number:02}", results, {"a": str(number)}, (0,), begun=begun)
    notes = [line for line in history(tmp_path)[1].splitlines() if line.startswith("note: ")]
    assert len(notes) == 11 and "tasks of night-12 " in notes[9]
    assert notes[10] == "note: 2 more for earlier runs; --json prints all of them"


def test_what_cannot_be_read_is_noted_beside_the_list(history: Here, runs: Path) -> None:
    (runs / "night-1" / "run.json").write_text("{")
    code, out, err = history(runs)
    assert code == 0 and "night-2" in out and "night-1 " not in out
    assert err.startswith("note: ") and "night-1/run.json: not JSON" in err and err.count("\n") == 1


def test_a_folder_that_is_not_there_is_said(history: Here, runs: Path, tmp_path: Path) -> None:
    code, _, err = history(tmp_path / "absent")
    assert code == 2 and err.endswith("absent: no such folder; give the folder of the run directories\n")
    index = tmp_path / "index.sqlite"
    history(runs, "--index", index)
    shutil.rmtree(runs)
    code, out, err = history(runs, "--index", index)
    assert code == 0 and out.count("night-") >= 3
    assert err == f"note: {runs}: does not exist; the history keeps 3 runs of it\n"
    assert history(runs, "--index", index, "--rebuild")[0] == 2


def test_an_index_can_be_made_again(history: Here, runs: Path) -> None:
    history(runs)
    assert json.loads(history(runs, "--json")[1])["changes"]["unchanged"] == 3
    assert json.loads(history(runs, "--json", "--rebuild")[1])["changes"]["added"] == 3


def test_the_index_of_a_single_run_is_beside_it(history: Here, runs: Path) -> None:
    assert history(runs / "night-0")[1].splitlines()[1].startswith("night-0")
    assert (runs / ".tbench-history.sqlite").is_file()
    assert not (runs / "night-0" / ".tbench-history.sqlite").exists()


def test_runs_for_debugging_are_marked_and_in_no_table_of_scores(history: Here, runs: Path) -> None:
    file = runs / "night-2" / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"purpose": "debug"}))
    line = history(runs)[1].splitlines()[1]
    assert line.startswith("night-2") and line.endswith("debug") and "%" not in line
    assert "night-2" not in history(runs, "-t", "tidy-notes")[1]
    with RunHistory.open(runs / INDEX_NAME) as opened:
        assert {row.name for row in opened.runs()} == {"night-0", "night-1"}
