"""The list of tasks: a line for each, with how often it is solved now, how that went, and how long it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup

from reports.charts.sparkline import sparkline
from reports.names import TASKS, relative_url, task_page
from reports.site.content import Site
from reports.task.record import Solved, TaskRecord, TaskRun, by_directory, solved_how, task_record, weight
from tbench.scores.comparing.flaky import TaskTries
from tbench.text import counted

_SPARK_RUNS = 40
_MODELS = 3
"""Further series that have a column of their own."""


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A task in the list."""

    task: str
    href: str
    solved: Solved
    tries: TaskTries
    others: tuple[TaskTries | None, ...]
    """How often other series solve it, in the order of the columns; None for one that does not have it."""
    spark: Markup
    runs: int
    mean_steps: float | None
    mean_sec: float | None
    has_changed: bool


@dataclass(frozen=True, slots=True)
class TaskList:
    """All tasks."""

    lines: tuple[TaskLine, ...]
    main: str
    """What the series is called whose runs the list is about."""
    others: tuple[str, ...]
    counts: dict[Solved, int]


def task_list(site: Site, tasks: Sequence[str]) -> TaskList:
    """The list of the tasks that some run of the site planned."""
    known = by_directory(site)
    records = [record for task in tasks if (record := task_record(site, task, known)).runs]
    columns = _columns(records)
    lines = tuple(_line(record, columns) for record in records)
    kinds: tuple[Solved, ...] = ("always", "sometimes", "never", "unknown")
    counts = {kind: sum(line.solved == kind for line in lines) for kind in kinds}
    names = [name for name, _ in columns]
    return TaskList(lines, names[0] if names else "", tuple(names[1:]), counts)


def _columns(records: Sequence[TaskRecord]) -> list[tuple[str, int]]:
    """Names and identities of the series that have columns, the one that says most of the present first."""
    found = {id(each.series): each.series for record in records for each in record.series}
    in_order = sorted(found.items(), key=lambda item: weight(item[1]), reverse=True)
    return [(series.name, key) for key, series in in_order[: _MODELS + 1]]


def _line(record: TaskRecord, columns: Sequence[tuple[str, int]]) -> TaskLine:
    by_series = {id(each.series): each for each in record.series}
    main = by_series.get(columns[0][1], record.main)
    tries = main.tries
    return TaskLine(
        task=record.task,
        href=relative_url(TASKS, task_page(record.task)),
        solved=solved_how(tries),
        tries=tries,
        others=tuple(by_series[key].tries if key in by_series else None for _, key in columns[1:]),
        spark=_spark(record.task, main.runs[-_SPARK_RUNS:]),
        runs=len(record.runs),
        mean_steps=_mean(main.recent, "mean_steps"),
        mean_sec=_mean(main.recent, "mean_wall_sec"),
        has_changed=len(record.versions) > 1,
    )


def _spark(task: str, runs: Sequence[TaskRun]) -> Markup:
    label = f"{task}: mean reward in the last {counted(len(runs), 'run')}"
    return sparkline([each.point.mean_reward for each in runs], whole=True, label=label)


def _mean(runs: Sequence[TaskRun], name: str) -> float | None:
    found = list(_known(runs, name))
    return fmean(found) if found else None


def _known(runs: Sequence[TaskRun], name: str) -> Iterator[float]:
    return (value for each in runs if (value := getattr(each.point, name)) is not None)
