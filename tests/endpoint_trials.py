"""Whole trials against an HTTP endpoint: real client, agent, runner and files; pretend terminals and sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_tmux import FakeTmux
from run_plans import a_document, a_plan

from harness.endpoint.chat import ChatModel, OutagePolicy, RetryPolicy, Sampling
from harness.endpoint.replicas import Replicas
from harness.limits import Limits
from harness.protocols import load_protocol
from harness.trajectory import Trajectory
from tbench.agents.model_agent import ModelAgent
from tbench.events import Event, Events
from tbench.results import TrialResult
from tbench.runs.run import Run, RunOutcome
from tbench.sandbox.fake import FakeBackend, FakeSandbox
from tbench.storage.run_store import RunStore
from tbench.tasks.sources import TaskSet

CLAIM = '{"analysis": "a", "plan": "p", "commands": [], "task_complete": true}'
"""Said twice it submits."""
QUICK = RetryPolicy(total_sec=20, initial_sec=0.01, max_sec=0.02, reset_sec=0.01)
PATIENT = OutagePolicy(max_sec=60, first_pause_sec=0.02, longest_pause_sec=0.05, spread_sec=0.02)


@dataclass
class EndpointRun:
    """A run against the endpoint at `base_url`."""

    base_url: str
    directory: Path
    retry: RetryPolicy = QUICK
    max_outage: OutagePolicy = PATIENT
    request_timeout_sec: float = 20
    limits: Limits = field(default_factory=lambda: Limits(steps=9))
    context_tokens: int | None = None
    seen: list[Event] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    sandboxes: FakeBackend = field(
        default_factory=lambda: FakeBackend(lambda _: FakeSandbox(connect=FakeTmux().connect))
    )

    async def execute(
        self,
        tasks: TaskSet,
        beside: Callable[[ChatModel], Coroutine[Any, Any, None]] | None = None,
        others: Sequence[str] = (),
        **config: Any,
    ) -> RunOutcome:
        """All trials; bounded. `beside` goes on beside them, and gets the model. `others`: more servers of it."""
        async with contextlib.AsyncExitStack() as stack:
            chats = [
                ChatModel(
                    url,
                    "tiny",
                    Sampling(),
                    api_key=None,
                    request_timeout_sec=self.request_timeout_sec,
                    retry=self.retry,
                    max_outage=self.max_outage,
                    on_outage=self.told.append,
                )
                for url in (self.base_url, *others)
            ]
            first = chats[0]
            first.limits.listed_tokens = self.context_tokens
            chat = Replicas(chats) if others else first
            stack.push_async_callback(chat.close)
            with contextlib.closing(RunStore.create(self.directory, a_document())) as store:
                run = Run(
                    a_plan(agent="model", **config),
                    tasks,
                    make_agent=lambda: ModelAgent(chat, load_protocol("keystrokes-json"), self.limits),
                    backend=self.sandboxes,
                    store=store,
                    events=Events(self.seen.append),
                    gate=chat.outage,
                )
                async with asyncio.timeout(90), asyncio.TaskGroup() as group:
                    if beside is not None:
                        group.create_task(beside(first))
                    running = group.create_task(run.execute())
        assert self.sandboxes.left == []
        return running.result()

    def trajectory(self, result: TrialResult) -> Trajectory:
        path = self.directory / "trials" / result.task / f"seed-{result.seed}" / "trajectory.json"
        return Trajectory.model_validate_json(path.read_text())
