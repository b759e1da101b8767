"""Calibration beside a run: which tasks, in whose sandboxes, and its effect at the end of the run."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from run_plans import a_plan

from tbench.agents.trial_agent import AgentReport, NopAgent, Workplace
from tbench.calibration import BackgroundCalibration
from tbench.config.document import RunDocument, RunPlan
from tbench.events import Events, Note, TrialSettled, TrialVerdict
from tbench.runs.plan import sandbox_settings
from tbench.runs.run import execute_run
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.fake import FakeBackend, FakeSandbox
from tbench.storage.read_run import read_run
from tbench.storage.summaries import read_summary
from tbench.tasks.sources import TaskSet, read_tasks

MakeTask = Any
PASS = {"verifier/reward.txt": b"1", "verifier/stdout.txt": b"1 passed in 0.1s\n"}


class Worker(NopAgent):
    """A model that works until it is released."""

    name = "model"

    def __init__(self, until: asyncio.Event) -> None:
        self._until = until

    async def work(self, place: Workplace) -> AgentReport:
        await self._until.wait()
        return await super().work(place)


def beside(plan: RunPlan, tasks: TaskSet) -> BackgroundCalibration:
    """The calibration that is configured."""
    config = plan.config
    return BackgroundCalibration(tasks.tasks, config.tasks.source, config.agent.name, config.sandbox, config.schedule)


class Runs:
    """Runs of tasks of which oracle and nop pass, with the calibration that is configured."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path, self.notes = tmp_path, list[str]()
        self.backend = FakeBackend(lambda _: FakeSandbox(PASS))
        self.until = asyncio.Event()

    async def __call__(self, source: Path, *, agent: str = "model", **settings: Any) -> RunDocument:
        """Run them; the model answers once `until` is set, or as soon as the cache has an entry."""
        tasks = read_tasks(str(source))
        plan = a_plan(agent=agent, name=agent, source=str(source), concurrency=4, **settings)
        directory = self.tmp_path / f"run-{len(list(self.tmp_path.glob('run-*')))}"
        await execute_run(
            plan,
            tasks,
            directory,
            lambda: Worker(self.until),
            Events(lambda event: self.notes.append(event.text) if isinstance(event, Note) else None),
            backend=self.backend,
            calibrates=beside(plan, tasks),
        )
        document = read_run(directory).document
        assert document is not None
        return document

    @property
    def known(self) -> dict[str, list[str]]:
        """The agents of the stored trials, by task."""
        kept = [json.loads(path.read_text()) for path in (self.tmp_path / "cache").rglob("*.json")]
        return {each["task"]: sorted(trial["agent"] for trial in each["trials"]) for each in kept}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setenv("TBENCH_CACHE", str(tmp_path / "cache"))
    return Runs(tmp_path)


async def test_tasks_with_an_oracle_are_measured_while_models_work_and_those_that_are_known_are_not(
    runs: Runs, make_task: MakeTask
) -> None:
    make_task("alone", solve=None)
    source = make_task("good").parent
    running = asyncio.ensure_future(runs(source))
    for _ in range(1000):
        if runs.known.get("good") == ["nop"] * 3 + ["oracle"] * 3:
            break
        await asyncio.sleep(0.01)
    runs.until.set()
    document = await running
    assert document.unhealthy == {"good": "nop passes"} and runs.known.keys() == {"good"}
    assert not runs.backend.left and not any(note.startswith("calibration:") for note in runs.notes)
    before = len(runs.backend.made)
    assert (await runs(source, calibrate="off")).unhealthy == {"good": "nop passes"}
    assert (await runs(source)).unhealthy == {"good": "nop passes"}
    assert len(runs.backend.made) == before  # trials of the same names, and no others


async def test_tasks_not_measured_by_the_end_of_the_run_are_reported(runs: Runs, make_task: MakeTask) -> None:
    source = make_task("good").parent
    runs.until.set()
    document = await runs(source)
    assert document.unhealthy in (None, {"good": "nop passes"}) and not runs.backend.left
    words = f"1 of 1 task not checked with oracle and nop; check them with: tbench calibrate -d {source} -t good"
    assert f"calibration: {words}" in runs.notes


@pytest.mark.parametrize(
    "settings",
    [{"agent": "oracle"}, {"agent": "nop"}, {"calibrate": "off"}, {"network": "none"}, {"drop_images": True}],
)
async def test_no_task_is_measured_without_use_or_in_changed_containers(
    runs: Runs, make_task: MakeTask, settings: dict[str, Any]
) -> None:
    runs.until.set()
    assert (await runs(make_task("good").parent, **settings)).unhealthy is None
    assert runs.known == {} and not any(note.startswith("calibration:") for note in runs.notes)


async def test_all_is_awaited_and_refused_with_a_reason(runs: Runs, make_task: MakeTask) -> None:
    source = make_task("good").parent
    runs.until.set()
    assert (await runs(source, calibrate="all")).unhealthy == {"good": "nop passes"}
    assert runs.known == {"good": ["nop"] * 3 + ["oracle"] * 3}
    await runs(source, calibrate="all", network="none")
    assert "calibration: not possible beside a run with --network; run tbench calibrate instead" in runs.notes


class Starts(Worker):
    """Leaves a process behind, but nothing that a fresh container gets."""

    async def work(self, place: Workplace) -> AgentReport:
        await place.sandbox.shell(
            "/opt/tbench/bin/busybox setsid sleep 4321 >/dev/null 2>&1 </dev/null &", timeout_sec=60
        )
        return await super().work(place)


@pytest.mark.engine
@pytest.mark.slow
async def test_a_pass_that_needs_a_leftover_process_is_lost_once_the_oracle_is_known(
    make_task: MakeTask, tmp_path: Path, engine: Engine, tools_volume: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TBENCH_CACHE", str(tmp_path / "cache"))
    test = """if [ -e /app/done ] || grep -qs '432[1]' /proc/[0-9]*/cmdline; then echo 1; else echo 0; fi \
        > /logs/verifier/reward.txt\n"""
    tasks, until = read_tasks(str(make_task(test=test).parent)), asyncio.Event()
    until.set()
    seen = list[tuple[str, float | None]]()

    def on_event(event: Any) -> None:
        if isinstance(event, TrialVerdict | TrialSettled):
            seen.append((event.kind, event.result.reward))

    plan = a_plan(f"test-{uuid.uuid4().hex[:12]}", agent="model", verify="both", calibrate="all")
    outcome = await execute_run(
        plan,
        tasks,
        tmp_path / "run",
        lambda: Starts(until),
        Events(on_event),
        backend=DockerBackend(engine, sandbox_settings(plan)),
        calibrates=beside(plan, tasks),
    )
    (result,) = outcome.results
    words = "0 in a fresh container, 1 in the agent's own; the oracle's work passes in a fresh one"
    assert (result.reward, result.integrity.tamper[-1]) == (0.0, f"disagreement: {words}")
    assert seen == [("trial_verdict", 1.0), ("trial_settled", 0.0)]
    assert [each.reward for each in read_run(tmp_path / "run").results if each.final] == [0.0]
    assert read_summary(tmp_path / "run")[1].score_lines[0].startswith("score 0.0 %")
    assert read_run(tmp_path / "run").document.unhealthy == {}  # type: ignore[union-attr]
