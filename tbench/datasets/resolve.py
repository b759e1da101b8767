"""From a name to the dataset that it means: a registry's, tbench's own list's, or a package in Harbor's cache."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from tbench.datasets.hub_cache import find_package, harbor_cache
from tbench.datasets.index import WHERE, known_datasets
from tbench.datasets.known import KnownDataset, Piece, choose, nearest_titles, versions_of
from tbench.datasets.reference import AtGit, Named, without_login
from tbench.datasets.registry import read_registry
from tbench.errors import UsageError


def say_nothing(text: str) -> None:
    """Nobody is told."""


@dataclass(frozen=True)
class Access:
    """Where datasets are looked for, and what may be done to get them."""

    registry: str | None = None
    """A registry's file or URL, which is asked before tbench's own list."""
    refresh: bool = False
    """Fetch also what is in the cache."""
    offline: bool = False
    """Ask no server."""
    say: Callable[[str], None] = say_nothing


def find_dataset(reference: Named | AtGit, access: Access) -> KnownDataset:
    """The dataset that is meant. Raises UsageError, for an unknown name with the nearest ones."""
    return _of_git(reference) if isinstance(reference, AtGit) else _of_name(reference, access)


def all_datasets(access: Access) -> tuple[KnownDataset, ...]:
    """All datasets that can be named, a registry's first. Raises UsageError."""
    of_registry = read_registry(access.registry, offline=access.offline) if access.registry else ()
    return (*of_registry, *known_datasets())


def _of_git(reference: AtGit) -> KnownDataset:
    folder = reference.folder
    words = [PurePosixPath(re.split(r"[/:]", reference.url.rstrip("/"))[-1]).name.removesuffix(".git"), folder or ""]
    name = re.sub(r"[^\w.-]+", "-", "-".join(filter(None, words))).strip("-.") or "repository"
    return KnownDataset(name, None, "git", pieces=(Piece(reference.url, reference.revision, folder),))


def _of_name(wanted: Named, access: Access) -> KnownDataset:
    own, others = known_datasets(), tuple[KnownDataset, ...]()
    if access.registry:
        others = read_registry(access.registry, offline=access.offline)
        if (found := choose(wanted, others, without_login(access.registry))) is not None:
            return _compared(found, own, access)
    found = choose(wanted, own, WHERE) or find_package(wanted, harbor_cache())
    if found is None:
        raise UsageError(f"{wanted}: {_why_unknown(wanted, (*others, *own), access)}")
    return found


def _why_unknown(wanted: Named, datasets: tuple[KnownDataset, ...], access: Access) -> str:
    """Where was looked, and what may have been meant."""
    where = f"{without_login(access.registry)} or {WHERE}" if access.registry else WHERE
    if versions := versions_of(wanted.name, datasets):
        return f"no such version in {where}; there are {', '.join(versions)}"
    if "/" in wanted.name:
        return (
            f"no such directory, and no dataset of this name in {where} or Harbor's cache ({harbor_cache()}), which "
            f"packages of its hub are read from; check it, or fetch a package with: harbor download {wanted}"
        )
    near = nearest_titles(wanted, datasets)
    advice = f"did you mean {' or '.join(near)}?" if near else "tbench dataset list shows those that there are"
    return f"no such directory, and no dataset of this name in {where}; {advice}"


def _compared(found: KnownDataset, own: tuple[KnownDataset, ...], access: Access) -> KnownDataset:
    """A registry's dataset, with what tbench knows of the one that it is called after."""
    same = [each for each in own if each.is_called(found.name) and each.version == found.version]
    if not same:
        return found
    mine = same[0]
    commits = {piece.revision for piece in found.pieces}
    if mine.listed_commit and commits != {mine.listed_commit}:
        access.say(
            f"{found.title}: taken as {found.source} has it (at {', '.join(sorted(commits))}); "
            f"{WHERE} has commit {mine.listed_commit[:12]}"
        )
    return replace(found, trials_per_task=mine.trials_per_task, listed_commit=mine.listed_commit)
