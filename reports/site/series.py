"""The page of a series (its score over time and its runs), and the Atom feed of alarms."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup

from reports.page_frame import Crumb, page, time_text
from reports.page_paths import FEED, SERIES, relative_url
from reports.score_history import ScorePoint, score_history
from reports.site.content import AlarmSpan, RunSeries, Site, SiteRun
from reports.site.night import score_or_progress
from reports.site.states import score_text, state_of
from tbench.scores.gate.verdict import JudgedNight
from tbench.text import counted

# The page of a series: its score over time, and its runs.


def render(site: Site, series: RunSeries) -> str:
    """Render the page of a series."""
    runs = [
        (run, state_of(series, run), score_or_progress(run), series.judged_night(run)) for run in reversed(series.runs)
    ]
    return page(
        "series.html.j2",
        series.page,
        crumbs=[Crumb("series", SERIES), Crumb(series.name)],
        series=series,
        last=series.last_over,
        state=state_of(series, series.last),
        runs=runs,
        has_cost=any(run.row.cost is not None for run in series.runs),
        chart=history_chart(series, series.page),
        score=score_text(series.last_over.row) if series.last_over is not None else "",
        legend=chart_legend(series),
        verdict_lines=_verdict_lines(series),
    )


def history_chart(series: RunSeries, here: str) -> Markup | None:
    """Draw the score over time, for the page at `here`; None if fewer than two runs have a score."""
    scored = [run for run in series.runs if run.has_score and run.is_over]
    if len(scored) < 2:
        return None
    verdict = series.verdict
    return score_history(
        [_point(series, run, here) for run in scored],
        base_mean=verdict.base_mean if verdict is not None else None,
        base_sd=verdict.sd if verdict is not None else None,
        change_at=_change_at(series, scored),
        label=f"{series.name}: the score over {counted(len(scored), 'run')}",
    )


def _point(series: RunSeries, run: SiteRun, here: str) -> ScorePoint:
    found = series.judged_night(run)
    score = found.score if found is not None and found.score is not None else run.row.score
    words = [series.names[run.slug], score_text(run.row), time_text(run.row.begun_at), state_of(series, run).label]
    return ScorePoint(
        label=(run.row.begun_at or "")[5:10] if _is_day(run.night) else run.night,
        score=score,
        se=_noise(run, found),
        href=relative_url(here, run.night_page),
        title=" · ".join(words),
        alarm=run.slug in series.alarms,
        coverage=run.row.coverage,
    )


def _noise(run: SiteRun, found: JudgedNight | None) -> float | None:
    """Return the standard error of a score for fixed tasks, from its seeds; for one seed, the gate's estimate."""
    if run.row.score_std is not None:
        return run.row.score_std / math.sqrt(len(run.row.per_seed))
    return found.sd if found is not None else None


def _is_day(night: str) -> bool:
    return len(night) == 10 and night[4:5] == night[7:8] == "-"


def _change_at(series: RunSeries, runs: Sequence[SiteRun]) -> int | None:
    """Return the index of the run at which the drop of the last alarm began."""
    if not series.judged.alarms:
        return None
    since = series.judged.alarms[-1].drop[0]
    return next((at for at, run in enumerate(runs) if series.names[run.slug] == since), None)


def chart_legend(series: RunSeries) -> str:
    """Return the legend of the history chart."""
    words = ["Each point is a run, with its 95 % interval for these tasks"]
    if series.verdict is not None and series.verdict.base_mean is not None:
        words.append("the dashed line is the baseline, with its chance variation from night to night")
    if series.alarms:
        words.append("a triangle marks a night in alarm, the vertical line where the drop likely began")
    return f"{'; '.join(words)}."


def _verdict_lines(series: RunSeries) -> tuple[str, ...]:
    """Return the lines of the gate's verdict, without the prefix of the first."""
    if series.verdict is None or len(series.runs) == 1:
        return ()
    first, *others = series.verdict.lines()
    return (first.removeprefix("gate: "), *others)


# The Atom feed of alarms.

_SHOWN = 100
_SPACE = uuid.UUID("5b0f6a52-6f0e-5d0e-9a57-5d5f1b6f7c19")
"""Namespace of the entries' ids; with a different one, all alarms would look new to feed readers."""
_NEVER = "1970-01-01T00:00:00Z"


def render_feed(site: Site) -> str:
    """Render the feed as XML: an entry for each alarm of each series, and one for its end."""
    found = [
        entry for series in site.series for span in series.judged.alarms for entry in _alarm_entries(site, series, span)
    ]
    entries = sorted(found, key=lambda entry: (entry["updated"], entry["id"]), reverse=True)[:_SHOWN]
    begun = [run.row.begun_at for run in site.runs if run.row.begun_at]
    updated = entries[0]["updated"] if entries else max(begun, default=_NEVER)
    first = site.runs[-1] if site.runs else None
    return page("feed.xml.j2", FEED, id=_id("feed", *_run_identity(first)), updated=updated, entries=entries)


def _alarm_entries(site: Site, series: RunSeries, span: AlarmSpan) -> Iterator[dict[str, Any]]:
    first = series.run_named(span.first)
    yield _entry(site, series, first, "alarm", f"{series.name}: lower since {span.drop[0]}")
    if span.ended_at is not None:
        yield _entry(
            site, series, series.run_named(span.ended_at), "over", f"{series.name}: the alarm of {span.first} is over"
        )


def _entry(site: Site, series: RunSeries, run: SiteRun, kind: str, title: str) -> dict[str, Any]:
    """Return the entry of an alarm or of its end. Its id is the same whenever the feed is written."""
    verdict = site.verdict_at(run)
    return {
        "id": _id(kind, series.key, *_run_identity(run)),
        "kind": kind,
        "title": title,
        "updated": run.row.begun_at or _NEVER,
        "page": run.night_page,
        "lines": verdict.lines() if verdict is not None else (),
    }


def _run_identity(run: SiteRun | None) -> tuple[str, ...]:
    return (run.row.name, run.row.begun_at or "") if run is not None else ()


def _id(*words: str) -> str:
    return uuid.uuid5(_SPACE, "\n".join(words).encode("utf-8", "replace").decode()).urn
