"""The engines that a configuration names, connected, as a backend that closes them, and tidied up after a process."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tbench.config.settings import SandboxConfig
from tbench.errors import EngineUnavailable, TbenchError, UsageError
from tbench.fleet.fleet import Fleet
from tbench.fleet.forward import SshForward
from tbench.fleet.machine import EngineAddress, NamedEngine, Way
from tbench.sandbox.backend import Backend, MakeBackend, SandboxSettings
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.cleaning import leave_removing_to_a_child, remove_containers_of
from tbench.sandbox.docker.engine import Engine

if TYPE_CHECKING:
    from tbench.fleet.ray.cluster import RayCluster


class Engines:
    """Connected engines. Whoever connects them closes them."""

    def __init__(
        self, only: Engine | None = None, several: Sequence[NamedEngine] = (), cluster: RayCluster | None = None
    ) -> None:
        """`cluster` is that of the several, where more of them may come."""
        self._only, self._several, self._cluster = only, tuple(several), cluster

    @classmethod
    def connect(cls, sandbox: SandboxConfig, concurrency: int = 8) -> Engines:
        """Connect the engines of a configuration. Raises UsageError, which names the machine."""
        if sandbox.ray is not None:
            from tbench.fleet.ray.cluster import RayCluster

            cluster = RayCluster.connect(sandbox.ray, concurrency)
            return cls(None, cluster.first, cluster)
        if not sandbox.engines:
            return cls(Engine.connect(concurrency))
        several: list[NamedEngine] = []
        try:
            for text in sandbox.engines:
                several.append(connect(EngineAddress.parse(text), concurrency))
                _require_another(several)
        except BaseException:
            for each in several:
                each.close()
            raise
        return cls(None, several)

    @property
    def all(self) -> Sequence[Engine]:
        """The engines, in the order in which they were named."""
        return [self._only] if self._only is not None else [each.engine for each in self._several]

    @property
    def names(self) -> Sequence[str]:
        """What to say before what is told of each; nothing of an only one."""
        return [f"{each.name}: " for each in self._several] or [""]

    def named(self, name: str) -> Engine | None:
        """The engine of the machine with this name; None where none has it."""
        return next((each.engine for each in self._several if each.name == name), None)

    @property
    def shares_kernel(self) -> bool:
        """Whether all sandboxes are on this machine, so that its load is theirs."""
        return self._only is not None and self._only.shares_kernel

    def backend(self, settings: SandboxSettings) -> Backend:
        """The backend of a run on them."""
        if self._only is not None:
            return DockerBackend(self._only, settings)
        machines = [each.machine(settings) for each in self._several]
        if self._cluster is None:
            return Fleet(machines)
        follow = partial(self._cluster.follow, machine_of=lambda each: each.machine(settings))
        return Fleet(machines, arrivals=follow)

    def close(self) -> None:
        """Take all connections down."""
        if self._only is not None:
            self._only.close()
        for each in self._several:
            each.close()
        if self._cluster is not None:
            self._cluster.close()


def connect(address: EngineAddress, concurrency: int = 8) -> NamedEngine:
    """Connect one engine of several. Raises UsageError, which begins with its address."""
    with contextlib.ExitStack() as stack:
        way = Way()
        if address.scheme == "ssh":
            way = forward = SshForward(address)
            stack.callback(forward.close)
            forward.connect()
        host = way.host if isinstance(way, SshForward) else address.text
        try:
            engine = Engine.connect(concurrency, host, is_forwarded=address.scheme == "ssh")
        except EngineUnavailable as error:
            if address.scheme == "ssh":
                why = f"no container engine answers at {address.path} there, or its socket is closed to that user"
                raise UsageError(f"{address.text}: {why}") from error
            raise UsageError(f"{address.text}: {error}") from error
        stack.pop_all()
        return NamedEngine(address.text, engine, way, host)
    raise AssertionError


def _require_another(several: Sequence[NamedEngine]) -> None:
    """Check that the last one is not the same engine as one before it. Raises UsageError."""
    *before, last = several
    for each in before:
        if each.engine.info.identity and each.engine.info.identity == last.engine.info.identity:
            raise UsageError(f"{last.name}: is the same engine as {each.name}; name it once")


# Backends that close what they are connected with: for whoever is given a way to make one, and nothing to close.


def connect_backend(sandbox: SandboxConfig, concurrency: int) -> MakeBackend:
    """What connects the machines of a configuration: the engine that DOCKER_HOST names, where it names none.

    It raises UsageError, which names the machine.
    """

    def make(settings: SandboxSettings) -> Backend:
        if not sandbox.engines and sandbox.ray is None:
            return DockerBackend.connect(settings, concurrency=concurrency)
        engines = Engines.connect(sandbox, concurrency)
        backend = engines.backend(settings)
        assert isinstance(backend, Fleet)
        backend.on_close(engines.close)
        return backend

    return make


class MachinesOfRun:
    """The machines of a run that has ended, each by the name that results have for it."""

    def __init__(self, sandbox: SandboxConfig) -> None:
        """`sandbox` is what the run was configured with."""
        self._sandbox = sandbox
        self._cluster: Engines | None = None
        self._uses = 0
        """How many backends there are of the cluster."""

    def __call__(self, machine: str) -> MakeBackend:
        """What connects one machine. It raises UsageError, which names it."""
        return partial(self._make, machine)

    def _make(self, machine: str, settings: SandboxSettings) -> Backend:
        if self._sandbox.ray is not None:
            return self._on_node(machine, settings)
        try:
            address = EngineAddress.parse(machine)
        except UsageError:
            raise UsageError(
                f"{machine}: is no address of an engine, so what is left there cannot be reached"
            ) from None
        named = connect(address)
        return _Led(named.engine, settings, named.close)

    def _on_node(self, machine: str, settings: SandboxSettings) -> Backend:
        if self._cluster is None:
            self._cluster = Engines.connect(self._sandbox)
        if (engine := self._cluster.named(machine)) is not None:
            self._uses += 1
            return _Led(engine, settings, self._give_back)
        if not self._uses:
            self._give_back()
        raise UsageError(f"{machine}: no node of the cluster at {self._sandbox.ray} has this name now")

    def _give_back(self) -> None:
        self._uses = max(0, self._uses - 1)
        if not self._uses and self._cluster is not None:
            self._cluster.close()
            self._cluster = None


class _Led(DockerBackend):
    """The backend of an engine that something leads to."""

    def __init__(self, engine: Engine, settings: SandboxSettings, close: Callable[[], None]) -> None:
        super().__init__(engine, settings)
        self._close_way = close

    async def close(self) -> None:
        await super().close()
        self._close_way()


# Removes on several machines what a process has left that did not wait for that.
#
# As a program: `python -m tbench.fleet.engines OWNER ADDRESS...`, with addresses as `--engine` has them.


def leave_removing_on(addresses: Sequence[str]) -> None:
    """Start a process that removes the containers of this one on these machines; this one may end at once."""
    leave_removing_to_a_child("tbench.fleet.engines", *addresses)


async def _remove_on(whose: str, address: str) -> None:
    with contextlib.suppress(TbenchError):  # a machine that is away: the next run there removes it
        named = await asyncio.to_thread(connect, EngineAddress.parse(address), 1)
        try:
            await remove_containers_of(whose, named.engine)
        finally:
            named.close()


async def _main(whose: str, addresses: Sequence[str]) -> None:
    await asyncio.gather(*(_remove_on(whose, address) for address in addresses))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2:]))
