"""The engines that a configuration names, connected: the one of this machine, or several as a fleet."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

from tbench.config.settings import SandboxConfig
from tbench.errors import EngineUnavailable, UsageError
from tbench.fleet.address import EngineAddress
from tbench.fleet.fleet import Fleet
from tbench.fleet.forward import SshForward
from tbench.fleet.machine import Way
from tbench.fleet.named import NamedEngine
from tbench.fleet.ray.cluster import RayCluster
from tbench.sandbox.backend import Backend, SandboxSettings
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine


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


def connect(address: EngineAddress, concurrency: int) -> NamedEngine:
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
