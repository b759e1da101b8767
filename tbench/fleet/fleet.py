"""A backend of several machines: trials are on all of them, and those of one that is lost begin anew elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from tbench.errors import TbenchError, TrialError, UsageError
from tbench.events import Phase
from tbench.fleet.machine import FleetMachine
from tbench.results import ImageOrigin
from tbench.sandbox.backend import Backend, Capacity, HoldsImages, Sandbox, Say
from tbench.sandbox.node import Node
from tbench.tasks.environment import Environment
from tbench.text import counted, one_line

# What the machines of a fleet have to have in common, and what is worth knowing where they differ.

_COMPARED = {"cgroup_version": "cgroup", "storage_driver": "storage driver"}
"""What is compared of that which backends say of themselves, with the words for it."""


def require_one_architecture(machines: Iterable[tuple[str, str]]) -> None:
    """Check machines, each by its name with its architecture, of which empty ones are not known. Raises UsageError."""
    (first, its), *others = [each for each in machines if each[1]] or [("", "")]
    for name, another in others:
        if another != its:
            raise UsageError(
                f"{name}: has the architecture {another}, and {first} has {its}; images and verdicts of one run are of "
                "one architecture, so leave out one of both"
            )


def words_about_difference(first: tuple[str, Mapping[str, Any]], other: tuple[str, Mapping[str, Any]]) -> str | None:
    """One line about a machine that is not as the first is: each by its name, with what its backend says of itself."""
    (first_name, one), (name, another) = first, other
    has, had = list[str](), list[str]()
    if (here := _product(another)) != (there := _product(one)):
        has, had = [here], [there]
    for key, words in _COMPARED.items():
        if key in one and key in another and one[key] != another[key]:
            has.append(f"{words} {another[key]}")
            had.append(f"{words} {one[key]}")
    if not has:
        return None
    return f"{name}: has {', '.join(has)}, and {first_name} has {', '.join(had)}; results say where each trial was"


def _product(told: Mapping[str, Any]) -> str:
    return f"{str(told.get('backend', '')).capitalize()} {told.get('version', '')}".strip()


LOOK_EVERY_SEC = 5.0
LOST_AFTER_SEC = 45.0
"""How long a machine may say nothing before it counts as lost: an engine that restarts takes less."""
ALONE_SEC = 300.0
"""How long it is waited for a machine when there is none, before the run stops, or none that is large enough."""
ASIDE_SEC = 300.0
"""How long a machine is left alone on which nothing starts."""
MOST_FAILURES = 3
"""How many attempts may fail on a machine, one after the other, before it is left alone."""


class Fleet:
    """A `Backend` whose sandboxes are on several machines, each of which may be lost, and come back.

    A trial is placed by whoever asks for its sandbox, on one of the `nodes`; here are the machines together.
    """

    def __init__(
        self,
        machines: Sequence[FleetMachine],
        *,
        arrivals: Callable[[Fleet], Awaitable[None]] | None = None,
        look_every_sec: float = LOOK_EVERY_SEC,
        lost_after_sec: float = LOST_AFTER_SEC,
        alone_sec: float = ALONE_SEC,
        aside_sec: float = ASIDE_SEC,
    ) -> None:
        """`arrivals` has other machines join and leave while the fleet is open."""
        self._machines: dict[Node, FleetMachine] = {
            Node(machine.name, machine.backend): machine for machine in machines
        }
        self._look_every_sec, self._lost_after_sec = look_every_sec, lost_after_sec
        self._alone_sec, self._aside_sec = alone_sec, aside_sec
        self._alone_since: float | None = None
        self._stopped: str | None = None
        self._tell: list[Callable[[], None]] = []
        self._watching: dict[Node, asyncio.Task[None]] = {}
        self._watching_all: asyncio.Task[None] | None = None
        self._aside: dict[Node, asyncio.TimerHandle] = {}
        """Machines on which nothing starts, each with what ends that."""
        self._closing: list[Callable[[], None]] = []
        self._say: Say = lambda _: None
        self._arrivals = arrivals
        self._following: asyncio.Task[None] | None = None

    # -- the machines ------------------------------------------------------------------------------

    @property
    def nodes(self) -> Sequence[Node]:
        return tuple(self._machines)

    @property
    def machines(self) -> Sequence[FleetMachine]:
        """All machines that there have been, in the order of `nodes`."""
        return tuple(self._machines.values())

    @property
    def gave_up(self) -> str | None:
        return self._stopped

    def say(self, text: str) -> None:
        """Tell the run something about a machine."""
        self._say(text)

    def on_change(self, tell: Callable[[], None]) -> None:
        self._tell.append(tell)

    def on_close(self, call: Callable[[], None]) -> None:
        """Have `call` called when all is closed."""
        self._closing.append(call)

    async def join(self, machine: FleetMachine) -> None:
        """Have another machine from now on. Raises UsageError where it cannot be made ready; then it is let go."""
        try:
            await self._open(machine)
        except BaseException:
            machine.close()
            raise
        self._say(f"{machine.name}: has joined, with {_has(machine.backend.capacity())}")
        self._add(Node(machine.name, machine.backend), machine)

    def _add(self, node: Node, machine: FleetMachine) -> None:
        self._machines[node] = machine
        node.on_failure = partial(self._failed, node)
        self._watching[node] = asyncio.create_task(self._watch(node, machine), name=f"watch over {node.name}")
        self._changed()

    def leave(self, machine: FleetMachine, why: str) -> None:
        """Take it that a machine is gone for good; who comes back is another one."""
        for node in [node for node, each in self._machines.items() if each is machine]:
            if (watching := self._watching.pop(node, None)) is not None:
                watching.cancel()
            node.is_gone = True
            self._lose(node, machine, why)
            machine.close()

    def stop(self, why: str) -> None:
        """Have it that there will be no machine any more."""
        self._stopped = why
        for node, machine in self._machines.items():
            self._lose(node, machine, why)
        self._changed()

    def _lose(self, node: Node, machine: FleetMachine, why: str) -> None:
        if not node.is_up:
            return
        # What is asked of it must fail at once, before the trials on it are ended and clean up.
        machine.give_up()
        lost = node.lose(why)
        if node in self._aside:
            self._end_of_aside(node)
        if self._stopped is None:
            become = f"; {counted(lost, 'trial')} on it begin{'s' if lost == 1 else ''} anew" if lost else ""
            self._say(f"{node.name}: is lost: {why}{become}")
        self._changed()

    def _changed(self) -> None:
        there = {node for node in self._machines if node.is_up}
        self._alone_since = None if there else self._alone_since or time.monotonic()
        if not there - self._aside.keys():
            for node in there:
                self._end_of_aside(node)
        for tell in self._tell:
            tell()

    async def _watch(self, node: Node, machine: FleetMachine) -> None:
        """Look at a machine until the run ends."""
        heard, said = time.monotonic(), ""
        lost_since: float | None = None
        while True:
            await asyncio.sleep(self._look_every_sec)
            why = await machine.answers()
            now = time.monotonic()
            lost_since = None if node.is_up else lost_since or now
            if lost_since is not None and now - lost_since > self._alone_sec and not node.is_gone:
                node.is_gone = True
                self._changed()
            if not why:
                heard = now
                if node.is_up:
                    self._place_again(node)
                else:
                    said = await self._take_back(node, machine, said)
            elif node.is_up and now - heard >= self._lost_after_sec:
                said = ""
                self._lose(node, machine, why)
            elif node.is_up and node.why_aside is None:
                # It may be back in a moment: what is on it waits for that, and nothing else goes there meanwhile.
                node.why_aside = why
                self._changed()

    def _place_again(self, node: Node) -> None:
        """Have trials on a machine that answers, unless it is left alone for a while."""
        if node.why_aside is not None and node not in self._aside:
            node.why_aside = None
            self._changed()

    async def _take_back(self, node: Node, machine: FleetMachine, said: str) -> str:
        """Have trials on a machine that was lost; what was said of it last, which is not said again."""
        if self._stopped is not None:
            return said
        try:
            left = await machine.recover()
        except TbenchError as error:
            words = f"{node.name}: answers again, but cannot be used: {one_line(str(error), 200)}"
            if words != said:
                self._say(words)
            return words
        node.come_back()
        removed = f"; removed {counted(left, 'container')} left on it" if left else ""
        self._say(f"{node.name}: is back{removed}")
        self._changed()
        return ""

    def _failed(self, node: Node, error: str) -> None:
        """Leave a machine alone for a while on which nothing starts, such as one with a full disk: it fails fast, so it
        always has room, and would get every trial. Never the last one."""
        others = (other for other in self._machines if other is not node and other.takes_trials)
        if node.failures < MOST_FAILURES or not node.takes_trials or not any(others):
            return
        node.why_aside = error
        minutes = f"{self._aside_sec / 60:g} min"
        self._say(f"{node.name}: is set aside: {one_line(error, 200)}; it is tried again in {minutes}")
        # One more failure is enough from then on, until something has started.
        self._aside[node] = asyncio.get_running_loop().call_later(self._aside_sec, self._try_again, node)
        self._changed()

    def _try_again(self, node: Node) -> None:
        self._end_of_aside(node)
        self._changed()

    def _end_of_aside(self, node: Node) -> None:
        self._aside.pop(node).cancel()
        node.why_aside = None

    async def _watch_all(self) -> None:
        """Stop the run where there has been no machine for long."""
        while self._stopped is None:
            await asyncio.sleep(self._look_every_sec)
            if self._alone_since is not None and time.monotonic() - self._alone_since > self._alone_sec:
                whys = "; ".join(f"{node.name}: {node.why_lost}" for node in self._machines)
                self.stop(f"no machine is left since {self._alone_sec:.0f} s ({one_line(whys, 300)})")

    # -- as a backend ------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return counted(len(self._machines), "machine")

    @property
    def sandbox_type(self) -> type:
        return next(iter(self._machines)).backend.sandbox_type

    @property
    def image_ids(self) -> Mapping[str, str]:
        return {name: each for node in reversed(self._machines) for name, each in node.backend.image_ids.items()}

    @property
    def image_origins(self) -> Mapping[str, ImageOrigin]:
        return {name: each for node in reversed(self._machines) for name, each in node.backend.image_origins.items()}

    async def open(self, say: Say) -> None:
        self._say = say
        await self._open_all()
        for node, machine in list(self._machines.items()):
            self._add(node, machine)
        if self._arrivals is not None:
            self._following = asyncio.create_task(self._follow(self._arrivals), name="machines that come and go")
        self._watching_all = asyncio.create_task(self._watch_all(), name="watch over all machines")

    async def _open_all(self) -> None:
        """Open the machines that there are. Raises UsageError, but not where others do and may still come."""
        opening = {node: self._open(machine) for node, machine in self._machines.items()}
        outcomes = await asyncio.gather(*opening.values(), return_exceptions=True)
        failed = {node: why for node, why in zip(opening, outcomes, strict=True) if isinstance(why, BaseException)}
        for node, why in failed.items():
            if self._arrivals is None or len(failed) == len(opening) or not isinstance(why, UsageError):
                raise why
            self._say(f"{why}; it is not used")
            self._machines.pop(node).close()

    async def _follow(self, arrivals: Callable[[Fleet], Awaitable[None]]) -> None:
        try:
            await arrivals(self)
        except Exception as bug:  # noqa: BLE001 - told as what it is; the run must not wait for machines for ever
            self.stop(f"no machines are followed any more: {bug!r}")

    async def _open(self, machine: FleetMachine) -> None:
        """Make a machine ready, which has to be like the first one. Raises UsageError with its name."""
        name, told = machine.name, machine.backend.describe()
        first = next(((node.name, node.backend.describe()) for node in self._machines), (name, told))
        require_one_architecture((each, of.get("architecture", "")) for each, of in (first, (name, told)))
        try:
            await machine.backend.open(lambda text: self._say(f"{name}: {text}"))
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from error
        if (words := words_about_difference(first, (name, told))) is not None:
            self._say(words)

    async def sandbox(
        self, environment: Environment, trial: str, on_phase: Callable[[Phase], None] = lambda _: None
    ) -> Sandbox:
        return await self._any().sandbox(environment, trial, on_phase)

    async def prepare(self, environment: Environment) -> None:
        await self._any().prepare(environment)

    def _any(self) -> Backend:
        """That of a machine that is up, for whoever has not placed a trial. Raises TrialError."""
        for node in self._machines:
            if node.is_up:
                return node.backend
        raise TrialError("engine_unreachable", "no machine is there")

    def capacity(self) -> Capacity:
        each = [node.backend.capacity() for node in self._machines]
        gpus = [capacity.gpus for capacity in each]
        return Capacity(
            sum(capacity.cpus for capacity in each),
            sum(capacity.memory_mb for capacity in each),
            # A trial is on one machine.
            gpus=None if None in gpus else max((number for number in gpus if number is not None), default=0),
        )

    def describe(self) -> dict[str, Any]:
        total = self.capacity()
        # One that has joined again is described as it is now.
        described = {node.name: {"name": node.name, **node.backend.describe()} for node in self._machines}
        machines = list(described.values())
        backends = " and ".join(sorted({machine["backend"] for machine in machines}))
        return {"backend": backends, "cpus": total.cpus, "memory_mb": round(total.memory_mb), "machines": machines}

    async def close(self) -> None:
        others = [task for task in (self._watching_all, self._following) if task is not None]
        tasks = [*self._watching.values(), *others]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for timer in self._aside.values():
            timer.cancel()
        for machine in self._machines.values():
            await machine.backend.close()
            machine.close()
        for call in self._closing:
            call()

    # -- images, on all machines -------------------------------------------------------------------

    async def about_pulls(self, environments: Sequence[Environment], *, ask: bool) -> Sequence[str]:
        found = []
        for node in self._up():
            if isinstance(node.backend, HoldsImages):
                lines = await node.backend.about_pulls(environments, ask=ask)
                found += [f"{node.name}: {line}" for line in lines]
        return found

    async def prefetch(self, environments: Sequence[Environment]) -> Mapping[str, TrialError]:
        backends = [node.backend for node in self._up() if isinstance(node.backend, HoldsImages)]
        failed: dict[str, TrialError] = {}
        for each in await asyncio.gather(*(backend.prefetch(environments) for backend in backends)):
            failed.update(each)
        return failed

    async def drop_image(self, environment: Environment, others: Sequence[Environment]) -> int:
        freed = 0
        for node in self._up():
            if isinstance(node.backend, HoldsImages):
                with contextlib.suppress(TbenchError):
                    freed += await node.backend.drop_image(environment, others)
        return freed

    def _up(self) -> list[Node]:
        return [node for node in self._machines if node.is_up]


def _has(capacity: Capacity) -> str:
    return (
        f"{capacity.cpus:g} {'cpu' if capacity.cpus == 1 else 'cpus'} and {capacity.memory_mb / 1024:,.1f} GB of memory"
    )
