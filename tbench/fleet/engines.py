"""Connects the engines of a configuration, makes backends of them, and cleans up on several machines."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from tbench.config.settings import SandboxConfig
from tbench.errors import EngineUnavailable, TbenchError, UsageError
from tbench.fleet.fleet import Fleet
from tbench.fleet.forward import SshForward
from tbench.fleet.machine import EngineAddress, Forward, NamedEngine
from tbench.sandbox.backend import Backend, Capacity, MakeBackend, SandboxSettings
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.cleaning import remove_containers_of_owner, remove_in_child
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.oci.backend import OciBackend, machine_capacity
from tbench.sandbox.oci.store import Store

if TYPE_CHECKING:
    from tbench.fleet.ray.cluster import RayCluster


_FEW = 8
"""Calls at once for containers of a run that has ended."""


class Engines:
    """Connected engines; the caller of `connect` has to close them."""

    def __init__(
        self,
        only: Engine | None = None,
        several: Sequence[NamedEngine] = (),
        cluster: RayCluster | None = None,
        store: Store | None = None,
    ) -> None:
        """`cluster` is the cluster of the `several` engines, if more may join; `store` stands for no engine at all."""
        self._only, self._several, self._cluster = only, tuple(several), cluster
        self.store = store

    @classmethod
    def connect(cls, sandbox: SandboxConfig, concurrency: int = 8) -> Engines:
        """Connect the engines of a configuration. Raises UsageError with the name of the machine."""
        if sandbox.ray is not None:
            from tbench.fleet.ray.cluster import RayCluster

            cluster = RayCluster.connect(sandbox.ray, concurrency)
            return cls(None, cluster.first, cluster)
        if not sandbox.engines:
            return cls(Engine.connect(concurrency))
        if (store := store_of(sandbox)) is not None:
            return cls(store=store)
        several: list[NamedEngine] = []
        try:
            for text in sandbox.engines:
                several.append(connect(EngineAddress.parse(text), concurrency))
                _require_different(several)
        except BaseException:
            for each in several:
                each.close()
            raise
        return cls(None, several)

    @property
    def all(self) -> Sequence[Engine]:
        """The engines, in the order of the configuration."""
        return [self._only] if self._only is not None else [each.engine for each in self._several]

    @property
    def capacities(self) -> Sequence[Capacity]:
        """Total resources of each engine; without engines those of this machine."""
        if self.store is not None:
            return [machine_capacity()]
        infos = [engine.info for engine in self.all]
        return [Capacity(info.cpus, info.memory_mb, gpus=None if info.has_gpus else 0) for info in infos]

    @property
    def names(self) -> Sequence[str]:
        """Prefixes for messages about each engine; an empty one for a single engine."""
        return [f"{each.name}: " for each in self._several] or [""]

    def get(self, name: str) -> Engine | None:
        """Return the engine of the machine with this name; None if it is unknown."""
        return next((each.engine for each in self._several if each.name == name), None)

    @property
    def shares_kernel(self) -> bool:
        """Whether all sandboxes are on this machine and share its load."""
        return self.store is not None or (self._only is not None and self._only.shares_kernel)

    def backend(self, settings: SandboxSettings, *, closes: bool = False) -> Backend:
        """Return a backend for a run on these engines; with `closes` it closes the connections in the end."""
        on_close = self.close if closes else lambda: None
        if self._only is not None:
            return DockerBackend(self._only, settings, on_close=on_close)
        if self.store is not None:
            return OciBackend(self.store, settings)
        machines = [each.machine(settings) for each in self._several]
        if self._cluster is None:
            return Fleet(machines, on_close=on_close)
        follow = partial(self._cluster.follow, machine_of=lambda each: each.machine(settings))
        return Fleet(machines, arrivals=follow, on_close=on_close)

    def close(self) -> None:
        """Close all connections."""
        if self._only is not None:
            self._only.close()
        for each in self._several:
            each.close()
        if self._cluster is not None:
            self._cluster.close()


def store_of(sandbox: SandboxConfig) -> Store | None:
    """Return the store if containers are made without an engine. Raises UsageError."""
    return Store.at(sandbox.engines[0]) if sandbox.has_no_engine else None


def connect(address: EngineAddress, concurrency: int = 8) -> NamedEngine:
    """Connect one of several engines. Raises UsageError, which begins with its address."""
    is_ssh, forward, host = address.scheme == "ssh", Forward(), address.text
    try:
        if is_ssh:
            forward = ssh = SshForward(address)
            ssh.connect()
            host = ssh.host
        engine = Engine.connect(concurrency, host, is_forwarded=is_ssh)
    except BaseException as error:
        forward.close()
        if not isinstance(error, EngineUnavailable):
            raise
        why = f"no container engine answers at {address.path} there, or the user has no access to its socket"
        raise UsageError(f"{address.text}: {why if is_ssh else error}") from error
    return NamedEngine(address.text, engine, forward, host)


def _require_different(several: Sequence[NamedEngine]) -> None:
    """Check that the last engine differs from those before it. Raises UsageError."""
    *before, last = several
    for each in before:
        if each.engine.info.identity and each.engine.info.identity == last.engine.info.identity:
            raise UsageError(f"{last.name}: is the same engine as {each.name}; list it only once")


def connect_backend(sandbox: SandboxConfig, concurrency: int) -> MakeBackend:
    """Return a function that connects the machines of a configuration.

    The backend that it returns closes the connections. It raises UsageError with the name of the machine.
    """
    return lambda settings: Engines.connect(sandbox, concurrency).backend(settings, closes=True)


class MachineConnector:
    """Connects the machines of a run that has ended, by their names in its results."""

    def __init__(self, sandbox: SandboxConfig) -> None:
        """`sandbox` is the run's configuration."""
        self._sandbox = sandbox
        self._cluster: Engines | None = None
        self._uses = 0
        """Number of open backends on the cluster."""

    def __call__(self, machine: str) -> MakeBackend:
        """Return a function that connects one machine, which has no name if it is the only one.

        It raises UsageError with the machine's name.
        """
        return partial(self._make, machine)

    def _make(self, machine: str, settings: SandboxSettings) -> Backend:
        if self._sandbox.ray is not None:
            return self._on_node(machine, settings)
        if not machine:
            return connect_backend(self._sandbox, _FEW)(settings)
        try:
            address = EngineAddress.parse(machine)
        except UsageError:
            raise UsageError(f"{machine}: not the address of an engine, so its containers cannot be reached") from None
        named = connect(address)
        return DockerBackend(named.engine, settings, on_close=named.close)

    def _on_node(self, machine: str, settings: SandboxSettings) -> Backend:
        if self._cluster is None:
            self._cluster = Engines.connect(self._sandbox)
        if (engine := self._cluster.get(machine)) is not None:
            self._uses += 1
            return DockerBackend(engine, settings, on_close=self._release)
        if not self._uses:
            self._release()
        raise UsageError(f"{machine}: no node of the cluster at {self._sandbox.ray} has this name any more")

    def _release(self) -> None:
        self._uses = max(0, self._uses - 1)
        if not self._uses and self._cluster is not None:
            self._cluster.close()
            self._cluster = None


# As a program, `python -m tbench.fleet.engines OWNER ADDRESS...` removes containers on several machines, for a process
# that did not wait for it.


def remove_on_machines_in_child(addresses: Sequence[str]) -> None:
    """Start a child process that removes this process's containers on these machines, so that this one can end."""
    remove_in_child("tbench.fleet.engines", *addresses)


async def _remove_on(whose: str, address: str) -> None:
    with contextlib.suppress(TbenchError):  # if the machine is down, the next run there removes them
        named = await asyncio.to_thread(connect, EngineAddress.parse(address), 1)
        try:
            await remove_containers_of_owner(whose, named.engine)
        finally:
            named.close()


async def _main(whose: str, addresses: Sequence[str]) -> None:
    await asyncio.gather(*(_remove_on(whose, address) for address in addresses))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2:]))
