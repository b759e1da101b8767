"""Pages of nights: the list of all nights, and a page for each with the changes since the last good night."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from reports.page_frame import Crumb, page
from reports.page_paths import NIGHTS, night_page
from reports.site.changes import RewardChange, RunChange, known_differences, run_change
from reports.site.content import RunSeries, Site, SiteRun
from reports.site.states import (
    drop_text,
    ended_text,
    gate_text,
    progress_text,
    score_so_far,
    score_text,
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
_OPEN_MONTHS = 2
"""Number of newest months whose nights are visible at first."""


def render_nights(site: Site) -> str:
    """Render the page with all nights."""
    lines = night_lines(site)
    months: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        months.setdefault(line["month"] or "Without a date", []).append(line)
    return page(
        "nights.html.j2",
        NIGHTS,
        crumbs=[Crumb("nights")],
        months=months,
        open_months=_OPEN_MONTHS,
        choices=_choices(lines),
        summary=_summary(site),
    )


def _choices(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the filters for nights: the label of each, and its values with their labels."""
    months = {line["month"]: line["month"] for line in lines if line["month"]}
    states = {line["state"].kind: line["state"].label for line in lines}
    series = {name: name for line in lines for name in line["series"]}
    found = [("all months", months), ("all states", states), ("all series", series)]
    return [(label, list(values.items())) for label, values in found if len(values) > 1]


def night_lines(site: Site, limit: int | None = None) -> list[dict[str, Any]]:
    """Return the lines of the newest nights, or of all, newest first."""
    return [_line(site, name, runs) for name, runs in islice(site.nights.items(), limit)]


def _line(site: Site, name: str, runs: Sequence[SiteRun]) -> dict[str, Any]:
    is_only = len(site.series) == 1
    ordered = sorted(runs, key=lambda run: state_of(site.series_of(run), run).rank)
    # UTC date of the first run; empty if unknown.
    day = min((run.row.day for run in runs if run.row.day), default="")
    state, series = worst_state(site, runs), sorted({site.series_of(run).name for run in runs})
    return {
        "name": name,
        "day": day,
        "month": day[:7],
        "state": state,
        "series": series,
        "kinds": "|".join([day[:7], state.kind, *series]),
        # Name of the series (empty if there is only one) and score.
        "runs": [
            ("" if is_only else site.series_of(run).name, score_or_progress(run)) for run in ordered[:_RUNS_NAMED]
        ],
        "more": max(0, len(runs) - _RUNS_NAMED),
        "errors": sum(run.row.errors for run in runs),
        "unscored": sum(run.row.planned - run.row.scored for run in runs if run.is_over),
        "hindsight": next(filter(None, (hindsight_note(site.series_of(run), run) for run in runs)), ""),
    }


def hindsight_note(series: RunSeries, run: SiteRun) -> str:
    """Return a note on a run that was not in alarm but turned out to be part of the drop; else empty."""
    if run.slug in series.alarms or run.slug not in series.drop_runs:
        return ""
    name = series.names[run.slug]
    first = next(span.first for span in series.judged.alarms if name in span.drop)
    return f"in hindsight part of the drop for which {first} raised the alarm"


def score_or_progress(run: SiteRun) -> str:
    """Return the score of a run, or its progress if it has not finished."""
    return score_text(run.row) if run.is_over else progress_text(run.row)


def _summary(site: Site) -> str:
    """Return the number of nights and of nights with an alarm, as text."""
    nights = site.nights
    alarms = sum(worst_state(site, runs).kind == "alarm" for runs in nights.values())
    return f"{counted(len(nights), 'night')}, {alarms} with an alarm" if nights else ""


# The page of a night: the changes since the last good one.

_ROWS_OPEN, _ROWS_SHOWN = 10, 40
"""Numbers of tasks in a list: visible at first, and including the folded ones. The comparison page has more."""
_ERRORS_SHOWN = 20
_SURE = 0.05
"""Adjusted p below which a task's change is not marked as possible chance."""
_MARKS_SHOWN = 8
"""Number of trials of a task in one run that have a mark."""


@dataclass(frozen=True, slots=True)
class MovedList:
    """Tasks with lower rewards, or those with higher ones."""

    kind: str
    heading: str
    new_label: str
    """Label of tasks that are no longer solved at any seed or, among higher ones, are solved only now."""
    rates: tuple[RewardChange, ...]
    most: int

    @property
    def new(self) -> int:
        return sum(rate.is_new for rate in self.rates)

    @property
    def seen(self) -> tuple[RewardChange, ...]:
        return self.rates[:_ROWS_OPEN]

    @property
    def folded(self) -> tuple[RewardChange, ...]:
        return self.rates[_ROWS_OPEN : self.most]

    @property
    def left_out(self) -> int:
        return max(0, len(self.rates) - self.most)


@dataclass(frozen=True, slots=True)
class NightAlarm:
    """The gate's message about an alarm or its end."""

    text: str
    since: SiteRun | None = None
    """Most likely first run of the drop."""
    tasks: tuple[MovedTask, ...] = ()
    notes: tuple[str, ...] = ()


def shown_data(site: Site, name: str, runs: Sequence[SiteRun]) -> str:
    """Return everything from which the page of a night is made, apart from the files of its runs and of good ones.

    If neither this data nor these files change, the page need not be written again.
    """
    return repr((_neighbours(site, name), [_shown_data(site, run) for run in runs]))


