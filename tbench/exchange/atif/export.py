"""Writes the trajectories of a run as ATIF documents, one file for each conversation."""

from __future__ import annotations

from pathlib import Path

from tbench.exchange.atif.document import AtifFields, atif_document, linear_documents, segment_name
from tbench.exchange.chosen import ExportedPart, ExportedTrial, LeftOut, TrialChoice, exported_trials
from tbench.files import safe_relative, write_json
from tbench.storage.read_run import StoredRun


def write_atif(run: StoredRun, choice: TrialChoice, directory: Path, left_out: LeftOut, *, linear: bool = False) -> int:
    """Write the chosen trials below `directory` at the places that they have in the run, and return how many.

    A trial whose task has several steps has a file for each; with `linear` each context has its own. Raises OSError.
    """
    written = 0
    for trial in exported_trials(run, choice, left_out):
        said = 0
        for part in trial.parts:
            place = directory / safe_relative(str(part.directory.relative_to(run.path)))
            for number, document in enumerate(_documents(trial, part, linear=linear)):
                write_json(place / segment_name(number), document)
                said += 1
        written += bool(said)
        if not said:
            left_out.add("in which nothing was said")
    return written


def _documents(trial: ExportedTrial, part: ExportedPart, *, linear: bool) -> list[AtifFields]:
    if linear:
        return linear_documents(trial, part)
    document = atif_document(trial, part)
    return [] if document is None else [document]
