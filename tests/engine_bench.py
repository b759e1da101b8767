"""Whole trials on a real engine, with agents that do what a test says."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from run_plans import a_document, a_plan

from harness.fakes import ScriptedModel
from harness.limits import Limits
from harness.protocols import load_protocol
from tbench.agents.model_agent import ModelAgent
from tbench.agents.trial_agent import AgentReport, NopAgent, TrialAgent, Workplace
from tbench.events import Event, Events
from tbench.results import TrialResult
from tbench.runs.plan import sandbox_settings
from tbench.runs.run import Run
from tbench.sandbox.backend import Sandbox, open_backend
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN
from tbench.storage.run_store import RunStore
from tbench.tasks.sources import TaskSet
from tbench.tasks.task import Task

TOML = '[environment]\nmemory_mb = {}\npids_limit = {}\ndocker_image = "debian:bookworm-slim"\nworkdir = "/app"\n'
TOML += "allow_internet = false\n"
GOOD, BAD = "good", "bad"
BOUND_SEC = 240.0
HONEST = "if [ -e /app/done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
FORGERY = "mkdir -p /logs/verifier; echo 1 >/logs/verifier/reward.txt; "
End = Callable[[Sandbox], Coroutine[Any, Any, None]]
Work = Callable[[Workplace], Coroutine[Any, Any, None]]


async def solve(place: Workplace) -> None:
    await place.sandbox.shell("mkdir -p /app; touch /app/done", timeout_sec=60)


class Works(NopAgent):
    """Does on each task what `works` says, else solves it."""

    def __init__(self, works: Mapping[str, Work]) -> None:
        self._works = works

    async def work(self, place: Workplace) -> AgentReport:
        await self._works.get(place.task.name, solve)(place)
        return await super().work(place)


class ByTask(NopAgent):
    """Another agent for one task."""

    def __init__(self, agents: Mapping[str, TrialAgent]) -> None:
        self._agents = agents

    async def work(self, place: Workplace) -> AgentReport:
        return await self._agents.get(place.task.name, Works({})).work(place)


@dataclass
class Bench:
    """Runs tasks on an engine, in containers of a run of its own."""

    engine: Engine
    tools_volume: str
    directory: Path
    make_task: Any

    def __post_init__(self) -> None:
        self.run = f"test-{uuid.uuid4().hex[:12]}"

    def task(self, name: str, *, test: str = HONEST, memory_mb: int = 192, pids: int = 200) -> Task:
        return Task.read(self.make_task(name, toml=TOML.format(memory_mb, pids), test=test, dockerfile=None))

    async def execute(
        self, agent: Callable[[], TrialAgent], *tasks: Task, on_event: Callable[[Event], None] = lambda _: None
    ) -> dict[str, TrialResult]:
        # However small the machine: its tests want all of them under way at once.
        plan = a_plan(self.run, verify="shared", concurrency=len(tasks), cpu_overcommit=8)
        async with (
            contextlib.AsyncExitStack() as stack,
            open_backend(DockerBackend(self.engine, sandbox_settings(plan))) as backend,
        ):
            store = stack.enter_context(
                contextlib.closing(RunStore.create(self.directory / self.run, a_document(plan)))
            )
            run = Run(
                plan,
                TaskSet(tasks, {}),
                make_agent=agent,
                backend=backend,
                store=store,
                events=Events(on_event),
            )
            async with asyncio.timeout(BOUND_SEC):
                outcome = await run.execute()
        return {result.task: result for result in outcome.results}

    async def containers(self) -> list[str]:
        found = await self.engine.call(
            self.engine.api.containers, all=True, filters={"label": f"{LABEL_RUN}={self.run}"}
        )
        return [container["Id"] for container in found]


class AtTheTerminal(NopAgent):
    """A model at the terminal, made for each place."""

    def __init__(self, make: Callable[[Workplace], ScriptedModel]) -> None:
        self._make = make

    async def work(self, place: Workplace) -> AgentReport:
        agent = ModelAgent(self._make(place), load_protocol("bash-block"), Limits(steps=40, command_sec=20))
        return await agent.work(place)


def error_of(result: TrialResult) -> str | None:
    assert result.reward is None or result.error is None
    return result.error.type if result.error else None
