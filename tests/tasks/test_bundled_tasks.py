"""Every bundled task through the real runner: its oracle scores 1, doing nothing scores 0."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest
from run_plans import a_plan

from tbench.agents.trial_agent import NopAgent, OracleAgent
from tbench.events import Events
from tbench.results import TrialResult
from tbench.runs.plan import sandbox_settings
from tbench.runs.run import RunOutcome, execute_run
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN
from tbench.storage.read_run import read_run
from tbench.tasks.sources import BUNDLED, TaskSet, read_tasks
from tbench.tasks.task import Task

TASKS = read_tasks(BUNDLED)
NAMES = [task.name for task in TASKS.tasks]
QUICK = {"lab-permissions", "note-board-service", "tidy-notes", "web-log-digest"}
"""Tasks that `make test` runs; `make test-all` runs all of them."""
EACH = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]
AGENTS = {"oracle": OracleAgent, "nop": NopAgent}
RUN_SEC = 600


def run_all(engine: Engine, agent: str, directory: Path, tasks: TaskSet) -> RunOutcome:
    plan = a_plan(f"test-{agent}", agent=agent, concurrency=4, cpu_overcommit=4)

    async def run() -> RunOutcome:
        async with asyncio.timeout(RUN_SEC):
            return await execute_run(
                plan,
                tasks,
                directory,
                AGENTS[agent],
                Events(),
                backend=DockerBackend(engine, sandbox_settings(plan)),
            )

    return asyncio.run(run())


@pytest.fixture(scope="session")
def chosen(request: pytest.FixtureRequest) -> TaskSet:
    """The tasks that the chosen tests ask for."""
    calls = (getattr(item, "callspec", None) for item in request.session.items)
    names = {call.params.get("name") for call in calls if call is not None}
    return dataclasses.replace(
        TASKS, tasks=tuple(task for task in TASKS.tasks if task.name in (names & {*NAMES} or NAMES))
    )


@pytest.fixture(scope="session")
def oracle(engine: Engine, chosen: TaskSet, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrialResult]:
    outcome = run_all(engine, "oracle", tmp_path_factory.mktemp("runs") / "oracle", chosen)
    return {result.task: result for result in outcome.results}


@pytest.fixture(scope="session")
def nop_run(
    engine: Engine, chosen: TaskSet, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, TrialResult], Path]:
    directory = tmp_path_factory.mktemp("runs") / "nop"
    outcome = run_all(engine, "nop", directory, chosen)
    return {result.task: result for result in outcome.results}, directory


@pytest.mark.engine
@pytest.mark.parametrize("name", EACH)
def test_the_oracle_scores_one(oracle: dict[str, TrialResult], name: str) -> None:
    assert (oracle[name].error, oracle[name].reward) == (None, 1.0)


@pytest.mark.engine
@pytest.mark.parametrize("name", EACH)
def test_doing_nothing_scores_zero(nop_run: tuple[dict[str, TrialResult], Path], name: str) -> None:
    result = nop_run[0][name]
    assert (result.error, result.reward) == (None, 0.0)


@pytest.mark.engine
def test_the_run_on_disk_is_complete_and_leaves_no_container(
    engine: Engine, nop_run: tuple[dict[str, TrialResult], Path]
) -> None:
    results, directory = nop_run
    stored = read_run(directory)
    assert {result.trial: result for result in stored.results} == {result.trial: result for result in results.values()}
    assert stored.notes == ()
    assert all((directory / "trials" / name / "seed-0" / "verifier" / "stdout.txt").exists() for name in results)
    left = engine.api.containers(all=True, filters={"label": [f"{LABEL_RUN}=test-nop"]})
    assert [(each["State"], each["Status"], each["Names"]) for each in left] == []


def test_there_are_enough_tasks_and_all_are_valid() -> None:
    assert len(NAMES) >= 11
    assert TASKS.invalid == {}
    assert {task.name: task.unsupported + task.unknown_keys for task in TASKS.tasks} == {name: [] for name in NAMES}


@pytest.mark.parametrize("task", TASKS.tasks, ids=NAMES)
def test_an_instruction_says_something_and_holds_no_canary(task: Task) -> None:
    assert len(task.instruction.split()) >= 10
    assert "canary" not in task.instruction.lower()


@pytest.mark.parametrize("task", TASKS.tasks, ids=NAMES)
def test_a_task_names_its_limits_and_brings_an_oracle(task: Task) -> None:
    assert task.file.agent.timeout_sec is not None
    assert {"cpus", "memory_mb"} <= task.file.environment.model_fields_set
    assert (task.path / "solution" / "solve.sh").is_file()
