"""A dataset before anything of it is fetched: its name, where its tasks are, and what may be done to get them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tbench.datasets.reference import Named
from tbench.errors import UsageError

TASKS_FOLDER = "tasks"
"""Where tasks are that are not at the root of their repository, if nobody says where."""
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_TAGS = "refs/tags/"


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
class Piece:
    """Tasks of one repository at one revision."""

    url: str
    revision: str
    """A commit, a branch, a tag, or HEAD."""
    folder: str | None = None
    """The folder whose children with a task.toml are the tasks; None: the root, or else `tasks/`."""
    listed: tuple[tuple[str, str], ...] = ()
    """Name and folder of each task, where those are listed one by one."""

    @property
    def is_commit(self) -> bool:
        """Whether the revision is a whole commit id, which always means the same content."""
        return is_commit(self.revision)

    @property
    def is_fixed(self) -> bool:
        """Whether what the revision means is not supposed to change."""
        return self.is_commit or self.revision.startswith(_TAGS)


@dataclass(frozen=True)
class HubPackage:
    """A task in Harbor's own cache, in a directory that is called after its digest."""

    name: str
    digest: str
    """sha256 in hex of its content."""
    path: Path


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
    packages: tuple[HubPackage, ...] = ()
    """Tasks in Harbor's cache, where it is of no repository."""
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


def is_commit(revision: str) -> bool:
    return _COMMIT.fullmatch(revision) is not None


def tag(name: str) -> str:
    """The revision that a tag is."""
    return f"{_TAGS}{name}"


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
