"""Names of servers that the engine was told to write into a container, when it was made: nobody inside can change that.

They are those of the container whose network it has, which may be another: the engine is asked, as a kept container has
them, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tbench.sandbox.backend import TOOLS, GivenNames
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.labels import LABEL_BEGAN

_SHARED = "container:"
_MOST_SHARED = 8
"""Containers that are asked for: a copy has the network of main, and main that of a container which only holds it."""


async def given_names(engine: Engine, container_id: str) -> GivenNames:
    """The names of a container. Raises EngineError."""
    owner, mounts, began_at = container_id, None, 0.0
    for _ in range(_MOST_SHARED):
        found = await engine.call(engine.api.inspect_container, owner, again=True)
        began_at = began_at or _began_at(found)
        config, mounts = found["HostConfig"], found.get("Mounts") if mounts is None else mounts
        mode = config.get("NetworkMode") or ""
        if not mode.startswith(_SHARED):
            break
        owner = mode.removeprefix(_SHARED)
    pairs = (entry.partition(":") for entry in config.get("ExtraHosts") or ())
    hosts = frozenset((address, name) for name, _, address in pairs)
    volumes = frozenset(each["Destination"] for each in mounts or () if not each["Destination"].startswith(TOOLS))
    return GivenNames(servers=frozenset(config.get("Dns") or ()), hosts=hosts, volumes=volumes, began_at=began_at)


def _began_at(inspected: Mapping[str, Any]) -> float:
    """When a container was made, or the first one of which snapshots have led to it."""
    labels = inspected["Config"].get("Labels") or {}
    return datetime.fromisoformat(labels.get(LABEL_BEGAN) or inspected["Created"]).timestamp()
