"""Rows that queries of the index return, and remarks on scores that are not comparable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median

from tbench.scores.cost import Cost
from tbench.text import counted, names_text


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run. Scores are fractions, as in its summary; times are ISO 8601 in UTC, None if unknown."""

    path: Path
    """The run directory."""
    name: str
    model: str | None
    agent: str | None
    dataset: str | None
    """Name of the dataset, or of the folder of the tasks."""
    dataset_version: str | None
    fingerprint: str
    """Hash of the settings. Runs with the same hash have the same settings; their models may differ."""
    plan: str
    """Hash of the planned tasks and their content."""
    begun_at: str | None
    ended_at: str | None
    wall_sec: float | None
    """Seconds from start to end, including pauses before a resume."""
    status: str | None
    """Status in run.json; None for bare results."""
    imported: bool
    purpose: str
    """`score`; `debug` or `fork` for runs without a score."""
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
    """Score; None without any verdict."""
    score_std: float | None
    """Sample std of the per-seed scores; None for one seed."""
    score_se: float | None
    """Standard error clustered by task; None for one task."""
    scored_only: float | None
    per_seed: tuple[float, ...]
    prompt_tokens: int
    completion_tokens: int
    uncounted: int
    """Replies whose tokens the server did not count; if there are any, the sums are lower bounds."""
    total_sec: float
    """Seconds of all trials together."""
    metrics: Mapping[str, float]
    """Mean of each metric that verifiers write in addition to the reward, by name."""
    cost: Cost | None = None
    """Cost of all attempts; None without prices or a model."""

    @property
    def coverage(self) -> float:
        """Fraction of planned trials that were scored."""
        return self.scored / self.planned

    @property
    def day(self) -> str | None:
        """UTC date on which the run began."""
        return None if self.begun_at is None else self.begun_at[:10]

    @property
    def words(self) -> str:
        """Name and date of the run."""
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
    """Hash of the task's content in that run."""
    mean_reward: float | None
    """Mean over all planned seeds, unscored = 0; None if no trial of the task was scored."""
    planned: int
    scored: int
    solved: int
    mean_steps: float | None
    mean_wall_sec: float | None
    rewards: Mapping[int, float | None] = field(default_factory=dict)
    """Reward by seed; None without a verdict, missing if the trial has not ended."""

    @property
    def words(self) -> str:
        """Name and date of the run."""
        return _name_and_day(self.name, self.begun_at)


@dataclass(frozen=True, slots=True)
class TrialRow:
    """The final result of one planned trial."""

    task: str
    seed: int
    trial: str
    """Id of the trial."""
    attempt: int
    status: str
    """`pass`, `partial`, `fail` or `error`."""
    reward: float | None
    error: str | None
    """Type of the error, if the trial has no verdict."""
    error_stage: str | None
    error_blame: str | None
    outcome: str | None
    steps: int
    wall_sec: float | None
    started_at: str | None


@dataclass(frozen=True, slots=True)
class ProxyRow:
    """A replay or an extraction with its score."""

    path: Path
    name: str
    kind: str
    """`replay` or `extraction`."""
    model: str | None
    measure: str
    """Key of `score` in its result."""
    score: float | None
    """A fraction; None if not scored yet."""
    planned: int | None
    answered: int | None
    metric_revision: str | None
    data: str | None
    """Hash of its input; only scores with the same hash are comparable."""
    protocol: str | None
    begun_at: str | None


@dataclass(frozen=True, slots=True)
class Changes:
    """Effects of an update of the index, as numbers of directories; each is a run's or a proxy's."""

    added: int = 0
    changed: int = 0
    unchanged: int = 0
    forgotten: int = 0
    """Runs and proxies whose directory is gone."""
    unreadable: int = 0
    """Directories that cannot be read; the notes contain the reasons."""
    notes: tuple[str, ...] = ()
    """One sentence each."""

    @property
    def words(self) -> str:
        """The numbers in one line."""
        counts = ("added", "changed", "unchanged", "forgotten", "unreadable")
        return ", ".join(f"{count:,} {name}" for name in counts if (count := getattr(self, name))) or counted(0, "run")


