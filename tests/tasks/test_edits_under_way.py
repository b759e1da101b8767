"""A real run whose task is edited under way: what its hash says is what all of its trials are judged by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_plans import a_plan

from tbench.agents.trial_agent import AgentReport, NopAgent, OracleAgent, TrialAgent, Workplace
from tbench.events import Events
from tbench.runs.plan import sandbox_settings
from tbench.runs.run import execute_run
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine
from tbench.tasks.sources import read_tasks
from tbench.tasks.task import Task

pytestmark = pytest.mark.engine
MakeTask = Any
PASSES, FAILS = (f"echo {reward} > /logs/verifier/reward.txt\n" for reward in (1, 0))


class Editing:
    """Does what another agent does, after an edit on the host; in the trial of one seed."""

    def __init__(self, inner: TrialAgent, seed: int, edit: Callable[[Task], object]) -> None:
        self.name = inner.name
        self._inner = inner
        self._seed = seed
        self._edit = edit

    async def work(self, place: Workplace) -> AgentReport:
        if place.seed == self._seed:
            self._edit(place.task)
        return await self._inner.work(place)

    def partial(self) -> None:
        return None


@pytest.fixture
def judge(engine: Engine, tmp_path: Path) -> Callable[..., list[float | str | None]]:
    """Rewards or types of error, seed by seed, one after the other."""

    def run(source: Path, agent: Callable[[], TrialAgent]) -> list[float | str | None]:
        plan = a_plan("test-edits", seeds=(0, 1, 2), agent="a", concurrency=1, verify="shared")

        async def execute() -> list[float | str | None]:
            async with asyncio.timeout(240):
                backend = DockerBackend(engine, sandbox_settings(plan))
                outcome = await execute_run(
                    plan, read_tasks(str(source)), tmp_path / "run", agent, Events(), backend=backend
                )
            by_seed = sorted(outcome.results, key=lambda result: result.seed)
            return [result.error.type if result.error else result.reward for result in by_seed]

        return asyncio.run(execute())

    return run


Judge = Callable[..., list[float | str | None]]


def test_tests_edited_after_the_first_verdict_have_no_effect(judge: Judge, make_task: MakeTask) -> None:
    def edit(task: Task) -> None:
        (task.path / "tests" / "test.sh").write_text(PASSES)

    assert judge(make_task(test=FAILS), lambda: Editing(NopAgent(), 1, edit)) == [0.0, 0.0, 0.0]


def test_tests_edited_before_the_first_verdict_give_none(judge: Judge, make_task: MakeTask) -> None:
    def edit(task: Task) -> None:
        (task.path / "tests" / "test.sh").write_text(PASSES)

    assert judge(make_task(test=FAILS), lambda: Editing(NopAgent(), 0, edit)) == ["task_changed"] * 3


@pytest.mark.slow
def test_a_solution_edited_under_way_stays_the_one_of_the_hash(judge: Judge, make_task: MakeTask) -> None:
    def edit(task: Task) -> None:
        (task.path / "solution" / "solve.sh").write_text("false\n")

    assert judge(make_task(), lambda: Editing(OracleAgent(), 1, edit)) == [1.0, 1.0, 1.0]


@pytest.mark.slow
def test_an_environment_edited_before_its_image_is_built_gives_no_image(judge: Judge, make_task: MakeTask) -> None:
    """The image is made for the second task while the first one's trial runs."""
    first = make_task()
    make_task("the-other", dockerfile="FROM debian:bookworm-slim\nWORKDIR /app\nLABEL tbench.test=edited\n")

    def edit(task: Task) -> None:
        (task.path.parent / "the-other" / "environment" / "Dockerfile").write_text("FROM debian:bookworm-slim\n")

    results = judge(Path(first).parent, lambda: Editing(OracleAgent(), 0, edit))
    assert sorted(results, key=str) == [1.0, 1.0, 1.0, "task_changed", "task_changed", "task_changed"]
