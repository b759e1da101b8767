"""Whether the limits of trials hold on the machines of a run: the states that run.json stores, and what they say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

EARLIER = "earlier_limits"
"""The key of run.json's engine under which stands what was wrong with limits before the run was resumed."""
DISK = "disk"
"""The one limit that engines may lack by their file system; it is asked for by few tasks, and decides few verdicts."""


class LimitState(StrEnum):
    """Whether a limit holds, as a container sees it from inside."""

    IN_FORCE = "in force"
    NOT_IN_FORCE = "not in force"
    UNSEEN = "cannot be seen"
    """The container does not see its own cgroup."""


def limit_words(limits: Mapping[str, str], *, disk: bool = False) -> str:
    """What is wrong with the limits of one machine, empty where all hold; with `disk`, that one counts, too."""
    parts = []
    for state in (LimitState.NOT_IN_FORCE, LimitState.UNSEEN):
        if names := [name for name, each in limits.items() if each == state and (disk or name != DISK)]:
            parts.append(f"{', '.join(names)} {state}")
    return "; ".join(parts)


def lacking_limits(engine: Mapping[str, Any], *, disk: bool = False) -> tuple[str, ...]:
    """What is wrong with the limits of a run's machines, by the engine section of run.json, each in a few words."""
    return tuple(dict.fromkeys(_lacking(engine, disk)))


def _lacking(engine: Mapping[str, Any], disk: bool) -> Iterator[str]:
    if words := limit_words(engine.get("limits", {}), disk=disk):
        yield f"{engine['name']}: {words}" if "name" in engine else words
    for part in (*engine.get("machines", ()), *engine.get("shards", ())):
        yield from _lacking(part, disk)
    yield from engine.get(EARLIER, ())
