"""The pages of nights: the list of all, and what has changed since the last good one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from reports.look import Crumb, page, points
from reports.names import NIGHTS, compare_page, night_page, run_page, task_page, trial_page
from reports.site.changes import MovedRate, MovedSetting, RunChange, moves, run_change
from reports.site.content import AlarmSpan, RunSeries, Site, SiteRun
from reports.site.states import (
    RunState,
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


def render_nights(site: Site) -> str:
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


# Trials as marks in a row: a symbol for what became of each, and a link to its page.

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


# The page of a night: what has changed since the last good one.

_ROWS_OPEN, _ROWS_SHOWN = 10, 40
"""Tasks of a list that are seen at once, and with those to unfold; the rest is where the runs are compared."""
_ERRORS_SHOWN = 20
_EXPLAINED = 20
"""Nights of a drop whose pages have all the evidence; further ones refer to the first of the alarm."""
_SURE = 0.05
"""The adjusted p below which a task has changed for certain."""


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """Trials of a run without a verdict that failed in the same way."""

    group: ErrorGroup
    before: int
    """How many there were in the run that it is compared with."""
    task: str | None
    """Of the example; None where that is not known."""
    example: TrialMark | None


@dataclass(frozen=True, slots=True)
class MovedRow:
    """A task whose reward has changed, with its trials."""

    rate: MovedRate
    before: TrialMarks
    now: TrialMarks


@dataclass(frozen=True, slots=True)
class MovedList:
    """The tasks that fell, or those that rose."""

    kind: str
    heading: str
    said_of_new: str
    """What those are called that are solved at no seed any more, or only now."""
    count: int
    new: int
    seen: tuple[MovedRow, ...]
    folded: tuple[MovedRow, ...]

    @property
    def left_out(self) -> int:
        return self.count - len(self.seen) - len(self.folded)


@dataclass(frozen=True, slots=True)
class SuspectTask:
    """A task that is likely to have changed."""

    name: str
    page: str
    base: str
    """Solved trials of the baseline, or the mean where rewards are partial."""
    since: str
    p: str
    p_holm: str
    is_sure: bool


@dataclass(frozen=True, slots=True)
class NightAlarm:
    """What the gate said where there is an alarm, or one has ended."""

    words: str
    since: SiteRun | None
    """The likeliest first run of the drop."""
    tasks: tuple[SuspectTask, ...]
    notes: tuple[str, ...]

    @property
    def since_page(self) -> str | None:
        return night_page(self.since.night) if self.since is not None else None


@dataclass(frozen=True, slots=True)
class NightRun:
    """A run of the night beside the last good one."""

    run: SiteRun
    name: str
    """Of its series."""
    series_page: str
    state: RunState
    score: str
    done: str
    """How many of its trials have ended."""
    so_far: str
    """What a run that is not over has come to."""
    good: SiteRun | None
    """The last good run before it."""
    change: RunChange | None
    moved: tuple[MovedSetting, ...]
    errors: tuple[ErrorRow, ...]
    silent: tuple[tuple[str, str, TrialMarks], ...]
    """Tasks that had a verdict before and have none now, with their pages and trials."""
    lists: tuple[MovedList, ...]
    alarm: NightAlarm | None
    gate: str
    """What the gate has to say without an alarm."""
    hindsight: str

    @property
    def run_page(self) -> str:
        return run_page(self.run.slug)

    @property
    def compare(self) -> str | None:
        """The page that compares it with the good one."""
        return compare_page(self.good.slug, self.run.slug) if self.good is not None else None

    @property
    def good_page(self) -> str | None:
        return night_page(self.good.night) if self.good is not None else None


def render(site: Site, name: str, runs: Sequence[SiteRun]) -> str:
    """The page of the runs of one night."""
    names = list(site.nights)
    at = names.index(name)
    following = names[at - 1] if at else None
    previous = names[at + 1] if at + 1 < len(names) else None
    shown = sorted((_night_run(site, run) for run in runs), key=lambda each: each.state.rank)
    return page(
        "night.html.j2",
        night_page(name),
        crumbs=[Crumb("nights", NIGHTS), Crumb(name)],
        name=name,
        days=sorted({run.row.day for run in runs if run.row.day and run.row.day not in name}),
        runs=shown,
        following=following,
        previous=previous,
        night_page=night_page,
    )


def _night_run(site: Site, run: SiteRun) -> NightRun:
    series = site.series_of(run)
    good = site.last_good_before(run)
    change = run_change(site, good, run) if good is not None else None
    state = state_of(series, run)
    return NightRun(
        run=run,
        name=series.name,
        series_page=series.page,
        state=state,
        score=score_words(run.row),
        done=done_words(run.row),
        so_far=score_so_far(run.row),
        good=good,
        change=change,
        moved=moves(site, good, run) if good is not None else (),
        errors=tuple(_errors(site, run, good)),
        silent=_silent(site, run, change.silent if change is not None else ()),
        lists=_lists(site, good, run, change, _ROWS_SHOWN if state.is_loud else _ROWS_OPEN),
        alarm=_alarm(site, series, run),
        gate=gate_words(series, run),
        hindsight=hindsight(series, run),
    )


def _silent(site: Site, run: SiteRun, tasks: Sequence[str]) -> tuple[tuple[str, str, TrialMarks], ...]:
    shown = tasks[:_ROWS_SHOWN]
    marks = marks_of(run, site.history.trials(run.row.path, tasks=shown)) if shown else {}
    return tuple((task, task_page(task), marks.get(task, TrialMarks())) for task in shown)


def _lists(
    site: Site, good: SiteRun | None, run: SiteRun, change: RunChange | None, most: int
) -> tuple[MovedList, ...]:
    """What fell and what rose, at most so many rows of each."""
    if good is None or change is None:
        return ()
    tasks = [each.task for each in (*change.lower[:most], *change.higher[:most])]
    before, now = (marks_of(each, site.history.trials(each.row.path, tasks=tasks)) for each in (good, run))
    nothing = TrialMarks()
    found = []
    for kind, heading, new, rates in (
        ("lower", "Lower", "newly failing", change.lower),
        ("higher", "Higher", "newly passing", change.higher),
    ):
        rows = [MovedRow(r, before.get(r.task, nothing), now.get(r.task, nothing)) for r in rates[:most]]
        counts = len(rates), sum(rate.is_new for rate in rates)
        found.append(MovedList(kind, heading, new, *counts, tuple(rows[:_ROWS_OPEN]), tuple(rows[_ROWS_OPEN:])))
    return tuple(each for each in found if each.count)


def _alarm(site: Site, series: RunSeries, run: SiteRun) -> NightAlarm | None:
    """What the gate said of a run at which an alarm stood or ended."""
    span, found = series.alarm_at(run), series.judged_at(run)
    if span is not None and found is not None and _stands_long(series, run, span):
        words = f"The alarm of {span.first} stands; C = {found.c or 0.0:.1f}, above the limit of {series.rule.h:g}"
        notes = (f"What speaks for it stands with {span.first} and with the newest night.",)
        return NightAlarm(words, series.called(span.low[0]), (), notes)
    verdict = site.verdict_at(run) if state_of(series, run).kind in ("alarm", "over") else None
    if verdict is None:
        return None
    drop = verdict.drop if verdict.alarm else None
    if drop is None:
        why = "no more than chance" if verdict.c else "the score is back at the baseline's level"
        return NightAlarm(f"The alarm is over: {why}", None, (), verdict.notes)
    words = (
        f"{points(drop.moved)} ± {100 * drop.se:.1f} points over {counted(drop.nights, 'night')}; "
        f"C = {verdict.c:.1f}, above the limit of {verdict.rule.h:g}"
    )
    tasks = tuple(map(_suspect, drop.likely[:_ROWS_OPEN]))
    return NightAlarm(words, series.called(drop.since.name), tasks, verdict.notes)


def _stands_long(series: RunSeries, run: SiteRun, span: AlarmSpan) -> bool:
    """Whether an alarm is old at a run that is not the newest: judging each such night anew takes its time."""
    return run is not series.last and span.low.index(series.names[run.slug]) >= _EXPLAINED


def _suspect(moved: MovedTask) -> SuspectTask:
    base = _rate(moved.base_solved, moved.base_trials, moved.base_mean)
    since = _rate(moved.since_solved, moved.since_trials, moved.since_mean)
    p, p_holm = f"{moved.p:.2g}", f"{moved.p_holm:.2g}"
    return SuspectTask(moved.task, task_page(moved.task), base, since, p, p_holm, moved.p_holm < _SURE)


def _rate(solved: int, trials: int, mean: float) -> str:
    """Solved trials, or the mean where rewards are partial."""
    return f"{solved} of {trials}" if solved / trials == mean else f"mean {mean_text(mean)} of {trials}"


def _errors(site: Site, run: SiteRun, good: SiteRun | None) -> Iterator[ErrorRow]:
    """The errors of a run, the most frequent first."""
    if not run.row.errors:
        return
    earlier: Counter[tuple[str, str]] = Counter()
    for group in site.history.errors(good.row.path) if good is not None else ():
        earlier[group.type, str(group.blame)] += group.count
    failed = {f"{each.task} seed {each.seed}": each for each in site.history.trials(run.row.path, status="error")}
    for group in site.history.errors(run.row.path)[:_ERRORS_SHOWN]:
        example = failed.get(group.example_trial)
        mark = mark_of(run, example) if example is not None else None
        yield ErrorRow(group, earlier[group.type, str(group.blame)], example.task if example else None, mark)
