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
from tbench.sandbox.docker.removing import force_remove, remove, remove_unless_in_use
from tbench.sandbox.leftovers import Cleaned, Leftover, Reaped, Scope, in_scope, reaped, with_reason_to_keep
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
            listed = await asyncio.gather(*(list_kind(engine, Scope()) for list_kind in _RUN_LISTERS))
            found = [item for items in listed for item in items]
            await _remove(engine, [item for item in found if not item.why_kept], cleaned)
    except (EngineError, TimeoutError) as error:
        cleaned.failed.append(f"leftovers of killed runs: {error or f'not done within {_REAP_SEC:.0f} s'}")
    removed = [f"removed {line}, whose process is gone" for line in cleaned.removed]
    return reaped([*removed, *(f"could not remove {line}" for line in cleaned.failed)], found)


async def _find(engine: Engine, scope: Scope, cleaned: Cleaned) -> list[Leftover]:
    """List all leftovers in the order of their removal, containers first."""
    found: list[Leftover] = []
    for list_kind in _RUN_LISTERS:
        found += await _list_or_report(list_kind(engine, scope), cleaned)
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


async def _list_containers(engine: Engine, scope: Scope) -> list[Leftover]:
    """List containers of trials, and helpers that fill volumes."""
    api = engine.api
    found: dict[str, Leftover] = {}
    for label in (LABEL_RUN, LABEL_SHARED):
        for container in await engine.call(api.containers, all=True, filters={"label": label}):
            labels = container["Labels"] or {}
            whose = f"of run {labels[LABEL_RUN]}" if LABEL_RUN in labels else "that filled a volume"
            description = f"container {container['Id'][:12]} {whose}"
            item = Leftover("container", container["Id"], description, labels.get(LABEL_RUN, ""))
            found.setdefault(container["Id"], with_reason_to_keep(item, labels, scope, kept=is_kept(container)))
    return in_scope(found.values(), scope)


async def _list_networks(engine: Engine, scope: Scope) -> list[Leftover]:
    api = engine.api
    found = []
    for network in await engine.call(api.networks, filters={"label": LABEL_RUN}):
        labels = network["Labels"] or {}
        run = labels.get(LABEL_RUN, "")
        item = Leftover("network", network["Id"], f"network {network['Name']} of run {run}", run)
        found.append(with_reason_to_keep(item, labels, scope, kept=False))
    return in_scope(found, scope)


async def _list_volumes(engine: Engine, scope: Scope) -> list[Leftover]:
    """List volumes of trials' services."""
    found = []
    for volume in (await engine.call(engine.api.volumes, filters={"label": LABEL_RUN}))["Volumes"] or []:
        labels = volume["Labels"] or {}
        run = labels.get(LABEL_RUN, "")
        item = Leftover("volume", volume["Name"], f"volume {volume['Name']} of run {run}", run)
        found.append(with_reason_to_keep(item, labels, scope, kept=False))
    return in_scope(found, scope)


async def _list_snapshots(engine: Engine, scope: Scope) -> list[Leftover]:
    """List images committed from trials, by a separate label: a user's own commit inherits the other labels."""
    found = []
    for image in await engine.call(engine.api.images, filters={"label": LABEL_SNAPSHOT}):
        labels = image["Labels"] or {}
        for name in _names(image):
            run = labels.get(LABEL_RUN, "")
            item = Leftover("image", name, f"snapshot {_short(name)} of run {run}", run)
            found.append(with_reason_to_keep(item, labels, scope, kept=True))
    return in_scope(found, scope)


_RUN_LISTERS = (_list_containers, _list_networks, _list_volumes, _list_snapshots)


async def _list_shared(engine: Engine) -> list[Leftover]:
    """List the bridge and the tools volumes."""
    labelled = {"label": LABEL_SHARED}
    networks = await engine.call(engine.api.networks, filters=labelled)
    volumes = (await engine.call(engine.api.volumes, filters=labelled))["Volumes"] or []
    return [Leftover("network", network["Id"], f"network {network['Name']}") for network in networks] + [
        Leftover("volume", volume["Name"], f"volume {volume['Name']}") for volume in volumes
    ]


async def _list_images(engine: Engine, scope: Scope) -> list[Leftover]:
    """List images built by tbench: with `everything` all, otherwise nameless ones, which a later build has replaced."""
    found: dict[str, Leftover] = {}
    for label in (LABEL_SHARED, LABEL_IMAGE):
        for image in await engine.call(engine.api.images, filters={"label": label}):
            if (image["Labels"] or {}).get(LABEL_SNAPSHOT):
                continue  # a snapshot inherits the labels of its image
            if scope.everything or not _tags(image):
                for name in _names(image):
                    found.setdefault(name, Leftover("image", name, f"image {_short(name)}"))
    return list(found.values())


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

    for kind in ("container", "network", "volume", "image"):
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


def _names(image: dict[str, Any]) -> list[str]:
    """Return the names of an image, or its id if it has none."""
    return _tags(image) or [image["Id"]]


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
    owned = {"label": f"{LABEL_OWNER}={owner_label}"}
    for _ in range(_SEARCHES):
        found = await engine.call(engine.api.containers, all=True, filters=owned)
        await asyncio.gather(*(force_remove(engine, each["Id"]) for each in found if not is_kept(each)))
        await _remove_networks_and_volumes(engine, owned)
        await asyncio.sleep(_BETWEEN_SEARCHES_SEC)


async def remove_own(engine: Engine, run: str) -> int:
    """Remove what this connection's owner has left of a run, while none of the run's trials is in progress.

    Returns the number of containers removed. Raises EngineError.
    """
    own = {"label": [f"{LABEL_OWNER}={engine.owner}", f"{LABEL_RUN}={run}"]}
    listed = await engine.call(engine.api.containers, all=True, filters=own)
    found = [each["Id"] for each in listed if not is_kept(each)]
    await asyncio.gather(*(force_remove(engine, each) for each in found))
    await _remove_networks_and_volumes(engine, own)
    return sum(("container", each) not in engine.refused for each in found)


async def _remove_networks_and_volumes(engine: Engine, owned: Mapping[str, Any]) -> None:
    networks = await engine.call(engine.api.networks, filters=owned)
    volumes = (await engine.call(engine.api.volumes, filters=owned))["Volumes"] or []
    for network in networks:
        await remove_unless_in_use(engine, "network", network["Id"])  # kept containers may use it
    for volume in volumes:
        await remove_unless_in_use(engine, "volume", volume["Name"])


if __name__ == "__main__":
    asyncio.run(remove_containers_of_owner(sys.argv[1], Engine.connect()))
