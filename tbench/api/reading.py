"""Summaries of stored runs."""

from __future__ import annotations

from pathlib import Path

from tbench.scores.summary import Summary
from tbench.storage.read_run import StoredRun
from tbench.storage.summaries import read_summary, summary_of


def summarise(run: StoredRun | Path | str) -> Summary:
    """The summary of a stored run, or of the run in a directory: what `tbench summary --json` prints.

    Raises RunUnreadable, a ValueError.
    """
    return summary_of(run) if isinstance(run, StoredRun) else read_summary(Path(run))[1]
