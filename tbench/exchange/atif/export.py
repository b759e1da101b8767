"""Writes the trajectories of a run as ATIF documents, one file for each conversation."""

from __future__ import annotations

from pathlib import Path

from tbench.exchange.atif.document import atif_document
from tbench.exchange.chosen import LeftOut, TrialChoice, exported_trials
from tbench.files import safe_relative, write_json
from tbench.storage.read_run import StoredRun
from tbench.storage.run_files import TRAJECTORY_NAME


def write_atif(run: StoredRun, choice: TrialChoice, directory: Path, left_out: LeftOut) -> int:
    """Write the chosen trials below `directory` at the places that they have in the run, and return how many.

    A trial whose task has several steps has a file for each. Raises OSError.
    """
    written = 0
    for trial in exported_trials(run, choice, left_out):
        documents = [(part, atif_document(trial, part)) for part in trial.parts]
        found = [(part, document) for part, document in documents if document is not None]
        for part, document in found:
            place = safe_relative(str(part.directory.relative_to(run.path)))
            write_json(directory / place / TRAJECTORY_NAME, document)
        if found:
            written += 1
        else:
            left_out.add("in which nothing was said")
    return written
