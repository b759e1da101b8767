"""Admits a trial when a machine has enough free CPUs, memory and GPUs for it. First come, first served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tbench.config.settings import ScheduleConfig
from tbench.config.values import RETRY_ALL, RetryChoice
from tbench.errors import KINDS, UsageError
from tbench.results import ErrorInfo
from tbench.runs.host import load_per_cpu
from tbench.sandbox.backend import Backend
from tbench.sandbox.run_machine import HasMachines, RunMachine, is_machine_fault, run_machines_of

CHECK_EVERY_SEC = 5.0


@dataclass(frozen=True)
class Demand:
    """Resources that one trial's containers may use."""

    cpus: float
    memory_mb: float
    gpus: int = 0


@dataclass(eq=False)
class MachineBudget:
    """Resources of a machine, and how much of them is taken. An unknown number of GPUs sets no limit."""

    cpus: float
    memory_mb: float
    gpus: int | None = None
    node: RunMachine | None = None
    """The machine, if it may become unavailable; None if it is always available."""
    holders: int = 0
    used_cpus: float = 0.0
    used_memory_mb: float = 0.0
    used_gpus: int = 0
    kept_mb: float = 0.0
    """Part of the used memory that interrupted trials of earlier runs hold."""

    @classmethod
    def for_machine(cls, node: RunMachine, cpu_overcommit: float) -> MachineBudget:
        """Return the budget of a machine."""
        budget = cls(0, 0, node=node)
        budget.measure(cpu_overcommit)
        return budget

    def measure(self, cpu_overcommit: float) -> None:
        """Read the machine's capacity again. While the capacity is below what is taken, nothing starts there."""
        assert self.node is not None
        capacity = self.node.backend.capacity()
        self.cpus, self.memory_mb, self.gpus = capacity.cpus * cpu_overcommit, capacity.memory_mb, capacity.gpus
        self.used_memory_mb += capacity.kept_mb - self.kept_mb
        self.kept_mb = capacity.kept_mb

    @property
    def is_open(self) -> bool:
        """Whether the machine takes trials now."""
        return self.node is None or self.node.takes_trials

    @property
    def may_open(self) -> bool:
        """Whether it takes trials now, or may take trials later."""
        return self.node is None or not self.node.is_gone

    def could_hold(self, demand: Demand) -> bool:
        """Whether the machine would be large enough for a demand if it were empty."""
        return (
            demand.cpus <= self.cpus + 1e-9
            and demand.memory_mb <= self.memory_mb + 1e-9
            and (self.gpus is None or demand.gpus <= self.gpus)
        )

    def fits(self, demand: Demand) -> bool:
        """Whether a demand fits into the free resources. Any demand fits an empty machine."""
        return self.holders == 0 or (
            self.used_cpus + demand.cpus <= self.cpus + 1e-9
            and self.used_memory_mb + demand.memory_mb <= self.memory_mb + 1e-9
            and (self.gpus is None or self.used_gpus + demand.gpus <= self.gpus)
        )

    def share_left(self, demand: Demand) -> float:
        """Return the free share of the scarcest resource after admitting a demand."""
        left_cpus = 1 - (self.used_cpus + demand.cpus) / max(self.cpus, 1e-9)
        left_memory = 1 - (self.used_memory_mb + demand.memory_mb) / max(self.memory_mb, 1e-9)
        return min(left_cpus, left_memory)

    def take(self, demand: Demand, sign: int = 1) -> None:
        """Take a demand, or give it back with sign -1."""
        self.holders += sign
        self.used_cpus += sign * demand.cpus
        self.used_memory_mb += sign * demand.memory_mb
        self.used_gpus += sign * demand.gpus


Preference = Callable[[MachineBudget], float]
"""Bonus on a machine's free share when a machine is chosen."""


class NoMachine(Exception):
    """No machine is left that could ever run a trial."""


@dataclass(eq=False)
class _Waiter:
    """A trial that waits for admission."""

    demand: Demand
    preference: Preference
    avoided: RunMachine | None
    turn: asyncio.Future[MachineBudget]


