"""The pages of nights: the list of all, and what has changed since the last good one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from reports.look import Crumb, page, points
from reports.names import NIGHTS, night_page
from reports.site.changes import MovedRate, RunChange, moves, run_change
from reports.site.content import AlarmSpan, RunSeries, Site, SiteRun
from reports.site.states import (
    done_words,
    gate_words,
    score_so_far,
    score_words,
    so_far_words,
    state_of,
    worst_state,
)
from tbench.history.rows import TrialRow
from tbench.reward import mean_text
from tbench.scores.gate.verdict import MovedTask
from tbench.scores.summary import ErrorGroup
from tbench.text import counted

# The list of all nights, a line for each.

_RUNS_NAMED = 3


def render_nights(site: Site) -> str:
    """The page with all nights."""
    return page("nights.html.j2", NIGHTS, crumbs=[Crumb("nights")], nights=night_lines(site), summary=_summary(site))


def night_lines(site: Site, limit: int | None = None) -> list[dict[str, Any]]:
    """The newest nights, or all of them, the newest first."""
    return [_line(site, name, runs) for name, runs in islice(site.nights.items(), limit)]


def _line(site: Site, name: str, runs: Sequence[SiteRun]) -> dict[str, Any]:
    is_only = len(site.series) == 1
    ordered = sorted(runs, key=lambda run: state_of(site.series_of(run), run).rank)
    return {
        "name": name,
        # The UTC date of its first run; empty where that is not known.
        "day": min((run.row.day for run in runs if run.row.day), default=""),
        "state": worst_state(site, runs),
        # Name of the series, empty where all runs are of one, and score.
        "runs": [("" if is_only else site.series_of(run).name, score_of(run)) for run in ordered[:_RUNS_NAMED]],
        "more": max(0, len(runs) - _RUNS_NAMED),
        "errors": sum(run.row.errors for run in runs),
        "unscored": sum(run.row.planned - run.row.scored for run in runs if run.is_over),
        "hindsight": next(filter(None, (hindsight(site.series_of(run), run) for run in runs)), ""),
    }


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


# The page of a night: what has changed since the last good one.

_ROWS_OPEN, _ROWS_SHOWN = 10, 40
"""Tasks of a list that are seen at once, and with those to unfold; the rest is where the runs are compared."""
_ERRORS_SHOWN = 20
_EXPLAINED = 20
"""Nights of a drop whose pages have all the evidence; further ones refer to the first of the alarm."""
_SURE = 0.05
"""The adjusted p below which a task has changed for certain."""
_MARKS_SHOWN = 8
"""Trials of a task in one run that have a mark."""


@dataclass(frozen=True, slots=True)
class MovedList:
    """The tasks that fell, or those that rose, the first few of them."""

    kind: str
    heading: str
    said_of_new: str
    """What those are called that are solved at no seed any more, or only now."""
    rates: tuple[MovedRate, ...]
    most: int

    @property
    def new(self) -> int:
        return sum(rate.is_new for rate in self.rates)

    @property
    def seen(self) -> tuple[MovedRate, ...]:
        return self.rates[:_ROWS_OPEN]

    @property
    def folded(self) -> tuple[MovedRate, ...]:
        return self.rates[_ROWS_OPEN : self.most]

    @property
    def left_out(self) -> int:
        return max(0, len(self.rates) - self.most)


@dataclass(frozen=True, slots=True)
class NightAlarm:
    """What the gate said where there is an alarm, or one has ended."""

    words: str
    since: SiteRun | None = None
    """The likeliest first run of the drop."""
    tasks: tuple[MovedTask, ...] = ()
    notes: tuple[str, ...] = ()


def render(site: Site, name: str, runs: Sequence[SiteRun]) -> str:
    """The page of the runs of one night."""
    names = list(site.nights)
    at = names.index(name)
    return page(
        "night.html.j2",
        night_page(name),
        crumbs=[Crumb("nights", NIGHTS), Crumb(name)],
        name=name,
        days=sorted({run.row.day for run in runs if run.row.day and run.row.day not in name}),
        runs=sorted((_night_run(site, run) for run in runs), key=lambda each: each["state"].rank),
        following=names[at - 1] if at else None,
        previous=names[at + 1] if at + 1 < len(names) else None,
        rate=_rate,
        sure=_SURE,
        marks_shown=_MARKS_SHOWN,
    )


def _night_run(site: Site, run: SiteRun) -> dict[str, Any]:
    """A run of the night beside `good`, the last good one before it."""
    series, good = site.series_of(run), site.last_good_before(run)
    change = run_change(site, good, run) if good is not None else None
    state = state_of(series, run)
    lists = _lists(change, _ROWS_SHOWN if state.is_loud else _ROWS_OPEN)
    silent = change.silent[:_ROWS_SHOWN] if change is not None else ()
    moved = [rate.task for each in lists for rate in (*each.seen, *each.folded)]
    return {
        "run": run,
        "series": series,
        "state": state,
        "score": score_words(run.row),
        "done": done_words(run.row),
        "so_far": score_so_far(run.row),
        "good": good,
        "change": change,
        "moved": moves(site, good, run) if good is not None else (),
        "errors": list(_errors(site, run, good)),
        "silent": silent,
        "lists": lists,
        "trials": _trials_of(site, run, [*moved, *silent]),
        "trials_before": _trials_of(site, good, moved) if good is not None else {},
        "alarm": _alarm(site, series, run),
        "gate": gate_words(series, run),
        "hindsight": hindsight(series, run),
    }


def _trials_of(site: Site, run: SiteRun, tasks: Sequence[str]) -> dict[str, list[TrialRow]]:
    """The trials of some tasks in a run, by task."""
    found: dict[str, list[TrialRow]] = {task: [] for task in tasks}
    for trial in site.history.trials(run.row.path, tasks=tasks) if tasks else ():
        found[trial.task].append(trial)
    return found


def _lists(change: RunChange | None, most: int) -> list[MovedList]:
    """What fell and what rose, at most so many rows of each."""
    if change is None:
        return []
    lower = MovedList("lower", "Lower", "newly failing", change.lower, most)
    higher = MovedList("higher", "Higher", "newly passing", change.higher, most)
    return [each for each in (lower, higher) if each.rates]


def _alarm(site: Site, series: RunSeries, run: SiteRun) -> NightAlarm | None:
    """What the gate said of a run at which an alarm stood or ended."""
    span, found = series.alarm_at(run), series.judged_at(run)
    if span is not None and found is not None and _stands_long(series, run, span):
        words = f"The alarm of {span.first} stands; C = {found.c or 0.0:.1f}, above the limit of {series.rule.h:g}"
        notes = (f"What speaks for it stands with {span.first} and with the newest night.",)
        return NightAlarm(words, series.called(span.low[0]), notes=notes)
    verdict = site.verdict_at(run) if state_of(series, run).kind in ("alarm", "over") else None
    if verdict is None:
        return None
    drop = verdict.drop if verdict.alarm else None
    if drop is None:
        why = "no more than chance" if verdict.c else "the score is back at the baseline's level"
        return NightAlarm(f"The alarm is over: {why}", notes=verdict.notes)
    words = (
        f"{points(drop.moved)} ± {100 * drop.se:.1f} points over {counted(drop.nights, 'night')}; "
        f"C = {verdict.c:.1f}, above the limit of {verdict.rule.h:g}"
    )
    return NightAlarm(words, series.called(drop.since.name), drop.likely[:_ROWS_OPEN], verdict.notes)


def _stands_long(series: RunSeries, run: SiteRun, span: AlarmSpan) -> bool:
    """Whether an alarm is old at a run that is not the newest: judging each such night anew takes its time."""
    return run is not series.last and span.low.index(series.names[run.slug]) >= _EXPLAINED


def _rate(solved: int, trials: int, mean: float) -> str:
    """Solved trials, or the mean where rewards are partial."""
    return f"{solved} of {trials}" if solved / trials == mean else f"mean {mean_text(mean)} of {trials}"


def _errors(site: Site, run: SiteRun, good: SiteRun | None) -> Iterator[tuple[ErrorGroup, int, TrialRow | None]]:
    """The errors of a run, the most frequent first: how many there were in the good one, and the example's trial."""
    if not run.row.errors:
        return
    earlier: Counter[tuple[str, str]] = Counter()
    for group in site.history.errors(good.row.path) if good is not None else ():
        earlier[group.type, str(group.blame)] += group.count
    failed = {f"{each.task} seed {each.seed}": each for each in site.history.trials(run.row.path, status="error")}
    for group in site.history.errors(run.row.path)[:_ERRORS_SHOWN]:
        yield group, earlier[group.type, str(group.blame)], failed.get(group.example_trial)
