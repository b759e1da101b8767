"""The list of all nights, a line for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from reports.look import Crumb, page
from reports.names import NIGHTS, night_page
from reports.site.content import RunSeries, Site, SiteRun
from reports.site.states import RunState, score_words, so_far_words, state_of, worst_state
from tbench.text import counted

_RUNS_NAMED = 3


@dataclass(frozen=True, slots=True)
class NightLine:
    """A night as a line of a list."""

    name: str
    page: str
    day: str
    """The UTC date of its first run; empty where that is not known."""
    state: RunState
    runs: tuple[tuple[str, str], ...]
    """The first few runs: name of the series, empty where all runs are of one, and score."""
    more: int
    """Runs that are not among them."""
    errors: int
    unscored: int
    """Trials without a verdict, errors included."""
    hindsight: str


def render(site: Site) -> str:
    """The page with all nights."""
    return page("nights.html.j2", NIGHTS, crumbs=[Crumb("nights")], nights=night_lines(site), summary=_summary(site))


def night_lines(site: Site, limit: int | None = None) -> tuple[NightLine, ...]:
    """The newest nights, or all of them, the newest first."""
    return tuple(_line(site, name, runs) for name, runs in islice(site.nights.items(), limit))


def _line(site: Site, name: str, runs: Sequence[SiteRun]) -> NightLine:
    is_only = len(site.series) == 1
    ordered = sorted(runs, key=lambda run: state_of(site.series_of(run), run).rank)
    return NightLine(
        name=name,
        page=night_page(name),
        day=min((run.row.day for run in runs if run.row.day), default=""),
        state=worst_state(site, runs),
        runs=tuple(("" if is_only else site.series_of(run).name, score_of(run)) for run in ordered[:_RUNS_NAMED]),
        more=max(0, len(runs) - _RUNS_NAMED),
        errors=sum(run.row.errors for run in runs),
        unscored=sum(run.row.planned - run.row.scored for run in runs if run.is_over),
        hindsight=next(filter(None, (hindsight(site.series_of(run), run) for run in runs)), ""),
    )


def hindsight(series: RunSeries, run: SiteRun) -> str:
    """What is known by now of a run that was none of an alarm: it was part of the drop that one was raised for."""
    if run.slug in series.alarms or run.slug not in series.low:
        return ""
    name = series.names[run.slug]
    first = next(span.first for span in series.judged.alarms if name in span.low)
    return f"in hindsight part of the drop that {first} raised the alarm for"


def score_of(run: SiteRun) -> str:
    """The score of a run, or how far it has come."""
    return score_words(run.row) if run.is_over else so_far_words(run.row)


def _summary(site: Site) -> str:
    """How many nights there are, and how many of them had an alarm."""
    nights = site.nights
    alarms = sum(worst_state(site, runs).kind == "alarm" for runs in nights.values())
    return f"{counted(len(nights), 'night')}, {alarms} with an alarm" if nights else ""
