"""Trials as marks in a row: a symbol for what became of each, and a link to its page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from reports.names import trial_page
from reports.site.content import SiteRun
from tbench.history.rows import TrialRow

_SYMBOLS = {"pass": "✓", "partial": "◐", "fail": "✗", "error": "!"}
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class TrialMark:
    """A trial among others of its task."""

    status: str
    symbol: str
    words: str
    page: str


@dataclass(frozen=True, slots=True)
class TrialMarks:
    """The first few trials of a task in one run."""

    shown: tuple[TrialMark, ...] = ()
    more: int = 0


def mark_of(run: SiteRun, trial: TrialRow) -> TrialMark:
    """What became of a trial of a run."""
    what = f"error {trial.error}" if trial.error is not None else trial.status
    reward = f", reward {trial.reward:g}" if trial.status == "partial" else ""
    page = trial_page(run.slug, trial.task, trial.seed, trial.attempt)
    return TrialMark(trial.status, _SYMBOLS.get(trial.status, "·"), f"seed {trial.seed}: {what}{reward}", page)


def marks_of(run: SiteRun, trials: Iterable[TrialRow]) -> dict[str, TrialMarks]:
    """The marks of some trials of a run, by task."""
    by_task: dict[str, list[TrialRow]] = {}
    for trial in trials:
        by_task.setdefault(trial.task, []).append(trial)
    return {
        task: TrialMarks(tuple(mark_of(run, each) for each in rows[:_SHOWN]), max(0, len(rows) - _SHOWN))
        for task, rows in by_task.items()
    }
