"""Leftovers of runs: which of them `tbench clean` and the next run may remove."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from tbench.sandbox import underway
from tbench.sandbox.owner import (
    LABEL_DIRECTORY,
    LABEL_MEMORY,
    LABEL_OWNER,
    LABEL_PROJECT,
    LABEL_ROUTER,
    LABEL_TRIAL,
    OwnerState,
    owner_state,
)

Kind = Literal["container", "network", "volume", "image"]


@dataclass(frozen=True)
class Scope:
    """Selection of items to remove; by default leftovers of dead runs, and images that later builds have replaced."""

    everything: bool = False
    """Whether to include shared and kept items, and those of owners that cannot be seen from here."""
    kept: bool = False
    """Whether to include containers and snapshots that were kept on purpose."""
    run: str | None = None
    """Name of the only run to clean up after; None for all runs."""


@dataclass(frozen=True)
class Leftover:
    """A container, network, volume or image of tbench, on an engine or in a store."""

    kind: Kind
    identity: str
    description: str
    run: str = ""
    why_kept: str = ""
    """Reason to keep it; empty if it is to be removed."""
    live: bool = False
    """Whether its owner's process runs or may run, or its interrupted trial may be continued."""
    cut_mb: float = 0.0
    """Memory that it may use, if it is kept because the trial of another run was interrupted."""


@dataclass
class Cleaned:
    """Outcome of cleaning, with one line per item."""

    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Items that were kept, with the reason."""
    failed: list[str] = field(default_factory=list)
    """Items that could not be removed, with the engine's message."""


def with_reason_to_keep(item: Leftover, labels: Mapping[str, str], scope: Scope, *, kept: bool) -> Leftover:
    """Return `item` with the reason to keep it, if there is one."""
    life, why = owner_state(labels.get(LABEL_OWNER, ""))
    if life is OwnerState.ALIVE:
        return replace(item, why_kept=why, live=True)
    if life is OwnerState.GONE and not scope.everything and (directory := labels.get(LABEL_DIRECTORY)):
        is_part = item.kind != "container" or not {LABEL_PROJECT, LABEL_ROUTER}.isdisjoint(labels)
        sandbox = "" if is_part else item.identity
        why_cut, goes_on = underway.why_kept(Path(directory), labels.get(LABEL_TRIAL, ""), sandbox)
        if why_cut and (goes_on or not scope.kept):
            cut_mb = 0.0 if goes_on or item.kind != "container" else float(labels.get(LABEL_MEMORY, 0))
            return replace(item, why_kept=why_cut, live=True, cut_mb=cut_mb)
    if kept and not (scope.everything or scope.kept):
        return replace(item, why_kept="kept on purpose; --kept removes it")
    if life is OwnerState.UNKNOWN and not scope.everything:
        return replace(item, why_kept=f"{why}; --all removes it", live=True)
    return item


class Reaped(NamedTuple):
    """Outcome of the search for leftovers at the start of a run."""

    lines: list[str]
    """Lines for the user about removed items, failures, and memory that remains in use."""
    kept_mb: float = 0.0
    """Memory of the sandboxes that stay because the trials of other runs were interrupted."""


def reaped(lines: list[str], found: Iterable[Leftover], engine_option: str = "") -> Reaped:
    """Return the outcome of a search; `engine_option` is added to the command in the lines."""
    if kept_mb := sum(each.cut_mb for each in found):
        clean = f"tbench clean {engine_option}".rstrip()
        what = f"trials of other runs that were interrupted may use {kept_mb:.0f} MB"
        lines = [*lines, f"{what}: {clean!r} lists their containers, --kept removes them"]
    return Reaped(lines, kept_mb)


def in_scope(items: Iterable[Leftover], scope: Scope) -> list[Leftover]:
    """Return the items of the runs that `scope` selects."""
    return [item for item in items if scope.run in (None, item.run)]
