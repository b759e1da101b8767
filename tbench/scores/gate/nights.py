"""Nights as the gate is given them, the rule that they are judged by, and which of them can be compared."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from tbench.errors import UsageError
from tbench.scores.statistics import RewardTable, Row
from tbench.text import counted, names_shown


@dataclass(frozen=True, slots=True)
class Night:
    """One run of a benchmark that runs every night."""

    name: str
    begun: str
    """ISO date, with or without a time."""
    table: RewardTable
    hashes: Mapping[str, str]
    """Content hash by task, without those that are not known."""
    fingerprint: str = ""
    """What the run was done with; nights with another one are not compared."""
    run: str = ""
    """The run that it is, whatever the night and its directory are called; empty where that is not known."""

    @property
    def day(self) -> date | None:
        """The date on which it began; None where `begun` is none."""
        try:
            return date.fromisoformat(self.begun[:10])
        except ValueError:
            return None

    @property
    def when(self) -> str:
        """The date as people say it, "12 Nov 2026", or what stands in its place."""
        return f"{self.day.day} {self.day:%b %Y}" if self.day is not None else self.begun or self.name


def run_identity(name: str, model: str | None, begun: str | None) -> str:
    """What tells a run from every other, also from one of the same night; empty where its time is not known."""
    return f"{begun} {name} {model or ''}" if begun and "T" in begun else ""


@dataclass(frozen=True, slots=True)
class GateRule:
    """How nights are judged: a CUSUM with the allowance `k` and the limit `h`, both in standard deviations of a night.

    docs/nightly.md says how many false alarms the defaults cause, and how soon they show a drop. Raises UsageError
    for a value that makes no rule.
    """

    base_nights: int = 10
    """Nights that the baseline begins with; those after which C is 0 join it."""
    k: float = 0.5
    """Half of the drop that is looked for."""
    h: float = 5.0
    """The alarm is where C is above it."""
    min_se: float = 3.0
    """Standard errors by which the nights since the change have to be below the baseline for an alarm; 0: C alone."""
    base_from: str | None = None
    """Name or date (YYYY-MM-DD) of the night at which the baseline begins; None: the first."""
    min_coverage: float = 0.9
    """Share of a night's trials that need a verdict for the night to count."""
    min_shared: float = 0.8
    """Share of tasks that a night needs in common with the last one to be compared with it."""

    def __post_init__(self) -> None:
        if self.base_nights < 2:
            raise UsageError(f"gate: base_nights is {self.base_nights}; a baseline needs 2 nights or more")
        for name, number in (("k", self.k), ("h", self.h)):
            if not (number > 0.0 and math.isfinite(number)):
                raise UsageError(f"gate: {name} is {number}; give a number above 0")
        if not (self.min_se >= 0.0 and math.isfinite(self.min_se)):
            raise UsageError(f"gate: min_se is {self.min_se}; give 0 or more")
        for name, share in (("min_coverage", self.min_coverage), ("min_shared", self.min_shared)):
            if not 0.0 < share <= 1.0:
                raise UsageError(f"gate: {name} is {share}; give a share above 0 and up to 1")


# Which nights can be compared with the last one, and over which tasks.
#
# A task whose content has changed is another task. Nothing here knows what a baseline is.

Cells = tuple[Row | None, ...]
"""The rewards of each task of the last night, None for a task that a night does not have."""


@dataclass(frozen=True, slots=True)
class Series:
    """The nights that can be compared with the last one, oldest first, over the tasks of the last one."""

    tasks: tuple[str, ...]
    nights: tuple[Night, ...]
    cells: tuple[Cells, ...]
    """One for each night; its rows are in the order of `tasks`."""
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Apart:
    settings: int = 0
    tasks: int = 0
    renamed: dict[str, str] = field(default_factory=dict)

    def notes(self, rule: GateRule) -> tuple[str, ...]:
        found = []
        if self.settings:
            found.append(f"{counted(self.settings, 'night')} with other settings left out")
        if self.tasks:
            share = f"less than {100 * rule.min_shared:.0f} % of the tasks in common"
            found.append(f"{counted(self.tasks, 'night')} with {share} left out")
        if self.renamed:
            names = names_shown(f"{old} → {new}" for new, old in self.renamed.items())
            found.append(f"renamed, with the same content: {names}")
        return tuple(found)


