"""The rewards of a run to be compared, and the pairing of two runs by task and seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tbench.errors import UsageError
from tbench.scores.statistics import RewardTable, Row
from tbench.text import counted

PairedBy = Literal["seed", "position"]


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One run of a comparison."""

    name: str
    """Name in tables."""
    table: RewardTable
    """Rewards of planned tasks x planned seeds."""
    hashes: Mapping[str, str]
    """Content hash by task name, for tasks whose hash is known."""


class NothingInCommon(UsageError, ValueError):
    """Two runs have no task with the same content, so there is nothing to compare."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """The trials of two runs that are compared with each other, and what is left out."""

    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    """Seeds of the first run; the second run's seeds are the same, unless paired by position."""
    paired_by: PairedBy
    first: tuple[Row, ...]
    """Rewards of the first run, one row per task, one column per pair."""
    second: tuple[Row, ...]
    only_first: tuple[str, ...]
    """Tasks in the first run only."""
    only_second: tuple[str, ...]
    changed: tuple[str, ...]
    """Tasks in both runs whose content differs; they are left out."""
    renamed: tuple[tuple[str, str], ...]
    """Names, in the first and the second run, of tasks with the same content."""
    first_seeds_left_out: tuple[int, ...]
    second_seeds_left_out: tuple[int, ...]


def pair(first: ComparedRun, second: ComparedRun) -> Pairing:
    """Pair the common tasks and seeds of two runs.

    If they have no common seed, seeds are paired by position, as many as both have. Raises NothingInCommon.
    """
    in_first, in_second = set(first.table.tasks), set(second.table.tasks)
    changed = tuple(task for task in first.table.tasks if _is_changed(task, first, second))
    same = in_second - set(changed)
    common = [task for task in first.table.tasks if task in same]
    if not common:
        raise NothingInCommon(_no_common_task(first, second, len(changed)))
    seeds, others, paired_by = _seeds(first.table.seeds, second.table.seeds)
    only_first = tuple(task for task in first.table.tasks if task not in in_second)
    only_second = tuple(task for task in second.table.tasks if task not in in_first)
    return Pairing(
        tasks=tuple(common),
        seeds=seeds,
        paired_by=paired_by,
        first=_rows(first.table, common, seeds),
        second=_rows(second.table, common, others),
        only_first=only_first,
        only_second=only_second,
        changed=changed,
        renamed=_find_renamed(first, second, only_first, only_second),
        first_seeds_left_out=tuple(seed for seed in first.table.seeds if seed not in seeds),
        second_seeds_left_out=tuple(seed for seed in second.table.seeds if seed not in others),
    )


def _is_changed(task: str, first: ComparedRun, second: ComparedRun) -> bool:
    old, new = first.hashes.get(task), second.hashes.get(task)
    return old is not None and new is not None and old != new


def _no_common_task(first: ComparedRun, second: ComparedRun, changed: int) -> str:
    why = f"; the content of {counted(changed, 'task')} has changed" if changed else ""
    return f"{first.name} and {second.name} have no task in common{why}; compare runs over the same tasks"


def _seeds(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], PairedBy]:
    common = tuple(seed for seed in first if seed in second)
    if common:
        return common, common, "seed"
    both = min(len(first), len(second))
    return first[:both], second[:both], "position"


def _rows(table: RewardTable, tasks: list[str], seeds: tuple[int, ...]) -> tuple[Row, ...]:
    by_task = dict(zip(table.tasks, table.rows, strict=True))
    columns = [table.seeds.index(seed) for seed in seeds]
    return tuple(tuple(by_task[task][column] for column in columns) for task in tasks)


def _find_renamed(
    first: ComparedRun, second: ComparedRun, only_first: tuple[str, ...], only_second: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    by_hash = {second.hashes[task]: task for task in only_second if task in second.hashes}
    found = ((task, by_hash.get(first.hashes.get(task, ""))) for task in only_first)
    return tuple((task, other) for task, other in found if other is not None)
