"""Explanations for pages: where a run lost its points, and the parts of the difference between two runs."""

from __future__ import annotations

from collections.abc import Callable

from reports.site.content import Site, SiteRun
from tbench.errors import TbenchError
from tbench.explaining.explain import explain_change, explain_side
from tbench.explaining.explanation import Explanation
from tbench.explaining.trials import Side

MAX_TRIALS = 20_000
"""Trials of a run above which pages have no explanation, which would take seconds."""


def explain_run(planned: int, side: Callable[[], Side]) -> Explanation | None:
    """Return where a run of `planned` trials lost its points; None without results, or with too many trials."""
    if planned > MAX_TRIALS:
        return None
    try:
        return explain_side(side(), listed=0)
    except TbenchError:
        return None


def explain_pair(site: Site, old: SiteRun, new: SiteRun) -> Explanation | None:
    """Return the parts of the difference between two runs; None if they cannot be explained, or are too large."""
    if max(old.row.planned, new.row.planned) > MAX_TRIALS:
        return None
    try:
        return explain_change(site.side(old), site.side(new))
    except TbenchError:
        return None
