"""Five hundred trials in one process, and a thousand, with everything real but the containers and the model.

Sandboxes and terminals are the shipped fakes; the endpoint is a process of its own, a second away from every reply.
The lag of the event loop is what any other trial would wait at that moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from endpoint import Endpoint
from fake_tmux import Answer, FakeTmux
from figures import Figures, p99
from run_plans import a_document, a_plan
from small_task import Place, make_task

from harness.agent import Limits
from harness.endpoint.chat import ChatModel
from harness.model import Model, Sampling
from harness.protocols import load_protocol
from harness.trajectory import Message, Reply, Usage
from tbench.agents.model_agent import ModelAgent
from tbench.cli.execute import tuned_gc
from tbench.events import Events
from tbench.runs.run import Run
from tbench.sandbox.fake import FakeBackend, FakeSandbox
from tbench.storage.run_store import RunStore
from tbench.tasks.sources import TaskSet
from tbench.tasks.task import Task

STEPS, LATENCY_SEC = 10, 1.0
FEW, MANY = 500, 1000
"""Trials."""
TICK_SEC = 0.01
LINE = "drwxr-xr-x 2 root root 4096 Nov 21 10:36 a line of some output, as commands print them\n"
REPLY = '{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "make report\\n", "duration": 5.0}]}'


class Lag:
    """How late a callback of the event loop comes, in milliseconds, for every hundredth of a second."""

    def __init__(self) -> None:
        self.ms: list[float] = []

    @contextlib.asynccontextmanager
    async def watched(self) -> Any:
        ticker = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            ticker.cancel()

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + TICK_SEC
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            now = loop.time()
            # A long stall counts as often as there were ticks in it, not once.
            while due <= now:
                self.ms.append((now - due) * 1e3)
                due += TICK_SEC


class SlowModel:
    """The same latency and reply without HTTP: what is left is the runner without the client."""

    context_tokens = 1 << 20
    sampling = Sampling()
    patience_sec = 0.0

    async def query(
        self, messages: Sequence[Message], *, seed: int | None, max_tokens: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Reply:
        await asyncio.sleep(LATENCY_SEC)
        return Reply(content=REPLY, usage=Usage(prompt_tokens=1000, completion_tokens=50))


def answers() -> Callable[[str], Answer]:
    """About 2 to 8 KB per step, in turn."""
    sizes = iter(range(1 << 30))
    return lambda _: Answer(LINE * (25 + next(sizes) % 4 * 25))


@dataclass(frozen=True)
class Simulated:
    """What a run of all trials took."""

    wall_sec: float
    cpu_ms_per_step: float
    lag: Lag


async def simulate(task: Task, model: Model, directory: Path, trials: int) -> Simulated:
    plan = a_plan("bench", seeds=tuple(range(trials)), agent="model", concurrency=trials)
    protocol, lag = load_protocol("keystrokes-json"), Lag()
    with contextlib.closing(RunStore.create(directory, a_document(plan))) as store:
        run = Run(
            plan,
            TaskSet((task,), {}),
            make_agent=lambda: ModelAgent(model, protocol, Limits(steps=STEPS)),
            backend=FakeBackend(lambda _: FakeSandbox(connect=FakeTmux(answers()).connect)),
            store=store,
            events=Events(),
        )
        started, started_cpu = time.perf_counter(), time.process_time()
        async with lag.watched():
            with tuned_gc():  # as the command line does
                outcome = await run.execute()
        elapsed, cpu_sec = time.perf_counter() - started, time.process_time() - started_cpu
    assert len(outcome.results) == trials
    assert all((result.reward, result.steps) == (1.0, STEPS) for result in outcome.results), outcome.results[0]
    return Simulated(elapsed, cpu_sec * 1e3 / trials / STEPS, lag)


async def five_hundred(place: Place | None, figures: Figures, scratch: Path) -> None:
    """With the real client, and without it."""
    task = make_task(scratch / "simulated-task")
    _add(figures, "simulated_500", await with_client(task, scratch / "client", FEW))
    _add(figures, "simulated_500_no_client", await simulate(task, SlowModel(), scratch / "no-client", FEW))


async def a_thousand(place: Place | None, figures: Figures, scratch: Path) -> None:
    """With the real client; and the memory of the process for each trial in flight."""
    task, before_mb = make_task(scratch / "simulated-task"), most_memory_mb()
    _add(figures, "simulated_1000", await with_client(task, scratch / "client", MANY))
    figures.add("simulated_1000_mb_per_trial", (most_memory_mb() - before_mb) / MANY, "MB")


async def with_client(task: Task, directory: Path, trials: int) -> Simulated:
    with Endpoint(REPLY, LATENCY_SEC) as base_url:
        async with ChatModel(base_url, None, Sampling(), api_key=None) as chat:
            await chat.connect()
            return await simulate(task, chat, directory, trials)


def most_memory_mb() -> float:
    """The most that this process has had of memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _add(figures: Figures, name: str, done: Simulated) -> None:
    figures.add(f"{name}_lag_ms_p50", statistics.median(done.lag.ms), "ms")
    figures.add(f"{name}_lag_ms_p99", p99(done.lag.ms), "ms")
    figures.add(f"{name}_cpu_ms_per_step", done.cpu_ms_per_step, "ms")
    figures.add(f"{name}_sec", done.wall_sec, "s", STEPS * LATENCY_SEC)
