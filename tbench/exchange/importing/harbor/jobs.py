"""Imports jobs and trials of Harbor as runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tbench.exchange.importing.choosing import ImportChoice
from tbench.exchange.importing.harbor.job import JobImport, read_job
from tbench.exchange.importing.harbor.places import find_jobs
from tbench.exchange.importing.report import Imported, mean_lines, size_line
from tbench.exchange.importing.writing import directories, write_runs


def import_harbor(
    paths: Sequence[Path], output: Path | None, choice: ImportChoice, metric: str | None = None
) -> list[Imported]:
    """Import jobs, directories of jobs, or trials; each job becomes a run, or one per model.

    `output` is the run's directory, or where there are several the one above them; `runs/` by default. `metric` is the
    reward that counts, of several. Raises UsageError; then nothing was written.
    """
    runs = [each for job in find_jobs(paths) for each in read_job(job, choice, metric)]
    places = directories([each.plan.run for each in runs], output)
    write_runs([each.as_new(place) for each, place in zip(runs, places, strict=True)])
    return [_told(each, place) for each, place in zip(runs, places, strict=True)]


def _told(run: JobImport, directory: Path) -> Imported:
    lines = [size_line(run.plan, run.results), *mean_lines(run.plan, run.results, run.mean, run.zeros)]
    return Imported(directory, tuple(lines), tuple(run.notes))