def _shown_data(site: Site, run: SiteRun) -> tuple[object, ...]:
    series, good = site.series_of(run), site.last_good_before(run)
    about_series = (series.name, series.page, series.rule, state_of(series, run), series.judged_night(run))
    since = drop.since.name if (drop := series.drop_at(run)) is not None else None
    about_drop = (
        drop and (drop_text(drop), series.run_named(drop.since.name), drop.likely[:_ROWS_OPEN]),
        hindsight_note(series, run),
        series.verdict.notes if run is series.last and series.verdict is not None else (),
    )
    return run, good, about_series, since, about_drop


def good_runs(site: Site, runs: Sequence[SiteRun]) -> list[SiteRun]:
    """Return the good run before each of these runs, if any."""
    return [good for run in runs if (good := site.last_good_before(run)) is not None]


def _neighbours(site: Site, name: str) -> tuple[str | None, str | None]:
    """Return the names of the following and the previous night."""
    names = list(site.nights)
    at = names.index(name)
    return names[at - 1] if at else None, names[at + 1] if at + 1 < len(names) else None


def render(site: Site, name: str, runs: Sequence[SiteRun]) -> str:
    """Render the page of one night's runs."""
    following, previous = _neighbours(site, name)
    return page(
        "night.html.j2",
        night_page(name),
        crumbs=[Crumb("nights", NIGHTS), Crumb(name)],
        name=name,
        days=sorted({run.row.day for run in runs if run.row.day and run.row.day not in name}),
        runs=sorted((_night_run(site, run) for run in runs), key=lambda each: each["state"].rank),
        following=following,
        previous=previous,
        rate=_rate,
        sure=_SURE,
        marks_shown=_MARKS_SHOWN,
    )


def _night_run(site: Site, run: SiteRun) -> dict[str, Any]:
    """Return a run of the night together with `good`, the last good run before it."""
    series, good = site.series_of(run), site.last_good_before(run)
    change = run_change(site, good, run) if good is not None else None
    state = state_of(series, run)
    lists = _lists(change, _ROWS_SHOWN if state.is_loud else _ROWS_OPEN)
    lost = change.lost_verdicts[:_ROWS_SHOWN] if change is not None else ()
    moved = [rate.task for each in lists for rate in (*each.seen, *each.folded)]
    return {
        "run": run,
        "series": series,
        "state": state,
        "score": score_text(run.row),
        "done": ended_text(run.row),
        "so_far": score_so_far(run.row),
        "good": good,
        "change": change,
        "differences": known_differences(site, good, run) if good is not None else (),
        "errors": list(_errors(site, run, good)),
        "lost_verdicts": lost,
        "lists": lists,
        "trials": _trials_of(site, run, [*moved, *lost]),
        "trials_before": _trials_of(site, good, moved) if good is not None else {},
        "drop": drop_text(drop) if (drop := series.drop_at(run)) is not None else "",
        "alarm": _alarm(series, run),
        "gate": "; ".join(filter(None, (gate_text(series, run), run.row.cost.line if run.row.cost else ""))),
        "hindsight": hindsight_note(series, run),
        "explained": series.explained.get(run.slug),
    }


def _trials_of(site: Site, run: SiteRun, tasks: Sequence[str]) -> dict[str, list[TrialRow]]:
    """Return the trials of some tasks in a run, by task."""
    found: dict[str, list[TrialRow]] = {task: [] for task in tasks}
    for trial in site.history.trials(run.row.path, tasks=tasks) if tasks else ():
        found[trial.task].append(trial)
    return found


def _lists(change: RunChange | None, most: int) -> list[MovedList]:
    """Return the lists of tasks with lower and with higher rewards, with at most `most` rows each."""
    if change is None:
        return []
    lower = MovedList("lower", "Lower", "newly failing", change.lower, most)
    higher = MovedList("higher", "Higher", "newly passing", change.higher, most)
    return [each for each in (lower, higher) if each.rates]


def _alarm(series: RunSeries, run: SiteRun) -> NightAlarm | None:
    """Return the gate's message for a run that was in alarm or ended an alarm."""
    found, drop = series.judged_night(run), series.drop_at(run)
    if found is not None and drop is not None:
        words = f"{drop_text(drop)}; C = {found.c or 0.0:.1f}, above the limit of {series.rule.h:g}"
        notes = series.verdict.notes if run is series.last and series.verdict is not None else ()
        return NightAlarm(words, series.run_named(drop.since.name), drop.likely[:_ROWS_OPEN], notes)
    if found is None or state_of(series, run).kind != "over":
        return None
    why = "what is left of the drop may be chance" if found.c else "the score is back at the baseline's level"
    return NightAlarm(f"The alarm is over: {why}")


def _rate(solved: int, trials: int, mean: float) -> str:
    """Return the number of solved trials, or the mean if rewards are partial."""
    return f"{solved} of {trials}" if solved / trials == mean else f"mean {mean_text(mean)} of {trials}"


def _errors(site: Site, run: SiteRun, good: SiteRun | None) -> Iterator[tuple[ErrorGroup, int, TrialRow | None]]:
    """Yield the errors of a run, most frequent first, each with its count in the good run and an example trial."""
    if not run.row.errors:
        return
    earlier: Counter[tuple[str, str]] = Counter()
    for group in site.history.errors(good.row.path) if good is not None else ():
        earlier[group.type, str(group.blame)] += group.count
    failed = {f"{each.task} seed {each.seed}": each for each in site.history.trials(run.row.path, status="error")}
    for group in site.history.errors(run.row.path)[:_ERRORS_SHOWN]:
        yield group, earlier[group.type, str(group.blame)], failed.get(group.example_trial)
