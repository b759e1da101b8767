"""Trials of a run and the files of their pages, for tests."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from run_trees import a_result, write_run
from site_pages import PageText
from site_pages_of_runs import script_value
from written_trials import WrittenTrial, write_files_of

from harness.trajectory import Step
from reports.site.writer import write_site
from tbench.results import TrialResult
from tbench.storage.run_files import trial_directory


@dataclass(frozen=True, slots=True)
class WrittenPage:
    """Page of a trial, and the data of its sections."""

    html: str
    sections: list[dict[str, Any]]

    @property
    def words(self) -> str:
        """Text of the page on one line; fails if the page is not well-formed."""
        return " ".join(PageText(self.html).text.split())

    def lines(self, section: int = 0) -> list[Any]:
        """Return the lines of a section: prompt, steps, and events of the recording."""
        return [json.loads(line) for line in self.sections[section]["lines"].split("\n") if line]

    def steps(self, section: int = 0) -> list[dict[str, Any]]:
        """Return the texts of a section's steps."""
        return [line for line in self.lines(section) if isinstance(line, dict) and "n" in line]


def no_change(_: Path) -> None:
    """Leave the files of a trial as they are."""


def page_of(
    folder: Path,
    trial: WrittenTrial | None = None,
    result: TrialResult | None = None,
    change: Callable[[Path], None] = no_change,
) -> WrittenPage:
    """The page of a trial that is alone in its run; `change` may spoil its directory before."""
    result = result or a_result("task", 0, 0.0)
    run = write_run(folder / "runs" / "run", [result], {result.task: "sha256:t"}, (result.seed,))
    change(write_files_of(run, result, trial or WrittenTrial()))
    return written_page(folder)


def written_page(folder: Path, name: str = "task--0") -> WrittenPage:
    """The page of a trial of the run called run, in the site of all runs of `folder`."""
    place = write_site([folder / "runs"], folder / "site").overview.parent / "runs" / "run"
    return trials_in(place)[name]


def trials_in(place: Path) -> dict[str, WrittenPage]:
    """Return the trials in the folder of a run's pages, by name."""
    found = {}
    for at, names in enumerate(script_value((place / "trials.js").read_text(), f"trials {place.name}")):
        packed = script_value((place / f"trials-{at}.js").read_text(), f"trials {place.name} {at}")
        lines = gzip.decompress(base64.b64decode(packed)).decode().split("\n")
        found |= {name: WrittenPage(**json.loads(line)) for name, line in zip(names, lines, strict=True)}
    return found


def write_steps(run: Path, result: TrialResult, steps: Sequence[Step]) -> Path:
    """Write the directory of a trial with nothing but these steps."""
    directory = trial_directory(run, result.task, result.seed, result.attempt)
    directory.mkdir(parents=True)
    (directory / "steps.jsonl").write_text("".join(f"{step.model_dump_json()}\n" for step in steps))
    return directory
