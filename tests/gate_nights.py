"""Nights for the gate, written down by what each task did in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta

from tbench.scores.gate.nights import Night
from tbench.scores.statistics import RewardTable, Row

TASKS = tuple(f"task-{number:02}" for number in range(20))
FIRST = date(2026, 11, 1)


def a_night(
    number: int,
    rows: Mapping[str, Row],
    *,
    hashes: Mapping[str, str] | None = None,
    fingerprint: str = "",
    name: str | None = None,
) -> Night:
    """Night `number`, with the rewards of each task."""
    seeds = tuple(range(max(map(len, rows.values()))))
    table = RewardTable(tuple(rows), seeds, tuple(rows.values()))
    begun = f"{FIRST + timedelta(days=number)}T03:00:00+00:00"
    return Night(name or f"night-{number}", begun, table, hashes or {}, fingerprint)


def rewards(number: int, *, lost: int = 0, tasks: Sequence[str] = TASKS) -> dict[str, Row]:
    """Every task is solved every other night, half of them at a time, but the first `lost`, which are never."""
    return {task: (float((number + at) % 2 and at >= lost),) for at, task in enumerate(tasks)}


def nights(count: int, *, dropped_at: int | None = None, until: int | None = None, lost: int = 10) -> list[Night]:
    """So many nights with a score of 50 %; from `dropped_at` on, before `until`, `lost` tasks are never solved."""
    found = []
    for number in range(count):
        low = dropped_at is not None and number >= dropped_at and (until is None or number < until)
        found.append(a_night(number, rewards(number, lost=lost if low else 0)))
    return found


def lacking(night: Night, missing: int) -> Night:
    """The night with the first `missing` tasks without a verdict."""
    table = night.table
    rows = tuple((None,) * len(row) if at < missing else row for at, row in enumerate(table.rows))
    return Night(night.name, night.begun, RewardTable(table.tasks, table.seeds, rows), night.hashes, night.fingerprint)
