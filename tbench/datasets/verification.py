"""Compares whole datasets with their published digests, and those of the cache with what was pulled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tbench.datasets.cache import Entry
from tbench.datasets.digests import MANIFEST, DigestComparison, compare, publication_beside, read_publication
from tbench.errors import UsageError
from tbench.tasks.sources import ALL_TASKS, TaskSet, read_paths, read_tasks
from tbench.text import counted


@dataclass(frozen=True)
class Verification:
    """What came out: a line for each task that is not what was published, and the whole in words."""

    lines: tuple[str, ...]
    words: str


def verify_directory(directory: Path, against: Path | None) -> Verification:
    """Compare the tasks of a directory with a dataset.toml, by default the one in it. Raises UsageError."""
    tasks = read_tasks(str(directory))
    publication = read_publication(against) if against is not None else publication_beside(directory)
    if publication is None:
        raise UsageError(f"{directory / MANIFEST}: there is none to compare with; give one with --against")
    return _verified(tasks, publication.digests, {})


def verify_entry(entry: Entry, against: Path | None) -> Verification:
    """Compare a dataset in the cache with its digests, and with what was pulled. Raises UsageError."""
    tasks = read_paths(entry.paths, ALL_TASKS, str(entry.path))
    published = read_publication(against).digests if against is not None else entry.record.published
    return _verified(tasks, published, entry.record.hashes)


def words_of(entry: Entry) -> str:
    """How a dataset in the cache compares; what was pulled just now is not read again. Raises UsageError."""
    if not entry.is_new:
        return verify_entry(entry, None).words
    hashes = {name: digest for name, digest in entry.record.hashes.items() if digest is not None}
    return _words(len(entry.record.hashes), compare(hashes, entry.record.published, whole=True))


def _verified(tasks: TaskSet, published: Mapping[str, str], pulled: Mapping[str, str | None]) -> Verification:
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
            yield f"cannot be read: {name}: {invalid[name]}"
    for name in found.missing:
        if name not in invalid:
            yield f"missing: {name}"
    for name, digest in hashes.items():
        if name in pulled and pulled[name] != digest and name not in found.differing:
            yield f"changed since it was pulled: {name}"


def _words(tasks: int, found: DigestComparison) -> str:
    if not found.compared and not found.missing:
        return f"{counted(tasks, 'task')}; no digests are published to compare them with"
    extra = f"; without one: {', '.join(found.unpublished)}" if found.unpublished else ""
    whole = found.compared + len(found.missing)
    return f"{len(found.same):,} of {counted(whole, 'task')} match the published digests{extra}"