def series_of(nights: Sequence[Night], rule: GateRule) -> Series:
    """The nights from `rule.base_from` on that can be compared with the last.

    These have its fingerprint, and share `rule.min_shared` of the tasks of whichever has more. Of two nights that are
    the same run only the later one counts. Raises UsageError for no nights, and for a `base_from` that names none.
    """
    if not nights:
        raise UsageError("gate: no nights to judge; give at least one run")
    candidates, repeated = _without_repeats(_from_base(nights, rule.base_from))
    last = candidates[-1]
    left_out = _Apart()
    kept: list[tuple[Night, Cells]] = []
    for night in candidates:
        if night.fingerprint != last.fingerprint:
            left_out.settings += 1
            continue
        cells = _cells(night, last, left_out.renamed)
        common = sum(row is not None for row in cells)
        if common < rule.min_shared * max(len(night.table.tasks), len(last.table.tasks)):
            left_out.tasks += 1
            continue
        kept.append((night, cells))
    told = (f"given twice, counted once: {names_shown(repeated)}",) if repeated else ()
    return Series(
        tasks=last.table.tasks,
        nights=tuple(night for night, _ in kept),
        cells=tuple(cells for _, cells in kept),
        notes=(*told, *left_out.notes(rule)),
    )


def _from_base(nights: Sequence[Night], base_from: str | None) -> Sequence[Night]:
    """The nights from the one that is named on, or from a date on; the last one where that is still to come."""
    if base_from is None:
        return nights
    named = [at for at, night in enumerate(nights) if night.name == base_from]
    if named:
        return nights[named[0] :]
    try:
        day = date.fromisoformat(base_from)
    except ValueError:
        raise UsageError(
            f"gate: base_from {base_from!r} is neither a night's name nor a date; give one of them, as 2026-11-23"
        ) from None
    later = [at for at, night in enumerate(nights) if night.day is not None and night.day >= day]
    return nights[later[0] :] if later else nights[-1:]


def _without_repeats(nights: Sequence[Night]) -> tuple[list[Night], list[str]]:
    """Each run once, where it stands last, and the names of what came twice."""
    kept: list[Night] = []
    repeated: list[str] = []
    begun: defaultdict[str, list[Night]] = defaultdict(list)
    for night in reversed(nights):
        if any(_is_same(night, other) for other in begun[night.begun]):
            repeated.append(night.name)
            continue
        begun[night.begun].append(night)
        kept.append(night)
    return kept[::-1], repeated


def _is_same(night: Night, other: Night) -> bool:
    """Whether two nights that began at the same time are one run: by what is known of that, else by name and rewards.

    Two checkpoints of one night are two runs, also with equal rewards.
    """
    if night.run and other.run:
        return night.run == other.run
    if "T" in night.begun:
        return night.name == other.name or night.table == other.table
    return night.name == other.name and night.table == other.table


def _cells(night: Night, last: Night, renamed: dict[str, str]) -> Cells:
    """The rows of a night in the order of the last one's tasks; what is found under another name goes to `renamed`."""
    if night.table.tasks == last.table.tasks and night.hashes == last.hashes:
        return night.table.rows
    place = {task: at for at, task in enumerate(night.table.tasks)}
    former = _by_content(night, last)
    cells: list[Row | None] = []
    for task in last.table.tasks:
        name: str | None = task
        if task not in place:
            name = former.get(last.hashes.get(task, ""))
            if name is not None:
                renamed[task] = name
        elif _changed(night.hashes.get(task), last.hashes.get(task)):
            name = None
        cells.append(None if name is None else night.table.rows[place[name]])
    return tuple(cells)


def _changed(earlier: str | None, later: str | None) -> bool:
    """Whether two hashes are known and differ."""
    return bool(earlier and later) and earlier != later


def _by_content(night: Night, last: Night) -> dict[str, str]:
    """Tasks that only the earlier night has, by their hash, where no other task of either night has it."""
    now = set(last.table.tasks)
    held, holds = Counter(night.hashes.values()), Counter(last.hashes.values())
    gone = (task for task in night.table.tasks if task not in now)
    return {
        content: task for task in gone if (content := night.hashes.get(task)) and held[content] == holds[content] == 1
    }