def _name_and_day(name: str, begun_at: str | None) -> str:
    return name if begun_at is None or begun_at[:10] in name else f"{name} ({begun_at[:10]})"


Tasks = Mapping[str, str | None]
"""Content hash by task; None if unknown."""
_MIN_PAUSES = 3
"""Fewest pauses from which the usual pause is derived."""
_DAY = timedelta(days=1)


def run_remarks(rows: Sequence[RunRow], tasks_of: Callable[[RunRow], Tasks]) -> tuple[str, ...]:
    """Return a line for each gap or change of tasks between consecutive runs with the same settings, oldest first."""
    series: dict[str, list[RunRow]] = {}
    for row in sorted((row for row in rows if row.begun_at is not None), key=lambda row: row.begun_at or ""):
        series.setdefault(row.fingerprint, []).append(row)
    found = []
    for runs in series.values():
        found += [(row.begun_at or "", line) for row, line in (*_gaps(runs), *_changes(runs, tasks_of))]
    return tuple(line for _, line in sorted(found))


def _gaps(runs: Sequence[RunRow]) -> Iterator[tuple[RunRow, str]]:
    """Find pauses between runs that are more than twice the usual one, and more than a day longer."""
    times = [datetime.fromisoformat(row.begun_at) for row in runs if row.begun_at is not None]
    pauses = [after - before for before, after in pairwise(times)]
    if len(pauses) < _MIN_PAUSES:
        return
    usual = timedelta(seconds=median(pause.total_seconds() for pause in pauses))
    for (before, after), pause in zip(pairwise(runs), pauses, strict=True):
        if pause > 2 * usual and pause > usual + _DAY:
            days = counted(round(pause / _DAY), "day")
            yield after, f"gap: no run for {days} between {before.words} and {after.words}"


def _changes(runs: Sequence[RunRow], tasks_of: Callable[[RunRow], Tasks]) -> Iterator[tuple[RunRow, str]]:
    for before, after in pairwise(runs):
        if before.plan != after.plan and (words := "; ".join(task_changes(tasks_of(before), tasks_of(after)))):
            yield after, f"tasks of {after.words} compared with {before.words}: {words}"


def task_changes(old: Tasks, new: Tasks) -> Iterator[str]:
    """Yield the differences between two plans: changed content, renamed tasks, removed and added tasks."""
    changed = [name for name in new if old.get(name) and new[name] and old[name] != new[name]]
    only_old, only_new = [name for name in old if name not in new], [name for name in new if name not in old]
    by_hash = {old[name]: name for name in only_old if old[name] is not None}
    renamed = {name: by_hash[new[name]] for name in only_new if new[name] in by_hash}
    gone = [name for name in only_old if name not in renamed.values()]
    if changed:
        yield f"changed content of {names_text(changed)}"
    if renamed:
        yield f"renamed {names_text(f'{before} to {name}' for name, before in renamed.items())}"
    if gone:
        yield f"without {names_text(gone)}"
    if others := [name for name in only_new if name not in renamed]:
        yield f"new {names_text(others)}"


def task_remarks(task: str, points: Sequence[TaskPoint], names: Sequence[str], runs: int) -> tuple[str, ...]:
    """Return remarks on one task over `runs` runs; `points` are the runs that planned it, newest first.

    `names` are the names under which the same content was run.
    """
    known = [point for point in reversed(points) if point.hash is not None]
    lines = [
        f"content changed from {after.words} on: {(before.hash or '')[:12]} to {(after.hash or '')[:12]}; "
        "earlier results are of another task"
        for before, after in pairwise(known)
        if before.hash != after.hash
    ]
    if others := [name for name in names if name != task]:
        lines.append(f"the same content was also run as {names_text(others)}")
    if missing := runs - len(points):
        lines.append(f"{missing:,} of {counted(runs, 'run')} did not plan this task")
    return tuple(lines)
