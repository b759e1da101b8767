"""Progress of a run on a terminal: notes before the first trial stay on the screen."""

from __future__ import annotations

import re

import pytest
from run_plans import a_plan

from tbench.cli.progress import progress
from tbench.config.settings import OutputConfig
from tbench.events import Note, RunStarted, TrialPhase
from tbench.tasks.sources import TaskSet


def test_notes_from_before_the_first_trial_outlive_the_live_view(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    told = [f"task-{number} cannot run: oracle_missing" for number in range(9)]
    with progress(a_plan(), TaskSet((), {}), OutputConfig()) as show:
        show(RunStarted(run="r", trials=1))
        for text in told:
            show(Note(text=text))
        show(TrialPhase(trial="t", attempt=1, task="t", seed=0, phase="queued"))
        show(Note(text="task: building its image"))
    said = capsys.readouterr().err
    # Printed after the last control sequence, so nothing clears these lines.
    assert re.findall(r"\x1b\[(?:2K|\?25l)(task-\d cannot run: oracle_missing)\n", said) == told
    assert "2Ktask: building" not in said
