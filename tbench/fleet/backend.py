"""Backends that close what they are connected with: for whoever is given a way to make one, and nothing to close."""

from __future__ import annotations

from tbench.config.settings import SandboxConfig
from tbench.errors import UsageError
from tbench.fleet.address import EngineAddress
from tbench.fleet.engines import Engines, connect
from tbench.fleet.fleet import Fleet
from tbench.fleet.machine import Way
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


def connect_machine(machine: str, concurrency: int = 8) -> MakeBackend:
    """What connects the one engine that a result names as its machine. It raises UsageError."""

    def make(settings: SandboxSettings) -> Backend:
        try:
            address = EngineAddress.parse(machine)
        except UsageError:
            raise UsageError(
                f"{machine}: is no address of an engine, so what is left there cannot be reached"
            ) from None
        named = connect(address, concurrency)
        return _Led(named.engine, named.way, settings)

    return make


class _Led(DockerBackend):
    """The backend of an engine that something leads to."""

    def __init__(self, engine: Engine, way: Way, settings: SandboxSettings) -> None:
        super().__init__(engine, settings, owns_engine=True)
        self._way = way

    async def close(self) -> None:
        await super().close()
        self._way.close()
