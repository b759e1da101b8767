"""Datasets before they are fetched: name, location of the tasks, and options for fetching them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tbench.datasets.reference import DatasetName, GitSource
from tbench.errors import UsageError

TASKS_FOLDER = "tasks"
"""Default folder of the tasks, if they are not at the root of the repository."""


def discard_message(text: str) -> None:
    """Discard the message."""


@dataclass(frozen=True)
class Access:
    """Options for finding and fetching datasets."""

    registry: str | None = None
    """File or URL of a registry, which is searched before tbench's own list."""
    refresh: bool = False
    """Fetch datasets even if they are in the cache."""
    offline: bool = False
    """Contact no server."""
    say: Callable[[str], None] = discard_message


@dataclass(frozen=True)
class KnownDataset:
    """A dataset that was found in a list, in a registry, in Harbor's cache or by its URL."""

    name: str
    version: str | None
    source: str
    """Source of the dataset: `tbench`, `git`, `harbor`, or the file or URL of a registry."""
    pieces: tuple[GitSource, ...] = ()
    directories: tuple[Path, ...] = ()
    """Task directories on this machine that a registry lists."""
    packages: Mapping[str, Path] = field(default_factory=dict)
    """Directory in Harbor's cache by task, for a dataset without repository. Directories are named by digest."""
    aliases: tuple[str, ...] = ()
    description: str = ""
    tasks: int | None = None
    """Number of tasks, if known beforehand."""
    trials_per_task: int | None = None
    """Trials per task that the dataset's leaderboard requires; None without a leaderboard."""
    listed_commit: str | None = field(default=None, compare=False)
    """Commit of this name and version in tbench's own list."""

    @property
    def title(self) -> str:
        return str(DatasetName(self.name, self.version))

    def has_name(self, name: str) -> bool:
        return name == self.name or name in self.aliases


def choose(wanted: DatasetName, datasets: Sequence[KnownDataset], where: str) -> KnownDataset | None:
    """Choose the dataset of this name and version, by default the newest; None if there is none.

    Raises UsageError if the choice is ambiguous.
    """
    called = [dataset for dataset in datasets if dataset.has_name(wanted.name)]
    if not called:
        return None
    if wanted.version in (None, "latest"):
        newest = max(called, key=lambda dataset: _version_key(dataset.version))
        found = [dataset for dataset in called if dataset.version == newest.version]
    else:
        found = [dataset for dataset in called if _same_version(dataset.version, wanted.version)]
    if any(dataset != found[0] for dataset in found):
        raise UsageError(f"{wanted}: {where} has {len(found)} different entries; remove all but one")
    return found[0] if found else None


def known_versions(name: str, datasets: Iterable[KnownDataset]) -> list[str]:
    """Return the known versions of a dataset, the newest last."""
    return sorted(
        {dataset.version or "an unversioned one" for dataset in datasets if dataset.has_name(name)}, key=_version_key
    )


def nearest_titles(wanted: DatasetName, datasets: Iterable[KnownDataset]) -> list[str]:
    """Return titles of datasets with a similar name, preferably of the same version."""
    by_name: dict[str, list[KnownDataset]] = {}
    for dataset in datasets:
        for name in (dataset.name, *dataset.aliases):
            by_name.setdefault(name, []).append(dataset)
    near = [dataset for name in difflib.get_close_matches(wanted.name, by_name, n=2) for dataset in by_name[name]]
    same = [dataset for dataset in near if _same_version(dataset.version, wanted.version)]
    return list(dict.fromkeys(dataset.title for dataset in same or near))[:5]


def _version_key(version: str | None) -> tuple[bool, tuple[int, ...], str]:
    """Return a sort key: later versions are greater, `head` is the greatest. Numbers count before text."""
    text = version or ""
    return text == "head", _numbers(text), text


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+(?:\.\d+)*)", version)
    numbers = tuple(map(int, found[1].split("."))) if found else ()
    while numbers and numbers[-1] == 0:
        numbers = numbers[:-1]
    return numbers


def _same_version(one: str | None, other: str | None) -> bool:
    """Whether two versions are equal, where 3.0 equals 3.0.0."""
    if one == other:
        return True
    plain = re.compile(r"v?\d+(\.\d+)*")
    return all(each and plain.fullmatch(each) for each in (one, other)) and _numbers(one or "") == _numbers(other or "")
