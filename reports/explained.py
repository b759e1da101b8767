"""Explanations for pages: where a run lost its points, and the parts of the difference between two runs."""

from __future__ import annotations

from reports.site.content import SiteRun
from tbench.errors import TbenchError
from tbench.explaining.explain import explain, explain_side
from tbench.explaining.explanation import Explanation
from tbench.explaining.trials import side_of
from tbench.storage.read_run import StoredRun

MAX_TRIALS = 20_000
"""Trials of a run above which pages have no explanation, which would take seconds."""


def explain_run(run: StoredRun) -> Explanation | None:
    """Return where a run that was read lost its points; None for a run without results, or with too many."""
    if run.planned > MAX_TRIALS:
        return None
    try:
        return explain_side(side_of(run), listed=0)
    except TbenchError:
        return None


def explain_pair(old: SiteRun, new: SiteRun) -> Explanation | None:
    """Return the parts of the difference between two runs; None if they cannot be explained, or are too large."""
    if max(old.row.planned, new.row.planned) > MAX_TRIALS:
        return None
    try:
        return explain(new.row.path, old.row.path, listed=0)
    except TbenchError:
        return None
