"""Lets a trial start when its cpus, memory and GPUs fit what a machine has left. First come, first served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tbench.config.settings import ScheduleConfig
from tbench.config.values import ALL_THAT_MAY_HEAL, RetryChoice
from tbench.errors import KINDS, UsageError
from tbench.results import ErrorInfo
from tbench.runs.host import load_per_cpu
from tbench.sandbox.backend import Backend
from tbench.sandbox.node import HasNodes, Node, is_of_machine, nodes_of

CHECK_EVERY_SEC = 5.0


@dataclass(frozen=True)
class Demand:
    """What one trial's container may use."""

    cpus: float
    memory_mb: float
    gpus: int = 0


@dataclass(eq=False)
class NodeBudget:
    """What a machine has for trials, and how much of it is taken. GPUs of an unknown number are no bound."""

    cpus: float
    memory_mb: float
    gpus: int | None = None
    node: Node | None = None
    """The machine, which may be away; None for one that never is."""
    holders: int = 0
    used_cpus: float = 0.0
    used_memory_mb: float = 0.0
    used_gpus: int = 0

    @classmethod
    def of(cls, node: Node, cpu_overcommit: float) -> NodeBudget:
        """The budget of a machine."""
        budget = cls(0, 0, node=node)
        budget.measure(cpu_overcommit)
        return budget

    def measure(self, cpu_overcommit: float) -> None:
        """Have what the machine has now, which may be less than is taken: then nothing starts there for a while."""
        assert self.node is not None
        capacity = self.node.backend.capacity()
        self.cpus, self.memory_mb, self.gpus = capacity.cpus * cpu_overcommit, capacity.memory_mb, capacity.gpus

    @property
    def is_open(self) -> bool:
        """Whether trials may be placed here at all."""
        return self.node is None or self.node.takes_trials

    @property
    def may_open(self) -> bool:
        """Whether they may now, or it is worth waiting for that."""
        return self.node is None or not self.node.is_gone

    def could_hold(self, demand: Demand) -> bool:
        """Whether it is large enough for a demand while nothing of it is taken."""
        return (
            demand.cpus <= self.cpus + 1e-9
            and demand.memory_mb <= self.memory_mb + 1e-9
            and (self.gpus is None or demand.gpus <= self.gpus)
        )

    def fits(self, demand: Demand) -> bool:
        """Whether a demand may be added now: beside what is taken, or alone."""
        return self.holders == 0 or (
            self.used_cpus + demand.cpus <= self.cpus + 1e-9
            and self.used_memory_mb + demand.memory_mb <= self.memory_mb + 1e-9
            and (self.gpus is None or self.used_gpus + demand.gpus <= self.gpus)
        )

    def share_left(self, demand: Demand) -> float:
        """The share of what is scarcest that is left with this demand."""
        left_cpus = 1 - (self.used_cpus + demand.cpus) / max(self.cpus, 1e-9)
        left_memory = 1 - (self.used_memory_mb + demand.memory_mb) / max(self.memory_mb, 1e-9)
        return min(left_cpus, left_memory)

    def take(self, demand: Demand, sign: int = 1) -> None:
        """Take a demand, or with -1 give it back."""
        self.holders += sign
        self.used_cpus += sign * demand.cpus
        self.used_memory_mb += sign * demand.memory_mb
        self.used_gpus += sign * demand.gpus


Likes = Callable[[NodeBudget], float]
"""What is added to the share that a machine has left, when one is chosen."""


class NoMachine(Exception):
    """No machine will have room for anything any more."""


@dataclass(eq=False)
class _Waiter:
    """One who waits for a place."""

    demand: Demand
    likes: Likes
    avoided: Node | None
    turn: asyncio.Future[NodeBudget]


