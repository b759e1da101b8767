"""Whether resource limits are enforced on a run's machines: the states stored in run.json, and messages about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

EARLIER = "earlier_limits"
"""Key in run.json's engine section for limit problems from before the run was resumed."""
DISK = "disk"
"""The disk limit, which some file systems lack. Few tasks ask for it, and it decides few verdicts."""


class LimitState(StrEnum):
    """Whether a limit is enforced, as seen from inside a container."""

    IN_FORCE = "in force"
    NOT_IN_FORCE = "not in force"
    UNSEEN = "cannot be seen"
    """The container cannot see its own cgroup."""
    WATCHED = "only watched"
    """An agent that exceeds it ends."""


def describe_limits(limits: Mapping[str, str], *, disk: bool = False) -> str:
    """Describe the limits that are not enforced on one machine; empty if all are. `disk` includes the disk limit."""
    parts = []
    for state in (LimitState.NOT_IN_FORCE, LimitState.UNSEEN, LimitState.WATCHED):
        if names := [name for name, each in limits.items() if each == state and (disk or name != DISK)]:
            parts.append(f"{', '.join(names)} {state}")
    return "; ".join(parts)


def lacking_limits(engine: Mapping[str, Any], *, disk: bool = False) -> tuple[str, ...]:
    """Describe the limits that are not enforced, one entry per machine, from the engine section of run.json."""
    return tuple(dict.fromkeys(_lacking(engine, disk)))


def _lacking(engine: Mapping[str, Any], disk: bool) -> Iterator[str]:
    if words := describe_limits(engine.get("limits", {}), disk=disk):
        yield f"{engine['name']}: {words}" if "name" in engine else words
    for part in (*engine.get("machines", ()), *engine.get("shards", ())):
        yield from _lacking(part, disk)
    yield from engine.get(EARLIER, ())
