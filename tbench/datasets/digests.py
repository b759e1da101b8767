"""Published digests of tasks (dataset.toml), and their comparison with tasks of a directory or of the cache."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tbench.datasets.cache import CachedDataset
from tbench.errors import UsageError
from tbench.tasks.files import read_bounded
from tbench.tasks.sources import ALL_TASKS, TaskSet, read_paths, read_tasks
from tbench.text import counted, one_line

MANIFEST = "dataset.toml"
_DIGEST = r"^(sha256:)?[0-9a-f]{64}$"


class ForeignRecord(BaseModel):
    """A part of a file of another program; keys that tbench does not need are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Part(ForeignRecord):
    digest: Annotated[str, Field(pattern=_DIGEST)] | None = None

    @property
    def hex(self) -> str:
        return (self.digest or "").removeprefix("sha256:")


class _ManifestTask(_Part):
    name: Annotated[str, Field(min_length=1)]


class _ManifestFile(_Part):
    path: str


class _Head(ForeignRecord):
    name: str
    version: str | None = None


class Publication(ForeignRecord):
    """The content of a dataset.toml of Harbor's packages."""

    dataset: _Head
    tasks: tuple[_ManifestTask, ...] = ()
    files: tuple[_ManifestFile, ...] = ()

    @property
    def digests(self) -> dict[str, str]:
        """sha256 in hex by name of the task, without organisation."""
        return {task.name.rpartition("/")[2]: task.hex for task in self.tasks if task.digest}

    @property
    def digest(self) -> str | None:
        """sha256 in hex of the whole dataset, as in harbor/models/dataset/manifest.py; None if a task has no digest."""
        tasks, files = [task.hex for task in self.tasks], [file for file in self.files if file.digest]
        if not all(tasks):
            return None
        text = ",".join(sorted(tasks))
        if files:
            text += ";" + ",".join(sorted(f"{file.path}:{file.hex}" for file in files))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class DigestComparison:
    """Names of tasks by the result of comparing them with published digests."""

    same: tuple[str, ...]
    differing: tuple[str, ...]
    unpublished: tuple[str, ...]
    """Tasks without a published digest."""
    missing: tuple[str, ...]
    """Missing tasks with a published digest."""

    @property
    def compared(self) -> int:
        return len(self.same) + len(self.differing)


def read_publication(path: Path) -> Publication:
    """Read a dataset.toml. Raises UsageError."""
    try:
        return Publication.model_validate(tomllib.loads(read_bounded(path).decode("utf-8")))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}; give a {MANIFEST}") from None
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise UsageError(f"{path}: {where}: {problem['msg']}; give a {MANIFEST} of Harbor") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is not valid TOML: {one_line(str(error), 200)}") from None


def read_publication_in(directory: Path) -> Publication | None:
    """Read the dataset.toml in a directory of tasks; None if there is none. Raises UsageError."""
    path = directory / MANIFEST
    return read_publication(path) if path.is_file() and not path.is_symlink() else None


def compare(hashes: Mapping[str, str], published: Mapping[str, str], *, whole: bool = False) -> DigestComparison:
    """Compare hashes with published digests, both by task; `whole` if `hashes` has all tasks of the dataset."""
    known = [name for name in sorted(hashes) if name in published]
    return DigestComparison(
        same=tuple(name for name in known if hashes[name] == published[name]),
        differing=tuple(name for name in known if hashes[name] != published[name]),
        unpublished=tuple(sorted(hashes.keys() - published.keys())),
        missing=tuple(sorted(published.keys() - hashes.keys())) if whole else (),
    )


def is_digest(text: str) -> bool:
    """Whether `text` is a digest in a reference: `sha256:` and 64 hexadecimal digits."""
    return re.fullmatch(r"sha256:[0-9a-f]{64}", text) is not None


# Verification of whole datasets against published digests, and of cached ones against the pull


@dataclass(frozen=True)
class Verification:
    """Result of a verification: a line for each task that differs, and a summary."""

    lines: tuple[str, ...]
    words: str


def verify_directory(directory: Path, against: Path | None) -> Verification:
    """Compare the tasks of a directory with a dataset.toml, by default the one in it. Raises UsageError."""
    tasks = read_tasks(str(directory))
    publication = read_publication(against) if against is not None else read_publication_in(directory)
    if publication is None:
        raise UsageError(f"{directory / MANIFEST}: missing; give the digests to compare with as --against")
    return _make_verification(tasks, publication.digests, {})


def verify_entry(entry: CachedDataset, against: Path | None) -> Verification:
    """Compare a cached dataset with its digests, and with its content at the time of the pull. Raises UsageError."""
    tasks = read_paths(entry.paths, ALL_TASKS, str(entry.path))
    published = read_publication(against).digests if against is not None else entry.published
    return _make_verification(tasks, published, entry.hashes)


def describe_digests(entry: CachedDataset) -> str:
    """Describe how a cached dataset matches its digests; a new pull is not read again. Raises UsageError."""
    if not entry.is_new:
        return verify_entry(entry, None).words
    hashes = {name: digest for name, digest in entry.hashes.items() if digest is not None}
    return _words(len(entry.hashes), compare(hashes, entry.published, whole=True))


def _make_verification(tasks: TaskSet, published: Mapping[str, str], pulled: Mapping[str, str | None]) -> Verification:
    hashes = {task.name: task.hash for task in tasks.tasks}
    found = compare(hashes, published, whole=True)
    lines = tuple(_lines(hashes, tasks.invalid, found, published, pulled))
    return Verification(lines, _words(len(tasks.names), found))


def _lines(
    hashes: Mapping[str, str],
    invalid: Mapping[str, str],
    found: DigestComparison,
    published: Mapping[str, str],
    pulled: Mapping[str, str | None],
) -> Iterator[str]:
    for name in found.differing:
        yield f"differs: {name}: has {hashes[name][:12]}, published is {published[name][:12]}"
    for name in sorted(invalid.keys() & (published.keys() | pulled.keys())):
        if name in published or pulled[name] is not None:
            yield f"unreadable: {name}: {invalid[name]}"
    for name in found.missing:
        if name not in invalid:
            yield f"missing: {name}"
    for name, digest in hashes.items():
        if name in pulled and pulled[name] != digest and name not in found.differing:
            yield f"changed after the pull: {name}"


def _words(tasks: int, found: DigestComparison) -> str:
    if not found.compared and not found.missing:
        return f"{counted(tasks, 'task')}; no digests are published"
    extra = f"; without a digest: {', '.join(found.unpublished)}" if found.unpublished else ""
    whole = found.compared + len(found.missing)
    return f"{len(found.same):,} of {counted(whole, 'task')} match the published digests{extra}"
