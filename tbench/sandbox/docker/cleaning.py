"""Finds and removes leftovers of runs on the engine, by label, but nothing of processes that still run.

As a program (`python -m tbench.sandbox.docker.cleaning OWNER`) it removes the containers of a process that did not
wait for their removal.

A failed removal does not stop the others, and is reported. Items that have vanished meanwhile count as removed.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Any

from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.removing import ORDER, force_remove, remove, remove_unless_in_use
from tbench.sandbox.leftovers import Cleaned, Kind, Leftover, Reaped, Scope, in_scope, reaped, with_reason_to_keep
from tbench.sandbox.owner import (
    KEPT_PREFIX,
    LABEL_IMAGE,
    LABEL_OWNER,
    LABEL_RUN,
    LABEL_SHARED,
    LABEL_SNAPSHOT,
    owner,
)

_AT_ONCE = 4
_REAP_SEC = 120.0
_SEARCHES, _BETWEEN_SEARCHES_SEC = 10, 0.5
"""Number of searches for a dead process's containers, since the engine may still be creating some."""


async def clean(engine: Engine, scope: Scope, *, dry_run: bool = False) -> Cleaned:
    """Remove what `scope` allows, or with `dry_run` only report it. Raises no EngineError."""
    cleaned = Cleaned()
    found = await _find(engine, scope, cleaned)
    for item in found:
        if item.why_kept:
            cleaned.kept.append(f"{item.description}: {item.why_kept}")
    await _remove(engine, [item for item in found if not item.why_kept], cleaned, dry_run=dry_run)
    return cleaned


async def remove_leftovers(engine: Engine) -> Reaped:
    """Remove leftovers of killed runs, at the start of a run. Bounded; never raises.

    Removes only items whose owner is certainly gone, and none that are kept, shared or merely unused.
    """
    cleaned, found = Cleaned(), list[Leftover]()
    try:
        async with asyncio.timeout(_REAP_SEC):
            listed = await asyncio.gather(*(_list_of_runs(engine, Scope(), *each) for each in _MADE_BY_RUNS))
            found = [item for items in listed for item in items]
            await _remove(engine, [item for item in found if not item.why_kept], cleaned)
    except (EngineError, TimeoutError) as error:
        cleaned.failed.append(f"leftovers of killed runs: {error or f'not done within {_REAP_SEC:.0f} s'}")
    removed = [f"removed {line}, whose process is gone" for line in cleaned.removed]
    return reaped([*removed, *(f"could not remove {line}" for line in cleaned.failed)], found)


async def _find(engine: Engine, scope: Scope, cleaned: Cleaned) -> list[Leftover]:
    """List all leftovers in the order of their removal, containers first."""
    found: list[Leftover] = []
    for each in _MADE_BY_RUNS:
        found += await _list_or_report(_list_of_runs(engine, scope, *each), cleaned)
    if scope.run is not None:
        return found
    shared = [*await _list_or_report(_list_images(engine, scope), cleaned)]
    if scope.everything:
        shared += await _list_or_report(_list_shared(engine), cleaned)
    if any(item.live for item in found):
        # The engine protects only what a container uses right now, but the run's next trial may need it.
        shared = [replace(item, why_kept="a run in progress may need it") for item in shared]
    return found + shared


async def _list_or_report(finding: Awaitable[list[Leftover]], cleaned: Cleaned) -> list[Leftover]:
    try:
        return await finding
    except EngineError as error:
        cleaned.failed.append(f"listing leftovers: {error}")
        return []


def is_kept(container: Mapping[str, Any]) -> bool:
    """Whether a container in the engine's list was kept on purpose."""
    return any(name.lstrip("/").startswith(KEPT_PREFIX) for name in container.get("Names") or ())


async def list_labelled(engine: Engine, kind: Kind, *labels: str) -> list[dict[str, Any]]:
    """List the engine's objects of one kind that have all these labels, KEY or KEY=VALUE. Raises EngineError."""
    more: dict[str, Any] = {"all": True} if kind == "container" else {}
    found: Any = await engine.call(getattr(engine.api, f"{kind}s"), filters={"label": [*labels]}, **more)
    return found["Volumes"] or [] if kind == "volume" else list(found)


_MADE_BY_RUNS: tuple[tuple[Kind, str], ...] = (
    ("container", LABEL_RUN),
    ("container", LABEL_SHARED),
    ("network", LABEL_RUN),
    ("volume", LABEL_RUN),
    # By a separate label, because a user's own commit of a trial's container inherits all other labels.
    ("image", LABEL_SNAPSHOT),
)
"""Kinds and labels of objects that runs leave behind; the shared containers are helpers that fill volumes."""


async def _list_of_runs(engine: Engine, scope: Scope, kind: Kind, label: str) -> list[Leftover]:
    found = []
    for thing in await list_labelled(engine, kind, label):
        labels = thing["Labels"] or {}
        if label == LABEL_SHARED and LABEL_RUN in labels:
            continue  # a trial's container, whose image is shared
        run = labels.get(LABEL_RUN, "")
        whose = "that filled a volume" if label == LABEL_SHARED else f"of run {run}"
        kept = kind == "image" or (kind == "container" and is_kept(thing))
        for identity, name in _identities(kind, thing, "snapshot" if kind == "image" else kind):
            item = Leftover(kind, identity, f"{name} {whose}", run)
            found.append(with_reason_to_keep(item, labels, scope, kept=kept))
    return in_scope(found, scope)


