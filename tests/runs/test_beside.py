"""The room that a run leaves, none before all of its trials have begun, and what a calibration does to the run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTask
from run_plans import a_plan

from tbench.agents.trial_agent import AgentReport, NopAgent, Workplace
from tbench.errors import UsageError
from tbench.events import Events, Note
from tbench.runs.beside import Calibrate, Room, Say
from tbench.runs.run import RunOutcome, execute_run
from tbench.runs.scheduling.admission import Demand, NoMachine
from tbench.sandbox.fake import FakeBackend
from tbench.storage.read_run import read_run
from tbench.storage.summaries import read_summary
from tbench.tasks.sources import read_tasks

ONE = Demand(1, 1)


class Held(NopAgent):
    """Works on a task until it is let go, and tells that it has begun."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    async def work(self, place: Workplace) -> AgentReport:
        self._runs.begun.append(place.task.name)
        self._runs.has_begun.set()
        await self._runs.go.wait()
        return await super().work(place)


class Runs:
    """Runs of two tasks with a calibration beside them."""

    def __init__(self, tasks: Path, directory: Path) -> None:
        self.tasks, self.directory = read_tasks(str(tasks)), directory
        self.begun: list[str] = []
        self.go, self.has_begun = asyncio.Event(), asyncio.Event()
        self.notes: list[str] = []

    async def __call__(self, calibrate: Calibrate | None, concurrency: int = 2) -> RunOutcome:
        def on_event(event: Any) -> None:
            if isinstance(event, Note):
                self.notes.append(event.text)

        return await execute_run(
            a_plan(seeds=(0,), agent="nop", concurrency=concurrency),
            self.tasks,
            self.directory,
            lambda: Held(self),
            Events(on_event),
            backend=FakeBackend(),
            calibrate=calibrate,
        )

    @property
    def unhealthy(self) -> Any:
        document = read_run(self.directory).document
        assert document is not None
        return document.status, document.unhealthy


@pytest.fixture
def runs(make_task: MakeTask, tmp_path: Path) -> Runs:
    make_task("alpha")
    return Runs(make_task("beta").parent, tmp_path / "run")


async def test_a_calibration_begins_when_all_trials_have_and_takes_only_free_slots(runs: Runs) -> None:
    seen: list[Any] = []

    async def calibrate(say: Say, room: Room) -> Mapping[str, str]:
        seen.append(("started", list(runs.begun)))
        async with room(ONE):
            seen.append(("room", list(runs.begun), runs.go.is_set()))
        return {"beta": "oracle fails"}

    running = asyncio.ensure_future(runs(calibrate, concurrency=1))
    await runs.has_begun.wait()
    assert seen == []
    runs.go.set()
    outcome = await running
    assert [kind for kind, *_ in seen] == ["started", "room"]
    # The second trial had the only slot before.
    assert seen[1] == ("room", ["alpha", "beta"], True)
    assert len(outcome.results) == 2 and runs.unhealthy == ("finished", {"beta": "oracle fails"})


async def test_it_goes_on_beside_a_trial_where_a_slot_is_free(runs: Runs) -> None:
    async def calibrate(say: Say, room: Room) -> Mapping[str, str]:
        async with room(ONE):
            assert not runs.go.is_set() and len(runs.begun) <= 2
            runs.go.set()
        return {}

    await runs(calibrate, concurrency=3)
    assert runs.unhealthy == ("finished", {})


@pytest.mark.parametrize("failure", [UsageError("no cache"), NoMachine()])
async def test_one_that_fails_costs_the_run_nothing(runs: Runs, failure: Exception) -> None:
    async def calibrate(say: Say, room: Room) -> Mapping[str, str]:
        raise failure

    runs.go.set()
    assert len((await runs(calibrate)).results) == 2
    assert runs.unhealthy == ("finished", None)
    assert any(note.startswith("calibration: no ") for note in runs.notes)


async def test_a_run_that_is_cut_short_does_not_wait_for_it(runs: Runs) -> None:
    ended: list[str] = []

    waiting = asyncio.Event()

    async def calibrate(say: Say, room: Room) -> Mapping[str, str]:
        waiting.set()
        try:
            return await asyncio.Future()
        finally:
            ended.append("yes")

    running = asyncio.ensure_future(runs(calibrate))
    await waiting.wait()
    running.cancel()
    assert (await running).interrupted
    assert ended == ["yes"] and runs.unhealthy == ("interrupted", None)


async def test_cutting_only_the_calibration_short_leaves_a_finished_run(runs: Runs) -> None:
    waiting = asyncio.Event()

    async def calibrate(say: Say, room: Room) -> Mapping[str, str]:
        async with room(ONE), room(ONE):
            waiting.set()
            return await asyncio.Future()

    runs.go.set()
    running = asyncio.ensure_future(runs(calibrate))
    await waiting.wait()
    running.cancel()
    assert not (await running).interrupted
    assert runs.unhealthy == ("finished", None) and "calibration: cut short; what was measured is kept" in runs.notes


async def test_unhealthy_tasks_stand_beside_the_score(runs: Runs) -> None:
    async def calibrate(say: Say, room: Room) -> Mapping[str, str]:
        return {"beta": "flaky verifier"}

    runs.go.set()
    await runs(calibrate)
    _, summary = read_summary(runs.directory)
    assert summary.score_lines[-1] == ("1 of 2 tasks is not healthy here: beta (flaky verifier); without it 100.0 %")
    assert summary.as_json()["unhealthy"] == {"tasks": {"beta": "flaky verifier"}, "score": 1.0}
