"""The answers of a history, data only, and remarks about scores that cannot be read side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median

from tbench.text import counted, names_shown


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run. Scores are fractions, as in its summary; times are ISO 8601 in UTC, None where they are not known."""

    path: Path
    """The run directory."""
    name: str
    model: str | None
    agent: str | None
    dataset: str | None
    """Name of the dataset, or of the folder that the tasks are of."""
    dataset_version: str | None
    fingerprint: str
    """Runs that have it alike are one series: only the model may differ."""
    plan: str
    """Runs that have it alike planned the same tasks with the same content."""
    begun_at: str | None
    ended_at: str | None
    wall_sec: float | None
    """Seconds from begin to end, pauses before a resume included."""
    status: str | None
    """As in run.json; None for bare results."""
    imported: bool
    tbench_version: str | None
    seeds: tuple[int, ...]
    tasks: int
    planned: int
    scored: int
    solved: int
    errors: int
    missing: int
    flagged: int
    weakly_flagged: int
    score: float | None
    """None without any verdict."""
    score_std: float | None
    """Sample std over the per-seed scores; None for one seed."""
    score_se: float | None
    """Standard error clustered by task; None for one task."""
    scored_only: float | None
    per_seed: tuple[float, ...]
    prompt_tokens: int
    completion_tokens: int
    uncounted: int
    """Replies whose tokens the server did not count: then the sums are at least what they say."""
    total_sec: float
    """Seconds of all trials together."""
    metrics: Mapping[str, float]
    """Mean by name of each number that verifiers write beside the reward."""

    @property
    def coverage(self) -> float:
        """Share of the planned trials that were scored."""
        return self.scored / self.planned

    @property
    def day(self) -> str | None:
        """The UTC date on which it began."""
        return None if self.begun_at is None else self.begun_at[:10]

    @property
    def words(self) -> str:
        """What it is called, and its day."""
        return _name_and_day(self.name, self.begun_at)

    @property
    def dataset_title(self) -> str | None:
        """Name and version of the dataset."""
        return f"{self.dataset}@{self.dataset_version}" if self.dataset_version else self.dataset


@dataclass(frozen=True, slots=True)
class TaskPoint:
    """One task in one run."""

    run: Path
    name: str
    """The run's name."""
    model: str | None
    fingerprint: str
    begun_at: str | None
    hash: str | None
    """Of the task's content in that run."""
    mean_reward: float | None
    """The mean over all planned seeds, unscored = 0; None when no trial of the task was scored."""
    planned: int
    scored: int
    solved: int
    mean_steps: float | None
    mean_wall_sec: float | None
    rewards: Mapping[int, float | None] = field(default_factory=dict)
    """Reward by seed; None without a verdict, missing where the trial has not ended."""

    @property
    def words(self) -> str:
        """What the run is called, and its day."""
        return _name_and_day(self.name, self.begun_at)


