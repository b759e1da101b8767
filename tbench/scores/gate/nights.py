"""The gate's input: nights, the rule by which they are judged, and the nights that can be compared."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from tbench.errors import UsageError
from tbench.scores.comparing.compared_run import is_changed
from tbench.scores.statistics import RewardTable, Row
from tbench.text import counted, names_text


@dataclass(frozen=True, slots=True)
class Night:
    """One run of a nightly benchmark."""

    name: str
    begun: str
    """ISO date, with or without a time."""
    table: RewardTable
    hashes: Mapping[str, str]
    """Content hash by task, for tasks whose hash is known."""
    fingerprint: str = ""
    """Fingerprint of the run's settings; nights with another fingerprint are not compared."""
    run: str = ""
    """Identity of the run, independent of the names of night and directory; empty if unknown."""

    @property
    def day(self) -> date | None:
        """The date on which the night began; None if `begun` is not a date."""
        try:
            return date.fromisoformat(self.begun[:10])
        except ValueError:
            return None

    @property
    def when(self) -> str:
        """The date for people ("12 Nov 2026"), or else `begun` or the name."""
        return f"{self.day.day} {self.day:%b %Y}" if self.day is not None else self.begun or self.name


def run_identity(name: str, model: str | None, begun: str | None) -> str:
    """Return text that identifies a run, also among those of one night; empty if its time is unknown."""
    return f"{begun} {name} {model or ''}" if begun and "T" in begun else ""


@dataclass(frozen=True, slots=True)
class GateRule:
    """Parameters of the gate: a CUSUM C with the allowance `k` and the limit `h`, in standard deviations of a night.

    docs/nightly.md lists the false alarms and the delays of the defaults. Raises UsageError for an invalid value.
    """

    base_nights: int = 10
    """Number of nights in the first baseline; later nights join it whenever C is 0."""
    k: float = 0.5
    """Half of the drop to be detected."""
    h: float = 5.0
    """C above this limit is an alarm."""
    min_se: float = 3.0
    """For an alarm, nights since the change must be this many standard errors below the baseline; 0: only C counts."""
    base_from: str | None = None
    """Name or date (YYYY-MM-DD) of the first night of the baseline; None: the first of all."""
    min_coverage: float = 0.9
    """Fraction of a night's trials that need a verdict for the night to count."""
    min_shared: float = 0.8
    """Fraction of tasks that a night must share with the last one to be compared with it."""

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


NightRows = tuple[Row | None, ...]
"""One night's rewards, a row for each task of the latest night; None for a task that the one night lacks."""


@dataclass(frozen=True, slots=True)
class Series:
    """The nights comparable with the last one, oldest first, over the tasks of the last one."""

    tasks: tuple[str, ...]
    nights: tuple[Night, ...]
    rows: tuple[NightRows, ...]
    """For each night its rows in the order of `tasks`."""
    notes: tuple[str, ...]


def make_series(nights: Sequence[Night], rule: GateRule) -> Series:
    """Return the nights from `rule.base_from` on that can be compared with the last one.

    They have the same fingerprint, and share at least `rule.min_shared` of the tasks of the larger night. A task with
    changed content is another task. Of two nights that are the same run only the later one counts. Raises UsageError
    for no nights, and for a `rule.base_from` that is neither a night's name nor a date.
    """
    if not nights:
        raise UsageError("gate: no nights to judge; give at least one run")
    candidates, repeated = _without_repeats(_from_base(nights, rule.base_from))
    last = candidates[-1]
    same_settings = [night for night in candidates if night.fingerprint == last.fingerprint]
    renamed: dict[str, str] = {}
    kept: list[tuple[Night, NightRows]] = []
    for night in same_settings:
        rows = _aligned_rows(night, last, renamed)
        common = sum(row is not None for row in rows)
        if common >= rule.min_shared * max(len(night.table.tasks), len(last.table.tasks)):
            kept.append((night, rows))
    notes = [f"given twice, counted once: {names_text(repeated)}"] if repeated else []
    if others := len(candidates) - len(same_settings):
        notes.append(f"{counted(others, 'night')} with other settings left out")
    if few := len(same_settings) - len(kept):
        share = f"less than {100 * rule.min_shared:.0f} % of the tasks in common"
        notes.append(f"{counted(few, 'night')} with {share} left out")
    if renamed:
        names = names_text(f"{old} → {new}" for new, old in renamed.items())
        notes.append(f"renamed, with the same content: {names}")
    nights_kept, rows_kept = zip(*kept, strict=True)  # the last night at least
    return Series(tasks=last.table.tasks, nights=nights_kept, rows=rows_kept, notes=tuple(notes))


def _from_base(nights: Sequence[Night], base_from: str | None) -> Sequence[Night]:
    """Return the nights from a name or date on; only the last one if the date is after all of them."""
    if base_from is None:
        return nights
    named = [at for at, night in enumerate(nights) if night.name == base_from]
    if named:
        return nights[named[0] :]
    try:
        day = date.fromisoformat(base_from)
    except ValueError:
        raise UsageError(
            f"gate: base_from {base_from!r} is neither a night's name nor a date; give one of them, such as 2026-11-23"
        ) from None
    later = [at for at, night in enumerate(nights) if night.day is not None and night.day >= day]
    return nights[later[0] :] if later else nights[-1:]


def _without_repeats(nights: Sequence[Night]) -> tuple[list[Night], list[str]]:
    """Return each run once, at its last position, and the names of repeated ones."""
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
    """Whether two nights that began at the same time are one run: by identity if known, else by name and rewards.

    Two checkpoints of one night are two runs, even with equal rewards.
    """
    if night.run and other.run:
        return night.run == other.run
    if "T" in night.begun:
        return night.name == other.name or night.table == other.table
    return night.name == other.name and night.table == other.table


def _aligned_rows(night: Night, last: Night, renamed: dict[str, str]) -> NightRows:
    """Return a night's rows in the order of the last one's tasks; fills `renamed`: former name by new name."""
    if night.table.tasks == last.table.tasks and night.hashes == last.hashes:
        return night.table.rows
    index = {task: at for at, task in enumerate(night.table.tasks)}
    former = _by_content(night, last)
    rows: list[Row | None] = []
    for task in last.table.tasks:
        name: str | None = task
        if task not in index:
            name = former.get(last.hashes.get(task, ""))
            if name is not None:
                renamed[task] = name
        elif is_changed(night.hashes.get(task), last.hashes.get(task)):
            name = None
        rows.append(None if name is None else night.table.rows[index[name]])
    return tuple(rows)


def _by_content(night: Night, last: Night) -> dict[str, str]:
    """Return by hash the tasks of `night` that `last` has under another name: each night has the hash once."""
    now = set(last.table.tasks)
    held, holds = Counter(night.hashes.values()), Counter(last.hashes.values())
    gone = (task for task in night.table.tasks if task not in now)
    return {
        content: task for task in gone if (content := night.hashes.get(task)) and held[content] == holds[content] == 1
    }
