"""Writes imported runs: beside their place, and renamed when all of them are whole; nothing is overwritten."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tbench.errors import UsageError
from tbench.files import safe_relative, write_json
from tbench.results import TrialResult
from tbench.storage.imported_plan import ImportedPlan
from tbench.storage.lines import LineFile
from tbench.storage.run_files import CONFIG_NAME, RESULTS_NAME, trial_directory
from tbench.storage.staging import new_directory

_RUNS = Path("runs")
WriteTrials = Callable[[Path], Iterable[TrialResult]]
"""Writes the files of all trials of a run below a directory, and yields the results as they come."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run that is to be written."""

    directory: Path
    plan: ImportedPlan
    trials: WriteTrials


def directories(names: Sequence[str], output: Path | None) -> list[Path]:
    """Where runs of these names go: one to `output`, several below it; else to `runs/`. Raises UsageError."""
    if len(names) == 1:
        return [output or _RUNS / safe_relative(names[0])]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UsageError(f"several runs would be called {twice[0]!r}; import them one by one, each with its own -o")
    return [(output or _RUNS) / safe_relative(name.replace("/", "-")) for name in names]


def now() -> str:
    """The time of an import, as run.json has it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_runs(runs: Sequence[NewRun]) -> None:
    """Write all runs or none. Raises UsageError where a directory holds something or cannot be written."""
    with contextlib.ExitStack() as made:
        directories = [made.enter_context(new_directory(run.directory)) for run in runs]
        for run, directory in zip(runs, directories, strict=True):
            _write(run, directory)


def _write(run: NewRun, directory: Path) -> None:
    results = LineFile(directory / RESULTS_NAME)
    try:
        for result in run.trials(directory):
            results.append(result.model_dump_json())
    finally:
        results.close()
    write_json(directory / CONFIG_NAME, run.plan.model_dump(mode="json"))


def trial_dir(run: Path, result: TrialResult) -> Path:
    """The directory of an imported trial in that of its run."""
    return trial_directory(run, result.task, result.seed)
