"""What the gate is given: nights, and the rule that they are judged by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from tbench.errors import UsageError
from tbench.scores.statistics import RewardTable


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

    docs/gate.md says how many false alarms come of the defaults, and how soon a drop is seen. Raises UsageError for a
    value that makes no rule.
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
