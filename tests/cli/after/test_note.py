"""`tbench note`: what people write about trials and tasks, where it is shown and exported, and the second score."""

from __future__ import annotations

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from in_process import tbench
from run_trees import a_result, write_run
from shown_trials import write_steps
from site_pages import PageText
from site_pages_of_runs import trial_html
from stored_conversations import StoredTrial, store_run
from written_trials import WrittenTrial, write_files_of

from harness.trajectory import Message, Outcome, Reply, Step, Trajectory
from reports.site.writer import write_site
from tbench.scores.summary import percent
from tbench.storage.read_run import read_run
from tbench.storage.record_directory import RecordDirectory
from tbench.storage.run_files import RUN
from tbench.storage.run_store import RunStore
from tbench.storage.trial_notes import append_note, new_note

REWARDS = {("a", 0): 1.0, ("a", 1): 0.0, ("b", 0): 0.5, ("b", 1): None}
FAULT = ("--tag", "task-fault")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    results = [a_result(task, seed, reward) for (task, seed), reward in REWARDS.items()]
    directory = write_run(tmp_path / "runs" / "run", results, {"a": "sha256:a", "b": "sha256:b"}, (0, 1))
    for result in results:
        write_files_of(directory, result, WrittenTrial())
    return directory


def talk(said: str) -> Trajectory:
    """A conversation with one reply."""
    messages = (Message(role="user", content="do it"), Message(role="assistant", content=said))
    steps = (Step(index=1, reply=Reply(content=said)),)
    return Trajectory(protocol="keystrokes-json", messages=messages, steps=steps, outcome=Outcome.SUBMITTED)


def summary(run: Path, *more: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tbench("summary", str(run), "--json", *more).stdout)
    return found


def test_a_note_is_listed_and_shown_with_its_trial(run: Path) -> None:
    assert tbench("note", str(run)).stdout == "no notes\n"
    assert tbench("note", f"{run}/a/1", "no", "such file", *FAULT).returncode == 0
    assert tbench("note", f"{run}/b", "slow here").returncode == 0
    listed = tbench("note", str(run)).stdout.splitlines()
    assert [line.partition(" (")[0] for line in listed] == ["a/1: task-fault: no such file", "b: slow here"]
    assert "no such file" in tbench("note", f"{run}/a/1").stdout and "slow" not in tbench("note", f"{run}/a").stdout
    for command in ("show", "why"):
        assert "task-fault: no such file" in tbench(command, f"{run}/a/1").stdout
        assert "slow here" in tbench(command, f"{run}/b/0").stdout
        assert "no such file" not in tbench(command, f"{run}/a/0").stdout
    assert "1 trial is tagged task-fault" in tbench("summary", str(run)).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a/7", "x"), "trial a/7 does not exist"),
        (("c", "x"), "has no task c"),
        (("c/0", "x"), "has no task c"),
        (("", "x"), "is a run; write RUN/TASK/SEED"),
        (("../nowhere/a/0", "x"), "is not in a run directory"),
        (("a/0", "--tag", "two words"), "is not a tag"),
        (("a/0", "--remove"), "has no such note"),
        (("a/0", "x", "--remove"), "takes no text"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(run: Path, words: tuple[str, ...], said: str) -> None:
    done = tbench("note", f"{run}/{words[0]}".rstrip("/"), *words[1:])
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1) and said in done.stderr
    assert not (run / "notes.jsonl").exists()


def test_a_tag_or_all_notes_of_a_target_can_be_removed(run: Path) -> None:
    tbench("note", f"{run}/a/1", "why", *FAULT, "--tag", "slow")
    tbench("note", f"{run}/a", *FAULT)
    tbench("note", f"{run}/a/1", "--remove", *FAULT)
    assert [note.tags for note in read_run(run).trial_notes] == [("slow",), ("task-fault",)]
    tbench("note", f"{run}/a/1", "--remove")
    assert [note.target for note in read_run(run).trial_notes] == [("a", None)]
    assert len((run / "notes.jsonl").read_text().splitlines()) == 4, "lines are only appended"


def test_the_second_score_leaves_trials_out_and_the_first_never_does(run: Path) -> None:
    first = summary(run)
    tbench("note", f"{run}/a/1", *FAULT)
    tbench("note", f"{run}/b/1", *FAULT)
    found = summary(run, "--without", "task-fault")
    assert {name: found[name] for name in ("score", "score_line", "counts")} == {
        name: first[name] for name in ("score", "score_line", "counts")
    }
    assert first["without"] is None and summary(run)["without"] is None and found["tags"] == {"task-fault": 2}
    assert {**found["without"], "std": None} == {
        "tags": ["task-fault"],
        "left_out": 2,
        "planned": 4,
        "score": (1.0 + 0.5) / 2,
        "std": None,
    }
    lines = tbench("summary", str(run), "--without", "task-fault").stdout.splitlines()
    score, second = (
        next(at for at, line in enumerate(lines) if line.startswith(word)) for word in ("score", "without")
    )
    assert score < second and lines[score] == first["score_line"]
    assert lines[second] == f"without trials tagged task-fault: {percent(0.75)} %, 2 of 4 trials left out"
    assert summary(run, "--without", "none-has-it")["without"]["score"] == first["score"]["mean"]


