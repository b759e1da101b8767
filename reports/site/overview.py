"""The overview: scores of all models on all datasets, and their changes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from reports.charts import sparkline
from reports.page_frame import Crumb, page
from reports.page_paths import OVERVIEW, SERIES
from reports.site.changes import ScoreChange, known_differences, score_change
from reports.site.content import RunSeries, Site, SiteRun, name_with_agent
from reports.site.night import night_lines
from reports.site.series import chart_legend, history_chart
from reports.site.states import RunState, drop_text, progress_text, score_text, state_of
from tbench.scores.gate.verdict import Shift, State
from tbench.text import counted, names_text

_NIGHTS_SHOWN, _SERIES_SHOWN = 10, 60
_PROXIES_SHOWN = 30
_RUNS_DRAWN = 60
"""Number of newest runs of a series in its sparkline."""
_TASKS_NAMED = 5
_CHARTS_SHOWN, _FEWEST_DRAWN = 2, 3


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """Series with its newest finished run."""

    series: RunSeries
    run: SiteRun
    state: RunState
    score: str
    change: ScoreChange | None
    """Change since the last good run or, if `is_drop`, the drop that raised the alarm; None without either."""
    is_drop: bool
    since: SiteRun | None
    """Last good run before `run`."""
    spark: Markup | None
    """None for a single run."""
    about: str
    """Distinguishes series of the same name; may be empty."""


def render(site: Site) -> str:
    """Render the start page of a site."""
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
        matrices=list(_matrices(newest_first[:_SERIES_SHOWN])),
        unfinished=_unfinished(site)[:_SERIES_SHOWN],
        nights=lines,
        open_months=1,
        nights_more=len(site.nights) - len(lines),
        proxies=proxies[:_PROXIES_SHOWN],
        proxies_more=max(0, len(proxies) - _PROXIES_SHOWN),
    )


def render_series(site: Site) -> str:
    """Render the page with all series."""
    tables = _tables(_alarms_first(_rows(site)))
    return page("all_series.html.j2", SERIES, crumbs=[Crumb("series")], tables=tables)


def _alarms_first(rows: Sequence[SeriesRow]) -> list[SeriesRow]:
    return sorted(rows, key=lambda row: row.state.kind != "alarm")


def _rows(site: Site) -> list[SeriesRow]:
    """Return the series that have a finished run, with the newest run's series first."""
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
    return SeriesRow(series, run, state, score_text(run.row), change, is_drop, since, _spark(series), about)


def _about(site: Site, series: RunSeries, run: SiteRun, namesake: SiteRun) -> Iterator[str]:
    """Yield the model of a nightly series, the agent, and the differences from another series of the same name."""
    for word in (run.row.model if series.is_nightly else None, run.row.agent):
        if word and series.name not in (word, name_with_agent(run.row.model or "", word)):
            yield word
    if namesake is not run:
        differing = [name for name, _ in known_differences(site, namesake, run)]
        yield f"differs from {namesake.row.name} in {names_text(differing, 2)}" if differing else run.row.name


def _spark(series: RunSeries) -> Markup | None:
    scored = [run for run in series.runs if run.has_score and run.is_over][-_RUNS_DRAWN:]
    if len(scored) < 2:
        return None
    alarms = {at for at, run in enumerate(scored) if run.slug in series.alarms}
    words = f"score over {counted(len(scored), 'run')}" + (f", {len(alarms)} of them in alarm" if alarms else "")
    return sparkline([run.row.score for run in scored], alarms=alarms, label=words)


def _drawn(rows: Sequence[SeriesRow]) -> list[tuple[RunSeries, Markup, str]]:
    """Return the series in alarm, or else the one with the newest run, with chart and legend."""
    alarmed = [row.series for row in rows if row.state.kind == "alarm"]
    long = [row.series for row in rows if len(row.series.runs) >= _FEWEST_DRAWN]
    charts = ((series, history_chart(series, OVERVIEW)) for series in (alarmed or long[:1])[:_CHARTS_SHOWN])
    return [(series, chart, chart_legend(series)) for series, chart in charts if chart is not None]


