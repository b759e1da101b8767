"""run.log: its records, secrets, full disks, and effects on global logging."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from full_disk import files_end_at

from tbench.cli.run_log import run_log
from tbench.errors import TrialError, UsageError
from tbench.events import Event, Note, RunEnded, RunStarted, TrialFinished, TrialPhase, TrialStep, TrialVerdict
from tbench.results import ErrorInfo, TrialResult

TIME = datetime(2026, 1, 2, tzinfo=UTC)


def result(**more: Any) -> TrialResult:
    known: dict[str, Any] = {"run": "r", "trial": "t.s0.x", "task": "t", "seed": 0, "agent": "nop"}
    return TrialResult(**(known | {"started_at": TIME, "finished_at": TIME} | more))


FAILED = result(error=ErrorInfo.of(TrialError("sandbox_lost", "the container ended")))
EVENTS: tuple[Event, ...] = (
    RunStarted(run="nightly", trials=2),
    TrialPhase(trial="t.s0.x", attempt=1, task="t", seed=0, phase="agent"),
    TrialStep(trial="t.s0.x", attempt=1, step=3, line="$ make"),
    Note(text="endpoint: 503; trying again in 1.0 s"),
    TrialVerdict(result=result(reward=0.5, outcome="submitted", steps=7)),
    TrialVerdict(result=FAILED),
    TrialFinished(result=FAILED),
    RunEnded(interrupted=False),
)
INFO = [
    "INFO    nightly: 2 trials",
    "INFO    endpoint: 503; trying again in 1.0 s",
    "INFO    t seed 0: reward 0.5 (submitted, 7 steps), 0.0 s",
    "WARNING t seed 0: error sandbox_lost: the container ended, 0.0 s",
    "INFO    ended",
]


def records(directory: Path) -> list[str]:
    """Return the lines without their times, and assert that each has one."""
    lines = (directory / "run.log").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]", line) for line in lines), lines
    return [line.partition(" ")[2] for line in lines]


def log(directory: Path, level: str, *events: Event) -> list[str]:
    with run_log(directory, level, str) as subscriber:
        for event in events:
            subscriber(event)
    return records(directory)


def test_at_info_it_holds_notes_and_verdicts(tmp_path: Path) -> None:
    assert log(tmp_path, "info", *EVENTS) == INFO


def test_at_debug_it_holds_phases_and_steps_too(tmp_path: Path) -> None:
    steps = ["DEBUG   t seed 0: agent", "DEBUG   t seed 0: step 3  $ make"]
    assert log(tmp_path, "debug", *EVENTS) == [INFO[0], *steps, *INFO[1:]]


def test_at_warning_it_holds_errors_and_at_error_only_what_ended_the_run(tmp_path: Path) -> None:
    assert log(tmp_path, "warning", *EVENTS) == [INFO[3]]
    assert log(tmp_path, "error", *EVENTS) == [INFO[3]]


def test_it_is_appended_to_when_the_run_goes_on(tmp_path: Path) -> None:
    log(tmp_path, "info", *EVENTS)
    assert log(tmp_path, "info", Note(text="again")) == [*INFO, "INFO    again"]


def test_there_is_no_file_before_the_directory_is_the_runs(tmp_path: Path) -> None:
    """A run that is still running in another process keeps its directory and its log."""
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(UsageError), run_log(tmp_path, "info", str):
        raise UsageError("this run is still going on")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_what_ends_a_run_before_its_first_event_is_in_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError), run_log(tmp_path, "info", str):
        (tmp_path / "run.json").write_text("{}")
        raise UsageError("no address pool is left")
    assert records(tmp_path) == ["ERROR   no address pool is left"]


def test_a_bug_is_in_it_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), run_log(tmp_path, "info", str) as subscriber:
        subscriber(Note(text="so far"))
        raise ZeroDivisionError("by zero")
    text = (tmp_path / "run.log").read_text()
    assert "ERROR   by zero\nTraceback" in text and "in test_a_bug_is_in_it" in text


def test_every_record_is_redacted_tracebacks_and_libraries_included(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError),
        run_log(tmp_path, "debug", lambda text: text.replace("sesame", "[key]")) as subscriber,
    ):
        for event in (*EVENTS, Note(text="open sesame"), TrialStep(trial="x", attempt=1, step=1, line="sesame")):
            subscriber(event)
        logging.getLogger("some.library").warning("%s refused", "sesame")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("sesame is deprecated", stacklevel=1)
        raise ValueError("no sesame")
    text = (tmp_path / "run.log").read_text()
    for words in ("open [key]", "x: step 1  [key]", "[key] refused", "[key] is deprecated", "ValueError: no [key]"):
        assert words in text
    assert "sesame" not in text


def test_neither_a_full_disk_nor_a_record_that_makes_no_sense_raises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_log(tmp_path, "info", str) as subscriber:
        subscriber(Note(text="before"))
        with files_end_at(60):
            subscriber(Note(text="x" * 100))
        logging.getLogger("tbench").warning("%d", "no number")
        subscriber(Note(text="after"))
    subscriber(Note(text="after the end"))
    assert records(tmp_path) == ["INFO    before", "INFO    after"]
    assert "--- Logging error ---" not in capsys.readouterr().err


def test_a_directory_that_cannot_be_written_costs_the_log_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "run.log").mkdir()
    with run_log(tmp_path, "info", str) as subscriber:
        for event in EVENTS:
            subscriber(event)


def test_the_global_logging_is_left_as_it_was_found(tmp_path: Path) -> None:
    def found() -> list[Any]:
        loggers = [logging.getLogger(name) for name in (None, "tbench")]
        state = [(list(logger.handlers), logger.level, logger.propagate) for logger in loggers]
        return [*state, warnings.showwarning]

    before = found()
    log(tmp_path, "debug", *EVENTS)
    assert found() == before


PRINTED = """
import logging, sys, warnings
from pathlib import Path
from tbench.cli.run_log import run_log
from tbench.events import Note
with run_log(Path(sys.argv[1]), "info", str) as subscriber:
    subscriber(Note(text="a note"))
    logging.getLogger("tbench").warning("of our own")
    logging.getLogger("plain.library").warning("of a library")
    logging.getLogger("plain.library").info("chatter")
    logging.getLogger("quiet.library").addHandler(logging.NullHandler())
    logging.getLogger("quiet.library").warning("of a library that prints nothing")
    warnings.warn("a warning", stacklevel=1)
"""


def test_what_was_printed_is_printed_once_and_what_was_not_is_not(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRINTED, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr.splitlines()[0] == "of a library"
    assert done.stderr.count("UserWarning: a warning") == 1
    assert len([line for line in done.stderr.splitlines() if line.strip()]) <= 3, done.stderr
    text = (tmp_path / "run.log").read_text()
    for words in ("a note", "of our own", "of a library", "of a library that prints nothing", "UserWarning: a warning"):
        assert words in text
    assert "chatter" not in text
