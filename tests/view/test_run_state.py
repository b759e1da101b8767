"""The state of a running run, from its journal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from live_runs import RunBeingWritten
from run_trees import a_result

from tbench.events import EndpointPresence, Note, RunStarted, TrialSettled
from tbench.storage.read_run import read_plan
from tbench.view import run_state
from tbench.view.run_state import JournalTail, WatchedRun

NOW = 1_800_000_000.0


@pytest.fixture
def run(tmp_path: Path) -> RunBeingWritten:
    return RunBeingWritten(tmp_path / "r", ("a", "b"), seeds=4)


@pytest.fixture
def watched(run: RunBeingWritten) -> WatchedRun:
    return WatchedRun(read_plan(run.path))


def test_a_run_is_counted_by_phases_and_verdicts(run: RunBeingWritten, watched: WatchedRun) -> None:
    with run:
        run.enter("a", 0, "queued")
        run.enter("a", 1, "queued", "image", "sandbox")
        run.begin("a", 2)
        run.step("a", 2, 1, "hello\r\n")
        run.begin("b", 0)
        run.judge("b", 0, 1.0)
        run.begin("b", 1)
        run.judge("b", 1, 0.5)
        watched.follow(NOW)
    state = watched.as_json(NOW)
    assert {phase: count for phase, count in state["phases"].items() if count} == {
        "queued": 1,
        "sandbox": 1,
        "agent": 1,
    }
    assert state["marks"] == {"pass": 1, "partial": 1, "fail": 0, "error": 0}
    assert (state["ended"], state["to_come"], state["score"], state["scored"]) == (2, 3, 0.75, 2)
    assert [each["task"] for each in state["verdicts"]] == ["b", "b"]
    assert watched.trials["a.s2.x"].step == 2


def test_the_script_of_the_page_reads_only_what_is_sent(run: RunBeingWritten, watched: WatchedRun) -> None:
    script = (Path(run_state.__file__).with_name("assets") / "live.js").read_text(encoding="utf-8")
    read = set(re.findall(r"\brun\.(\w+)", script))
    assert "score_text" in read
    with run:
        sent = watched.as_json(NOW)
    assert read - sent.keys() == {"state", "page", "path"}  # which RunWatch adds


def test_the_end_is_estimated_from_at_least_three_trials(run: RunBeingWritten, watched: WatchedRun) -> None:
    with run:
        for seed in range(2):
            run.begin("a", seed)
            run.judge("a", seed, 0.0)
        watched.follow(NOW)
        assert watched.eta_sec(NOW) is None
        run.begin("a", 2)
        run.judge("a", 2, 0.0)
        watched.follow(NOW)
        assert watched.eta_sec(NOW) == pytest.approx(5 * 36)  # one at a time so far
        run.begin("b", 0)
        run.begin("b", 1)
        watched.follow(NOW)
        watched.forget_ended(NOW + 100)
        assert watched.eta_sec(NOW) == pytest.approx(5 * 36 / 2)
        assert watched.eta_sec(NOW + 30) == pytest.approx((5 * 36 - 2 * 30) / 2)


def test_an_attempt_that_is_made_again_has_not_ended(run: RunBeingWritten, watched: WatchedRun) -> None:
    with run:
        run.begin("a", 0)
        run.judge("a", 0, None, final=False)
        watched.follow(NOW)
        assert (watched.ended, watched.as_json(NOW)["verdicts"][0]["mark"]) == (0, "error")
        run.begin("a", 0, attempt=2)
        watched.follow(NOW)
        assert watched.as_json(NOW)["phases"]["agent"] == 1
        run.judge("a", 0, 1.0)
        watched.follow(NOW)
    assert watched.as_json(NOW)["marks"] == {"pass": 1, "partial": 0, "fail": 0, "error": 0}


def test_a_result_that_is_revised_later_is_shown(run: RunBeingWritten, watched: WatchedRun) -> None:
    with run:
        run.begin("a", 0)
        run.judge("a", 0, 1.0)
        watched.follow(NOW)
        assert watched.as_json(NOW)["score"] == 1.0
        run.tell(TrialSettled(result=a_result("a", 0, 0.0)))
        watched.follow(NOW)
    state = watched.as_json(NOW)
    assert (state["score"], state["ended"], state["marks"]["fail"], state["unread"]) == (0.0, 1, 1, 0)
    assert [each["mark"] for each in state["verdicts"]] == ["fail"]
    assert (ended := watched.trials["a.s0.x"].ended) is not None and ended.mark == "fail"


def test_a_resumed_run_counts_the_results_that_it_keeps(run: RunBeingWritten, watched: WatchedRun) -> None:
    with run:
        run.begin("a", 0)
        run.judge("a", 0, 1.0)
        run.begin("a", 1)
        run.judge("a", 1, None)
        run.begin("a", 2)  # and its process is killed
        run.tell(RunStarted(run="r", trials=7))
        watched.follow(NOW)
    state = watched.as_json(NOW)
    assert (state["ended"], state["to_come"], state["marks"]["error"]) == (1, 7, 0)


def test_an_outage_of_the_endpoint_is_shown_until_it_is_over(run: RunBeingWritten, watched: WatchedRun) -> None:
    with run:
        watched.follow(NOW)
        assert not watched.as_json(NOW)["away"]
        run.note("endpoint away: connection refused; pausing")
        run.tell(EndpointPresence(presence="away"))
        watched.follow(NOW)
        assert (watched.is_away, watched.endpoint) == (True, "endpoint away: connection refused; pausing")
        run.note("endpoint back after 9 s")
        run.tell(EndpointPresence(presence="back"))
        watched.follow(NOW)
    assert (watched.is_away, watched.endpoint) == (False, "endpoint back after 9 s")


def test_a_trial_with_a_verdict_stays_for_a_while(run: RunBeingWritten, watched: WatchedRun) -> None:
    with run:
        run.begin("a", 0)
        run.judge("a", 0, 1.0)
        watched.follow(NOW)
        assert watched.trials["a.s0.x"].as_tile()["mark"] == "pass"
        assert watched.forget_ended(NOW) == []
        assert watched.forget_ended(NOW + 1) == ["a.s0.x"]
        assert watched.trials == {}


# Reading a journal to which a run appends.


def add(file: Path, text: str) -> None:
    with file.open("a") as opened:
        opened.write(text)


def test_each_call_gives_new_events_and_a_torn_line_comes_with_the_next(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    add(file, RunStarted(run="r", trials=2).model_dump_json() + "\n" + '{"kind":"note",')
    tail = JournalTail(file)
    assert list(tail.new_events()) == [RunStarted(run="r", trials=2)]
    assert list(tail.new_events()) == []
    add(file, '"text":"é"}\n')
    add(file, EndpointPresence(presence="away").model_dump_json() + "\n")
    assert list(tail.new_events()) == [Note(text="é"), EndpointPresence(presence="away")]
    assert tail.unread == 0


def test_lines_of_another_version_are_counted_and_the_others_read(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    add(
        file,
        '{"kind":"of tomorrow"}\n{"kind":"note","text":"x","colour":1}\nno JSON\n[]\n\n{"kind":"note","text":"y"}\n',
    )
    tail = JournalTail(file)
    assert list(tail.new_events()) == [Note(text="y")]
    assert tail.unread == 4


def test_a_journal_that_became_shorter_is_read_from_its_begin(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    add(file, '{"kind":"note","text":"a long first line"}\n')
    tail = JournalTail(file)
    assert len(list(tail.new_events())) == 1
    file.write_text('{"kind":"note","text":"b"}\n')
    assert list(tail.new_events()) == [Note(text="b")]
