"""Pages of tasks over all runs: the list of tasks, and a page for each with its history, trials and durations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal, get_args

from markupsafe import Markup

from reports.charts import duration_dots, sparkline, status_bar
from reports.page_frame import MAX_CELLS, Crumb, data_script, page
from reports.page_paths import TASKS, relative_url, task_page, trial_name
from reports.score_history import ScorePoint, score_history
from reports.site.content import RunSeries, Site, SiteRun
from tbench.history.rows import TaskPoint, TrialRow
from tbench.scores.comparing.noise import TaskSolveRate
from tbench.scores.statistics import mean_std
from tbench.scores.summary import Status, percent
from tbench.text import counted

# The record of one task: the runs that planned it, by series, and how often it was solved.

RECENT = 10
"""Number of newest runs of a series that decide whether it solves a task."""

Solved = Literal["always", "sometimes", "never", "unknown"]


@dataclass(frozen=True, slots=True)
class TaskRun:
    """Run that planned the task."""

    run: SiteRun
    point: TaskPoint


@dataclass(frozen=True, slots=True)
class TaskSeries:
    """Runs of one series that planned the task."""

    series: RunSeries
    runs: tuple[TaskRun, ...]
    """Oldest first; never empty."""

    @property
    def recent(self) -> tuple[TaskRun, ...]:
        """Newest runs in which the task's content is the same as in the last one."""
        same = [each for each in self.runs if each.point.hash == self.runs[-1].point.hash]
        return tuple(same[-RECENT:])

    @property
    def tries(self) -> TaskSolveRate:
        """How often the task was solved in the newest runs."""
        return count_solves(self.recent)

    @property
    def change_at(self) -> int | None:
        """Index of the first run after the last change of the task's content; None if it never changed."""
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
    """The series of the newest run first."""

    @property
    def main(self) -> TaskSeries:
        """The most relevant series, by `weight`. Requires that some run planned the task."""
        return max(self.series, key=lambda each: weight(each.series))

    @cached_property
    def versions(self) -> dict[str | None, str]:
        """Version name (v1 is the oldest) of each content of the task, by hash."""
        hashes = dict.fromkeys(each.point.hash for each in reversed(self.runs))
        return {digest: f"v{number}" for number, digest in enumerate(hashes, start=1)}


def task_record(site: Site, task: str) -> TaskRecord:
    """Return the record of a task."""
    known = site.by_directory
    runs = tuple(TaskRun(known[point.run], point) for point in site.history.task(task) if point.run in known)
    return TaskRecord(task, runs, tuple(_series(site, runs)))


def weight(series: RunSeries) -> tuple[bool, int, str]:
    """Return a sort key. Nightly series are greatest, then series with more runs, then newer ones."""
    return series.is_nightly, min(len(series.runs), RECENT), series.last.row.begun_at or ""


def _series(site: Site, runs: Sequence[TaskRun]) -> Iterator[TaskSeries]:
    found: dict[int, tuple[RunSeries, list[TaskRun]]] = {}
    for each in runs:
        series = site.series_of(each.run)
        found.setdefault(id(series), (series, []))[1].append(each)
    for series, members in found.values():
        yield TaskSeries(series, tuple(reversed(members)))


def count_solves(runs: Iterable[TaskRun]) -> TaskSolveRate:
    """Count how often the task was solved in runs that have the same content of it."""
    points = [each.point for each in runs]
    return TaskSolveRate(
        task="",
        hash=points[-1].hash if points else None,
        solved=sum(point.solved for point in points),
        scored=sum(point.scored for point in points),
        unscored=sum(point.planned - point.scored for point in points),
    )


def classify_solved(tries: TaskSolveRate) -> Solved:
    """Return whether a task is solved always, never or sometimes; unknown for fewer than two trials with a verdict."""
    if tries.scored < 2:
        return "unknown"
    if tries.is_flaky:
        return "sometimes"
    return "always" if tries.solved else "never"


# The list of tasks: how often each is solved now, its history, and how long it takes.

_SPARK_RUNS = 40
_OTHER_COLUMNS = 3
"""Number of further series that have their own column."""


def render_list(records: Sequence[TaskRecord]) -> str:
    """Render the page that lists all tasks that some run of the site planned."""
    columns = _columns(records)
    lines = [_line(record, columns) for record in records]
    solved = Counter(line["solved"] for line in lines)
    return page(
        "task/list.html.j2",
        TASKS,
        crumbs=[Crumb("tasks")],
        lines=lines,
        main=columns[0][0] if columns else "",
        others=[name for name, _ in columns[1:]],
        choices=[
            ("all tasks", [(kind, f"{kind} solved: {solved[kind]}") for kind in get_args(Solved) if solved[kind]])
        ],
    )


