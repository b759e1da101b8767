"""What a site knows of one task: the runs that planned it, series by series, and how often it was solved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from reports.site.content import RunSeries, Site, SiteRun
from tbench.history.rows import TaskPoint
from tbench.scores.comparing.flaky import TaskTries

RECENT = 10
"""Runs of a series that are asked whether it solves a task: the newest ones."""

Solved = Literal["always", "sometimes", "never", "unknown"]


@dataclass(frozen=True, slots=True)
class TaskRun:
    """A run that planned the task."""

    run: SiteRun
    point: TaskPoint


@dataclass(frozen=True, slots=True)
class TaskSeries:
    """The task in the runs of one series that planned it."""

    series: RunSeries
    runs: tuple[TaskRun, ...]
    """Oldest first; never empty."""

    @property
    def recent(self) -> tuple[TaskRun, ...]:
        """The newest runs, of those in which the task has the content that it has in the last one."""
        same = [each for each in self.runs if each.point.hash == self.runs[-1].point.hash]
        return tuple(same[-RECENT:])

    @property
    def tries(self) -> TaskTries:
        """How often the task was solved in the newest runs."""
        return tries_of(self.recent)

    @property
    def change_at(self) -> int | None:
        """Index of the first run with the content of the last one, where there was another before."""
        hashes = [each.point.hash for each in self.runs]
        changes = [at for at in range(1, len(hashes)) if hashes[at] != hashes[at - 1]]
        return changes[-1] if changes else None


@dataclass(frozen=True)
class TaskRecord:
    """One task over all runs of a site."""

    task: str
    runs: tuple[TaskRun, ...]
    """Newest first."""
    series: tuple[TaskSeries, ...]
    """That of the newest run first."""

    @property
    def main(self) -> TaskSeries:
        """The series that says most of how the task does now. Only of a task that some run planned."""
        return max(self.series, key=lambda each: weight(each.series))

    @cached_property
    def versions(self) -> dict[str | None, str]:
        """What each content of the task is called, v1 for the oldest, by its hash."""
        hashes = dict.fromkeys(each.point.hash for each in reversed(self.runs))
        return {digest: f"v{number}" for number, digest in enumerate(hashes, start=1)}


def task_record(site: Site, task: str, known: Mapping[Path, SiteRun] | None = None) -> TaskRecord:
    """What is known of a task; `known` are the runs of the site by their directories."""
    known = known if known is not None else by_directory(site)
    runs = tuple(TaskRun(known[point.run], point) for point in site.history.task(task) if point.run in known)
    return TaskRecord(task, runs, tuple(_series(site, runs)))


def weight(series: RunSeries) -> tuple[bool, int, str]:
    """How much a series says of the present: a nightly one most, then one of several runs, then the newest."""
    return series.is_lane, min(len(series.runs), RECENT), series.last.row.begun_at or ""


def by_directory(site: Site) -> dict[Path, SiteRun]:
    """The runs of a site by their directories."""
    return {run.row.path: run for run in site.runs}


def _series(site: Site, runs: Sequence[TaskRun]) -> Iterator[TaskSeries]:
    found: dict[int, tuple[RunSeries, list[TaskRun]]] = {}
    for each in runs:
        series = site.series_of(each.run)
        found.setdefault(id(series), (series, []))[1].append(each)
    for series, members in found.values():
        yield TaskSeries(series, tuple(reversed(members)))


def tries_of(runs: Iterable[TaskRun]) -> TaskTries:
    """How often the task was solved in some runs with the same content of it."""
    points = [each.point for each in runs]
    return TaskTries(
        task="",
        hash=points[-1].hash if points else None,
        solved=sum(point.solved for point in points),
        scored=sum(point.scored for point in points),
        unscored=sum(point.planned - point.scored for point in points),
    )


def solved_how(tries: TaskTries) -> Solved:
    """Whether a task is solved always, never or sometimes; unknown for fewer than two trials with a verdict."""
    if tries.scored < 2:
        return "unknown"
    if tries.is_flaky:
        return "sometimes"
    return "always" if tries.solved else "never"
