"""The Atom feed of alarms."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from reports.look import page
from reports.names import FEED, night_page
from reports.site.content import RunSeries, Site, SiteRun
from reports.site.judging import AlarmSpan

_SHOWN = 100
_SPACE = uuid.UUID("5b0f6a52-6f0e-5d0e-9a57-5d5f1b6f7c19")
"""What the ids of entries are made with; another one would make all alarms new to everybody."""
_NEVER = "1970-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class FeedEntry:
    """An alarm, or the end of one."""

    id: str
    """The same for the same alarm, whenever the feed is written."""
    kind: str
    """`alarm` or `over`."""
    title: str
    updated: str
    """When the run began at which it happened."""
    page: str
    lines: tuple[str, ...]


def render(site: Site) -> str:
    """The feed as XML: an entry for each alarm of each series, and one for its end."""
    found = [
        entry for series in site.series for span in series.judged.alarms for entry in _of_alarm(site, series, span)
    ]
    entries = sorted(found, key=lambda entry: (entry.updated, entry.id), reverse=True)[:_SHOWN]
    begun = [run.row.begun_at for run in site.runs if run.row.begun_at]
    updated = entries[0].updated if entries else max(begun, default=_NEVER)
    first = site.runs[-1] if site.runs else None
    return page("feed.xml.j2", FEED, id=_id("feed", *_told(first)), updated=updated, entries=entries)


def _of_alarm(site: Site, series: RunSeries, span: AlarmSpan) -> Iterator[FeedEntry]:
    first = series.called(span.first)
    yield _entry(site, series, first, "alarm", f"{series.name}: lower since {span.low[0]}")
    if span.over is not None:
        yield _entry(
            site, series, series.called(span.over), "over", f"{series.name}: the alarm of {span.first} is over"
        )


def _entry(site: Site, series: RunSeries, run: SiteRun, kind: str, title: str) -> FeedEntry:
    verdict = site.verdict_at(run)
    lines = verdict.lines() if verdict is not None else ()
    own_id = _id(kind, series.key, *_told(run))
    return FeedEntry(own_id, kind, title, run.row.begun_at or _NEVER, night_page(run.night), lines)


def _told(run: SiteRun | None) -> tuple[str, ...]:
    return (run.row.name, run.row.begun_at or "") if run is not None else ()


def _id(*words: str) -> str:
    return uuid.uuid5(_SPACE, "\n".join(words).encode("utf-8", "replace").decode()).urn
