"""A backend of several machines; trials on a lost machine continue on another one."""

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
from tbench.sandbox.run_machine import RunMachine
from tbench.tasks.environment import Environment
from tbench.text import counted, one_line

_COMPARED = {"cgroup_version": "cgroup", "storage_driver": "storage driver"}
"""Labels of the compared fields in backends' descriptions."""


def require_one_architecture(machines: Iterable[tuple[str, str]]) -> None:
    """Check that machines, given by name and architecture (empty if unknown), have the same. Raises UsageError."""
    (first, expected), *others = [each for each in machines if each[1]] or [("", "")]
    for name, architecture in others:
        if architecture != expected:
            raise UsageError(
                f"{name}: has the architecture {architecture}, and {first} has {expected}; all machines of a run must "
                "have the same architecture, so remove one of them"
            )


def describe_difference(first: tuple[str, Mapping[str, Any]], other: tuple[str, Mapping[str, Any]]) -> str | None:
    """Describe the differences between two machines, given by name and description; None if there are none."""
    (first_name, one), (name, another) = first, other
    has, had = list[str](), list[str]()
    if (here := _product(another)) != (there := _product(one)):
        has, had = [here], [there]
    for key, label in _COMPARED.items():
        if key in one and key in another and one[key] != another[key]:
            has.append(f"{label} {another[key]}")
            had.append(f"{label} {one[key]}")
    if not has:
        return None
    return f"{name}: has {', '.join(has)}, and {first_name} has {', '.join(had)}; results name each trial's machine"


def _product(description: Mapping[str, Any]) -> str:
    return f"{str(description.get('backend', '')).capitalize()} {description.get('version', '')}".strip()


CHECK_EVERY_SEC = 5.0
LOST_AFTER_SEC = 45.0
"""Seconds without an answer after which a machine counts as lost; longer than an engine takes to restart."""
NO_MACHINE_SEC = 300.0
"""Seconds without any machine after which the run stops, and after which a lost machine is no longer waited for."""
ASIDE_SEC = 300.0
"""Seconds for which a machine is set aside when attempts keep failing on it."""
MAX_FAILURES = 3
"""Consecutive failed attempts on a machine after which it is set aside."""


