"""The rewards of a run to be compared, and the pairing of two runs by task and seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.trajectory import Frozen
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


class LeftOut(Frozen):
    """Tasks and seeds that two runs do not have in common."""

    only_first: tuple[str, ...] = ()
    """Tasks in the first run only."""
    only_second: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """Tasks whose content differs between the runs."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Pairs of a task of `only_first` and a task of `only_second` with the same content."""
    first_seeds: tuple[int, ...] = ()
    second_seeds: tuple[int, ...] = ()


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
    left_out: LeftOut


def pair(first: ComparedRun, second: ComparedRun) -> Pairing:
    """Pair the common tasks and seeds of two runs.

    If they have no common seed, seeds are paired by position, as many as both have. Raises NothingInCommon.
    """
    in_first, in_second = set(first.table.tasks), set(second.table.tasks)
    changed = tuple(task for task in first.table.tasks if is_changed(first.hashes.get(task), second.hashes.get(task)))
    same = in_second - set(changed)
    common = [task for task in first.table.tasks if task in same]
    if not common:
        why = f"; the content of {counted(len(changed), 'task')} has changed" if changed else ""
        raise NothingInCommon(
            f"{first.name} and {second.name} have no task in common{why}; compare runs over the same tasks"
        )
    seeds, others, paired_by = _seeds(first.table.seeds, second.table.seeds)
    only_first = tuple(task for task in first.table.tasks if task not in in_second)
    only_second = tuple(task for task in second.table.tasks if task not in in_first)
    return Pairing(
        tasks=tuple(common),
        seeds=seeds,
        paired_by=paired_by,
        first=_rows(first.table, common, seeds),
        second=_rows(second.table, common, others),
        left_out=LeftOut(
            only_first=only_first,
            only_second=only_second,
            changed=changed,
            renamed=_find_renamed(first, second, only_first, only_second),
            first_seeds=tuple(seed for seed in first.table.seeds if seed not in seeds),
            second_seeds=tuple(seed for seed in second.table.seeds if seed not in others),
        ),
    )


def is_changed(old: str | None, new: str | None) -> bool:
    """Whether two content hashes of a task are known and differ."""
    return bool(old and new) and old != new


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
