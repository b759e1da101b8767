"""Links of the page of a run: to pages of a site, or to the files of trials in the run directory."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from reports.page_paths import relative_url, run_page, task_page, trial_page
from tbench.scores.summary import Cell, Status, Summary
from tbench.storage.read_run import StoredRun
from tbench.storage.run_files import (
    RECORDING_NAME,
    TRAJECTORY_NAME,
    TRIAL_RESULT_NAME,
    inside_trials,
    step_directory,
    trial_directory,
)

_TRIAL_FILES = {
    "result": TRIAL_RESULT_NAME,
    "trajectory": TRAJECTORY_NAME,
    "recording": RECORDING_NAME,
    "verifier output": "verifier/stdout.txt",
}
_BEST_FIRST = ("trajectory", "verifier output", "result", "recording")
MANY_TRIALS = 3_000
"""Number of trials above which they are not listed one by one, so that a browser can still open the page."""


class FileLink(NamedTuple):
    """Link to something that belongs to a trial, relative to the page."""

    label: str
    href: str


class SiteLinks:
    """Links from the page of a run in a site."""

    def __init__(self, slug: str, run: StoredRun) -> None:
        self._slug, self._here = slug, run_page(slug)
        self._attempts: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
        for result in run.results:
            self._attempts[result.task, result.seed].add(result.attempt)

    def task(self, name: str) -> str | None:
        """Return the page of a task over all runs."""
        return relative_url(self._here, task_page(name))

    def page(self, name: str, cell: Cell) -> str | None:
        """Return the page of a trial."""
        return None if cell.status is Status.MISSING else self._attempt(name, cell.seed, cell.attempt)

    trial = page

    def _attempt(self, name: str, seed: int, attempt: int) -> str:
        return relative_url(self._here, trial_page(self._slug, name, seed, attempt))

    def files(self, name: str, cell: Cell, step: str | None = None) -> Iterator[FileLink]:
        """Yield the pages of the trial's other attempts that have a result."""
        if step is None:
            for attempt in sorted(self._attempts[name, cell.seed] - {cell.attempt}):
                yield FileLink(f"attempt {attempt}", self._attempt(name, cell.seed, attempt))


class FileLinks:
    """Links from a self-contained page to its own list of trials, and to the files in the run directory."""

    def __init__(self, run_dir: Path, page_dir: Path, summary: Summary) -> None:
        self._run, self._page_dir = run_dir.resolve(), page_dir.resolve()
        is_listed = summary.counts.planned <= MANY_TRIALS
        self._lines: Mapping[str, int] = {row.task: at for at, row in enumerate(summary.tasks) if is_listed}

    def task(self, name: str) -> str | None:
        return None

    def page(self, name: str, cell: Cell) -> str | None:
        return None

    def trial(self, name: str, cell: Cell) -> str | None:
        """Return the link to a trial's line in the list, or else to its best file; None without either."""
        if cell.status is Status.MISSING:
            return None
        if name in self._lines:
            return f"#trial-{self._lines[name]}-{cell.seed}"
        found = {each.label: each.href for each in self.files(name, cell)}
        return next((found[label] for label in _BEST_FIRST if label in found), None)

    def files(self, name: str, cell: Cell, step: str | None = None) -> Iterator[FileLink]:
        """Yield links to files that exist inside the run directory."""
        if cell.status is Status.MISSING or not name.isprintable():
            return
        trial = trial_directory(self._run, name, cell.seed, cell.attempt)
        if step is not None:
            trial = step_directory(trial, step)
        if inside_trials(self._run, trial) is None:
            return
        for label, file in _TRIAL_FILES.items():
            if (trial / file).is_file():
                yield FileLink(label, quote(os.path.relpath(trial / file, self._page_dir)))


RunLinks = SiteLinks | FileLinks
"""Targets that the page of a run can link to."""
