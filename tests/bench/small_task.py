"""The task of the figures, and the containers and runs made of it."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from run_plans import a_plan

from tbench.agents.trial_agent import TrialAgent
from tbench.config.settings import Verify
from tbench.events import Events, Subscriber
from tbench.runs.plan import sandbox_settings
from tbench.runs.run import RunOutcome, execute_run
from tbench.sandbox.backend import MakeBackend, Sandbox, SandboxSettings, open_backend
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.image import Images
from tbench.sandbox.docker.networks import ensure_network
from tbench.sandbox.docker.tools import ensure_tools
from tbench.tasks.environment import agent_environment
from tbench.tasks.sources import TaskSet
from tbench.tasks.task import Task

SEPARATE = 'artifacts = ["/app/done"]\n[verifier]\nenvironment_mode = "separate"\n'


def make_task(directory: Path, memory_mb: int = 512, toml: str = "", timeout_sec: int = 600) -> Task:
    """The smallest task there can be: what is left is the runner's own cost."""
    for name in ("environment", "solution", "tests"):
        (directory / name).mkdir(parents=True)
    limits = f"[environment]\ncpus = 1\nmemory_mb = {memory_mb}\n[agent]\ntimeout_sec = {timeout_sec}\n"
    (directory / "task.toml").write_text(toml + limits)
    (directory / "instruction.md").write_text("Create /app/done: this is the benchmark of the runner itself.\n")
    (directory / "environment/Dockerfile").write_text("FROM debian:bookworm-slim\nWORKDIR /app\n")
    (directory / "solution/solve.sh").write_text("#!/bin/bash\ntouch /app/done\n")
    (directory / "tests/test.sh").write_text(
        "#!/bin/bash\nif [ -e /app/done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    )
    return Task.read(directory)


@dataclass(frozen=True)
class Place:
    """Where the figures are taken."""

    engine: Engine
    task: Task
    image: str
    volume: str
    make_backend: MakeBackend | None = None
    """Makes the backend of runs; by default one on the engine."""

    @classmethod
    async def prepare(cls, engine: Engine, task: Task) -> Place:
        volume = await ensure_tools(engine, print)
        await ensure_network(engine)
        return cls(engine, task, (await Images(engine).get(agent_environment(task))).id, volume)

    def with_task(self, task: Task) -> Place:
        """The same place for another task of the same image."""
        return replace(self, task=task)

    @asynccontextmanager
    async def sandboxes(self, count: int) -> AsyncIterator[list[Sandbox]]:
        """That many containers, removed at the end."""
        async with (
            open_backend(DockerBackend(self.engine, SandboxSettings("bench"))) as backend,
            contextlib.AsyncExitStack() as stack,
        ):
            made = []
            for _ in range(count):
                sandbox = await backend.sandbox(agent_environment(self.task), "bench")
                stack.push_async_callback(sandbox.remove)
                made.append(sandbox)
            yield made

    async def run_trials(
        self,
        make_agent: Callable[[], TrialAgent],
        seeds: int,
        concurrency: int,
        agent: str,
        subscriber: Subscriber = lambda _: None,
        *,
        verify: Verify = "shared",
    ) -> tuple[float, RunOutcome]:
        """Wall seconds of a whole run, teardown included."""
        with tempfile.TemporaryDirectory() as directory:
            plan = a_plan(
                "bench",
                seeds=tuple(range(seeds)),
                agent=agent,
                concurrency=concurrency,
                cpu_overcommit=100.0,
                verify=verify,
            )
            started = time.perf_counter()
            outcome = await execute_run(
                plan,
                TaskSet((self.task,), {}),
                Path(directory) / "run",
                make_agent,
                Events(subscriber),
                backend=(self.make_backend or partial(DockerBackend, self.engine))(sandbox_settings(plan)),
            )
            elapsed = time.perf_counter() - started
        assert all(result.reward is not None for result in outcome.results), outcome.results
        assert len(outcome.results) == seeds
        return elapsed, outcome
