"""Reads the tasks that a user names in any way: bundled ones, those of a path, of a repository, of a dataset's name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tbench.datasets.cache import CachedDataset, Conversions, DatasetCache, cache_directory
from tbench.datasets.known import Access, KnownDataset
from tbench.datasets.reference import parse_reference
from tbench.errors import UsageError
from tbench.origin import DatasetOrigin
from tbench.tasks.sources import ALL_TASKS, ReadTask, TaskChoice, TaskSet, read_paths
from tbench.tasks.sources import read_tasks as read_local
from tbench.text import names_shown

USUAL_ACCESS = Access()


def read_tasks(
    source: str, include: Sequence[str] = (), exclude: Sequence[str] = (), limit: int | None = None
) -> TaskSet:
    """The tasks of `source` by name: those that match a glob of `include`, if there is any, and none of `exclude`.

    Of these the first `limit`. `source` is `bundled`, a path, a dataset's name or `git+URL@REV#FOLDER`. Raises
    UsageError when no readable task is left or a glob matches none.
    """
    return read_chosen(source, TaskChoice(include, exclude, limit))


def read_chosen(
    source: str, choice: TaskChoice, access: Access = USUAL_ACCESS, before: DatasetOrigin | None = None
) -> TaskSet:
    """The chosen tasks of `source`; with `before`, of the very dataset that a run has had. Raises UsageError."""
    reference = parse_reference(source)
    if isinstance(reference, Path):
        return _said(access, lambda read: read_local(source, choice, read))
    # Whoever has its tasks in a directory needs no registries, and nothing that asks them.
    from tbench.datasets.pull import pull
    from tbench.datasets.resolve import find_dataset

    cache = DatasetCache(cache_directory())
    if before is not None and not access.refresh and (entry := cache.find(before.entry)) is not None:
        return _of_entry(entry, choice, before)
    known = find_dataset(reference, access)
    if before is not None and before.commit is not None:
        known = _at(before.commit, known)
    if known.directories:
        paths = sorted(known.directories, key=lambda path: path.name)
        tasks = _said(access, lambda read: read_paths(paths, choice, known.title, read))
        return replace(tasks, origin=_origin(known, len(known.directories)))
    entry = pull(known, cache, access.say, refresh=access.refresh, offline=access.offline)
    return _of_entry(entry, choice, _origin_of(known, entry))


def _said(access: Access, read_with: Callable[[ReadTask], TaskSet]) -> TaskSet:
    """Tasks of either form, with one line about those that were converted."""
    conversions = Conversions()
    tasks = read_with(conversions.read)
    if conversions.words:
        access.say(conversions.words)
    return tasks


def read_again(source: str, before: DatasetOrigin | None, registry: str | None = None) -> TaskSet:
    """All tasks of the source that a run has stored, of the very dataset that it has had. Raises UsageError."""
    return read_chosen(source, ALL_TASKS, Access(registry), before)


def _at(commit: str, known: KnownDataset) -> KnownDataset:
    """The dataset at the commit that a run has had, whatever its name stands for by now."""
    return replace(known, pieces=tuple(replace(piece, revision=commit) for piece in known.pieces))


def _of_entry(entry: CachedDataset, choice: TaskChoice, origin: DatasetOrigin) -> TaskSet:
    """The chosen tasks of the cache, none of which was changed since. Raises UsageError."""
    from tbench.datasets.digests import compare

    tasks = read_paths(entry.paths, choice, origin.title, Conversions().read)  # which says why one was left as it is
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
            f"{entry.path}: changed since it was pulled: {names_shown(sorted(changed))}; pull it again with: "
            f"tbench dataset pull {origin.said} --refresh (or run a copy of the directory)"
        )


def _origin_of(known: KnownDataset, entry: CachedDataset) -> DatasetOrigin:
    """What is known of a dataset in the cache, before its tasks are looked at."""
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
