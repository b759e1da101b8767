"""spare_capacity: calibration in a run's spare capacity, and its effect on the run and its results."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTask
from run_plans import a_plan

from tbench.agents.trial_agent import AgentReport, NopAgent, Workplace
from tbench.errors import UsageError
from tbench.events import Events, Note, RunEnded, TrialSettled
from tbench.results import is_weak
from tbench.runs.admission import Demand, NoMachine
from tbench.runs.resume import EarlierRun
from tbench.runs.run import RunOutcome, execute_run
from tbench.runs.spare_capacity import Say, SpareCapacity
from tbench.sandbox.backend import Capacity
from tbench.sandbox.fake import FakeBackend, FakeSandbox
from tbench.storage.read_run import read_run
from tbench.storage.summaries import read_summary
from tbench.tasks.sources import read_tasks
from tbench.verify.calibration import Calibration, MeasuredTrial, save_calibration

ONE = Demand(1, 100)
PASS = {"verifier/reward.txt": b"1", "verifier/stdout.txt": b"tests/t.py::test_a PASSED\n1 passed in 0.1s\n"}


class Held(NopAgent):
    """Works on a task until it is released, and reports that it has begun."""

    name = "held"

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    async def work(self, place: Workplace) -> AgentReport:
        self._runs.begun.append(f"{place.task.name}/{place.seed}")
        self._runs.has_begun.set()
        await self._runs.go.wait()
        return await super().work(place)


@dataclass
class Measures:
    """Measures by `how`, and finds these tasks unhealthy."""

    runs: Runs
    ill: dict[str, str] | None = None
    is_waited_for: bool = False
    known: dict[str, Calibration] = field(default_factory=dict)

    async def how(self, spare: SpareCapacity) -> None:
        return

    async def measure(self, spare: SpareCapacity, say: Say) -> None:
        await self.how(spare)

    def unhealthy(self, known: Mapping[str, Calibration]) -> dict[str, str] | None:
        self.known = dict(known)
        return self.ill

    def remaining_message(self) -> str:
        return "calibration: something is left" if not self.runs.is_measured else ""


class Runs:
    """Runs of two tasks with one CPU each, with a calibration beside them."""

    def __init__(self, tasks: Path, directory: Path) -> None:
        self.tasks, self.directory = read_tasks(str(tasks)), directory
        self.begun: list[str] = []
        self.go, self.has_begun = asyncio.Event(), asyncio.Event()
        self.events: list[Any] = []
        self.is_measured = False
        self.measures = Measures(self)
        self.ended = list[RunOutcome]()

    async def __call__(
        self, *, cpus: float = 8, overcommit: float = 1, seeds: int = 1, concurrency: int = 2, **more: Any
    ) -> RunOutcome:
        backend = FakeBackend(lambda _: FakeSandbox(PASS), Capacity(cpus, 1 << 20, is_this_machine=False))
        return await execute_run(
            a_plan(seeds=tuple(range(seeds)), agent="model", concurrency=concurrency, cpu_overcommit=overcommit),
            self.tasks,
            self.directory,
            lambda: Held(self),
            Events(self.events.append),
            backend=backend,
            calibrates=self.measures,
            on_end=self.ended.append,
            **more,
        )

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Note)]

    @property
    def unhealthy(self) -> Any:
        document = read_run(self.directory).document
        assert document is not None
        return document.status, document.unhealthy


@pytest.fixture
def runs(make_task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setenv("TBENCH_CACHE", str(tmp_path / "cache"))
    make_task("alpha")
    other = make_task("beta", instruction="Create /app/done.\n")
    return Runs(other.parent, tmp_path / "run")


@pytest.mark.parametrize(
    ("cpus", "overcommit", "seeds", "concurrency", "room"),
    # Of 4 trials 2 go at once, so 2 cpus are the run's until fewer are left. Nobody has more for being promised more.
    [
        (8, 1, 2, 2, 2),
        (3, 1, 2, 2, 1),
        (2, 1, 2, 2, 0),
        (2, 4, 2, 2, 0),
        (3, 1, 1, 4, 1),
        (2, 1, 1, 4, 0),
        (0.5, 1, 1, 1, 0),
    ],
)
async def test_calibration_trials_begin_with_the_run_and_use_its_spare_capacity(
    runs: Runs, cpus: float, overcommit: float, seeds: int, concurrency: int, room: int
) -> None:
    held = list[int]()

    async def how(spare: SpareCapacity) -> None:
        async def one() -> None:
            async with spare.admit(ONE):
                held.append(len(runs.begun))
                await asyncio.Future()

        await asyncio.gather(*(one() for _ in range(4)))

    runs.measures.how = how  # type: ignore[method-assign]
    running = asyncio.ensure_future(runs(cpus=cpus, overcommit=overcommit, seeds=seeds, concurrency=concurrency))
    await runs.has_begun.wait()
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(held) == room
    runs.go.set()
    # They hold their room all the time, and no trial waits for it.
    assert len((await running).results) == 2 * seeds


async def test_a_task_is_measured_once_a_trial_has_its_image(runs: Runs) -> None:
    seen = list[Any]()

    async def how(spare: SpareCapacity) -> None:
        assert spare.tasks == {"alpha", "beta"}
        for task in ("alpha", "beta"):
            await spare.image(task)
            seen.append((task, list(runs.begun)))
        runs.is_measured = True

    runs.measures.how = how  # type: ignore[method-assign]
    running = asyncio.ensure_future(runs(concurrency=1))
    await runs.has_begun.wait()
    await asyncio.sleep(0)
    assert [task for task, _ in seen] == ["alpha"]
    runs.go.set()
    await running
    assert [task for task, _ in seen] == ["alpha", "beta"] and "calibration: something is left" not in runs.notes


@pytest.mark.parametrize("failure", [UsageError("no cache"), NoMachine(), OSError("no disk")])
async def test_a_failed_calibration_costs_the_run_nothing(runs: Runs, failure: Exception) -> None:
    async def how(_: SpareCapacity) -> None:
        raise failure

    runs.measures.how = how  # type: ignore[method-assign]
    runs.go.set()
    assert len((await runs()).results) == 2
    assert runs.unhealthy == ("finished", None)
    assert any(note.startswith("calibration: no ") for note in runs.notes)


@pytest.mark.parametrize("cut_short", [False, True])
async def test_a_run_does_not_wait_for_missing_calibrations_and_reports_the_rest(runs: Runs, cut_short: bool) -> None:
    waiting, ended = asyncio.Event(), list[str]()

    async def how(_: SpareCapacity) -> None:
        waiting.set()
        try:
            await asyncio.Future()
        finally:
            ended.append("yes")

    runs.measures.how, runs.measures.ill = how, {"beta": "flaky verifier"}  # type: ignore[method-assign]
    runs.measures.is_waited_for = cut_short
    running = asyncio.ensure_future(runs())
    await waiting.wait()
    running.cancel() if cut_short else runs.go.set()
    await asyncio.wait({running})
    assert running.cancelled() is runs.ended[-1].interrupted is cut_short
    # What was measured until then is known, and said.
    assert runs.unhealthy == ("interrupted" if cut_short else "finished", {"beta": "flaky verifier"})
    assert ended == ["yes"]
    # A run that was cut short measures the rest when it is resumed.
    assert ("calibration: something is left" in runs.notes) is not cut_short


async def test_a_requested_calibration_is_awaited_and_cutting_it_short_leaves_a_finished_run(runs: Runs) -> None:
    waiting, go_on = asyncio.Event(), asyncio.Event()

    async def how(spare: SpareCapacity) -> None:
        async with spare.admit(Demand(8, 1)):  # any trial that is left could use some of it
            waiting.set()
            await go_on.wait()
            runs.is_measured = True

    runs.measures.how, runs.measures.is_waited_for = how, True  # type: ignore[method-assign]
    runs.go.set()
    running = asyncio.ensure_future(runs())
    await waiting.wait()
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled() and not runs.ended[-1].interrupted and len(runs.ended[-1].results) == 2
    assert runs.unhealthy == ("finished", None) and not runs.is_measured
    runs.directory = runs.directory.with_name("second")
    running = asyncio.ensure_future(runs())
    go_on.set()
    await running
    assert runs.is_measured


async def test_unhealthy_tasks_stand_beside_the_score(runs: Runs) -> None:
    runs.measures.ill = {"beta": "flaky verifier"}
    runs.go.set()
    await runs()
    _, summary = read_summary(runs.directory)
    assert summary.score_lines[-1] == ("1 of 2 tasks is not healthy here: beta (flaky verifier); without it 100.0 %")
    assert summary.as_json()["unhealthy"] == {"tasks": {"beta": "flaky verifier"}, "score": 1.0}


def knows(runs: Runs, name: str, **tests: str) -> None:
    """Store a calibration in which the oracle passes this task with these tests."""
    (task,) = (task for task in runs.tasks.tasks if task.name == name)
    trials = [
        MeasuredTrial.model_validate({"agent": "oracle", "repetition": each, "reward": 1.0, "tests": {"": tests}})
        for each in range(3)
    ]
    begun = Calibration.model_validate(
        {"task": name, "task_hash": task.hash, "image": "fake", "architecture": "", "measured_at": "2026-01-01T00:00Z"}
    )
    save_calibration(begun.model_copy(update={"trials": tuple(trials)}))


async def test_passes_are_settled_by_later_calibrations_before_the_run_ends(runs: Runs) -> None:
    async def how(spare: SpareCapacity) -> None:
        await spare.image("beta")
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Future()  # all verdicts are there
        knows(runs, "beta", **{"t::test_a": "passed", "t::test_b": "passed"})

    runs.measures.how = how  # type: ignore[method-assign]
    runs.go.set()
    outcome = await runs()
    assert runs.measures.known.keys() == {"beta"}
    words = "unlike-oracle: of 2 tests that the oracle passes 1 not shown (t::test_b)"
    tamper = {"alpha": (), "beta": (words,)}
    assert {each.task: each.integrity.tamper for each in outcome.results} == tamper
    stored = read_run(runs.directory).results
    assert {each.task: each.integrity.tamper for each in stored if each.final} == tamper
    assert [each.task for each in stored if not each.final] == ["beta"]
    kinds = [type(event) for event in runs.events]
    assert kinds.index(TrialSettled) < kinds.index(RunEnded)
    assert "calibration: 1 result changed by comparison with the oracle's: beta/0" in runs.notes


async def test_a_resume_settles_standing_results_once(runs: Runs) -> None:
    runs.go.set()
    await runs()
    knows(runs, "alpha", **{"t::test_b": "passed"})
    for lines in (3, 3):
        outcome = await runs(earlier=EarlierRun.read(runs.directory))
        signs = {each.task: sum(not is_weak(s) for s in each.integrity.tamper) for each in outcome.results}
        assert signs == {"alpha": 1, "beta": 0}
        assert len((runs.directory / "results.jsonl").read_text().splitlines()) == lines
