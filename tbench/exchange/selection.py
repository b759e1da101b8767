"""Selects the trials of a stored run for an export, and records why others are left out.

Nothing is written. A trial with truncated or missing files is skipped and does not stop the export.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from harness.trajectory import Trajectory
from tbench.errors import UsageError
from tbench.results import TaskStepResult, TrialResult, is_weak
from tbench.reward import canonical
from tbench.storage.read_run import RunUnreadable, StoredRun, read_trajectory
from tbench.storage.run_files import trial_directory
from tbench.storage.trial_notes import TrialNote
from tbench.text import counted

Only = Literal["all", "scored", "passed", "failed"]
_SHOWN = 5
"""Number of unreadable files that are listed individually."""


@dataclass(frozen=True, slots=True)
class TrialChoice:
    """Selection of trials for an export; only the final attempt of a trial is considered."""

    only: Only = "all"
    """`scored`: with a verdict; `passed`: with a reward of at least 1; `failed`: with a lower reward."""
    min_reward: float | None = None
    tasks: tuple[str, ...] = ()
    """Globs for names of tasks; empty selects all."""
    with_flagged: bool = True
    """Whether to include trials with strong signs of tampering."""
    with_human: bool = True
    """Whether to include trials in which a person intervened."""
    tags: tuple[str, ...] = ()
    """Tags of which a trial must have one; empty selects all."""
    without: tuple[str, ...] = ()
    """Tags of which a trial must have none."""

    def why_not(self, result: TrialResult, tags: Collection[str] = ()) -> str:
        """Return the reason to leave a trial with these tags out; empty for a selected trial."""
        reward = result.reward
        if self.tags and set(tags).isdisjoint(self.tags):
            return f"not tagged {' or '.join(self.tags)}"
        if unwanted := sorted(set(tags) & set(self.without)):
            return f"tagged {unwanted[0]}"
        if self.tasks and not any(fnmatchcase(result.task, glob) for glob in self.tasks):
            return "of other tasks"
        if reward is None and (self.only != "all" or self.min_reward is not None):
            return "without a verdict"
        if (self.only != "all" or self.min_reward is not None) and not all(each.counts for each in result.went_on):
            return "whose reward does not count, because a replay after a cut differed"
        if self.only == "passed" and not result.passed:
            return "not passed"
        if self.only == "failed" and result.passed:
            return "passed"
        if self.min_reward is not None and reward is not None and canonical(reward) < canonical(self.min_reward):
            return f"with a reward below {self.min_reward:g}"
        if not self.with_flagged and any(not is_weak(sign) for sign in result.integrity.tamper):
            return "flagged for tampering"
        return "" if self.with_human or not result.human_touched else "in which a person intervened"


@dataclass(frozen=True, slots=True)
class ExportedPart:
    """A conversation of a trial: the whole trial, or one task step."""

    directory: Path
    """Directory of the files."""
    trajectory: Trajectory
    task_step: TaskStepResult | None = None
    """Task step; None for a task without steps."""


@dataclass(frozen=True, slots=True)
class ExportedTrial:
    """An exported trial. `parts` are in order; there are several only for a task with several steps."""

    run: StoredRun
    result: TrialResult
    directory: Path
    parts: tuple[ExportedPart, ...]

    @property
    def notes(self) -> list[TrialNote]:
        """Notes that people wrote about the trial or its task."""
        return [note for note in self.run.trial_notes if note.is_about(self.result.task, self.result.seed)]

    @property
    def place(self) -> Path:
        """Path of the trial's directory relative to the run's."""
        return self.directory.relative_to(self.run.path)


@dataclass(slots=True)
class LeftOutTrials:
    """Trials that are left out of an export."""

    reasons: dict[str, int] = field(default_factory=dict)
    """Number of trials by reason, worded to follow "N trials"."""
    unreadable: list[str] = field(default_factory=list)
    """Errors of trials with unreadable files, one line each."""

    def add(self, why: str) -> None:
        self.reasons[why] = self.reasons.get(why, 0) + 1

    def lines(self) -> Iterator[str]:
        """Describe the trials that are left out, one line per reason."""
        for why, count in self.reasons.items():
            yield f"left out: {counted(count, 'trial')} {why}"
        for problem in self.unreadable[:_SHOWN]:
            yield f"left out: {problem}"
        if (more := len(self.unreadable) - _SHOWN) > 0:
            yield f"left out: {counted(more, 'more trial')} with unreadable files"


def select_trials(
    run: StoredRun, choice: TrialChoice, left_out: LeftOutTrials, *, needs_trajectory: bool = True
) -> Iterator[ExportedTrial]:
    """Yield the chosen trials of a run in the order of its results, reading each on demand.

    All others are added to `left_out`; with `needs_trajectory`, also trials without a trajectory.
    """
    tags = run.tags
    for result in run.results:
        if not result.final:
            continue
        if why := choice.why_not(result, tags.get((result.task, result.seed), ())):
            left_out.add(why)
            continue
        directory = trial_directory(run.path, result.task, result.seed, result.attempt)
        try:
            parts = tuple(_parts(directory, result))
        except RunUnreadable as error:
            left_out.unreadable.append(str(error))
            continue
        there = [part.task_step for part in parts]
        lacks_step = any(step.steps and step not in there for step in result.task_steps)
        if needs_trajectory and (not parts or lacks_step):
            left_out.add(_why_without_steps(run, result, directory))
        else:
            yield ExportedTrial(run, result, directory, parts)


def _parts(directory: Path, result: TrialResult) -> Iterator[ExportedPart]:
    if not result.task_steps:
        if (trajectory := read_trajectory(directory)) is not None:
            yield ExportedPart(directory, trajectory)
        return
    for step in result.task_steps:
        place = directory / "steps" / step.name
        if (trajectory := read_trajectory(place)) is not None:
            yield ExportedPart(place, trajectory, step)


def _why_without_steps(run: StoredRun, result: TrialResult, directory: Path) -> str:
    if run.imported:
        return "without a trajectory: only results were imported"
    if result.steps:
        return "with a trajectory.json missing"
    if not directory.is_dir():
        return "whose directory is missing"
    return f"without a trajectory: {result.agent} writes none, or never began"


def require_trials(count: int, left_out: LeftOutTrials) -> None:
    """Check that anything is exported. Raises UsageError."""
    if not count:
        raise UsageError(f"nothing to export: {'; '.join(left_out.lines()) or 'no trial has a result yet'}")
