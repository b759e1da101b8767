"""Where the page of a run leads: to the pages of a site, or to the files of trials that lie beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from reports.names import relative_url, task_page, trial_page
from tbench.scores.summary import Cell, Status
from tbench.storage.run_files import (
    TRAJECTORY_NAME,
    TRIAL_RESULT_NAME,
    step_directory,
    trial_directory,
)

_TRIAL_FILES = {
    "result": TRIAL_RESULT_NAME,
    "trajectory": TRAJECTORY_NAME,
    "recording": "session.cast",
    "verifier output": "verifier/stdout.txt",
}
_BEST_FIRST = ("trajectory", "verifier output", "result", "recording")
MANY_TRIALS = 3_000
"""Trials above which none has a line of its own, so that a browser still opens the page."""


@dataclass(frozen=True, slots=True)
class FileLink:
    """Something that belongs to a trial, as a URL relative to the page."""

    label: str
    href: str


class RunLinks(Protocol):
    """What the page of a run can lead to."""

    @property
    def has_pages(self) -> bool:
        """Whether trials have pages of their own."""
        ...

    def task(self, name: str) -> str | None:
        """The page of a task over all runs."""
        ...

    def trial(self, name: str, cell: Cell) -> str | None:
        """The page of a trial, or else the best file of it; None where it has neither."""
        ...

    def files(self, name: str, cell: Cell, step: str | None = None) -> Iterator[FileLink]:
        """What there is of a trial beside its own page, or of one step of its task."""
        ...


@dataclass(frozen=True, slots=True)
class SiteLinks:
    """Links from the page of a run in a site."""

    run: str
    """The run's slug."""
    here: str
    attempts: Mapping[tuple[str, int], Sequence[int]]
    """Attempts that have a result, by task and seed."""
    has_pages: bool = True

    def task(self, name: str) -> str | None:
        return relative_url(self.here, task_page(name))

    def trial(self, name: str, cell: Cell) -> str | None:
        if cell.status is Status.MISSING:
            return None
        return relative_url(self.here, trial_page(self.run, name, cell.seed, cell.attempt))

    def files(self, name: str, cell: Cell, step: str | None = None) -> Iterator[FileLink]:
        """Its other attempts, which have pages of their own."""
        if step is not None:
            return
        for attempt in self.attempts.get((name, cell.seed), ()):
            if attempt != cell.attempt:
                page = trial_page(self.run, name, cell.seed, attempt)
                yield FileLink(f"attempt {attempt}", relative_url(self.here, page))


class FilesBeside:
    """Links from a page of its own to the files in the run's directory."""

    has_pages = False

    def __init__(self, run_dir: Path, page_dir: Path) -> None:
        self._run = run_dir.resolve()
        self._trials = (run_dir / "trials").resolve()
        self._page_dir = page_dir.resolve()

    def task(self, name: str) -> str | None:
        return None

    def trial(self, name: str, cell: Cell) -> str | None:
        found = {each.label: each.href for each in self.files(name, cell)}
        return next((found[label] for label in _BEST_FIRST if label in found), None)

    def files(self, name: str, cell: Cell, step: str | None = None) -> Iterator[FileLink]:
        """Links to the files that exist, and only to files inside the run: names of tasks and steps may hold `..`."""
        if cell.status is Status.MISSING or not name.isprintable():
            return
        trial = trial_directory(self._run, name, cell.seed, cell.attempt)
        if step is not None:
            trial = step_directory(trial, step)
        if not trial.resolve().is_relative_to(self._trials):
            return
        for label, file in _TRIAL_FILES.items():
            if (trial / file).is_file():
                yield FileLink(label, quote(os.path.relpath(trial / file, self._page_dir)))
