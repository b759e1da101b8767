"""Machines of fleets without engines, which tests take away and give back; and runs over them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from run_plans import a_plan

from tbench.agents.trial_agent import AgentReport, NopAgent, Workplace
from tbench.errors import TrialError, UsageError
from tbench.events import Event, Events, Note
from tbench.fleet.fleet import Fleet
from tbench.runs.run import RunOutcome, execute_run
from tbench.sandbox.backend import Capacity
from tbench.sandbox.fake import FakeBackend, FakeSandbox
from tbench.tasks.sources import TaskSet
from tbench.tasks.task import Task


class FakeMachineSandbox(FakeSandbox):
    """A sandbox that knows on which machine it is."""

    def __init__(self, machine: FakeMachine) -> None:
        super().__init__()
        self.machine = machine


class DescribedBackend(FakeBackend):
    """A backend that says more of itself."""

    told: Mapping[str, str] = {}
    refuses_to_open = ""

    async def open(self, say: Any) -> None:
        if self.refuses_to_open:
            raise UsageError(self.refuses_to_open)
        await super().open(say)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), **self.told}


class FakeMachine:
    """A `FleetMachine` whose troubles a test decides. Trials on it begin, and go on when it `lets_go`."""

    def __init__(self, name: str, cpus: float = 2, *, lets_go: bool = True, **told: str) -> None:
        self.name = name
        self.backend = DescribedBackend(self._make, Capacity(cpus, 1e6))
        self.backend.told = told
        self.wrong = ""
        """Fault of the machine."""
        self.cannot_recover = ""
        self.fails_with: TrialError | None = None
        """The error of every sandbox that is asked for."""
        self.left = 0
        """Sandboxes that are found on it when it comes back."""
        self.done: list[str] = []
        """Calls, in order."""
        self.begun: list[str] = []
        """Tasks whose trials have begun on it."""
        self.lets_go = asyncio.Event()
        if lets_go:
            self.lets_go.set()

    def _make(self, task: Task) -> FakeMachineSandbox:
        if self.fails_with is not None:
            raise self.fails_with
        return FakeMachineSandbox(self)

    async def check(self) -> str:
        return self.wrong

    def give_up(self) -> None:
        self.done.append("given up")

    async def recover(self) -> int:
        if self.cannot_recover:
            raise UsageError(self.cannot_recover)
        self.done.append("recovered")
        return self.left

    def close(self) -> None:
        self.done.append("closed")


class Works(NopAgent):
    """Works where its machine lets it."""

    async def work(self, place: Workplace) -> AgentReport:
        assert isinstance(place.sandbox, FakeMachineSandbox)
        machine = place.sandbox.machine
        machine.begun.append(place.task.name)
        await machine.lets_go.wait()
        return await super().work(place)


async def until(holds: Callable[[], object]) -> None:
    """Returns when it holds."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - whatever comes of it, of many things
            await asyncio.sleep(0.005)


class FleetRun:
    """A run over machines, and what is known of it."""

    def __init__(self, tasks: TaskSet, directory: Path, machines: Sequence[FakeMachine], **plan: Any) -> None:
        times = {"check_every_sec": 0.01, "lost_after_sec": 0.05, "no_machine_sec": 60.0, "aside_sec": 60.0}
        self.fleet = Fleet(machines, **{name: plan.pop(name, sec) for name, sec in times.items()})
        self.directory, self.machines, self.notes = directory, list(machines), list[str]()
        self._plan, self._tasks = a_plan(**{"agent": "nop", "concurrency": 32} | plan), tasks
        self.running: asyncio.Task[RunOutcome] | None = None
        self.ended = list[RunOutcome]()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Note):
            self.notes.append(event.text)

    def begin(self) -> asyncio.Task[RunOutcome]:
        self.running = asyncio.create_task(
            execute_run(
                self._plan,
                self._tasks,
                self.directory,
                Works,
                Events(self._on_event),
                backend=self.fleet,
                on_end=self.ended.append,
            )
        )
        return self.running

    async def end(self) -> RunOutcome:
        """The outcome; everything is closed by then, and nothing is left on machines that are there."""
        running = self.running or self.begin()
        async with asyncio.timeout(30):
            await asyncio.wait({running})
        (outcome,) = self.ended
        assert running.cancelled() is outcome.interrupted
        assert all(machine.done[-1] == "closed" for machine in self.machines)
        assert all(machine.backend.left == [] for machine in self.machines)
        assert {task.get_name() for task in asyncio.all_tasks() if "watch" in task.get_name()} == set()
        return outcome

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All results on disk, those that are not final among them."""
        return [json.loads(line) for line in (self.directory / "results.jsonl").read_text().splitlines()]

    @property
    def final(self) -> dict[str, dict[str, Any]]:
        """The final results by task and seed."""
        found = {f"{line['task']} {line['seed']}": line for line in self.lines if line["final"]}
        assert len(found) == sum(line["final"] for line in self.lines)
        return found

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.directory / "run.json").read_text())
        return document
