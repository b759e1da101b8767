"""The page that compares two runs, and the one on which any two can be chosen."""

from __future__ import annotations

from reports.comparison.choice import comparison_choice, rewards_data
from reports.comparison.view import comparison_view
from reports.look import Crumb, page
from reports.names import COMPARE, compare_page
from reports.script_data import assignment
from reports.site.content import Site, SiteRun


def render(site: Site, old: SiteRun, new: SiteRun) -> str:
    """The page of two runs, task by task."""
    here = compare_page(old.slug, new.slug)
    crumbs = [Crumb("compare", COMPARE), Crumb(new.row.name)]
    return page("compare/pair.html.j2", here, crumbs=crumbs, view=comparison_view(site, old, new))


def render_choice(site: Site) -> str:
    """The page on which two runs are chosen."""
    return page("compare/choice.html.j2", COMPARE, crumbs=[Crumb("compare")], choice=comparison_choice(site))


def data(site: Site, run: SiteRun) -> str:
    """The script with a run's rewards, for the page on which two runs are chosen."""
    return assignment(f"rewards {run.slug}", rewards_data(site, run))
