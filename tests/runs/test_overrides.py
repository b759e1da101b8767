"""Overrides in a run: one copy of what a task says, from which admission, sandbox, agent and verifier have limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTask
from run_plans import a_config, a_document, a_plan

from harness.trajectory import Outcome
from tbench.agents.trial_agent import AgentReport, NopAgent, Workplace
from tbench.events import Events
from tbench.runs.overrides import as_configured, overridden
from tbench.runs.plan import plan_trials, semantic
from tbench.runs.run import Run, demand_of_task
from tbench.sandbox.fake import FakeBackend
from tbench.storage.run_store import RunStore
from tbench.tasks.format import TaskFile
from tbench.tasks.sources import read_tasks
from tbench.tasks.task import Task

SAID: dict[str, Any] = {
    "agent": {"timeout_sec": 900},
    "verifier": {"timeout_sec": 60},
    "environment": {
        "build_timeout_sec": 600,
        "cpus": 2,
        "memory_mb": 4096,
        "healthcheck": {"command": "true", "timeout_sec": 10, "start_period_sec": 4, "interval_sec": 7},
    },
}


def file_with(**overrides: Any) -> TaskFile:
    return overridden(TaskFile.model_validate(SAID), a_config(**overrides).overrides)


def test_without_overrides_a_task_is_as_it_is_written() -> None:
    assert file_with() == file_with(timeout_multiplier=1) == TaskFile.model_validate(SAID)


def test_the_factor_of_all_timeouts_is_that_of_each() -> None:
    file = file_with(timeout_multiplier=1.5)
    check = file.environment.healthcheck
    assert check is not None
    assert (file.agent.timeout_sec, file.verifier.timeout_sec, file.environment.build_timeout_sec) == (1350, 90, 900)
    assert (check.timeout_sec, check.start_period_sec, check.retries, check.interval_sec) == (15, 6, 5, 7)


@pytest.mark.parametrize("kind", ["agent", "verifier", "build", "healthcheck"])
def test_a_factor_of_its_own_leaves_the_other_timeouts_alone(kind: str) -> None:
    file, written = file_with(**{f"{kind}_timeout_multiplier": 3}), TaskFile.model_validate(SAID)
    changed = {
        "agent": file.agent != written.agent,
        "verifier": file.verifier != written.verifier,
        "build": file.environment.build_timeout_sec != written.environment.build_timeout_sec,
        "healthcheck": file.environment.healthcheck != written.environment.healthcheck,
    }
    assert [name for name, is_other in changed.items() if is_other] == [kind]


def test_an_agent_without_a_timeout_goes_on_without_one() -> None:
    assert overridden(TaskFile(), a_config(timeout_multiplier=9).overrides).agent.timeout_sec is None


def test_resources_replace_those_of_the_task() -> None:
    environment = file_with(cpus=0.5, memory_mb=512).environment
    assert (environment.cpus, environment.memory_mb) == (0.5, 512)


def test_what_is_overridden_twice_is_overridden_once_and_the_hash_is_of_what_is_written(make_task: MakeTask) -> None:
    task = Task.read(make_task(toml="[agent]\ntimeout_sec = 10\n"))
    config = a_config(timeout_multiplier=2)
    once = as_configured(task, config)
    twice = as_configured(once, config)
    assert twice is once and twice.file.agent.timeout_sec == 20
    assert twice.hash == Task.read(task.path).hash
    assert as_configured(twice, a_config()).file == task.file


def test_admission_counts_what_is_overridden(make_task: MakeTask) -> None:
    task = as_configured(Task.read(make_task()), a_config(cpus=3, memory_mb=1000))
    assert (demand_of_task(task, "shared").cpus, demand_of_task(task, "both").memory_mb) == (3, 2000)


async def test_agent_and_verifier_work_under_the_overridden_timeouts(make_task: MakeTask, tmp_path: Path) -> None:
    path = make_task(toml="[agent]\ntimeout_sec = 10\n[verifier]\ntimeout_sec = 20\n[environment]\nmemory_mb = 64\n")
    seen: list[float | None] = []

    class Looking(NopAgent):
        async def work(self, place: Workplace) -> AgentReport:
            seen.append(place.timeout_sec)
            return AgentReport(Outcome.FINISHED)

    async def verifier_limit(**overrides: Any) -> float:
        backend = FakeBackend()
        store = RunStore.create(tmp_path / f"run-{len(seen)}", a_document())
        plan, tasks = a_plan(**overrides), read_tasks(str(path))
        await Run(plan, tasks, make_agent=Looking, backend=backend, store=store, events=Events()).execute()
        store.close()
        (sandbox,) = backend.made.values()
        (copy,) = sandbox.copies
        return next(call.timeout_sec for call in copy.calls if "/tests/test.sh" in call.script)

    plain, doubled = await verifier_limit(), await verifier_limit(timeout_multiplier=2)
    assert seen == [10, 20]
    assert doubled - plain == 20


def test_only_what_changes_the_measurement_makes_other_trials(make_task: MakeTask) -> None:
    tasks = read_tasks(str(make_task()))

    def trial(**overrides: Any) -> str:
        return plan_trials(tasks, a_plan(**overrides))[0].trial

    for same in ({"timeout_multiplier": 1}, {"build_timeout_multiplier": 3}, {"healthcheck_timeout_multiplier": 3}):
        assert trial(**same) == trial(no_build_cache=True) == trial()
    for other in ({"timeout_multiplier": 2}, {"agent_timeout_multiplier": 2}, {"cpus": 2}, {"memory_mb": 64}):
        assert trial(**other) != trial()
    assert semantic(a_plan(cpus=2))["overrides.cpus"] == 2
