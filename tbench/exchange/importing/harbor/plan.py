"""Plan of a Harbor job: its tasks, the number of trials of each, and their dataset."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbench.errors import UsageError
from tbench.exchange.importing.harbor.records import JobPlace
from tbench.exchange.importing.harbor.trajectory import objects_in
from tbench.exchange.importing.harbor.trial import FoundTrial, last_part, short_name, task_without_result
from tbench.origin import DatasetOrigin
from tbench.storage.imported_plan import ImportedTask
from tbench.storage.read_run import text_or_none
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
    tasks_of_cut = [task_without_result(directory) for directory in cut]
    planned.update(task for task in tasks_of_cut if task is not None)
    planned |= _locked_trial_counts(job)  # the union of counters has the larger count of each
    for each in objects_in(job.config.get("tasks")):
        name = each.get("path") or each.get("name")
        if isinstance(name, str) and (task := last_part(name)) is not None:
            planned |= Counter([task])
    if nameless := tasks_of_cut.count(None):
        notes.append(f"{counted(nameless, 'trial')} without result and task are missing in the plan")
    return planned


def _locked_trial_counts(job: Job) -> Counter[str]:
    """Return the number of trials by task in the job's lock (0.25 and later), if it has only one agent."""
    trials = objects_in(job.lock.get("trials"))
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
    """Return the dataset that the configuration names, or else the dataset that all trials share."""
    datasets = objects_in(job.config.get("datasets"))
    ids = [each.record.task_id for each in found]
    commits = {(text_or_none(each.get("git_url")), text_or_none(each.get("git_commit_id"))) for each in ids}
    url, commit = commits.pop() if len(commits) == 1 else (None, None)
    if len(datasets) == 1 and (name := text_or_none(datasets[0].get("name"))):
        version = text_or_none(datasets[0].get("version")) or text_or_none(datasets[0].get("ref")) or None
    else:
        sources = {each.record.source for each in found}
        name, version = (sources.pop() if len(sources) == 1 and url else None), None
    if not name:
        return None
    place = _without_password(url) if url else None
    return DatasetOrigin(name=name, version=version, source="harbor", url=place, commit=commit or None, tasks=tasks)


def _without_password(url: str) -> str:
    head, slashes, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{head}{slashes}{host.rpartition('@')[2]}{slash}{path}"
