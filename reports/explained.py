"""Explanations for pages, unless they would take too long or a run cannot be explained."""

from __future__ import annotations

from collections.abc import Callable

from tbench.errors import TbenchError
from tbench.explaining.explanation import Explanation

MAX_TRIALS = 20_000
"""Number of a run's trials above which pages have no explanation, because making it would take seconds."""


def explanation_for_page(planned: int, explain: Callable[[], Explanation]) -> Explanation | None:
    """Return an explanation of runs of at most `planned` trials; None without results, or with too many trials."""
    try:
        return explain() if planned <= MAX_TRIALS else None
    except TbenchError:
        return None