class Admission:
    """The budgets of machines, and the queue of trials that wait for them.

    A trial that needs more than any machine's budget runs alone. The queue is in order, so that small tasks do not
    starve a large one. `max_load` (load average over one minute / CPUs) holds back trials, except while none runs: then
    the load has another cause, and the run must not stall.
    """

    def __init__(
        self,
        budgets: Iterable[MachineBudget],
        *,
        max_load: float | None = None,
        load: Callable[[], float | None] = load_per_cpu,
        say: Callable[[str], None] = lambda _: None,
        check_every_sec: float = CHECK_EVERY_SEC,
    ) -> None:
        self._budgets = list(budgets)
        self._waiting: list[_Waiter] = []
        self._max_load, self._load, self._say = max_load, load, say
        self._check_every_sec = check_every_sec
        self._next_check: asyncio.TimerHandle | None = None
        self._is_held_back = False
        self._is_closed = False
        self.on_spare_room: Callable[[], None] = lambda: None
        """Called whenever there may be room that the queue does not need."""

    def add(self, budget: MachineBudget) -> None:
        """Add a machine."""
        self._budgets.append(budget)

    def close(self) -> None:
        """Admit no more trials, and fail those in the queue with NoMachine."""
        self._is_closed = True
        for each in self._waiting:
            if not each.turn.done():
                each.turn.set_exception(NoMachine())
        self._waiting.clear()
        self.on_spare_room()

    @asynccontextmanager
    async def admit(
        self, demand: Demand, preference: Preference = lambda _: 0.0, avoided: RunMachine | None = None
    ) -> AsyncIterator[MachineBudget]:
        """Hold `demand` on a machine during the block, and yield that machine's budget. Raises NoMachine.

        The machine `avoided` is used only if there is no other.
        """
        if self._is_closed:
            raise NoMachine
        budget = await self._queue(demand, preference, avoided)
        try:
            yield budget
        finally:
            self.release(budget, demand)

    def try_admit(
        self, demand: Demand, preference: Preference, avoided: RunMachine | None, fits: Callable[[MachineBudget], bool]
    ) -> MachineBudget | None:
        """Take a demand if the queue is empty and a machine that `fits` has room now; else return None.

        The caller gives it back with `release`. Raises NoMachine.
        """
        if self._is_closed:
            raise NoMachine
        if self._waiting:
            return None
        waiter = _Waiter(demand, preference, avoided, asyncio.get_running_loop().create_future())
        budget = self._choose_machine(waiter, [budget for budget in self._candidates(waiter) if fits(budget)])
        if budget is not None:
            budget.take(demand)
        return budget

    async def _queue(self, demand: Demand, preference: Preference, avoided: RunMachine | None) -> MachineBudget:
        waiting = _Waiter(demand, preference, avoided, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self.admit_waiting()
        try:
            return await waiting.turn
        except asyncio.CancelledError:
            if waiting.turn.cancelled():
                with contextlib.suppress(ValueError):
                    self._waiting.remove(waiting)
                self.admit_waiting()
            elif waiting.turn.exception() is None:  # otherwise admission was closed
                self.release(waiting.turn.result(), demand)
            raise

    def _candidates(self, waiter: _Waiter) -> list[MachineBudget]:
        """Return the machines that the trial could run on, busy or not."""
        # A machine that is too small would give it less than its demand; rather wait for a larger one.
        large_enough = [budget for budget in self._budgets if budget.may_open and budget.could_hold(waiter.demand)]
        there = [budget for budget in large_enough or self._budgets if budget.is_open]
        return [budget for budget in there if budget.node is None or budget.node is not waiter.avoided] or there

    def _choose_machine(self, waiter: _Waiter, candidates: Sequence[MachineBudget]) -> MachineBudget | None:
        """Return the machine on which the trial may start now; None if it has to wait."""
        free = [budget for budget in candidates if budget.fits(waiter.demand)]
        if not free or (any(budget.holders for budget in self._budgets if budget.is_open) and self._is_too_busy()):
            return None
        return max(free, key=lambda budget: budget.share_left(waiter.demand) + waiter.preference(budget))

    def _is_too_busy(self) -> bool:
        """Return whether the load is above the limit, and if so, schedule another check."""
        load = self._load() if self._max_load is not None else None
        if load is None or self._max_load is None or load <= self._max_load:
            self._is_held_back = False
            return False
        if not self._is_held_back:
            self._is_held_back = True
            self._say(f"load {load:.2f} per cpu is above --max-load {self._max_load:g}: trials wait")
        if self._next_check is None:
            self._next_check = asyncio.get_running_loop().call_later(self._check_every_sec, self._check_again)
        return True

    def _check_again(self) -> None:
        self._next_check = None
        self.admit_waiting()

    def release(self, budget: MachineBudget, demand: Demand) -> None:
        """Give back a demand that was taken on a machine."""
        budget.take(demand, -1)
        self.admit_waiting()

    def admit_waiting(self) -> None:
        """Admit the trials at the head of the queue that have room now."""
        for waiter in tuple(self._waiting):
            # A trial that was just cancelled is still queued until its task runs.
            if not waiter.turn.cancelled():
                candidates = self._candidates(waiter)
                if not candidates:
                    continue  # it waits for an unavailable machine, and blocks no other trial
                budget = self._choose_machine(waiter, candidates)
                if budget is None:
                    return
                budget.take(waiter.demand)
                waiter.turn.set_result(budget)
            self._waiting.remove(waiter)
        if not self._waiting:
            self.on_spare_room()


def make_admission(backend: Backend, schedule: ScheduleConfig, say: Callable[[str], None]) -> Admission:
    """Return the Admission of an open backend. It follows machines that come and go, and closes when none is left."""
    admission, known = Admission((), max_load=schedule.max_load, say=say), dict[RunMachine, MachineBudget]()

    def follow() -> None:
        for node in run_machines_of(backend):
            if node in known:
                known[node].measure(schedule.cpu_overcommit)
            else:
                known[node] = MachineBudget.for_machine(node, schedule.cpu_overcommit)
                admission.add(known[node])
        if why_no_machine(backend) is None:
            admission.admit_waiting()
        else:
            admission.close()

    follow()
    if isinstance(backend, HasMachines):
        backend.on_change(follow)
    return admission


def why_no_machine(backend: Backend) -> str | None:
    """Return why a backend has no machine left for trials; None if it still has one, or may get one."""
    return backend.gave_up if isinstance(backend, HasMachines) else None


MAX_LOST_MACHINES = 3
"""Number of attempts at a trial that do not count because their machine was lost."""
_OTHER_MACHINE, _ITS_IMAGE = 2.0, 0.2
"""Bonus for a machine other than the last attempt's, and for a machine that has the image."""


@dataclass(frozen=True)
class RetryErrors:
    """Errors that are retried: those that a retry may fix, and further types."""

    types: frozenset[str] = frozenset()
    everything: bool = False
    choice: RetryChoice = RETRY_ALL
    """The run's choice among the errors that a retry may fix."""

    @classmethod
    def parse(cls, text: str | None, choice: RetryChoice = RETRY_ALL) -> RetryErrors:
        """Parse `all`, or types separated by commas. Raises UsageError for an unknown or excluded type."""
        if text is None:
            return cls(choice=choice)
        types = frozenset(filter(None, (word.strip() for word in text.split(","))))
        if types == {"all"} or not types:
            return cls(everything=True, choice=choice)
        if unknown := sorted(types - KINDS.keys()):
            raise UsageError(f"--retry-errors {unknown[0]}: no such type of error; known: {', '.join(KINDS)}")
        if both := sorted(types & choice.never):
            raise UsageError(f"--retry-errors {both[0]}: also excluded by --retry-never; remove it from one of them")
        return cls(types, choice=choice)

    def wants(self, error: ErrorInfo) -> bool:
        return self.everything or self.choice.wants(error) or error.type in self.types


class RetryBudget:
    """Counts the attempts at one trial, and decides whether and where the next one runs."""

    def __init__(self, limit: int, choice: RetryChoice = RETRY_ALL) -> None:
        """`choice` selects the errors that are retried."""
        self._choice = choice
        self.limit = limit
        """Maximum number of attempts."""
        self.node: RunMachine | None = None
        """Machine of the latest attempt."""
        self.avoided: RunMachine | None = None
        """Machine of the latest attempt, if its failure was the machine's fault."""
        self._made = 0
        self._lost: set[int] = set()
        """Numbers of the attempts that lost their machine."""
        self._continued: set[int] = set()
        """Numbers of the attempts that the next attempt continued."""

    def start_on(self, node: RunMachine) -> None:
        """Record that an attempt begins on this machine."""
        self.node, self.avoided = node, None
        self._made += 1

    def preference(self, task: str) -> Preference:
        """Return the preference for the next attempt's machine: other than the last, and with the image of `task`."""
        before = self.node

        def preference(budget: MachineBudget) -> float:
            assert budget.node is not None
            has_image = task in budget.node.backend.image_ids
            return _OTHER_MACHINE * (budget.node is not before) + _ITS_IMAGE * has_image

        return preference

    def is_last(self, error: ErrorInfo, *, goes_on: bool = False) -> bool:
        """Return whether no attempt follows the latest one, which ended with this error.

        A lost machine is not the trial's fault, and an attempt that continues the latest one (`goes_on`) does not
        count.
        """
        assert self.node is not None
        # One of several engines that does not answer is soon marked as lost, or is available again.
        if not self.node.is_up or (self.node.name and error.type == "engine_unreachable"):
            self._lost.add(self._made)
        if goes_on:
            self._continued.add(self._made)
        free = len(self._continued) + min(len(self._lost - self._continued), MAX_LOST_MACHINES)
        return not self._choice.wants(error) or self._made >= self.limit + free

    def record(self, error: ErrorInfo | None) -> None:
        """Record how the latest attempt ended."""
        assert self.node is not None
        self.node.record_attempt(error)
        if error is not None and is_machine_fault(error):
            self.avoided = self.node