def test_of_a_tagged_task_all_trials_are_left_out_and_no_verdict_stays_a_zero(run: Path) -> None:
    tbench("note", f"{run}/a", *FAULT)
    found = summary(run, "--without", "task-fault")["without"]
    assert (found["left_out"], found["score"]) == (2, 0.25)
    tbench("note", f"{run}/b", *FAULT)
    found = summary(run, "--without", "task-fault")["without"]
    assert (found["left_out"], found["score"]) == (4, None)


def test_notes_outlast_rewriting_and_hold_for_the_same_trial_only(run: Path, tmp_path: Path) -> None:
    tbench("note", f"{run}/a/1", "kept", *FAULT)
    store = RunStore(RecordDirectory.go_on(run, RUN), str)
    again = a_result("a", 1, 1.0, run="run", model="m")
    store.supersede({again.trial}, [again])
    store.close()
    assert read_run(run).tags == {("a", 1): {"task-fault"}}
    other = write_run(tmp_path / "other", [a_result("a", 1, 0.0, trial="a.s1.y")], {"a": "sha256:z"}, (1,))
    (other / "notes.jsonl").write_bytes((run / "notes.jsonl").read_bytes())
    stored = read_run(other)
    assert stored.trial_notes == () and "1 note on trials of another run" in stored.notes[-1]


def test_unknown_keys_and_incomplete_or_damaged_lines_do_no_harm(run: Path) -> None:
    tbench("note", f"{run}/a/1", "first")
    file = run / "notes.jsonl"
    known = json.loads(file.read_text())
    newer = json.dumps({**known, "text": "second", "colour": "red"})
    file.write_text(f"{json.dumps(known)}\n{newer}\nno json\n" + '{"time": "2026')
    done = tbench("note", str(run))
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["first", "second"]
    assert len(done.stderr.splitlines()) == 1 and "notes.jsonl:3: not JSON" in done.stderr
    tbench("note", f"{run}/a/1", "third")
    assert newer in file.read_text().splitlines(), "what is there stays as it is"
    assert [note.text for note in read_run(run).trial_notes] == ["first", "second", "third"]


def test_writers_at_once_lose_nothing(run: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: append_note(run, new_note("a", None, None, (), f"n{number}")), range(40)))
    assert {note.text for note in read_run(run).trial_notes} == {f"n{number}" for number in range(40)}


def test_pages_show_notes_and_are_written_again_for_a_new_one(run: Path, tmp_path: Path) -> None:
    def pages() -> tuple[str, str, str]:
        place = write_site([tmp_path / "runs"], tmp_path / "site").overview.parent / "runs" / "run"
        index = (place / "index.html").read_text()
        return index, *(" ".join(PageText(trial_html(place, f"a--{seed}")).text.split()) for seed in (0, 1))

    assert not any("task-fault" in page for page in pages())
    tbench("note", f"{run}/a/1", "<b>no</b> file", *FAULT)
    index, other, noted = pages()
    assert "task-fault: <b>no</b> file" in noted and "no</b>" not in other
    assert "1 trial is tagged task-fault" in " ".join(PageText(index).text.split())
    assert 'href="trial.html?a--1"' in index.partition("Notes")[2]


def test_exports_have_notes_and_choose_by_tag(tmp_path: Path) -> None:
    trials = [StoredTrial(talk(f"done {seed}"), seed=seed) for seed in (0, 1)]
    run = str(store_run(tmp_path / "run", trials))
    tbench("note", f"{run}/list-notes/1", "look", *FAULT)

    def exported(form: str, *more: str) -> Path:
        target = tmp_path / f"{form}{'-'.join(more)}"
        done = tbench("export", form, run, "--output", str(target), *more)
        assert done.returncode == 0, done.stderr
        return target

    rows = [json.loads(line) for line in (exported("sft") / "messages.jsonl").read_text().splitlines()]
    assert [row["tags"] for row in rows] == [[], ["task-fault"]]
    for option, seed in (("--tag", 1), ("--without", 0)):
        (row,) = (exported("sft", option, "task-fault") / "messages.jsonl").read_text().splitlines()
        assert json.loads(row)["seed"] == seed
    places = sorted(exported("atif").rglob("trajectory.json"))
    (note,) = json.loads(places[1].read_text())["extra"]["notes"]
    assert (note["tags"], note["text"]) == (["task-fault"], "look")
    assert "notes" not in json.loads(places[0].read_text())["extra"]
    tbench("export", "sqlite", run, "--output", str(tmp_path / "runs.sqlite"))
    with sqlite3.connect(tmp_path / "runs.sqlite") as file:
        found = file.execute("SELECT seed, tags FROM trials ORDER BY seed").fetchall()
    assert found == [(0, None), (1, '["task-fault"]')]


def test_the_notes_of_a_step_only_trial_are_shown(tmp_path: Path) -> None:
    """A trial whose files have no result is shown with the notes on its task."""
    result = a_result("a", 0, 0.0)
    run = write_run(tmp_path / "run", [result], {"a": "sha256:a"}, (0,))
    write_steps(run, result, [])
    tbench("note", f"{run}/a", "on the task")
    assert "on the task" in tbench("show", f"{run}/a/0").stdout
