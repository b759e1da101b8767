"""Backends that close what they are connected with: for whoever is given a way to make one, and nothing to close."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tbench.config.settings import SandboxConfig
from tbench.errors import UsageError
from tbench.fleet.address import EngineAddress
from tbench.fleet.engines import Engines, connect
from tbench.fleet.fleet import Fleet
from tbench.sandbox.backend import Backend, MakeBackend, SandboxSettings
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine


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

    def __init__(self, sandbox: SandboxConfig, concurrency: int = 8) -> None:
        """`sandbox` is what the run was configured with."""
        self._sandbox, self._concurrency = sandbox, concurrency
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
        named = connect(address, self._concurrency)
        return _Led(named.engine, settings, named.close)

    def _on_node(self, machine: str, settings: SandboxSettings) -> Backend:
        if self._cluster is None:
            self._cluster = Engines.connect(self._sandbox, self._concurrency)
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
