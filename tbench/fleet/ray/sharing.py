"""Who has how much of an engine: nodes of a cluster that are on one machine have one between them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tbench.errors import UsageError
from tbench.sandbox.docker.engine import Engine, EngineInfo


@dataclass(frozen=True)
class _NodeShare:
    """A node's part of an engine."""

    engine: Engine
    whole: EngineInfo
    """The engine as it is, before it was divided."""
    identity: str
    wanted: int
    """The cpus that Ray has on the node."""
    gpus: int


class Sharing:
    """The engines of nodes, by name. What a connection says of its engine becomes the node's part of that."""

    def __init__(self) -> None:
        self._shares: dict[str, _NodeShare] = {}
        self._lock = threading.Lock()
        """Engines are connected in threads of their own."""

    def take(self, name: str, engine: Engine, cpus: float, gpus: int) -> None:
        """Have a node have no more of its engine than Ray has of the machine, and those that share it a part each.

        Raises UsageError where there are more nodes than cpus.
        """
        with self._lock:
            self._take(name, engine, cpus, gpus)

    def _take(self, name: str, engine: Engine, cpus: float, gpus: int) -> None:
        whole = engine.info
        # An engine that does not say which it is counts as nobody else's.
        identity = whole.identity or f"that of {name}"
        others = self._with(identity)
        if len(others) >= max(1, whole.cpus):
            raise UsageError(f"has the same engine as {', '.join(others)}, and no cpu of it is left")
        wanted = min(whole.cpus, int(cpus)) if cpus >= 1 else whole.cpus
        self._shares[name] = _NodeShare(engine, whole, identity, wanted, gpus)
        self._divide(identity)

    def give_back(self, name: str) -> bool:
        """Let the others have the part of a node; whether it had one."""
        with self._lock:
            part = self._shares.pop(name, None)
            if part is not None:
                self._divide(part.identity)
        return part is not None

    def _with(self, identity: str) -> Mapping[str, _NodeShare]:
        return {name: part for name, part in self._shares.items() if part.identity == identity}

    def _divide(self, identity: str) -> None:
        parts = self._with(identity)
        whole = max((part.whole.cpus for part in parts.values()), default=0)
        for name, cpus in divided({name: part.wanted for name, part in parts.items()}, whole).items():
            part = parts[name]
            part.engine.info = replace(
                part.whole,
                cpus=cpus,
                memory_mb=part.whole.memory_mb * cpus / max(1, part.whole.cpus),
                has_gpus=part.whole.has_gpus and part.gpus > 0,
                gpus=part.gpus if part.whole.has_gpus else None,
            )


def divided(wanted: Mapping[str, int], whole: int) -> dict[str, int]:
    """Cpus for those who want some: one each at the least, what they want at the most, and else evenly.

    `whole` is how many there are, at least one for each.
    """
    given = dict.fromkeys(wanted, 1)
    for _ in range(whole - len(given)):
        hungry = [name for name in given if given[name] < wanted[name]]
        if not hungry:
            break
        given[min(hungry, key=lambda name: given[name] / wanted[name])] += 1
    return given
