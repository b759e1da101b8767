"""States of runs and nights, each with a label, a symbol and a colour."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from reports.site.content import RunSeries, Site, SiteRun
from tbench.history.rows import RunRow
from tbench.scores.gate.verdict import Shift
from tbench.scores.summary import percent
from tbench.text import counted

_SPACE = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, slots=True)
class RunState:
    """State of a run compared with those before it."""

    kind: str
    """`alarm`, `broken`, `cut`, `uncovered`, `over`, `running`, `learning`, `quiet` or `single`, from worst to best."""
    symbol: str
    label: str
    style: str
    """CSS class of the chip."""

    @property
    def is_loud(self) -> bool:
        """Whether the run needs attention."""
        return self.kind in ("alarm", "broken", "cut", "uncovered", "over")

    @property
    def rank(self) -> int:
        """Rank by urgency; lower is more urgent."""
        return _WORST_FIRST.index(self)


ALARM = RunState("alarm", "▲", "alarm", "alarm")
BROKEN = RunState("broken", "!", "no verdicts", "error")
CUT = RunState("cut", "◐", "cut short", "partial")
RUNNING = RunState("running", "▶", "running", "running")
TOO_FEW_VERDICTS = RunState("uncovered", "◌", "too few verdicts", "partial")
OVER = RunState("over", "✓", "alarm over", "pass")
LEARNING = RunState("learning", "…", "learning", "plain")
QUIET = RunState("quiet", "✓", "quiet", "pass")
SINGLE = RunState("single", "·", "first run", "plain")
_WORST_FIRST = (ALARM, BROKEN, CUT, TOO_FEW_VERDICTS, OVER, RUNNING, LEARNING, QUIET, SINGLE)


def state_of(series: RunSeries, run: SiteRun) -> RunState:
    """Return the state of a run of a series."""
    if run.row.status == "running":
        return CUT if run.is_cut_off else RUNNING
    if not run.has_score:
        return BROKEN if run.is_over else CUT
    if run.slug in series.alarms:
        return ALARM
    if not run.is_over:
        return CUT
    if any(span.ended_at == series.names[run.slug] for span in series.judged.alarms):
        return OVER
    return _quiet_state(series, run)


def _quiet_state(series: RunSeries, run: SiteRun) -> RunState:
    found = series.judged_night(run)
    if found is None or found.role == "uncovered":
        return TOO_FEW_VERDICTS
    if found.role == "judged":
        return QUIET
    return LEARNING if series.is_nightly or len(series.runs) > 1 else SINGLE


def gate_text(series: RunSeries, run: SiteRun) -> str:
    """Return the gate's message for a run without an alarm; empty if it has none."""
    found, rule = series.judged_night(run), series.rule
    state = state_of(series, run)
    if found is None or state not in (QUIET, LEARNING, TOO_FEW_VERDICTS):
        return ""
    if state == TOO_FEW_VERDICTS:
        needed = f"a night counts from {100 * rule.min_coverage:.0f} %"
        return f"{100 * found.coverage:.0f} % of its trials have a verdict; {needed}"
    if state == LEARNING or found.c is None:
        return f"one of the first {rule.base_nights} nights, which form the baseline"
    return f"C = {found.c:.1f} of {rule.h:g}"


def drop_text(drop: Shift) -> str:
    """Return a drop as text, with the score during the drop and the usual score."""
    points = drop.points.replace("-", "\N{MINUS SIGN}")
    scores = f"{with_spread(drop.now, None)}, usually {with_spread(drop.base, None)}"
    return f"{points} points over the drop ({counted(drop.nights, 'night')}): {scores}"


def worst_state(site: Site, runs: Iterable[SiteRun]) -> RunState:
    """Return the state of a night's most urgent run, which is the state of the night."""
    return min((state_of(site.series_of(run), run) for run in runs), key=lambda state: state.rank)


def score_text(row: RunRow) -> str:
    """Return the score of a run with its standard deviation over seeds."""
    if row.score is None:
        return "no score"
    return with_spread(row.score, row.score_std)


def with_spread(mean: float, spread: float | None) -> str:
    """Return a score in percent, with its spread if there is one."""
    text = percent(mean) if spread is None else f"{percent(mean)} ± {percent(spread)}"
    return f"{text} %".replace(" ", _SPACE)


def progress_text(row: RunRow) -> str:
    """Return the progress of an unfinished run and its score so far."""
    return f"{ended_text(row)} trials, {score_so_far(row)}"


def ended_text(row: RunRow) -> str:
    """Return how many of the planned trials have ended."""
    return f"{row.planned - row.missing:,} of {row.planned:,}"


def score_so_far(row: RunRow) -> str:
    """Return the score over the trials that have a verdict, marked as preliminary."""
    if row.scored_only is None:
        return "no verdict so far"
    return f"so far {percent(row.scored_only)}{_SPACE}% of the trials with a verdict"