def _columns(records: Sequence[TaskRecord]) -> list[tuple[str, int]]:
    """Return names and identities of the series that have columns, the most relevant first."""
    found = {id(each.series): each.series for record in records for each in record.series}
    in_order = sorted(found.items(), key=lambda item: weight(item[1]), reverse=True)
    return [(series.name, key) for key, series in in_order[: _OTHER_COLUMNS + 1]]


def _line(record: TaskRecord, columns: Sequence[tuple[str, int]]) -> dict[str, Any]:
    by_series = {id(each.series): each for each in record.series}
    main = by_series.get(columns[0][1], record.main)
    return {
        "task": record.task,
        "solved": classify_solved(main.tries),
        "tries": main.tries,
        # How often other series solve the task; None for a series without the task.
        "others": [by_series[key].tries if key in by_series else None for _, key in columns[1:]],
        "spark": _spark(record.task, main.runs[-_SPARK_RUNS:]),
        "mean_steps": _mean(each.point.mean_steps for each in main.recent),
        "mean_sec": _mean(each.point.mean_wall_sec for each in main.recent),
        "has_changed": len(record.versions) > 1,
    }


def _spark(task: str, runs: Sequence[TaskRun]) -> Markup:
    label = f"{task}: mean reward in the last {counted(len(runs), 'run')}"
    return sparkline([each.point.mean_reward for each in runs], whole=True, label=label)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


# The page of a task: its history, its trials run by run, how they ended and how long they took.

_OPEN_RUNS, _MAX_RUNS = 60, 120
_CELLS, _FEWEST_CELLS = 3000, 3
"""Maximum number of cells in all rows together, and minimum number in each row, which takes precedence."""
_CHARTS = 5
_LEAST_RUNS = 3
"""Minimum number of runs of a series that has its own chart."""
_TIMED_TRIALS = 500
_FEWEST_SEEDS = 3
"""Minimum number of seeds for which the standard error of a run's mean is drawn."""


TaskTrials = Mapping[Path, Sequence[TrialRow]]
"""Trials of a task by run directory."""


def render(record: TaskRecord, trials: TaskTrials) -> str:
    """Render the page of a task."""
    content = _content(record, trials) if record.runs else {}
    place, crumbs = task_page(record.task), [Crumb("tasks", TASKS), Crumb(record.task)]
    return page("task/task.html.j2", place, crumbs=crumbs, record=record, **content)