@dataclass(frozen=True, slots=True)
class TrialRow:
    """The final result of one planned trial."""

    task: str
    seed: int
    trial: str
    """Its id."""
    attempt: int
    status: str
    """`pass`, `partial`, `fail` or `error`."""
    reward: float | None
    error: str | None
    """Type of the error that kept it from a verdict."""
    error_stage: str | None
    error_blame: str | None
    outcome: str | None
    steps: int
    wall_sec: float | None
    started_at: str | None


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model in one series of runs that differ in nothing else: the best and the last run of it."""

    model: str | None
    fingerprint: str
    runs: int
    best: RunRow
    """The highest score; the newer one of two that are equal."""
    last: RunRow


@dataclass(frozen=True, slots=True)
class DayRow:
    """The runs that began on one day (UTC)."""

    day: str
    """ISO date."""
    runs: int
    planned: int
    scored: int
    errors: int
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class ProxyRow:
    """A replay or an extraction, and what it came to."""

    path: Path
    name: str
    kind: str
    """`replay` or `extraction`."""
    model: str | None
    measure: str
    """The key of its result that `score` is."""
    score: float | None
    """A fraction; None where it has not been scored."""
    planned: int | None
    answered: int | None
    metric_revision: str | None
    data: str | None
    """Hash of what it was asked about: other scores are on another scale."""
    protocol: str | None
    begun_at: str | None


@dataclass(frozen=True, slots=True)
class Changes:
    """What an update of the index has come to, in directories of runs and proxies."""

    added: int = 0
    changed: int = 0
    unchanged: int = 0
    forgotten: int = 0
    """What had a directory that is gone."""
    unreadable: int = 0
    """Directories that cannot be read; the notes say why."""
    notes: tuple[str, ...] = ()
    """One sentence each."""

    @property
    def words(self) -> str:
        """The numbers in one line."""
        counts = ("added", "changed", "unchanged", "forgotten", "unreadable")
        return ", ".join(f"{count:,} {name}" for name in counts if (count := getattr(self, name))) or counted(0, "run")


def _name_and_day(name: str, begun_at: str | None) -> str:
    return name if begun_at is None or begun_at[:10] in name else f"{name} ({begun_at[:10]})"


# What a reader of a history has to know before reading scores side by side: gaps, and tasks that are not the same.

Tasks = Mapping[str, str | None]
"""Hash by task; None where it is not known."""
_FEWEST_FOR_A_RHYTHM = 3
_DAY = timedelta(days=1)


def run_remarks(rows: Sequence[RunRow], tasks_of: Callable[[RunRow], Tasks]) -> tuple[str, ...]:
    """A line for each gap, and for each change of tasks from one run of a series to the next; oldest first."""
    series: dict[str, list[RunRow]] = {}
    for row in sorted((row for row in rows if row.begun_at is not None), key=lambda row: row.begun_at or ""):
        series.setdefault(row.fingerprint, []).append(row)
    found = []
    for runs in series.values():
        found += [(row.begun_at or "", line) for row, line in (*_gaps(runs), *_changes(runs, tasks_of))]
    return tuple(line for _, line in sorted(found))


def _gaps(runs: Sequence[RunRow]) -> Iterator[tuple[RunRow, str]]:
    """Pauses of more than twice the usual time between two runs, and of more than a day beyond it."""
    times = [datetime.fromisoformat(row.begun_at) for row in runs if row.begun_at is not None]
    pauses = [after - before for before, after in pairwise(times)]
    if len(pauses) < _FEWEST_FOR_A_RHYTHM:
        return
    usual = timedelta(seconds=median(pause.total_seconds() for pause in pauses))
    for (before, after), pause in zip(pairwise(runs), pauses, strict=True):
        if pause > 2 * usual and pause > usual + _DAY:
            yield after, f"gap: no run for {_days(pause)} between {before.words} and {after.words}"


def _days(time: timedelta) -> str:
    return counted(round(time / _DAY), "day")


def _changes(runs: Sequence[RunRow], tasks_of: Callable[[RunRow], Tasks]) -> Iterator[tuple[RunRow, str]]:
    for before, after in pairwise(runs):
        if before.plan != after.plan and (words := "; ".join(task_changes(tasks_of(before), tasks_of(after)))):
            yield after, f"tasks of {after.words} beside {before.words}: {words}"


def task_changes(old: Tasks, new: Tasks) -> Iterator[str]:
    """What differs from one plan to another: content, names of the same content, tasks that only one has."""
    changed = [name for name in new if old.get(name) and new[name] and old[name] != new[name]]
    left, come = [name for name in old if name not in new], [name for name in new if name not in old]
    by_hash = {old[name]: name for name in left if old[name] is not None}
    renamed = {name: by_hash[new[name]] for name in come if new[name] in by_hash}
    gone = [name for name in left if name not in renamed.values()]
    if changed:
        yield f"other content of {names_shown(changed)}"
    if renamed:
        yield f"renamed {names_shown(f'{before} to {name}' for name, before in renamed.items())}"
    if gone:
        yield f"without {names_shown(gone)}"
    if others := [name for name in come if name not in renamed]:
        yield f"also {names_shown(others)}"


def task_remarks(task: str, points: Sequence[TaskPoint], names: Sequence[str], runs: int) -> tuple[str, ...]:
    """What to know of one task over `runs` runs, of which `points` has those that planned it; newest first.

    `names` are those under which the same content was run.
    """
    known = [point for point in reversed(points) if point.hash is not None]
    lines = [
        f"other content from {after.words} on: {(before.hash or '')[:12]} to {(after.hash or '')[:12]}; "
        "what came before is of another task"
        for before, after in pairwise(known)
        if before.hash != after.hash
    ]
    if others := [name for name in names if name != task]:
        lines.append(f"the same content was also run as {names_shown(others)}")
    if missing := runs - len(points):
        lines.append(f"{missing:,} of {counted(runs, 'run')} did not plan it")
    return tuple(lines)
