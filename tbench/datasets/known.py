"""A dataset before anything of it is fetched: its name, where its tasks are, and what may be done to get them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tbench.datasets.reference import Named, Piece
from tbench.errors import UsageError

TASKS_FOLDER = "tasks"
"""Where tasks are that are not at the root of their repository, if nobody says where."""


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


@dataclass(frozen=True)
class KnownDataset:
    """A dataset that some source knows."""

    name: str
    version: str | None
    source: str
    """Who knows it: `tbench`, `git`, `harbor`, or the file or URL of a registry."""
    pieces: tuple[Piece, ...] = ()
    directories: tuple[Path, ...] = ()
    """Task directories of this machine, where a registry names such."""
    packages: Mapping[str, Path] = field(default_factory=dict)
    """Tasks in Harbor's cache by name, where it is of no repository; each directory is called after its digest."""
    aliases: tuple[str, ...] = ()
    description: str = ""
    tasks: int | None = None
    """Number of tasks, where that is known beforehand."""
    trials_per_task: int | None = None
    """Trials of each task that its leaderboard asks for; None without a leaderboard."""
    listed_commit: str | None = field(default=None, compare=False)
    """Commit that tbench's own list has under this name and version."""

    @property
    def title(self) -> str:
        return str(Named(self.name, self.version))

    def is_called(self, name: str) -> bool:
        return name == self.name or name in self.aliases


def choose(wanted: Named, datasets: Sequence[KnownDataset], where: str) -> KnownDataset | None:
    """The dataset of this name and version, or of its newest version; None where there is none.

    Raises UsageError where two could be meant.
    """
    called = [dataset for dataset in datasets if dataset.is_called(wanted.name)]
    if not called:
        return None
    if wanted.version in (None, "latest"):
        newest = max(called, key=lambda dataset: _age(dataset.version))
        found = [dataset for dataset in called if dataset.version == newest.version]
    else:
        found = [dataset for dataset in called if _same_version(dataset.version, wanted.version)]
    if any(dataset != found[0] for dataset in found):
        raise UsageError(f"{wanted}: {where} has {len(found)} that differ; leave one of them in it")
    return found[0] if found else None


def versions_of(name: str, datasets: Iterable[KnownDataset]) -> list[str]:
    """The versions in which a dataset is known, the newest last."""
    return sorted(
        {dataset.version or "one without a version" for dataset in datasets if dataset.is_called(name)}, key=_age
    )


def nearest_titles(wanted: Named, datasets: Iterable[KnownDataset]) -> list[str]:
    """Titles of datasets whose names are near to what was written, and whose version is if that was given."""
    by_name: dict[str, list[KnownDataset]] = {}
    for dataset in datasets:
        for name in (dataset.name, *dataset.aliases):
            by_name.setdefault(name, []).append(dataset)
    near = [dataset for name in difflib.get_close_matches(wanted.name, by_name, n=2) for dataset in by_name[name]]
    same = [dataset for dataset in near if _same_version(dataset.version, wanted.version)]
    return list(dict.fromkeys(dataset.title for dataset in same or near))[:5]


def _age(version: str | None) -> tuple[bool, tuple[int, ...], str]:
    """A key by which a later version is greater, and `head` greatest. Numbers count before words."""
    text = version or ""
    return text == "head", _numbers(text), text


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+(?:\.\d+)*)", version)
    numbers = tuple(map(int, found[1].split("."))) if found else ()
    while numbers and numbers[-1] == 0:
        numbers = numbers[:-1]
    return numbers


def _same_version(one: str | None, other: str | None) -> bool:
    """Whether two versions are the same: 3.0 is 3.0.0."""
    if one == other:
        return True
    plain = re.compile(r"v?\d+(\.\d+)*")
    return all(each and plain.fullmatch(each) for each in (one, other)) and _numbers(one or "") == _numbers(other or "")
