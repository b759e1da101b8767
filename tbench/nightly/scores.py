"""The summary of a night's run, out of its directory."""

from __future__ import annotations

from pathlib import Path

from tbench.scores.summarise import summarise
from tbench.scores.summary import Summary
from tbench.storage.read_run import read_run


def score_of(run: Path) -> Summary:
    """Sum up a stored run. Raises RunUnreadable, MixedResults."""
    stored = read_run(run)
    return summarise(
        stored.results,
        stored.planned_tasks,
        stored.planned_seeds,
        overrides=stored.overrides,
        dataset=stored.dataset,
        broken_rules=stored.broken_rules,
    )