def _tables(rows: Sequence[SeriesRow]) -> dict[str, list[SeriesRow]]:
    """Return the rows of each dataset; the dataset of an alarm or of the newest run comes first."""
    found: defaultdict[str, list[SeriesRow]] = defaultdict(list)
    for row in rows:
        found[_dataset(row)].append(row)
    return found


def _dataset(row: SeriesRow) -> str:
    return row.run.row.dataset_title or "unknown dataset"


def _matrices(rows: Sequence[SeriesRow]) -> Iterator[dict[str, Any]]:
    """Yield tables with the newest series of each pair: models by datasets, and agents by models on each dataset.

    No table is made where the list of series is enough.
    """
    cells = _newest(rows, lambda row: (row.run.row.model or row.series.name, _dataset(row)))
    models, datasets = _names(cells)
    if len(models) > 1 and len(datasets) > 1 and len(cells) > len(models):
        yield {"title": "Models and datasets", "of": "Model", "rows": models, "columns": datasets, "cells": cells}
    for dataset in dict.fromkeys(map(_dataset, rows)):
        asking = [row for row in rows if _dataset(row) == dataset and row.run.row.agent and row.run.row.model]
        cells = _newest(asking, lambda row: (row.run.row.agent or "", row.run.row.model or ""))
        agents, models = _names(cells)
        if len(agents) > 1:
            title = f"Agents and models: {dataset}"
            yield {"title": title, "of": "Agent", "rows": agents, "columns": models, "cells": cells}


def _newest(rows: Sequence[SeriesRow], key: Callable[[SeriesRow], tuple[str, str]]) -> dict[tuple[str, str], SeriesRow]:
    """Return the newest row of each key, which is the first one."""
    cells: dict[tuple[str, str], SeriesRow] = {}
    for row in rows:
        cells.setdefault(key(row), row)
    return cells


def _names(cells: Iterable[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """Return the names of a table's rows and columns, each once."""
    pairs = list(cells)
    return list(dict.fromkeys(row for row, _ in pairs)), list(dict.fromkeys(column for _, column in pairs))


def _unfinished(site: Site) -> list[tuple[SiteRun, RunState, str]]:
    """Return the newest run of each series if it has not finished."""
    runs = (series.last for series in site.series if not series.last.is_over)
    return [(run, state_of(site.series_of(run), run), progress_text(run.row)) for run in runs]


def _drop(series: RunSeries) -> Shift | None:
    """Return the drop for which a series is in alarm."""
    verdict = series.verdict
    return verdict.drop if verdict is not None and verdict.alarm else None


def _alarms(site: Site) -> Iterator[dict[str, Any]]:
    """Yield the series in alarm with the evidence: the baseline and the nights since, over the same tasks."""
    for series in site.series:
        if (drop := _drop(series)) is not None:
            last = series.run_named(series.judged.nights[-1].name)
            yield {
                "series": series,
                "last": last,
                "since": series.run_named(drop.since.name),
                "drop": drop,
                "words": drop_text(drop),
                "now": score_text(last.row),
                "tasks": [each.task for each in drop.likely[:_TASKS_NAMED]],
                "more": max(0, len(drop.likely) - _TASKS_NAMED),
            }


def _quiet_line(site: Site) -> str:
    """Return the states of all judged series in one line; empty if no series is judged."""
    states = Counter(
        series.verdict.state for series in site.series if series.verdict is not None and len(series.runs) > 1
    )
    known: dict[State, str] = {
        "quiet": "quiet",
        "learning": "still learning a baseline",
        "uncovered": "with too few verdicts to be judged",
    }
    parts = [f"{states[state]:,} series {words}" for state, words in known.items() if states[state]]
    return ", ".join(parts)