class Admission:
    """The budgets of machines, and who waits for a part of them.

    A demand above the whole budget of every machine is admitted alone: such a trial runs, but next to nothing else.
    Waiting is in order, so a large task is not starved by small ones. `max_load` (load average over one minute / cpus)
    holds back every trial but a first: while none is under way the load is not ours, and a run must get on.
    """

    def __init__(
        self,
        budgets: Iterable[NodeBudget],
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
        self.on_look: Callable[[], None] = lambda: None
        """Called whenever there may be room that nobody waits for."""

    def add(self, budget: NodeBudget) -> None:
        """Have another machine from now on."""
        self._budgets.append(budget)

    def close(self) -> None:
        """Have it that nobody is admitted any more, those who wait among them."""
        self._is_closed = True
        for each in self._waiting:
            if not each.turn.done():
                each.turn.set_exception(NoMachine())
        self._waiting.clear()
        self.on_look()

    @asynccontextmanager
    async def admit(
        self, demand: Demand, likes: Likes = lambda _: 0.0, avoided: Node | None = None
    ) -> AsyncIterator[NodeBudget]:
        """Hold `demand` for the duration of the block; the budget says on which machine. Raises NoMachine.

        The machine that is `avoided` is taken only where there is no other.
        """
        if self._is_closed:
            raise NoMachine
        budget = await self._queue(demand, likes, avoided)
        try:
            yield budget
        finally:
            self.give_back(budget, demand)

    def take_spare(
        self, demand: Demand, likes: Likes, avoided: Node | None, fits: Callable[[NodeBudget], bool]
    ) -> NodeBudget | None:
        """Take a demand, to be given back, where nobody waits and a machine that `fits` has room now; None elsewhere.

        Raises NoMachine.
        """
        if self._is_closed:
            raise NoMachine
        if self._waiting:
            return None
        waiter = _Waiter(demand, likes, avoided, asyncio.get_running_loop().create_future())
        budget = self._place_for(waiter, [budget for budget in self._suitable(waiter) if fits(budget)])
        if budget is not None:
            budget.take(demand)
        return budget

    async def _queue(self, demand: Demand, likes: Likes, avoided: Node | None) -> NodeBudget:
        waiting = _Waiter(demand, likes, avoided, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self.look_again()
        try:
            return await waiting.turn
        except asyncio.CancelledError:
            if waiting.turn.cancelled():
                with contextlib.suppress(ValueError):
                    self._waiting.remove(waiting)
                self.look_again()
            elif waiting.turn.exception() is None:  # or else nobody is admitted any more
                self.give_back(waiting.turn.result(), demand)
            raise

    def _suitable(self, waiter: _Waiter) -> list[NodeBudget]:
        """The machines that are there for one who waits, busy or not."""
        # One that is too small for it would give it less than it asks for, while a larger one is busy, or back soon.
        large_enough = [budget for budget in self._budgets if budget.may_open and budget.could_hold(waiter.demand)]
        there = [budget for budget in large_enough or self._budgets if budget.is_open]
        return [budget for budget in there if budget.node is None or budget.node is not waiter.avoided] or there

    def _place_for(self, waiter: _Waiter, suitable: Sequence[NodeBudget]) -> NodeBudget | None:
        """The one of these machines on which it may start now; None where it has to wait."""
        free = [budget for budget in suitable if budget.fits(waiter.demand)]
        if not free or (any(budget.holders for budget in self._budgets if budget.is_open) and self._is_too_busy()):
            return None
        return max(free, key=lambda budget: budget.share_left(waiter.demand) + waiter.likes(budget))

    def _is_too_busy(self) -> bool:
        """Whether the load is above the limit; if so, a later check of it is arranged."""
        load = self._load() if self._max_load is not None else None
        if load is None or self._max_load is None or load <= self._max_load:
            self._is_held_back = False
            return False
        if not self._is_held_back:
            self._is_held_back = True
            self._say(f"load {load:.2f} per cpu is above --max-load {self._max_load:g}: the next trial waits")
        if self._next_check is None:
            self._next_check = asyncio.get_running_loop().call_later(self._check_every_sec, self._check_again)
        return True

    def _check_again(self) -> None:
        self._next_check = None
        self.look_again()

    def give_back(self, budget: NodeBudget, demand: Demand) -> None:
        """Have what was taken of a machine free again."""
        budget.take(demand, -1)
        self.look_again()

    def look_again(self) -> None:
        """Admit those in front for whom there is a place now, as when a machine has come."""
        for waiter in tuple(self._waiting):
            # One that was cancelled in this turn of the loop is still in line: its task has not run since.
            if not waiter.turn.cancelled():
                suitable = self._suitable(waiter)
                if not suitable:
                    continue  # whoever waits for a machine that is away is in nobody's way
                budget = self._place_for(waiter, suitable)
                if budget is None:
                    return
                budget.take(waiter.demand)
                waiter.turn.set_result(budget)
            self._waiting.remove(waiter)
        if not self._waiting:
            self.on_look()


# Admission to the machines of a backend, as they come and go.


def admission_to(backend: Backend, schedule: ScheduleConfig, say: Callable[[str], None]) -> Admission:
    """Admission to the machines of an open backend; closed when there will be none any more."""
    admission, known = Admission((), max_load=schedule.max_load, say=say), dict[Node, NodeBudget]()

    def follow() -> None:
        for node in nodes_of(backend):
            if node in known:
                known[node].measure(schedule.cpu_overcommit)
            else:
                known[node] = NodeBudget.of(node, schedule.cpu_overcommit)
                admission.add(known[node])
        if why_no_machine(backend) is None:
            admission.look_again()
        else:
            admission.close()

    follow()
    if isinstance(backend, HasNodes):
        backend.on_change(follow)
    return admission


def why_no_machine(backend: Backend) -> str | None:
    """Why a backend will have no machine any more on which a trial could be; None where it has, or may have."""
    return backend.gave_up if isinstance(backend, HasNodes) else None


# The attempts at one trial: how many there may be, and on which machine the next one is.

MOST_LOSSES = 3
"""How many machines may be lost under one trial before that counts as an attempt at it."""
_OTHER_MACHINE, _ITS_IMAGE = 2.0, 0.2
"""What another machine than the one before, and one that has the image, are worth beside a share that is left."""


@dataclass(frozen=True)
class RetryErrors:
    """Choice of errors that are tried again: those that another attempt may heal, and these types."""

    types: frozenset[str] = frozenset()
    everything: bool = False
    choice: RetryChoice = ALL_THAT_MAY_HEAL
    """What the run has chosen of those that another attempt may heal."""

    @classmethod
    def parse(cls, text: str | None, choice: RetryChoice = ALL_THAT_MAY_HEAL) -> RetryErrors:
        """Read `all`, or types separated by commas. Raises UsageError for one that does not exist, or is not wanted."""
        if text is None:
            return cls(choice=choice)
        types = frozenset(filter(None, (word.strip() for word in text.split(","))))
        if types == {"all"} or not types:
            return cls(everything=True, choice=choice)
        if unknown := sorted(types - KINDS.keys()):
            raise UsageError(f"--retry-errors {unknown[0]}: no such type of error; known: {', '.join(KINDS)}")
        if both := sorted(types & choice.never):
            raise UsageError(f"--retry-errors {both[0]}: --retry-never names it, too; leave out one or the other")
        return cls(types, choice=choice)

    def wants(self, error: ErrorInfo) -> bool:
        return self.everything or self.choice.wants(error) or error.type in self.types


class Tries:
    """The attempts at one trial."""

    def __init__(self, most: int, choice: RetryChoice = ALL_THAT_MAY_HEAL) -> None:
        """`choice` says of which errors others follow at all."""
        self._choice = choice
        self.most = most
        """How many there may be."""
        self.node: Node | None = None
        """The machine of the newest one."""
        self.avoided: Node | None = None
        """The machine of the newest one, where it is the machine that has failed."""
        self._made = 0
        self._lost: set[int] = set()
        """Numbers of those under which their machine was lost."""

    def begins_on(self, node: Node) -> None:
        """Take it that an attempt begins on this machine."""
        self.node, self.avoided = node, None
        self._made += 1

    def likes(self, task: str) -> Likes:
        """What else decides on which machine the next attempt is: that it is another one, and has the image."""
        before = self.node

        def likes(budget: NodeBudget) -> float:
            assert budget.node is not None
            has_image = task in budget.node.backend.image_ids
            return _OTHER_MACHINE * (budget.node is not before) + _ITS_IMAGE * has_image

        return likes

    def is_last(self, error: ErrorInfo) -> bool:
        """Whether no other attempt follows the newest one, which ends with this error.

        A machine that was lost is not the trial's doing.
        """
        assert self.node is not None
        # One of several that does not answer is soon known to be lost, or is there again.
        if not self.node.is_up or (self.node.name and error.type == "engine_unreachable"):
            self._lost.add(self._made)
        return not self._choice.wants(error) or self._made >= self.most + min(len(self._lost), MOST_LOSSES)

    def ended(self, error: ErrorInfo | None) -> None:
        """Notice how the newest attempt has ended."""
        assert self.node is not None
        self.node.attempted(error)
        if error is not None and is_of_machine(error):
            self.avoided = self.node
