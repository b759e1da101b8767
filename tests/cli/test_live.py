"""The live view at any size: the status is always shown, and names are cut at word boundaries."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from harness.trajectory import Outcome
from tbench.cli.progress import LiveView, duration, shorten
from tbench.events import Note, RunStarted, TrialPhase, TrialStep, TrialVerdict
from tbench.results import Blame, ErrorInfo, Stage, TrialResult

TIME = datetime(2026, 1, 1, tzinfo=UTC)


def result(task: str, reward: float | None) -> TrialResult:
    error = None
    if reward is None:
        error = ErrorInfo(stage=Stage.AGENT, type="lost", blame=Blame.USER, retryable=False, message="gone")
    return TrialResult(
        run="r", trial=task, task=task, seed=0, agent="a", reward=reward, error=error,
        outcome=Outcome.SUBMITTED, started_at=TIME, finished_at=TIME,
    )  # fmt: skip


class Now:
    """Clock that only moves when set."""

    sec = 0.0

    def __call__(self) -> float:
        return self.sec


def a_view(running: int = 64, queued: int = 0, *, away: bool = False) -> LiveView:
    now = Now()
    view = LiveView(is_away=lambda: away, clock=now)
    view(RunStarted(run="r", trials=100))
    # Waiting trials were added first.
    for number in range(queued + running):
        trial, phase = f"t{number}", "queued" if number < queued else "agent"
        view(TrialPhase(trial=trial, attempt=1, task=f"a-task-with-a-long-name-{number}", seed=3, phase=phase))  # type: ignore[arg-type]
        view(TrialStep(trial=trial, attempt=1, step=number, line="make: *** [all] Error 2"))
    for reward in (1.0, 0.0, None):
        view(TrialVerdict(result=result("other", reward)))
    view(Note(text="image built"))
    now.sec = 600.0
    return view


def lines(view: LiveView, width: int, height: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, height=height, force_terminal=False).print(view.render(width, height))
    return [line.rstrip() for line in out.getvalue().splitlines()]


STATUS = "10 min: 3/100 done, 1 passed, 1 error, score so far 50.0 %, ETA 5 h 23 min"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50), (100, 10), (80, 5), (80, 3), (80, 1)])
def test_how_the_run_stands_is_the_first_line_and_all_fits(width: int, height: int) -> None:
    shown = lines(a_view(), width, height)
    assert shown[0] == STATUS
    assert len(shown) <= max(1, height - 1)
    assert max(map(len, shown)) <= width


@given(st.integers(8, 200), st.integers(1, 80), st.integers(0, 70), st.integers(0, 70))
def test_no_screen_is_too_small(width: int, height: int, running: int, queued: int) -> None:
    shown = lines(a_view(running, queued), width, height)
    status = " ".join(shown[: len(shown)])
    assert "3/100" in status and "1" in status
    assert max(map(len, shown)) <= width
    if width >= 80:
        assert len(shown) <= max(1, height - 1)


def test_a_narrow_screen_folds_the_status() -> None:
    status = ["10 min: 3/100 done, 1 passed", "1 error, score so far 50.0 %", "ETA 5 h 23 min"]
    shown = lines(a_view(), 30, 24)
    assert shown[:3] == status and shown[3].startswith("trial")
    assert lines(a_view(), 30, 4) == status


def test_trials_at_work_come_first_and_the_rest_is_counted() -> None:
    shown = lines(a_view(running=5, queued=59), 100, 24)
    at_work = [line for line in shown if " agent " in line]
    assert len(at_work) == 5 and shown.index(at_work[0]) == 2
    assert "59 queued" in shown and not any(" queued " in line for line in shown)
    assert "and 48 more, 3 queued" in lines(a_view(running=64, queued=3), 100, 24)
    assert not any(" more" in line for line in lines(a_view(running=5), 100, 24))


def test_an_endpoint_that_is_away_is_shouted() -> None:
    assert "1 error, ENDPOINT DOWN, score" in lines(a_view(away=True), 100, 24)[0]


def test_names_are_cut_between_words() -> None:
    assert shorten("configure-git-webserver", 16) == "configure-git…"
    assert shorten("configure-git-webserver", 23) == "configure-git-webserver"
    assert shorten("pneumonoultramicroscopic", 10) == "pneumonou…"
    shown = lines(a_view(running=1), 80, 24)
    assert shown[2].startswith("a-task-with-a-long-name-0 · 3")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59.4, "59 s"), (60, "1 min"), (3599, "1 h 00 min"), (3600, "1 h 00 min"), (11100, "3 h 05 min")],
)
def test_times_are_said_as_people_say_them(seconds: float, words: str) -> None:
    assert duration(seconds) == words
