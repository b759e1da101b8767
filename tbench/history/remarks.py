"""What a reader of a history has to know before reading scores side by side: gaps, and tasks that are not the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

from tbench.history.rows import RunRow, TaskPoint
from tbench.text import counted, names_shown

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
