"""What the page of a task shows: its history, its trials run by run, how they ended and how long they took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from markupsafe import Markup

from reports.charts.durations import duration_dots
from reports.charts.score_history import ScorePoint, score_history
from reports.charts.stacked_bar import BarPart, stacked_bar
from reports.names import relative_url, run_page, task_page
from reports.seed_cells import MOST_CELLS, SIGNS, SeedCell, seed_cells
from reports.task.record import Solved, TaskRecord, TaskRun, solved_how, tries_of
from tbench.history.rows import TrialRow
from tbench.scores.comparing.flaky import TaskTries
from tbench.scores.statistics import mean_std
from tbench.scores.summary import Status, percent
from tbench.text import counted

_OPEN_RUNS, _MOST_RUNS = 60, 500
_CELLS, _FEWEST_CELLS = 3000, 3
"""Cells of all rows together, as far as each row has its fewest."""
_CHARTS = 5
_LEAST_RUNS = 3
"""Runs of a series from which on it has a chart of its own."""
_TIMED_TRIALS = 500
_FEWEST_SEEDS = 3
"""Seeds from which on a run's mean has a standard error that is worth drawing."""


@dataclass(frozen=True, slots=True)
class TaskChart:
    """How one series went, or all runs together."""

    name: str
    chart: Markup
    tries: TaskTries | None


@dataclass(frozen=True, slots=True)
class TaskRunRow:
    """The task in one run, trial by trial."""

    name: str
    href: str
    model: str
    begun_at: str | None
    cells: tuple[SeedCell, ...]
    more: int
    """Trials that are not shown one by one."""
    solved: int
    planned: int
    mean: float | None
    mean_steps: float | None
    mean_sec: float | None
    version: str


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """A way in which trials end."""

    words: str
    count: int
    solved: int
    is_error: bool


@dataclass(frozen=True, slots=True)
class TaskVersion:
    """A content that the task had."""

    name: str
    digest: str | None
    first: str
    last: str
    runs: int
    tries: TaskTries


@dataclass(frozen=True, slots=True)
class TaskView:
    """Everything on the page of a task."""

    solved: Solved
    tries: TaskTries
    recent_runs: int
    series: str
    charts: tuple[TaskChart, ...]
    rows: tuple[TaskRunRow, ...]
    folded: tuple[TaskRunRow, ...]
    not_shown: int
    trials: int
    bar: Markup
    ends: tuple[TaskEnd, ...]
    durations: Markup
    median_sec: float | None
    mean_steps: float | None
    versions: tuple[TaskVersion, ...]
    runs: int
    has_models: bool
    """Whether the runs are of several models."""
    statuses: tuple[tuple[str, str, int], ...]
    """Status, sign and number of trials."""


def task_view(record: TaskRecord, trials: Mapping[Path, Sequence[TrialRow]]) -> TaskView:
    """The view of a task that some run planned; `trials` are its trials by run directory."""
    here = task_page(record.task)
    shown = record.runs[:_MOST_RUNS]
    most = max(_FEWEST_CELLS, min(MOST_CELLS, _CELLS // len(shown)))
    rows = [_row(here, each, trials.get(each.point.run, ()), record, most) for each in shown]
    ended = [trial for each in record.runs for trial in trials.get(each.point.run, ())]
    main = record.main
    times = [(trial.wall_sec, trial.status) for trial in ended if trial.wall_sec][:_TIMED_TRIALS]
    statuses = Counter(trial.status for trial in ended)
    return TaskView(
        solved=solved_how(main.tries),
        tries=main.tries,
        recent_runs=len(main.recent),
        series=main.series.name,
        charts=tuple(_charts(here, record)),
        rows=tuple(rows[:_OPEN_RUNS]),
        folded=tuple(rows[_OPEN_RUNS:]),
        not_shown=len(record.runs) - len(rows),
        trials=len(ended),
        bar=_status_bar(statuses),
        ends=tuple(_ends(ended)),
        durations=duration_dots(times, label="Seconds that trials took, by what became of them"),
        median_sec=median(sec for sec, _ in times) if times else None,
        mean_steps=fmean(trial.steps for trial in ended) if ended else None,
        versions=tuple(_versions(record)) if len(record.versions) > 1 else (),
        runs=len(record.runs),
        has_models=len({each.point.model for each in record.runs}) > 1,
        statuses=tuple((str(each), SIGNS[each], statuses[each]) for each in Status if statuses[each]),
    )


def _row(here: str, each: TaskRun, trials: Sequence[TrialRow], record: TaskRecord, most: int) -> TaskRunRow:
    seeds = each.run.row.seeds
    return TaskRunRow(
        name=each.run.row.name,
        href=relative_url(here, run_page(each.run.slug)),
        model=each.point.model or "",
        begun_at=each.point.begun_at,
        cells=tuple(seed_cells(here, each.run, trials, seeds[:most])),
        more=max(0, len(seeds) - most),
        solved=each.point.solved,
        planned=each.point.planned,
        mean=each.point.mean_reward,
        mean_steps=each.point.mean_steps,
        mean_sec=each.point.mean_wall_sec,
        version=record.versions[each.point.hash],
    )


def _charts(here: str, record: TaskRecord) -> Iterator[TaskChart]:
    """A chart for each long series; where there is none, one of all runs together."""
    long = [each for each in record.series if len(each.runs) >= _LEAST_RUNS]
    for each in long[:_CHARTS]:
        yield TaskChart(each.series.name, _chart(here, record, each.runs, change_at=each.change_at), each.tries)
    if not long and len(record.runs) > 1:
        yield TaskChart("all runs", _chart(here, record, record.runs[::-1]), None)


def _chart(here: str, record: TaskRecord, runs: Sequence[TaskRun], *, change_at: int | None = None) -> Markup:
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
        href=relative_url(here, run_page(each.run.slug)),
        title=f"{point.words}: {score}, solved {point.solved} of {point.planned}",
        coverage=point.scored / point.planned if point.planned else 0.0,
    )


def _status_bar(statuses: Mapping[str, int]) -> Markup:
    parts = [BarPart(f"s-{each}", statuses.get(each, 0), f"{each}: {statuses.get(each, 0)}") for each in Status]
    said = ", ".join(f"{count} {status}" for status, count in statuses.items())
    return stacked_bar(parts, label=f"What became of the trials: {said or 'none has ended'}")


def _ends(trials: Iterable[TrialRow]) -> Iterator[TaskEnd]:
    """The ways in which trials ended, the most usual first."""
    counts, solved = Counter[tuple[str, bool]](), Counter[tuple[str, bool]]()
    for trial in trials:
        is_error = trial.status == Status.ERROR
        words = f"{trial.error_stage or 'no'}: {trial.error}" if is_error else trial.outcome or "not told"
        counts[words, is_error] += 1
        solved[words, is_error] += trial.status == Status.PASS
    for (words, is_error), count in counts.most_common():
        yield TaskEnd(words.replace("_", " "), count, solved[words, is_error], is_error)


def _versions(record: TaskRecord) -> Iterator[TaskVersion]:
    """The contents of the task, the newest first."""
    for digest, name in reversed(record.versions.items()):
        runs = [each for each in reversed(record.runs) if each.point.hash == digest]
        yield TaskVersion(name, digest, runs[0].point.words, runs[-1].point.words, len(runs), tries_of(runs))
