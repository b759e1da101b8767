"""The overview: what every model comes to on every dataset, and what has changed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from reports.charts import sparkline
from reports.look import Crumb, page
from reports.names import OVERVIEW, SERIES
from reports.site.changes import ScoreChange, moves, score_change
from reports.site.content import RunSeries, Site, SiteRun
from reports.site.night import night_lines
from reports.site.series import chart_legend, history_chart
from reports.site.states import RunState, score_words, so_far_words, state_of, with_spread
from tbench.scores.gate.verdict import Shift, State
from tbench.text import counted, names_shown

_NIGHTS_SHOWN, _SERIES_SHOWN = 10, 60
_PROXIES_SHOWN = 30
_RUNS_DRAWN = 60
"""Runs of a series in its sparkline, the newest ones."""
_TASKS_NAMED = 5
_CHARTS_SHOWN, _FEWEST_DRAWN = 2, 3


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """A series with its newest run that is over."""

    series: RunSeries
    run: SiteRun
    state: RunState
    score: str
    change: ScoreChange | None
    """Since the last good run, or where `is_drop` the drop that the alarm is about; None without either."""
    is_drop: bool
    since: SiteRun | None
    """The good run before it."""
    spark: Markup | None
    """None for a single run."""
    about: str
    """What tells it from others of the name; empty where there are none."""


def render(site: Site) -> str:
    """The page that a site begins with."""
    newest_first = _rows(site)
    rows = _alarms_first(newest_first)
    lines = night_lines(site, limit=_NIGHTS_SHOWN)
    proxies = site.history.proxies()
    return page(
        "overview.html.j2",
        OVERVIEW,
        site=site,
        alarms=list(_alarms(site)),
        quiet=_quiet_line(site),
        drawn=_drawn(rows),
        tables=_tables(rows[:_SERIES_SHOWN]),
        series_more=max(0, len(rows) - _SERIES_SHOWN),
        matrix=_matrix(newest_first[:_SERIES_SHOWN]),
        unfinished=_unfinished(site)[:_SERIES_SHOWN],
        nights=lines,
        nights_more=len(site.nights) - len(lines),
        proxies=proxies[:_PROXIES_SHOWN],
        proxies_more=max(0, len(proxies) - _PROXIES_SHOWN),
    )


def render_series(site: Site) -> str:
    """The page with all series."""
    tables = _tables(_alarms_first(_rows(site)))
    return page("all_series.html.j2", SERIES, crumbs=[Crumb("series")], tables=tables)


def _alarms_first(rows: Sequence[SeriesRow]) -> list[SeriesRow]:
    return sorted(rows, key=lambda row: row.state.kind != "alarm")


def _rows(site: Site) -> list[SeriesRow]:
    """The series that have a run to show, that of the newest run first."""
    first: dict[tuple[str, str | None], SiteRun] = {}
    rows = []
    for series in site.series:
        if (run := series.last_over) is not None:
            namesake = first.setdefault((series.name, run.row.dataset_title), run)
            rows.append(_row(site, series, run, namesake))
    return rows


def _row(site: Site, series: RunSeries, run: SiteRun, namesake: SiteRun) -> SeriesRow:
    since, drop = site.last_good_before(run), _drop(series)
    change = None if since is None else score_change(site, since, run)
    if drop is not None:
        change = ScoreChange(drop.moved, drop.se, series.verdict.tasks if series.verdict is not None else 0)
    about = ", ".join(_about(site, series, run, namesake))
    state, is_drop = state_of(series, run), drop is not None
    return SeriesRow(series, run, state, score_words(run.row), change, is_drop, since, _spark(series), about)


def _about(site: Site, series: RunSeries, run: SiteRun, namesake: SiteRun) -> Iterator[str]:
    """The model of a lane, the agent, and what differs from the newest run of another series of the same name."""
    for word in (run.row.model if series.is_lane else None, run.row.agent):
        if word and word != series.name:
            yield word
    if namesake is not run:
        differing = [what for what, _ in moves(site, namesake, run)]
        yield f"not as {namesake.row.name} in {names_shown(differing, 2)}" if differing else run.row.name


def _spark(series: RunSeries) -> Markup | None:
    scored = [run for run in series.runs if run.has_score and run.is_over][-_RUNS_DRAWN:]
    if len(scored) < 2:
        return None
    alarms = {at for at, run in enumerate(scored) if run.slug in series.alarms}
    words = f"score over {counted(len(scored), 'run')}" + (f", {len(alarms)} of them in alarm" if alarms else "")
    return sparkline([run.row.score for run in scored], alarms=alarms, label=words)


def _drawn(rows: Sequence[SeriesRow]) -> list[tuple[RunSeries, Markup, str]]:
    """The series that matter most, with chart and legend: those in alarm, or else the one with the newest run."""
    alarmed = [row.series for row in rows if row.state.kind == "alarm"]
    long = [row.series for row in rows if len(row.series.runs) >= _FEWEST_DRAWN]
    charts = ((series, history_chart(series, OVERVIEW)) for series in (alarmed or long[:1])[:_CHARTS_SHOWN])
    return [(series, chart, chart_legend(series)) for series, chart in charts if chart is not None]


def _tables(rows: Sequence[SeriesRow]) -> dict[str, list[SeriesRow]]:
    """The rows of each dataset; the dataset of the newest run or of an alarm comes first."""
    found: defaultdict[str, list[SeriesRow]] = defaultdict(list)
    for row in rows:
        found[_dataset(row)].append(row)
    return found


def _dataset(row: SeriesRow) -> str:
    return row.run.row.dataset_title or "unknown dataset"


def _matrix(rows: Sequence[SeriesRow]) -> dict[str, Any] | None:
    """Models by datasets with the newest series of each; None where a table of rows says as much."""
    cells: dict[tuple[str, str], SeriesRow] = {}
    for row in rows:
        cells.setdefault((row.run.row.model or row.series.name, _dataset(row)), row)
    models, datasets = (tuple(dict.fromkeys(names)) for names in zip(*cells, strict=True)) if cells else ((), ())
    if len(models) < 2 or len(datasets) < 2 or len(cells) == len(models):
        return None
    return {"models": models, "datasets": datasets, "cells": cells}


def _unfinished(site: Site) -> list[tuple[SiteRun, RunState, str]]:
    """The newest run of each series where that is not over."""
    runs = (series.last for series in site.series if not series.last.is_over)
    return [(run, state_of(site.series_of(run), run), so_far_words(run.row)) for run in runs]


def _drop(series: RunSeries) -> Shift | None:
    """The drop that a series is in alarm for."""
    verdict = series.verdict
    return verdict.drop if verdict is not None and verdict.alarm else None


def _alarms(site: Site) -> Iterator[dict[str, Any]]:
    """The series in alarm, with what speaks for it: from the baseline to the nights since, over the same tasks."""
    for series in site.series:
        if (drop := _drop(series)) is not None:
            yield {
                "series": series,
                "last": series.called(series.judged.nights[-1].name),
                "since": series.called(drop.since.name),
                "drop": drop,
                "now": with_spread(drop.base + drop.moved, None),
                "usual": with_spread(drop.base, None),
                "tasks": [each.task for each in drop.likely[:_TASKS_NAMED]],
                "more": max(0, len(drop.likely) - _TASKS_NAMED),
            }


def _quiet_line(site: Site) -> str:
    """What there is to say where nothing is in alarm; nothing where no series is judged."""
    states = Counter(
        series.verdict.state for series in site.series if series.verdict is not None and len(series.runs) > 1
    )
    known: dict[State, str] = {
        "quiet": "quiet",
        "learning": "learning what is usual",
        "uncovered": "with too few verdicts to be judged",
    }
    parts = [f"{states[state]:,} series {words}" for state, words in known.items() if states[state]]
    return ", ".join(parts)