def _content(record: TaskRecord, trials: TaskTrials) -> dict[str, Any]:
    """Return the content of the page of a task that some run planned."""
    ended = [trial for each in record.runs for trial in trials.get(each.point.run, ())]
    times = [(trial.wall_sec, trial.status) for trial in ended if trial.wall_sec][:_TIMED_TRIALS]
    statuses = Counter(trial.status for trial in ended)
    shown = record.runs[:_MAX_RUNS]
    return {
        "solved": classify_solved(record.main.tries),
        "tries": record.main.tries,
        "charts": list(_charts(record, trials)),
        "rows": shown[:_OPEN_RUNS],
        "folded": shown[_OPEN_RUNS:],
        "not_shown": len(record.runs) - len(shown),
        "most_cells": max(_FEWEST_CELLS, min(MAX_CELLS, _CELLS // len(shown))),
        "trials": {run: {trial.seed: trial for trial in found} for run, found in trials.items()},
        "ended": len(ended),
        "bar": status_bar(statuses, "Trials by status: "),
        "statuses": statuses,
        "ends": _ends(ended),
        "durations": duration_dots(times, label="Durations of trials in seconds, by status"),
        "median_sec": median(sec for sec, _ in times) if times else None,
        "mean_steps": fmean(trial.steps for trial in ended) if ended else None,
        "versions": list(_versions(record)) if len(record.versions) > 1 else [],
        "has_models": len({each.point.model for each in record.runs}) > 1,
    }


@dataclass(frozen=True, slots=True)
class TaskMonth:
    """Trials of a task in one month."""

    month: str
    trials: tuple[tuple[SiteRun, TrialRow], ...]
    """Oldest first."""
    solved: int
    scored: int


@dataclass(frozen=True, slots=True)
class TaskHistory:
    """History of a task in a series, as a chart or, with one trial a night, as a cell for each trial."""

    name: str
    chart: Markup | None
    tries: TaskSolveRate | None
    months: tuple[TaskMonth, ...] = ()


def _charts(record: TaskRecord, trials: TaskTrials) -> Iterator[TaskHistory]:
    """Yield the history in each long series; without any, one chart of all runs together."""
    long = [each for each in record.series if len(each.runs) >= _LEAST_RUNS]
    for each in long[:_CHARTS]:
        chart = None if _is_single(each.runs) else _chart(record, each.runs, change_at=each.change_at)
        yield TaskHistory(each.series.name, chart, each.tries, () if chart else tuple(_months(each.runs, trials)))
    if not long and len(record.runs) > 1:
        yield TaskHistory("all runs", _chart(record, record.runs[::-1]), None)


def _is_single(runs: Sequence[TaskRun]) -> bool:
    """Whether most runs have a single trial of the task, so that a chart of the mean would jump between 0 and 1."""
    return 2 * sum(each.point.planned == 1 for each in runs) > len(runs)


def _months(runs: Sequence[TaskRun], trials: TaskTrials) -> Iterator[TaskMonth]:
    """Yield the months of a history, oldest first, with all trials of each."""
    for month, found in groupby(runs, key=lambda each: (each.run.row.begun_at or "")[:7]):
        members = list(found)
        cells = tuple((each.run, trial) for each in members for trial in trials.get(each.point.run, ()))
        solved, scored = (sum(getattr(each.point, name) for each in members) for name in ("solved", "scored"))
        yield TaskMonth(month or "without a date", cells, solved, scored)


def _chart(record: TaskRecord, runs: Sequence[TaskRun], *, change_at: int | None = None) -> Markup:
    here = task_page(record.task)
    points = [_point(here, each) for each in runs]
    label = f"Mean reward of {record.task} in {counted(len(runs), 'run')}, oldest first"
    return score_history(points, change_at=change_at, whole=True, label=label)


def _point(here: str, each: TaskRun) -> ScorePoint:
    point, mean = each.point, each.point.mean_reward
    score = "no verdict" if mean is None else f"{percent(mean)} %"
    rewards = [reward for reward in point.rewards.values() if reward is not None]
    return ScorePoint(
        label=each.run.night,
        score=mean,
        se=mean_std(rewards).sem if len(rewards) >= _FEWEST_SEEDS else None,
        href=relative_url(here, each.run.page),
        title=f"{point.words}: {score}, solved {point.solved} of {point.planned}",
        coverage=point.scored / point.planned if point.planned else 0.0,
    )


def _ends(trials: Iterable[TrialRow]) -> list[tuple[str, bool, int, int]]:
    """Return how trials ended, most frequent first: description, whether an error, count, number solved."""
    counts, solved = Counter[tuple[str, bool]](), Counter[tuple[str, bool]]()
    for trial in trials:
        is_error = trial.status == Status.ERROR
        words = f"{trial.error_stage or 'no'}: {trial.error}" if is_error else trial.outcome or "not recorded"
        counts[words, is_error] += 1
        solved[words, is_error] += trial.status == Status.PASS
    return [(end[0].replace("_", " "), end[1], count, solved[end]) for end, count in counts.most_common()]


def _versions(record: TaskRecord) -> Iterator[tuple[str, str | None, list[TaskRun], TaskSolveRate]]:
    """Yield the versions of the task's content, newest first: name, hash, runs (oldest first), and tries."""
    for digest, name in reversed(record.versions.items()):
        runs = [each for each in reversed(record.runs) if each.point.hash == digest]
        yield name, digest, runs, count_solves(runs)


# The tasks of a site, and the script that lists a task's trials.

_MAX_TRIALS = 500
"""Maximum number of trials that the page of a trial offers for comparison."""


def task_records(site: Site) -> list[TaskRecord]:
    """Return the records of all tasks that some run of the site planned; the index may have other runs, too."""
    return [record for task in site.history.task_names() if (record := task_record(site, task)).runs]


def data(record: TaskRecord, trials: TaskTrials) -> str:
    """Return the script that gives a trial's page the list of all trials of the task, newest first."""
    found = (_trial(each.run, trial) for each in record.runs for trial in trials.get(each.point.run, ()))
    return data_script("trials", list(islice(found, _MAX_TRIALS)))


def _trial(run: SiteRun, trial: TrialRow) -> dict[str, Any]:
    return {
        "run": run.slug,
        "name": run.row.name,
        "trial": trial_name(trial.task, trial.seed, trial.attempt),
        "seed": trial.seed,
        "attempt": trial.attempt,
        "status": trial.status,
    }
