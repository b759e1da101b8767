"""Trials beside a run's own, in the room that those cannot use: the calibration of its tasks."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from harness.turns import cancel
from tbench.errors import TbenchError
from tbench.events import Event, TrialFinished, TrialPhase
from tbench.runs.admission import Admission, Demand, Likes, NodeBudget, NoMachine
from tbench.runs.trial_progress import TrialPlan
from tbench.sandbox.backend import Backend
from tbench.sandbox.node import HasNodes, Node
from tbench.verify.calibration import Calibration

Say = Callable[[str], None]


class Spare:
    """What no trial of a run can use of its machine: room for others, which hold back none of them.

    As many of the run's trials as go at once, and of those that are left the largest, would fit beside what is taken
    here. On several machines, where trials may be placed anywhere, there is room once all trials have begun; then only
    another attempt at one may have to wait.
    """

    def __init__(
        self,
        backend: Backend,
        admission: Admission,
        demands: Sequence[tuple[TrialPlan, Demand]],
        at_once: Callable[[], int],
        may_start: Callable[[], Awaitable[None]],
    ) -> None:
        """`demands` has the run's trials; `at_once` says how many of them may go at once, `may_start` returns when the
        run is not paused."""
        self.backend = backend
        self._admission, self._at_once, self._may_start = admission, at_once, may_start
        self._left = {plan.trial: demand for plan, demand in demands}
        self._to_begin = set(self._left)
        self._trials = Counter(plan.task_name for plan, _ in demands)
        self._images = {name: asyncio.Event() for name in self._trials}
        self._held: list[Demand] = []
        self._reserved: tuple[int, Demand] | None = None
        """What the largest trials that are left need, for so many at once."""
        self._changed = asyncio.Event()
        admission.on_look = self._changed.set

    @property
    def tasks(self) -> frozenset[str]:
        """The tasks of which the run has trials to do."""
        return frozenset(self._trials)

    async def image(self, task: str) -> None:
        """Return when a trial of this task has its image, or none of them will have it."""
        await self._images[task].wait()

    def on_event(self, event: Event) -> None:
        """Notice which trials have begun, and which are over."""
        if isinstance(event, TrialPhase) and event.phase != "queued":
            self._to_begin.discard(event.trial)
            self._changed.set()
            if event.phase == "agent" and event.task in self._images:
                self._images[event.task].set()
        elif isinstance(event, TrialFinished) and event.result.final and event.result.trial in self._left:
            del self._left[event.result.trial]
            self._to_begin.discard(event.result.trial)
            self._reserved = None
            self._trials[event.result.task] -= 1
            if not self._trials[event.result.task]:
                self._images[event.result.task].set()
            self._changed.set()

    @contextlib.asynccontextmanager
    async def admit(
        self, demand: Demand, likes: Likes = lambda _: 0.0, avoided: Node | None = None
    ) -> AsyncIterator[NodeBudget]:
        """Hold cpus and memory that no trial of the run can use. Raises NoMachine."""
        while (budget := self._taken(demand, likes, avoided)) is None:
            self._changed.clear()
            await self._changed.wait()
        self._held.append(demand)
        try:
            await self._may_start()
            yield budget
        finally:
            self._held.remove(demand)
            self._admission.give_back(budget, demand)

    def _taken(self, demand: Demand, likes: Likes, avoided: Node | None) -> NodeBudget | None:
        if len(self._held) >= self._at_once() or (isinstance(self.backend, HasNodes) and self._to_begin):
            return None
        return self._admission.take_spare(demand, likes, avoided, lambda budget: self._leaves_room(budget, demand))

    def _leaves_room(self, budget: NodeBudget, demand: Demand) -> bool:
        """Whether the largest trials that can be under way at once fit beside what is held here, with this demand."""
        if not self._left:
            return True
        # Cpus that trials are promised twice (--cpu-overcommit) are no spare ones.
        cpus = budget.cpus if budget.node is None else min(budget.cpus, budget.node.backend.capacity().cpus)
        if isinstance(self.backend, HasNodes):
            return budget.used_cpus + demand.cpus <= cpus + 1e-9
        taken = [self._largest(), *self._held, demand]
        return (
            sum(each.cpus for each in taken) <= cpus + 1e-9
            and sum(each.memory_mb for each in taken) <= budget.memory_mb + 1e-9
            and (budget.gpus is None or sum(each.gpus for each in taken) <= budget.gpus)
        )

    def _largest(self) -> Demand:
        """What as many trials need at the most as are left and go at once."""
        most = self._at_once()
        if self._reserved is None or self._reserved[0] != most:
            left = self._left.values()
            cpus = sum(heapq.nlargest(most, (each.cpus for each in left)))
            memory_mb = sum(heapq.nlargest(most, (each.memory_mb for each in left)))
            self._reserved = most, Demand(cpus, memory_mb, sum(heapq.nlargest(most, (each.gpus for each in left))))
        return self._reserved[1]


class Calibrates(Protocol):
    """Measures the tasks of a run beside it, and judges them."""

    is_waited_for: bool
    """Whether a run that has come to its end waits for it."""

    async def measure(self, spare: Spare, say: Say) -> None:
        """Measure tasks, each kept as soon as it is measured. Raises TbenchError, NoMachine, OSError."""

    def unhealthy(self, known: Mapping[str, Calibration]) -> dict[str, str] | None:
        """The tasks that are not healthy, by name with why; None where none is and not all tasks are measured."""

    def left_words(self) -> str:
        """Which tasks are not measured, and how that is made up for; empty where all are."""


@contextlib.asynccontextmanager
async def calibrating(
    calibrates: Calibrates, spare: Spare, say: Say
) -> AsyncIterator[Callable[[bool], Awaitable[None]]]:
    """A block in which the tasks of a run are measured; what it gives ends that, or waits for it until cancelled.

    It comes to nothing where it fails, which costs the run nothing that it has.
    """

    async def measure() -> None:
        try:
            await calibrates.measure(spare, say)
        except (TbenchError, NoMachine, OSError) as error:
            say(f"calibration: {str(error) or 'no machine is left'}")

    beside = asyncio.create_task(measure(), name="calibration")

    async def end(is_cut_short: bool) -> None:
        try:
            if not is_cut_short and calibrates.is_waited_for:
                await asyncio.wait({beside})
        finally:
            try:
                await cancel(beside)
            finally:
                if words := calibrates.left_words():
                    say(words)

    try:
        yield end
    finally:
        await cancel(beside)
