"""The page of a run in a site."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from reports.look import Crumb, page
from reports.names import compare_page, night_page, run_page
from reports.run.links import SiteLinks
from reports.run.view import run_view
from reports.site.changes import score_change
from reports.site.content import RunSeries, Site, SiteRun
from reports.site.states import RunState, state_of
from tbench.scores.summary import Summary
from tbench.storage.read_run import StoredRun


@dataclass(frozen=True, slots=True)
class RunPlace:
    """A run among the others of a site."""

    series: RunSeries
    night: str
    night_page: str
    state: RunState
    before: str | None
    """The last good run before it in its series."""
    compare_page: str | None
    moved: float | None
    """How the score has changed over what both planned; None while this one is not over."""

    @property
    def is_marked(self) -> bool:
        """Whether the series says of it what its own headline does not."""
        return self.state.is_loud and self.state.kind not in ("cut", "broken")


def render(site: Site, run: SiteRun, stored: StoredRun, summary: Summary) -> str:
    """The page of a run in a site."""
    here = run_page(run.slug)
    view = run_view(stored, summary, SiteLinks(run.slug, here, _attempts(stored)))
    place = _place(site, run, is_over=view.headline.state is None)
    return page("run.html.j2", here, crumbs=[Crumb(run.row.name)], view=view, place=place)


def surroundings(site: Site, run: SiteRun) -> str:
    """What the page of a run says of others than the run itself, in a line: another one, and it is written anew."""
    series, before = site.series_of(run), site.last_good_before(run)
    place = (series.name, series.page, run.night, state_of(series, run).kind)
    return repr((*place, before.slug if before else None, before.row.score if before else None))


def _attempts(stored: StoredRun) -> dict[tuple[str, int], list[int]]:
    """The attempts that have a result, by task and seed."""
    found: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for result in stored.results:
        found[result.task, result.seed].add(result.attempt)
    return {trial: sorted(attempts) for trial, attempts in found.items()}


def _place(site: Site, run: SiteRun, *, is_over: bool) -> RunPlace:
    series, before = site.series_of(run), site.last_good_before(run)
    change = score_change(site, before, run) if before is not None and is_over else None
    return RunPlace(
        series=series,
        night=run.night,
        night_page=night_page(run.night),
        state=state_of(series, run),
        before=before.row.name if before is not None else None,
        compare_page=compare_page(before.slug, run.slug) if before is not None else None,
        moved=None if change is None else change.points,
    )
