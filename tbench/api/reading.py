"""Summaries of stored runs."""

from __future__ import annotations

from pathlib import Path

from tbench.scores.summarise import summarise as summarise_results
from tbench.scores.summary import Summary
from tbench.storage.read_run import StoredRun, read_run


def summarise(run: StoredRun | Path | str) -> Summary:
    """The summary of a stored run, or of the run in a directory: what `tbench summary --json` prints.

    Raises RunUnreadable, a ValueError.
    """
    stored = run if isinstance(run, StoredRun) else read_run(Path(run))
    return summary_of(stored)


def summary_of(stored: StoredRun, *, population: bool = False) -> Summary:
    """The same of a run that has been read; `population` makes the +- a population std. Raises MixedResults."""
    return summarise_results(
        stored.results,
        stored.planned_tasks,
        stored.planned_seeds,
        population=population,
        overrides=stored.overrides,
        dataset=stored.dataset,
        broken_rules=stored.broken_rules,
    )
