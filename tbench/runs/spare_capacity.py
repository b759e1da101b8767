"""Runs extra trials, such as those that calibrate a run's tasks, in capacity that the run itself cannot use."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from harness.concurrency import cancel
from tbench.errors import TbenchError
from tbench.events import Event, TrialFinished, TrialPhase
from tbench.runs.admission import Admission, Demand, MachineBudget, NoMachine, Preference
from tbench.runs.trial_progress import TrialPlan
from tbench.sandbox.backend import Backend
from tbench.sandbox.run_machine import HasMachines, RunMachine
from tbench.verify.calibration import Calibration

Say = Callable[[str], None]


class SpareCapacity:
    """Capacity that no trial of a run needs, so that using it delays none of them.

    On one machine, room is left for the largest remaining trials, for as many as run at once. On several machines,
    where a trial may run anywhere, there is spare capacity once all trials have begun; then at most a retry has to
    wait.
    """

    def __init__(
        self,
        backend: Backend,
        admission: Admission,
        demands: Sequence[tuple[TrialPlan, Demand]],
        at_once: Callable[[], int],
        may_start: Callable[[], Awaitable[None]],
    ) -> None:
        """Take the run's trials in `demands`; `at_once` returns how many of them run concurrently.

        `may_start` returns when the run is not paused.
        """
        self.backend = backend
        self._admission, self._at_once, self._may_start = admission, at_once, may_start
        self._left = {plan.trial: demand for plan, demand in demands}
        self._to_begin = set(self._left)
        self._trials = Counter(plan.task_name for plan, _ in demands)
        self._images = {name: asyncio.Event() for name in self._trials}
        self._held: list[Demand] = []
        self._reserved: tuple[int, Demand] | None = None
        """Concurrency, and the total demand of that many of the largest remaining trials."""
        self._changed = asyncio.Event()
        admission.on_spare_room = self._changed.set

    @property
    def tasks(self) -> frozenset[str]:
        """Names of the tasks that have trials in the run."""
        return frozenset(self._trials)

    async def image(self, task: str) -> None:
        """Wait until a trial of this task has got its image, or all trials of the task have ended."""
        await self._images[task].wait()

    def on_event(self, event: Event) -> None:
        """Follow which trials have begun, and which have ended."""
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
        self, demand: Demand, preference: Preference = lambda _: 0.0, avoided: RunMachine | None = None
    ) -> AsyncIterator[MachineBudget]:
        """Hold resources that no trial of the run can use. Raises NoMachine."""
        while (budget := self._taken(demand, preference, avoided)) is None:
            self._changed.clear()
            await self._changed.wait()
        self._held.append(demand)
        try:
            await self._may_start()
            yield budget
        finally:
            self._held.remove(demand)
            self._admission.release(budget, demand)

    def _taken(self, demand: Demand, preference: Preference, avoided: RunMachine | None) -> MachineBudget | None:
        if len(self._held) >= self._at_once() or (isinstance(self.backend, HasMachines) and self._to_begin):
            return None
        return self._admission.try_admit(demand, preference, avoided, lambda budget: self._leaves_room(budget, demand))

    def _leaves_room(self, budget: MachineBudget, demand: Demand) -> bool:
        """Return whether the largest remaining trials still fit beside the used spare capacity and this demand."""
        if not self._left:
            return True
        # CPUs beyond the real ones (--cpu-overcommit) are not spare.
        cpus = budget.cpus if budget.node is None else min(budget.cpus, budget.node.backend.capacity().cpus)
        if isinstance(self.backend, HasMachines):
            return budget.used_cpus + demand.cpus <= cpus + 1e-9
        taken = [self._largest(), *self._held, demand]
        return (
            sum(each.cpus for each in taken) <= cpus + 1e-9
            and sum(each.memory_mb for each in taken) <= budget.memory_mb + 1e-9
            and (budget.gpus is None or sum(each.gpus for each in taken) <= budget.gpus)
        )

    def _largest(self) -> Demand:
        """Return the total demand of the largest remaining trials, as many as run at once."""
        most = self._at_once()
        if self._reserved is None or self._reserved[0] != most:
            left = self._left.values()
            cpus = sum(heapq.nlargest(most, (each.cpus for each in left)))
            memory_mb = sum(heapq.nlargest(most, (each.memory_mb for each in left)))
            self._reserved = most, Demand(cpus, memory_mb, sum(heapq.nlargest(most, (each.gpus for each in left))))
        return self._reserved[1]


class Calibrator(Protocol):
    """Calibrates the tasks of a run while it runs."""

    is_waited_for: bool
    """Whether a finished run waits for the calibration."""

    async def measure(self, spare: SpareCapacity, say: Say) -> None:
        """Measure tasks, and store each result at once. Raises TbenchError, NoMachine, OSError."""

    def unhealthy(self, known: Mapping[str, Calibration]) -> dict[str, str] | None:
        """Return the unhealthy tasks with reasons; None if there are none and some tasks were not measured."""

    def remaining_message(self) -> str:
        """Return a message about tasks not measured and how to measure them; empty if all are."""


@contextlib.asynccontextmanager
async def calibrating(
    calibrates: Calibrator, spare: SpareCapacity, say: Say
) -> AsyncIterator[Callable[[bool], Awaitable[None]]]:
    """Calibrate a run's tasks during the block; yields a function that ends the calibration, or waits for its end.

    Its argument is whether the run was cut short. If the calibration fails, the run continues without it.
    """

    async def measure() -> None:
        try:
            await calibrates.measure(spare, say)
        except (TbenchError, NoMachine, OSError) as error:
            say(f"calibration: {str(error) or 'no machine left'}")

    measuring = asyncio.create_task(measure(), name="calibration")

    async def end(is_cut_short: bool) -> None:
        try:
            if not is_cut_short and calibrates.is_waited_for:
                await asyncio.wait({measuring})
        finally:
            try:
                await cancel(measuring)
            finally:
                if not is_cut_short and (message := calibrates.remaining_message()):  # else the resumed run measures
                    say(message)

    try:
        yield end
    finally:
        await cancel(measuring)
