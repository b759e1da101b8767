"""A night's run beside another one, in a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tbench.errors import UsageError
from tbench.scores.comparing.compare import Comparison, TaskChange, compare
from tbench.scores.comparing.side import Side
from tbench.scores.summary import percent
from tbench.storage.comparable import differing_keys
from tbench.storage.read_run import StoredRun, read_run
from tbench.storage.summaries import rewards_of
from tbench.text import names_shown


def compared(other_name: str, other: Path, name: str, run: Path) -> list[str]:
    """What became of the score since the other run; of runs that cannot be compared, why. Raises RunUnreadable."""
    before, after = read_run(other), read_run(run)
    if keys := differing_keys(before, after):
        return [f"not compared with {other_name}, which was run differently: {names_shown(keys, 3)}"]
    try:
        found = compare(_side(before, other_name), _side(after, name))
    except UsageError as error:
        return [f"not compared with {other_name}: {error}"]
    lines = [f"{_points(found.difference)} points since {other_name}{_interval(found)}; p {found.p:.2g}"]
    lines += _tasks("newly solved", found.newly_solved) + _tasks("newly failed", found.newly_failed)
    if found.only_second_unscored:
        lines.append(f"without a verdict now: {names_shown(found.only_second_unscored)}")
    return lines


def _side(run: StoredRun, name: str) -> Side:
    return Side(name, rewards_of(run), run.task_hashes)


def _points(fraction: float) -> str:
    return f"{100 * fraction:+.1f}"


def _interval(found: Comparison) -> str:
    if found.interval_95 is None:
        return ""
    low, high = map(_points, found.interval_95)
    return f" (95 % interval {low} to {high})"


def _tasks(what: str, changes: Sequence[TaskChange]) -> list[str]:
    named = [f"{each.task} ({percent(each.first_rate)} → {percent(each.second_rate)} %)" for each in changes]
    return [f"{what}: {names_shown(named)}"] if named else []
