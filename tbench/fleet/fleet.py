"""A backend of several machines: trials are on all of them, and those of one that is lost begin anew elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tbench.errors import TbenchError, TrialError, UsageError
from tbench.events import Phase
from tbench.fleet.machine import FleetMachine
from tbench.results import ImageOrigin
from tbench.sandbox.backend import Backend, Capacity, HoldsImages, Sandbox, Say
from tbench.sandbox.node import Node
from tbench.tasks.environment import Environment
from tbench.text import counted, one_line

LOOK_EVERY_SEC = 5.0
LOST_AFTER_SEC = 45.0
"""How long a machine may say nothing before it counts as lost: an engine that restarts takes less."""
ALONE_SEC = 300.0
"""How long it is waited for a machine when there is none, before the run stops."""


class Fleet:
    """A `Backend` whose sandboxes are on several machines, each of which may be lost, and come back.

    A trial is placed by whoever asks for its sandbox, on one of the `nodes`; here are the machines together.
    """

    def __init__(
        self,
        machines: Sequence[FleetMachine],
        *,
        look_every_sec: float = LOOK_EVERY_SEC,
        lost_after_sec: float = LOST_AFTER_SEC,
        alone_sec: float = ALONE_SEC,
    ) -> None:
        self._machines: dict[Node, FleetMachine] = {
            Node(machine.name, machine.backend): machine for machine in machines
        }
        self._look_every_sec, self._lost_after_sec = look_every_sec, lost_after_sec
        self._alone_sec = alone_sec
        self._alone_since: float | None = None
        self._stopped: str | None = None
        self._tell: list[Callable[[], None]] = []
        self._watching: dict[Node, asyncio.Task[None]] = {}
        self._watching_all: asyncio.Task[None] | None = None
        self._say: Say = lambda _: None

    # -- the machines ------------------------------------------------------------------------------

    @property
    def nodes(self) -> Sequence[Node]:
        return tuple(self._machines)

    @property
    def gave_up(self) -> str | None:
        return self._stopped

    def on_change(self, tell: Callable[[], None]) -> None:
        self._tell.append(tell)

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
        self._watching[node] = asyncio.create_task(self._watch(node, machine), name=f"watch over {node.name}")
        self._changed()

    def leave(self, machine: FleetMachine, why: str) -> None:
        """Take it that a machine is gone for good; who comes back is another one."""
        for node in [node for node, each in self._machines.items() if each is machine]:
            if (watching := self._watching.pop(node, None)) is not None:
                watching.cancel()
            self._lose(node, machine, why)
            machine.close()

    def stop(self, why: str) -> None:
        """Have it that there will be no machine any more."""
        self._stopped = why
        for node, machine in self._machines.items():
            if node.is_up:
                self._lose(node, machine, why)
        self._changed()

    def _lose(self, node: Node, machine: FleetMachine, why: str) -> None:
        if not node.is_up:
            return
        # What is asked of it must fail at once, before the trials on it are ended and clean up.
        machine.give_up()
        lost = node.lose(why)
        self._say(f"{node.name}: is lost: {why}; {counted(lost, 'trial')} on it begin{'s' if lost == 1 else ''} anew")
        self._changed()

    def _changed(self) -> None:
        alone = not any(node.is_up for node in self._machines)
        self._alone_since = (self._alone_since or time.monotonic()) if alone else None
        for tell in self._tell:
            tell()

    async def _watch(self, node: Node, machine: FleetMachine) -> None:
        """Look at a machine until the run ends."""
        heard = time.monotonic()
        while True:
            await asyncio.sleep(self._look_every_sec)
            why = await machine.answers()
            now = time.monotonic()
            if not why:
                heard = now
                if not node.is_up:
                    await self._take_back(node, machine)
            elif node.is_up and now - heard >= self._lost_after_sec:
                self._lose(node, machine, why)

    async def _take_back(self, node: Node, machine: FleetMachine) -> None:
        if self._stopped is not None:
            return
        try:
            left = await machine.recover()
        except TbenchError as error:
            self._say(f"{node.name}: answers again, but cannot be used: {one_line(str(error), 200)}")
            return
        node.come_back()
        self._say(f"{node.name}: is back; {counted(left, 'container')} of its lost trials removed")
        self._changed()

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
        await _all_of(self._open(machine) for machine in self._machines.values())
        for node, machine in list(self._machines.items()):
            self._add(node, machine)
        self._watching_all = asyncio.create_task(self._watch_all(), name="watch over all machines")

    async def _open(self, machine: FleetMachine) -> None:
        try:
            await machine.backend.open(lambda text: self._say(f"{machine.name}: {text}"))
        except UsageError as error:
            raise UsageError(f"{machine.name}: {error}") from error

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
        machines = [{"name": node.name, **node.backend.describe()} for node in self._machines]
        return {"cpus": total.cpus, "memory_mb": round(total.memory_mb), "machines": machines}

    async def close(self) -> None:
        tasks = [*self._watching.values(), *([self._watching_all] if self._watching_all is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for machine in self._machines.values():
            await machine.backend.close()
            machine.close()

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


async def _all_of(works: Any) -> None:
    """Do all of them side by side. Raises the first error when all have ended."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _has(capacity: Capacity) -> str:
    return f"{capacity.cpus:g} cpus and {capacity.memory_mb / 1024:,.1f} GB of memory"