def _identities(kind: Kind, thing: dict[str, Any], what: str) -> list[tuple[str, str]]:
    """Return identity and description of an object in the engine's list; for an image, a pair for each of its names."""
    if kind == "image":
        return [(name, f"{what} {_short(name)}") for name in _tags(thing) or [thing["Id"]]]
    name = thing["Id"][:12] if kind == "container" else thing["Name"]
    return [(thing["Name"] if kind == "volume" else thing["Id"], f"{what} {name}")]


async def _list_shared(engine: Engine) -> list[Leftover]:
    """List the bridge and the tools volumes."""
    kinds: tuple[Kind, ...] = ("network", "volume")
    listed = [(kind, each) for kind in kinds for each in await list_labelled(engine, kind, LABEL_SHARED)]
    return [Leftover(kind, *identity) for kind, each in listed for identity in _identities(kind, each, kind)]


async def _list_images(engine: Engine, scope: Scope) -> list[Leftover]:
    """List images built by tbench: all with `everything`, else only nameless ones, which a later build has replaced."""
    listed = [each for label in (LABEL_SHARED, LABEL_IMAGE) for each in await list_labelled(engine, "image", label)]
    # A snapshot inherits the labels of its image.
    own = [each for each in listed if not (each["Labels"] or {}).get(LABEL_SNAPSHOT)]
    chosen = [each for each in own if scope.everything or not _tags(each)]
    named = dict(identity for each in chosen for identity in _identities("image", each, "image"))
    return [Leftover("image", *identity) for identity in named.items()]


async def _remove(engine: Engine, items: list[Leftover], cleaned: Cleaned, *, dry_run: bool = False) -> None:
    """Remove `items`, kind by kind and a few at once, and record the outcomes in `cleaned`."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def remove_one(item: Leftover) -> None:
        async with turns:
            trouble = "" if dry_run else await _try_to_remove(engine, item)
        if not trouble:
            cleaned.removed.append(item.description)
        elif trouble.startswith("in use"):
            cleaned.kept.append(f"{item.description}: {trouble}")
        else:
            cleaned.failed.append(f"{item.description}: {trouble}")

    for kind in ORDER:
        await asyncio.gather(*(remove_one(item) for item in items if item.kind == kind))


async def _try_to_remove(engine: Engine, item: Leftover) -> str:
    """Remove one item; returns the reason if it still exists, otherwise an empty text."""
    if item.kind == "container":
        # Only another removal can block a forced one.
        left = await remove(engine, "container", item.identity, force=True, v=True)
        return left.engine_message if left is not None else ""
    # A snapshot's parent is a task's image and has to stay; a task's image has only parents left by its build.
    more: dict[str, Any] = {"noprune": bool(item.run)} if item.kind == "image" else {}
    left = await remove(engine, item.kind, item.identity, in_use_sec=0, **more)
    return f"{'in use: ' if left.is_in_use else ''}{left.engine_message}" if left is not None else ""


def _tags(image: dict[str, Any]) -> list[str]:
    return [tag for tag in image["RepoTags"] or [] if tag != "<none>:<none>"]


def _short(name: str) -> str:
    return f"without a name, {name[7:19]}" if name.startswith("sha256:") else name


def remove_in_child(
    program: str = "tbench.sandbox.docker.cleaning", *where: str, variables: Mapping[str, str] | None = None
) -> None:
    """Start a child process that removes this process's containers, so that this one can end at once.

    `program` is a module to run with the owner and `where` as arguments, `variables` are more environment variables.
    """
    subprocess.Popen(
        [sys.executable, "-m", program, owner(), *where],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, **(variables or {})},
    )


async def remove_containers_of_owner(owner_label: str, engine: Engine) -> None:
    """Remove containers, networks and volumes with an owner label, in several searches. Raises EngineError."""
    for _ in range(_SEARCHES):
        await _remove_labelled(engine, f"{LABEL_OWNER}={owner_label}")
        await asyncio.sleep(_BETWEEN_SEARCHES_SEC)


async def remove_own(engine: Engine, run: str) -> int:
    """Remove what this connection's owner has left of a run, while none of the run's trials is in progress.

    Returns the number of containers removed. Raises EngineError.
    """
    found = await _remove_labelled(engine, f"{LABEL_OWNER}={engine.owner}", f"{LABEL_RUN}={run}")
    return sum(("container", each) not in engine.refused for each in found)


async def _remove_labelled(engine: Engine, *labels: str) -> list[str]:
    """Remove containers, networks and volumes that have all these labels; returns the ids of the containers."""
    found = [each["Id"] for each in await list_labelled(engine, "container", *labels) if not is_kept(each)]
    await asyncio.gather(*(force_remove(engine, each) for each in found))
    for network in await list_labelled(engine, "network", *labels):
        await remove_unless_in_use(engine, "network", network["Id"])  # kept containers may use it
    for volume in await list_labelled(engine, "volume", *labels):
        await remove_unless_in_use(engine, "volume", volume["Name"])
    return found


if __name__ == "__main__":
    asyncio.run(remove_containers_of_owner(sys.argv[1], Engine.connect()))
