"""stopping: a run whose endpoint is gone, or never answered, starts no more trials and reports why."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tbench.config.settings import ScheduleConfig
from tbench.errors import TrialError
from tbench.events import TrialStep, TrialVerdict
from tbench.results import ErrorInfo, TrialResult
from tbench.runs.stop_policy import FIRST_TRIALS, PlannedStop, StopPolicy


class FakeGate:
    """Closed while `there` is not set."""

    def __init__(self) -> None:
        self.gave_up: str | None = None
        self.there = asyncio.Event()

    async def wait(self) -> None:
        await self.there.wait()


def verdict(trial: str, error: str | None = None, steps: int = 0) -> TrialVerdict:
    now = datetime.now(UTC)
    result: dict[str, Any] = {"run": "r", "trial": trial, "task": "t", "seed": 0, "agent": "a", "steps": steps}
    info = ErrorInfo.of(TrialError(error, f"{trial}: the server's words")) if error else None
    return TrialVerdict(
        result=TrialResult(**result, error=info, reward=None if error else 1.0, started_at=now, finished_at=now)
    )


def failed(number: int) -> TrialVerdict:
    return verdict(f"t{number}", ("endpoint_refused", "endpoint_unavailable")[number % 2])


def test_a_run_whose_first_trials_all_failed_at_the_endpoint_stops() -> None:
    stopping = StopPolicy(planned=100)
    for number in range(FIRST_TRIALS):
        assert stopping.reason is None
        stopping.on_event(failed(number))
    assert stopping.reason == (
        "the first 3 trials ended with endpoint errors, and no request was answered; last error: t2: the server's words"
    )


@pytest.mark.parametrize(
    "answer",
    [
        TrialStep(trial="t", attempt=1, step=2, line=""),
        verdict("t", steps=1),
        verdict("t", "endpoint_refused", steps=1),
    ],
)
def test_one_answer_anywhere_is_enough_to_go_on(answer: Any) -> None:
    stopping = StopPolicy(planned=100)
    stopping.on_event(answer)
    for number in range(10):
        stopping.on_event(failed(number))
    assert stopping.reason is None


def test_a_first_step_is_a_question_and_no_answer() -> None:
    stopping = StopPolicy(planned=100)
    for number in range(FIRST_TRIALS):
        stopping.on_event(TrialStep(trial=f"t{number}", attempt=1, step=1, line=""))
        stopping.on_event(failed(number))
    assert stopping.reason is not None


def test_attempts_at_one_trial_are_one_trial() -> None:
    stopping = StopPolicy(planned=100)
    for _ in range(10):
        stopping.on_event(failed(1))
    assert stopping.reason is None


def test_other_errors_say_nothing_of_the_endpoint() -> None:
    stopping = StopPolicy(planned=100)
    for number in range(10):
        stopping.on_event(verdict(f"t{number}", "image_build_failed"))
    assert stopping.reason is None


@pytest.mark.parametrize("others", [0, 1])
def test_a_run_with_fewer_trials_stops_when_all_of_them_failed(others: int) -> None:
    stopping = StopPolicy(planned=2 + others)
    for number in range(others):
        stopping.on_event(verdict(f"other{number}", "task_invalid"))
    stopping.on_event(failed(0))
    assert stopping.reason is None
    stopping.on_event(failed(1))
    assert stopping.reason is not None


async def test_nothing_starts_while_the_endpoint_is_away_and_nothing_ever_when_it_was_given_up() -> None:
    gate, said = FakeGate(), []
    stopping = StopPolicy(planned=10, gate=gate, say=said.append)
    waiting = asyncio.create_task(stopping.may_start())
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.there.set()
    assert await waiting
    gate.gave_up = "away for 3600 s"
    assert not await stopping.may_start()
    assert not await stopping.may_start()
    assert said == ["stopping: away for 3600 s; running trials finish first"]


async def test_without_an_endpoint_trials_start() -> None:
    assert await StopPolicy(planned=1).may_start()


HOUR_AGO = (datetime.now() - timedelta(hours=1)).strftime("%H:%M")


@pytest.mark.parametrize(
    ("schedule", "began_hours_ago", "reason"),
    [
        ({"stop_after": "1h"}, 2.0, "--for 1h"),
        ({"stop_after": "3h"}, 2.0, ""),
        ({"stop_at": HOUR_AGO}, 2.0, f"--until {HOUR_AGO}"),
        ({"stop_at": HOUR_AGO}, 0.5, ""),
    ],
)
async def test_a_planned_stop_counts_from_when_the_command_began(
    schedule: dict[str, str], began_hours_ago: float, reason: str
) -> None:
    stop = PlannedStop(datetime.now() - timedelta(hours=began_hours_ago))

    async def run() -> None:
        with stop.stopping(ScheduleConfig.model_validate(schedule)):
            await asyncio.sleep(0.2)

    running = asyncio.create_task(run())
    await asyncio.wait({running})
    assert (stop.reason, running.cancelled()) == (reason, bool(reason))