class Fleet:
    """A `Backend` whose sandboxes are on several machines, each of which may be lost, and come back.

    The caller chooses the machine of a trial from `run_machines`, and uses that machine's backend.
    """

    def __init__(
        self,
        machines: Sequence[FleetMachine],
        *,
        arrivals: Callable[[Fleet], Awaitable[None]] | None = None,
        on_close: Callable[[], None] = lambda: None,
        check_every_sec: float = CHECK_EVERY_SEC,
        lost_after_sec: float = LOST_AFTER_SEC,
        no_machine_sec: float = NO_MACHINE_SEC,
        aside_sec: float = ASIDE_SEC,
    ) -> None:
        """`arrivals` lets machines join and leave while the fleet is open. `on_close` is called in the end."""
        self._machines: dict[RunMachine, FleetMachine] = {
            RunMachine(machine.name, machine.backend): machine for machine in machines
        }
        self._check_every_sec, self._lost_after_sec = check_every_sec, lost_after_sec
        self._no_machine_sec, self._aside_sec = no_machine_sec, aside_sec
        self._no_machine_since: float | None = None
        self._stopped: str | None = None
        self._listeners: list[Callable[[], None]] = []
        self._watching: dict[RunMachine, asyncio.Task[None]] = {}
        self._watching_all: asyncio.Task[None] | None = None
        self._aside: dict[RunMachine, asyncio.TimerHandle] = {}
        """Machines that are set aside, each with the timer that ends it."""
        self._on_close = on_close
        self._say: Say = lambda _: None
        self._arrivals = arrivals
        self._following: asyncio.Task[None] | None = None

    # -- the machines ------------------------------------------------------------------------------

    @property
    def run_machines(self) -> Sequence[RunMachine]:
        return tuple(self._machines)

    @property
    def machines(self) -> Sequence[FleetMachine]:
        """All machines so far, in the order of `run_machines`."""
        return tuple(self._machines.values())

    @property
    def gave_up(self) -> str | None:
        return self._stopped

    def say(self, text: str) -> None:
        """Show a message of the run about a machine."""
        self._say(text)

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def join(self, machine: FleetMachine) -> None:
        """Add a machine. Raises UsageError if it cannot be prepared, and closes it then."""
        try:
            await self._open(machine)
        except BaseException:
            machine.close()
            raise
        self._say(f"{machine.name}: has joined, with {_resources(machine.backend.capacity())}")
        self._add(RunMachine(machine.name, machine.backend), machine)

    def _add(self, node: RunMachine, machine: FleetMachine) -> None:
        self._machines[node] = machine
        node.on_failure = partial(self._set_aside, node)
        self._watching[node] = asyncio.create_task(self._watch(node, machine), name=f"watch over {node.name}")
        self._notify()

    def leave(self, machine: FleetMachine, why: str) -> None:
        """Remove a machine for good; if it comes back, it joins as another one."""
        for node in [node for node, each in self._machines.items() if each is machine]:
            if (watching := self._watching.pop(node, None)) is not None:
                watching.cancel()
            node.is_gone = True
            self._lose(node, machine, why)
            machine.close()

    def stop(self, why: str) -> None:
        """Mark all machines as lost for good."""
        self._stopped = why
        for node, machine in self._machines.items():
            self._lose(node, machine, why)
        self._notify()

    def _lose(self, node: RunMachine, machine: FleetMachine, why: str) -> None:
        if not node.is_up:
            return
        # First, so that calls to it fail at once when the trials on it are cancelled and clean up.
        machine.give_up()
        lost = node.lose(why)
        if node in self._aside:
            self._end_set_aside(node)
        if self._stopped is None:
            elsewhere = f"; {counted(lost, 'trial')} on it to be continued elsewhere" if lost else ""
            self._say(f"{node.name}: is lost: {why}{elsewhere}")
        self._notify()

    def _notify(self) -> None:
        up = {node for node in self._machines if node.is_up}
        self._no_machine_since = None if up else self._no_machine_since or time.monotonic()
        if not up - self._aside.keys():
            for node in up:
                self._end_set_aside(node)
        for listener in self._listeners:
            listener()

    async def _watch(self, node: RunMachine, machine: FleetMachine) -> None:
        """Check a machine regularly until the run ends."""
        answered_at, last_message = time.monotonic(), ""
        lost_since: float | None = None
        while True:
            await asyncio.sleep(self._check_every_sec)
            why = await machine.check()
            now = time.monotonic()
            lost_since = None if node.is_up else lost_since or now
            if lost_since is not None and now - lost_since > self._no_machine_sec and not node.is_gone:
                node.is_gone = True
                self._notify()
            if not why:
                answered_at = now
                if node.is_up:
                    self._resume_placing(node)
                else:
                    last_message = await self._recover(node, machine, last_message)
            elif node.is_up and now - answered_at >= self._lost_after_sec:
                last_message = ""
                self._lose(node, machine, why)
            elif node.is_up and node.why_aside is None:
                # It may be back in a moment: trials on it wait, and no others are placed on it meanwhile.
                node.why_aside = why
                self._notify()

    def _resume_placing(self, node: RunMachine) -> None:
        """Place trials again on a machine that answers, unless it is set aside."""
        if node.why_aside is not None and node not in self._aside:
            node.why_aside = None
            self._notify()

    async def _recover(self, node: RunMachine, machine: FleetMachine, last_message: str) -> str:
        """Recover a lost machine that answers again; returns the last message about it, which is not repeated."""
        if self._stopped is not None:
            return last_message
        try:
            left = await machine.recover()
        except TbenchError as error:
            message = f"{node.name}: answers again, but cannot be used: {one_line(str(error), 200)}"
            if message != last_message:
                self._say(message)
            return message
        node.come_back()
        removed = f"; removed {counted(left, 'container')} left on it" if left else ""
        self._say(f"{node.name}: is back{removed}")
        self._notify()
        return ""

    def _set_aside(self, node: RunMachine, error: str) -> None:
        """Set a machine aside on which attempts keep failing, for example for a full disk, unless it is the last one.

        Failures are fast: such a machine would always have room, and get every trial.
        """
        others = (other for other in self._machines if other is not node and other.takes_trials)
        if node.failures < MAX_FAILURES or not node.takes_trials or not any(others):
            return
        node.why_aside = error
        minutes = f"{self._aside_sec / 60:g} min"
        self._say(f"{node.name}: is set aside: {one_line(error, 200)}; trying again in {minutes}")
        # After that, one more failure sets it aside again, until an attempt has started.
        self._aside[node] = asyncio.get_running_loop().call_later(self._aside_sec, self._try_again, node)
        self._notify()

    def _try_again(self, node: RunMachine) -> None:
        self._end_set_aside(node)
        self._notify()

    def _end_set_aside(self, node: RunMachine) -> None:
        self._aside.pop(node).cancel()
        node.why_aside = None

    async def _watch_all(self) -> None:
        """Stop the run after a long time without any machine."""
        while self._stopped is None:
            await asyncio.sleep(self._check_every_sec)
            if self._no_machine_since is not None and time.monotonic() - self._no_machine_since > self._no_machine_sec:
                whys = "; ".join(f"{node.name}: {node.why_lost}" for node in self._machines)
                self.stop(f"no machine has been available for {self._no_machine_sec:.0f} s ({one_line(whys, 300)})")

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
            self._following = asyncio.create_task(self._follow(self._arrivals), name="arrivals of machines")
        self._watching_all = asyncio.create_task(self._watch_all(), name="watch over all machines")

    async def _open_all(self) -> None:
        """Open all machines. Raises UsageError, unless other machines open and more may join."""
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
        except Exception as bug:  # noqa: BLE001 - reported, so that the run does not wait for machines for ever
            self.stop(f"arrivals of machines are no longer followed: {bug!r}")

    async def _open(self, machine: FleetMachine) -> None:
        """Prepare a machine, which has to have the architecture of the first one. Raises UsageError with its name."""
        name, description = machine.name, machine.backend.describe()
        first = next(((node.name, node.backend.describe()) for node in self._machines), (name, description))
        require_one_architecture((each, of.get("architecture", "")) for each, of in (first, (name, description)))
        try:
            await machine.backend.open(lambda text: self._say(f"{name}: {text}"))
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from error
        if (difference := describe_difference(first, (name, description))) is not None:
            self._say(difference)

    async def sandbox(
        self, environment: Environment, trial: str, on_phase: Callable[[Phase], None] = lambda _: None
    ) -> Sandbox:
        return await self._any_backend().sandbox(environment, trial, on_phase)

    async def prepare(self, environment: Environment) -> None:
        await self._any_backend().prepare(environment)

    def _any_backend(self) -> Backend:
        """Return the backend of any machine that is up, for callers that have chosen none. Raises TrialError."""
        for node in self._machines:
            if node.is_up:
                return node.backend
        raise TrialError("engine_unreachable", "no machine is available")

    def capacity(self) -> Capacity:
        each = [node.backend.capacity() for node in self._machines]
        gpus = [capacity.gpus for capacity in each]
        return Capacity(
            sum(capacity.cpus for capacity in each),
            sum(capacity.memory_mb for capacity in each),
            # The maximum, since a trial cannot use GPUs of several machines.
            gpus=None if None in gpus else max((number for number in gpus if number is not None), default=0),
        )

    def describe(self) -> dict[str, Any]:
        total = self.capacity()
        # By name, since a machine that has joined again is listed twice; the newest description counts.
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
        self._on_close()

    # -- images, on all machines -------------------------------------------------------------------

    async def describe_pulls(self, environments: Sequence[Environment], *, ask: bool) -> Sequence[str]:
        found = []
        for node in self._machines_up():
            if isinstance(node.backend, HoldsImages):
                lines = await node.backend.describe_pulls(environments, ask=ask)
                found += [f"{node.name}: {line}" for line in lines]
        return found

    async def prefetch(self, environments: Sequence[Environment]) -> Mapping[str, TrialError]:
        backends = [node.backend for node in self._machines_up() if isinstance(node.backend, HoldsImages)]
        failed: dict[str, TrialError] = {}
        for each in await asyncio.gather(*(backend.prefetch(environments) for backend in backends)):
            failed.update(each)
        return failed

    async def drop_image(self, environment: Environment, others: Sequence[Environment]) -> int:
        freed = 0
        for node in self._machines_up():
            if isinstance(node.backend, HoldsImages):
                with contextlib.suppress(TbenchError):
                    freed += await node.backend.drop_image(environment, others)
        return freed

    def _machines_up(self) -> list[RunMachine]:
        return [node for node in self._machines if node.is_up]


def _resources(capacity: Capacity) -> str:
    return (
        f"{capacity.cpus:g} {'cpu' if capacity.cpus == 1 else 'cpus'} and {capacity.memory_mb / 1024:,.1f} GB of memory"
    )
