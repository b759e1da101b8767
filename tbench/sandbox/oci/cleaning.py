"""Finds and removes leftovers of dead runs in a store.

As a program (`python -m tbench.sandbox.oci.cleaning OWNER ADDRESS`) it removes the containers of a process that did
not wait for their removal.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tbench.sandbox.leftovers import Cleaned, Leftover, Reaped, Scope, in_scope, reaped, with_reason_to_keep
from tbench.sandbox.oci.container import remove_container
from tbench.sandbox.oci.store import OciError, State, Store, image_facts, is_held, read_states, run
from tbench.sandbox.owner import LABEL_OWNER, LABEL_RUN, LABEL_SNAPSHOT

_SEARCHES, _BETWEEN_SEARCHES_SEC = 4, 0.5
_NEW_SEC = 60.0
"""Age above which a directory without a lock is abandoned; a younger one may be about to be locked."""


async def clean(store: Store, scope: Scope, *, dry_run: bool = False) -> Cleaned:
    """Remove what `scope` allows, or with `dry_run` only report it. Never raises."""
    cleaned = Cleaned()
    items = [*_containers(store, scope), *_unfinished(store), *_images(store, scope)]
    has_live = any(item.live for item in items)
    for item in items:
        is_shared = item.kind == "image" and not item.run
        why = "a run in progress may need it" if is_shared and has_live else item.why_kept
        if why:
            cleaned.kept.append(f"{item.description}: {why}")
            continue
        trouble = "" if dry_run else await _remove(store, item)
        (cleaned.failed if trouble else cleaned.removed).append(
            f"{item.description}: {trouble}" if trouble else item.description
        )
    return cleaned


async def remove_leftovers(store: Store) -> Reaped:
    """Remove containers and unfinished images of killed runs, at the start of a run. Never raises."""
    lines, found = list[str](), [*_containers(store, Scope()), *_unfinished(store)]
    for item in found:
        if not item.why_kept:
            trouble = await _remove(store, item)
            whose = f"{item.description}, whose process is gone"
            lines.append(f"could not remove {item.description}: {trouble}" if trouble else f"removed {whose}")
    return reaped(lines, found, store.option)


def _containers(store: Store, scope: Scope) -> list[Leftover]:
    found = []
    for directory, state in read_states(store):
        labels = state.labels if state is not None else {}
        run_name = labels.get(LABEL_RUN, "")
        item = Leftover("container", directory.name, f"container {directory.name[-12:]} of run {run_name}", run_name)
        is_kept = state is not None and state.is_kept
        if state is not None or not _is_abandoned(directory):
            item = with_reason_to_keep(item, labels, scope, kept=is_kept)
        found.append(item)
    return in_scope(found, scope)


def _unfinished(store: Store) -> Iterator[Leftover]:
    """Yield images whose process ended before they were complete."""
    for directory in sorted(store.images.glob(".new-*")):
        if _is_abandoned(directory):
            yield Leftover("image", directory.name, f"unfinished image {directory.name}")


def _is_abandoned(directory: Path) -> bool:
    """Whether no process is writing to a directory, or about to."""
    try:
        return not is_held(directory) and time.time() - directory.stat().st_mtime > _NEW_SEC
    except OSError:
        return False


def _images(store: Store, scope: Scope) -> Iterator[Leftover]:
    """Yield snapshots, and with `everything` all images."""
    for directory in sorted(store.images.glob("[!.]*")):
        try:
            labels = image_facts(directory)["Config"].get("Labels") or {}
        except (OSError, ValueError, LookupError):
            labels = {}
        if labels.get(LABEL_SNAPSHOT):
            run_name = labels.get(LABEL_RUN, "")
            item = Leftover("image", directory.name, f"snapshot {directory.name[:12]} of run {run_name}", run_name)
            yield from in_scope([with_reason_to_keep(item, labels, scope, kept=True)], scope)
        elif scope.everything and scope.run is None:
            yield Leftover("image", directory.name, f"image {directory.name[:12]}")


async def _remove(store: Store, item: Leftover) -> str:
    if item.kind == "container":
        directory = store.containers / item.identity
        return await remove_container(store, directory, State.read(directory))
    try:
        await run(store.remove_tree(store.images / item.identity))
    except (OciError, TimeoutError) as error:
        return str(error) or "it took too long"
    for link in store.names.iterdir():
        if not link.exists():
            link.unlink(missing_ok=True)
    return ""


async def _remove_of_owner(owner: str, store: Store) -> None:
    for _ in range(_SEARCHES):
        for directory, state in read_states(store):
            if state is not None and state.labels.get(LABEL_OWNER) == owner and not state.is_kept:
                await remove_container(store, directory, state)
        await asyncio.sleep(_BETWEEN_SEARCHES_SEC)


if __name__ == "__main__":
    asyncio.run(_remove_of_owner(sys.argv[1], Store.at(sys.argv[2])))
