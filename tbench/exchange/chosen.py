"""Which trials of a stored run an export holds, with what their agents did, and why others are left out.

Nothing is written. A trial whose files are cut or missing costs itself, not the export.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from harness.trajectory import Trajectory
from tbench.errors import UsageError
from tbench.results import TaskStepResult, TrialResult, is_weak
from tbench.storage.read_run import RunUnreadable, StoredRun, read_trajectory
from tbench.storage.run_files import trial_directory
from tbench.text import counted

Only = Literal["all", "scored", "passed", "failed"]


@dataclass(frozen=True, slots=True)
class TrialChoice:
    """What an export takes of the trials of a run; of several attempts at one only the final one is looked at."""

    only: Only = "all"
    """`scored`: those with a verdict; `passed`: with a reward of 1 or more; `failed`: with a smaller one."""
    min_reward: float | None = None
    tasks: tuple[str, ...] = ()
    """Globs over names of tasks; empty takes all."""
    with_flagged: bool = True
    """Whether trials with strong signs of tampering are taken."""
    with_human: bool = True
    """Whether trials are taken in which a human typed."""

    def why_not(self, result: TrialResult) -> str:
        """Why a trial is left out; empty for one that is taken."""
        reward = result.reward
        if self.tasks and not any(fnmatchcase(result.task, glob) for glob in self.tasks):
            return "of other tasks"
        if reward is None and (self.only != "all" or self.min_reward is not None):
            return "without a verdict"
        if self.only == "passed" and not result.passed:
            return "not passed"
        if self.only == "failed" and result.passed:
            return "passed"
        if self.min_reward is not None and reward is not None and reward < self.min_reward:
            return f"with a reward below {self.min_reward:g}"
        if not self.with_flagged and any(not is_weak(sign) for sign in result.integrity.tamper):
            return "flagged for tampering"
        return "" if self.with_human or not result.human_touched else "with a human at the keyboard"


@dataclass(frozen=True, slots=True)
class ExportedPart:
    """One conversation of a trial: all of it, or that about one step of its task."""

    directory: Path
    """Directory of its files."""
    trajectory: Trajectory
    task_step: TaskStepResult | None = None
    """The step of the task; None for a task without."""


@dataclass(frozen=True, slots=True)
class ExportedTrial:
    """A trial that is exported. `parts` are in order, and several only where its task has several steps."""

    run: StoredRun
    result: TrialResult
    directory: Path
    parts: tuple[ExportedPart, ...]

    @property
    def place(self) -> Path:
        """Where its files belong below a run's directory."""
        return self.directory.relative_to(self.run.path)


@dataclass(slots=True)
class LeftOut:
    """Number of trials that are left out, by reason, with an example of what could not be read."""

    reasons: dict[str, int] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)

    def add(self, why: str) -> None:
        self.reasons[why] = self.reasons.get(why, 0) + 1

    def lines(self) -> Iterator[str]:
        """What is left out and why, a line per reason."""
        for why, count in self.reasons.items():
            yield f"left out: {counted(count, 'trial')} {why}"
        for problem in self.unreadable:
            yield f"left out: {problem}"


def exported_trials(
    run: StoredRun, choice: TrialChoice, left_out: LeftOut, *, needs_trajectory: bool = True
) -> Iterator[ExportedTrial]:
    """The chosen trials of a run in the order of its results, each read when it is asked for.

    Adds to `left_out` what is not among them: also, with `needs_trajectory`, those that have none.
    """
    for result in run.results:
        if not result.final:
            continue
        if why := choice.why_not(result):
            left_out.add(why)
            continue
        directory = trial_directory(run.path, result.task, result.seed, result.attempt)
        try:
            parts = tuple(_parts(directory, result))
        except RunUnreadable as error:
            left_out.unreadable.append(str(error))
            continue
        if parts or not needs_trajectory:
            yield ExportedTrial(run, result, directory, parts)
        else:
            left_out.add(_why_without_steps(run, result, directory))


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
        return "without a trajectory: results alone were imported"
    if result.steps:
        return "whose trajectory.json is missing"
    if not directory.is_dir():
        return "whose directory is missing"
    return f"without a trajectory: {result.agent} makes none, or never began"


def require_trials(count: int, left_out: LeftOut) -> None:
    """Refuse an export of nothing. Raises UsageError."""
    if not count:
        raise UsageError(f"nothing to export: {'; '.join(left_out.lines()) or 'no trial has a result yet'}")
