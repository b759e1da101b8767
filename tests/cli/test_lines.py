"""Progress without the live view: a line per trial, steps if verbose, or JSON."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest

from harness.trajectory import Outcome
from tbench.cli.progress import JsonLines, PlainLines, verdict_words
from tbench.errors import TrialError
from tbench.events import Event, Note, RunStarted, TrialPhase, TrialStep, TrialVerdict
from tbench.results import ErrorInfo, TrialResult
from tbench.runs.live.commands import outcome_text

TIME = datetime(2026, 1, 1, tzinfo=UTC)
RESULT = TrialResult(
    run="r", trial="t", task="alpha", seed=3, agent="a", reward=1.0, outcome=Outcome.SUBMITTED, steps=2,
    started_at=TIME, finished_at=TIME,
)  # fmt: skip
EVENTS: list[Event] = [
    RunStarted(run="r", trials=2),
    TrialPhase(trial="t", attempt=1, task="alpha", seed=3, phase="agent"),
    TrialStep(trial="t", attempt=1, step=1, line="ls"),
    Note(text="endpoint away: secret"),
    TrialVerdict(result=RESULT),
]


def printed(show: object, capsys: pytest.CaptureFixture[str]) -> list[str]:
    for event in EVENTS:
        show(event)  # type: ignore[operator]
    said = capsys.readouterr()
    return [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in (said.out or said.err).splitlines()]


def test_a_trial_has_one_line_and_notes_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(PlainLines(), capsys) == [
        "endpoint away: secret",
        "alpha seed 3: reward 1 (submitted, 2 steps), 0.0 s  [1/2]",
    ]


def test_who_wants_it_sees_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(PlainLines(verbose=True), capsys)[:2] == ["alpha seed 3: agent", "alpha seed 3: step 1  ls"]


def test_machines_get_every_event_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(JsonLines(lambda text: text.replace("secret", "[key]")), capsys)
    assert [json.loads(line)["kind"] for line in lines] == [event.kind for event in EVENTS]
    assert json.loads(lines[3])["text"] == "endpoint away: [key]"
    assert TrialResult.model_validate(json.loads(lines[4])["result"]) == RESULT


def test_a_trial_that_a_person_ended_is_not_called_an_error() -> None:
    ended = {"reward": None, "outcome": None, "error": ErrorInfo.of(TrialError("aborted", "ended by hand"))}
    result = RESULT.model_copy(update=ended)
    assert outcome_text(result) == verdict_words(result) == "ended by hand"
