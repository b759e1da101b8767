"""What state a run and a night are in, in a word that a symbol and a colour stand for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from reports.site.content import RunSeries, Site, SiteRun
from tbench.history.rows import RunRow
from tbench.scores.summary import percent

_SPACE = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, slots=True)
class RunState:
    """How a run stands to those before it."""

    kind: str
    """`alarm`, `broken`, `cut`, `running`, `uncovered`, `over`, `learning`, `quiet` or `single`; the worst first."""
    symbol: str
    word: str
    style: str
    """The class of its chip."""

    @property
    def is_loud(self) -> bool:
        """Whether somebody has to look at it."""
        return self.kind in ("alarm", "broken", "cut", "uncovered", "over")

    @property
    def rank(self) -> int:
        """The lower, the sooner somebody has to look at it."""
        return _WORST_FIRST.index(self)


ALARM = RunState("alarm", "▲", "alarm", "alarm")
BROKEN = RunState("broken", "!", "no verdicts", "error")
CUT = RunState("cut", "◐", "cut short", "partial")
RUNNING = RunState("running", "▶", "under way", "running")
UNCOVERED = RunState("uncovered", "◌", "too few verdicts", "partial")
OVER = RunState("over", "✓", "alarm over", "pass")
LEARNING = RunState("learning", "…", "learning", "plain")
QUIET = RunState("quiet", "✓", "quiet", "pass")
SINGLE = RunState("single", "·", "first run", "plain")
_WORST_FIRST = (ALARM, BROKEN, CUT, UNCOVERED, OVER, RUNNING, LEARNING, QUIET, SINGLE)


def state_of(series: RunSeries, run: SiteRun) -> RunState:
    """The state of a run of a series."""
    if run.row.status == "running":
        return CUT if run.is_cut_off else RUNNING
    if not run.has_score:
        return BROKEN if run.is_over else CUT
    if run.slug in series.alarms:
        return ALARM
    if not run.is_over:
        return CUT
    if any(span.over == series.names[run.slug] for span in series.judged.alarms):
        return OVER
    return _of_quiet(series, run)


def _of_quiet(series: RunSeries, run: SiteRun) -> RunState:
    found = series.judged_at(run)
    if found is None or found.role == "uncovered":
        return UNCOVERED
    if found.role == "judged":
        return QUIET
    return LEARNING if series.is_lane or len(series.runs) > 1 else SINGLE


def gate_words(series: RunSeries, run: SiteRun) -> str:
    """What the gate has to say of a run without an alarm; empty where that is nothing."""
    found, rule = series.judged_at(run), series.rule
    state = state_of(series, run)
    if found is None or state not in (QUIET, LEARNING, UNCOVERED):
        return ""
    if state == UNCOVERED:
        needed = f"a night that counts needs {100 * rule.min_coverage:.0f} %"
        return f"{100 * found.coverage:.0f} % of its trials have a verdict; {needed}"
    if state == LEARNING or found.c is None:
        return f"one of the {rule.base_nights} nights that the baseline begins with"
    return f"C = {found.c:.1f} of {rule.h:g}"


def worst_state(site: Site, runs: Iterable[SiteRun]) -> RunState:
    """The state of a night: that of the run which needs somebody the most."""
    return min((state_of(site.series_of(run), run) for run in runs), key=lambda state: state.rank)


def score_words(row: RunRow) -> str:
    """The score of a run with its std over seeds; of one that is not over, so far and over what is scored."""
    if row.score is None:
        return "no score"
    return with_spread(row.score, row.score_std)


def with_spread(mean: float, spread: float | None) -> str:
    """A score in percent, with what it is known to within."""
    text = percent(mean) if spread is None else f"{percent(mean)} ± {percent(spread)}"
    return f"{text} %".replace(" ", _SPACE)


def so_far_words(row: RunRow) -> str:
    """What a run that is not over has come to: how much of it, and that the score is one so far."""
    return f"{done_words(row)} trials, {score_so_far(row)}"


def done_words(row: RunRow) -> str:
    """How many of the trials have ended."""
    return f"{row.planned - row.missing:,} of {row.planned:,}"


def score_so_far(row: RunRow) -> str:
    """The score over those trials alone that have a verdict."""
    if row.scored_only is None:
        return "no verdict so far"
    return f"so far {percent(row.scored_only)}{_SPACE}% of those with a verdict"
