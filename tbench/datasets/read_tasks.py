"""Reads tasks from any source: bundled tasks, a path, a git repository, or a dataset by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tbench.datasets.cache import CachedDataset, Conversions, DatasetCache, cache_directory
from tbench.datasets.known_dataset import Access, KnownDataset
from tbench.datasets.reference import parse_reference
from tbench.errors import UsageError
from tbench.origin import DatasetOrigin
from tbench.tasks.sources import ALL_TASKS, ReadTask, TaskChoice, TaskSet, read_paths
from tbench.tasks.sources import read_tasks as read_local
from tbench.text import names_text

DEFAULT_ACCESS = Access()


def read_tasks(
    source: str, include: Sequence[str] = (), exclude: Sequence[str] = (), limit: int | None = None
) -> TaskSet:
    """Read the first `limit` tasks of `source` that match a glob of `include`, if any, and none of `exclude`.

    `source` is `bundled`, a path, a dataset's name or `git+URL@REV#FOLDER`. Raises UsageError if no readable task is
    left, or if a glob matches none.
    """
    return read_selected(source, TaskChoice(include, exclude, limit))


def read_selected(
    source: str, choice: TaskChoice, access: Access = DEFAULT_ACCESS, before: DatasetOrigin | None = None
) -> TaskSet:
    """Read the chosen tasks of `source`; with `before`, from the same dataset as a run. Raises UsageError."""
    reference = parse_reference(source)
    if isinstance(reference, Path):
        return _read_and_report(access, lambda read: read_local(source, choice, read))
    # Imported here, because a directory of tasks needs no registries.
    from tbench.datasets.pull import pull
    from tbench.datasets.resolve import find_dataset

    cache = DatasetCache(cache_directory())
    if before is not None and not access.refresh and (entry := cache.find(before.entry)) is not None:
        return _read_entry(entry, choice, before)
    known = find_dataset(reference, access)
    if before is not None and before.commit is not None:
        known = _at_commit(before.commit, known)
    if known.directories:
        paths = sorted(known.directories, key=lambda path: path.name)
        tasks = _read_and_report(access, lambda read: read_paths(paths, choice, known.title, read))
        return replace(tasks, origin=_origin(known, len(known.directories)))
    entry = pull(known, cache, access.say, refresh=access.refresh, offline=access.offline)
    return _read_entry(entry, choice, _cached_origin(known, entry))


def _read_and_report(access: Access, read_with: Callable[[ReadTask], TaskSet]) -> TaskSet:
    """Read tasks in either format, and report how many were converted."""
    conversions = Conversions()
    tasks = read_with(conversions.read)
    if conversions.words:
        access.say(conversions.words)
    return tasks


def read_again(source: str, before: DatasetOrigin | None, registry: str | None = None) -> TaskSet:
    """Read all tasks of a stored run's source, from the same dataset. Raises UsageError."""
    return read_selected(source, ALL_TASKS, Access(registry), before)


def _at_commit(commit: str, known: KnownDataset) -> KnownDataset:
    """Return the dataset at the commit of a run, even if its revision has moved."""
    return replace(known, pieces=tuple(replace(piece, revision=commit) for piece in known.pieces))


def _read_entry(entry: CachedDataset, choice: TaskChoice, origin: DatasetOrigin) -> TaskSet:
    """Read the chosen tasks from the cache and check that none has changed. Raises UsageError."""
    from tbench.datasets.digests import compare

    tasks = read_paths(entry.paths, choice, origin.title, Conversions().read)  # reports why a task was not converted
    _require_as_pulled(tasks, entry, origin)
    found = compare({task.name: task.hash for task in tasks.tasks}, entry.published)
    origin = origin.model_copy(
        update={
            "verified": not found.differing if found.compared else None,
            "compared": found.compared,
            "differing": found.differing,
        }
    )
    return replace(tasks, origin=origin)


def _require_as_pulled(tasks: TaskSet, entry: CachedDataset, origin: DatasetOrigin) -> None:
    hashes = entry.hashes
    changed = [task.name for task in tasks.tasks if task.hash != hashes[task.name]]
    changed += [name for name in tasks.invalid if hashes.get(name) is not None]
    if changed:
        raise UsageError(
            f"{entry.path}: changed after the pull: {names_text(sorted(changed))}; pull it again with: "
            f"tbench dataset pull {origin.spec} --refresh (or run a copy of the directory)"
        )


def _cached_origin(known: KnownDataset, entry: CachedDataset) -> DatasetOrigin:
    """Return the origin of a cached dataset, without comparison of its tasks."""
    pieces = entry.pieces
    one = pieces[0] if len(pieces) == 1 else None
    return _origin(known, len(entry.hashes)).model_copy(
        update={
            "url": one.url if one else None,
            "commit": one.commit if one else None,
            "path": one.tasks_in if one else "",
            "entry": entry.path.name,
            "digest": entry.digest,
        }
    )


def _origin(known: KnownDataset, tasks: int) -> DatasetOrigin:
    return DatasetOrigin(
        name=known.name,
        version=known.version,
        source=known.source,
        tasks=tasks,
        listed_commit=known.listed_commit,
        trials_per_task=known.trials_per_task,
    )
