"""Plan of a Harbor job: its tasks, the number of trials of each, and their dataset."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbench.errors import UsageError
from tbench.exchange.importing.harbor.records import JobPlace
from tbench.exchange.importing.harbor.trial import FoundTrial, last_part, list_or_empty, short_name, task_without_result
from tbench.origin import DatasetOrigin
from tbench.storage.imported_plan import ImportedTask
from tbench.text import counted


@dataclass(frozen=True, slots=True)
class Job:
    """A job's trials and its files, which are empty if missing."""

    place: JobPlace
    config: Mapping[str, Any]
    result: Mapping[str, Any]
    lock: Mapping[str, Any]

    @property
    def where(self) -> str:
        return str(self.place.directory or self.place.trials[0].parent)


def trials_by_task(found: Sequence[FoundTrial], where: str) -> dict[str, list[FoundTrial]]:
    """Return the trials of each task in the order of their start. Tasks are named after their directory.

    Raises UsageError for an invalid name.
    """
    full: defaultdict[str, set[str]] = defaultdict(set)
    for each in found:
        full[_short(each, where)].add(each.record.task_name)
    by_task: defaultdict[str, list[FoundTrial]] = defaultdict(list)
    for each in sorted(found, key=lambda each: each.order):
        short = _short(each, where)
        # Two tasks of different owners may have the same name.
        by_task[short if len(full[short]) == 1 else each.record.task_name.replace("/", "__")].append(each)
    return dict(sorted(by_task.items()))


def _short(each: FoundTrial, where: str) -> str:
    name = short_name(each.record)
    if name is None:
        raise UsageError(f"{where}: {each.directory.name}: task {each.record.task_name[:80]!r} cannot be a file name")
    return name


def planned_trials(
    job: Job, by_task: Mapping[str, Sequence[FoundTrial]], cut: Iterable[Path], notes: list[str]
) -> Counter[str]:
    """Return the number of planned trials by task, from the existing trials, the lock and the configuration."""
    planned = Counter({task: len(of_task) for task, of_task in by_task.items()})
    nameless = 0
    for directory in cut:
        task = task_without_result(directory)
        nameless += task is None
        if task is not None:
            planned[task] += 1
    for task, count in _locked_trial_counts(job).items():
        planned[task] = max(planned[task], count)
    for each in list_or_empty(job.config.get("tasks")):
        name = (each.get("path") or each.get("name")) if isinstance(each, dict) else None
        if isinstance(name, str) and (task := last_part(name)) is not None:
            planned[task] = max(planned[task], 1)
    if nameless:
        notes.append(f"{counted(nameless, 'trial')} without result and task are missing in the plan")
    return planned


def _locked_trial_counts(job: Job) -> Counter[str]:
    """Return the number of trials by task in the job's lock (0.25 and later), if it has only one agent."""
    trials = [each for each in list_or_empty(job.lock.get("trials")) if isinstance(each, dict)]
    if len({str(each.get("agent")) for each in trials}) > 1:
        return Counter()
    tasks = [each["task"] for each in trials if isinstance(each.get("task"), dict)]
    names = [last_part(str(task.get("path") or task.get("name"))) for task in tasks]
    return Counter(name for name in names if name is not None)


def planned_task(name: str, trials: Sequence[FoundTrial]) -> ImportedTask:
    digests = {each.task_digest for each in trials}
    checksums = {each.record.task_checksum for each in trials}
    return ImportedTask(
        name=name,
        hash=digests.pop() if len(digests) == 1 else None,
        checksum=(checksums.pop() or None) if len(checksums) == 1 else None,
    )


def dataset(job: Job, found: Sequence[FoundTrial], tasks: int) -> DatasetOrigin | None:
    """Return the dataset of the configuration, else the one that all trials have in common."""
    datasets = [each for each in list_or_empty(job.config.get("datasets")) if isinstance(each, dict)]
    ids = [each.record.task_id for each in found]
    commits = {(text_or_empty(each.get("git_url")), text_or_empty(each.get("git_commit_id"))) for each in ids}
    url, commit = commits.pop() if len(commits) == 1 else ("", "")
    if len(datasets) == 1 and (name := text_or_empty(datasets[0].get("name"))):
        version = text_or_empty(datasets[0].get("version")) or text_or_empty(datasets[0].get("ref")) or None
    else:
        sources = {each.record.source for each in found}
        name, version = (sources.pop() or "" if len(sources) == 1 and url else ""), None
    if not name:
        return None
    return DatasetOrigin(
        name=name, version=version, source="harbor", url=_without_password(url), commit=commit or None, tasks=tasks
    )


def _without_password(url: str) -> str | None:
    head, slashes, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{head}{slashes}{host.rpartition('@')[2]}{slash}{path}" if url else None


def text_or_empty(value: object) -> str:
    """Return a string unchanged; empty for any other type."""
    return value if isinstance(value, str) else ""
