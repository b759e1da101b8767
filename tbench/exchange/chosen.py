"""Which trials of a stored run an export holds, with what their agents did, and why others are left out.

Nothing is written. A trial whose files are cut or missing costs itself, not the export.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from tbench.text import counted

Only = Literal["all", "scored", "passed", "failed"]
_SHOWN = 5
"""Files that cannot be read, of which each has its line."""


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
        if self.min_reward is not None and reward is not None and canonical(reward) < canonical(self.min_reward):
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
class LeftOutTrials:
    """What is left out of an export."""

    reasons: dict[str, int] = field(default_factory=dict)
    """Number of trials by reason, in words that follow it."""
    unreadable: list[str] = field(default_factory=list)
    """Why trials whose files cannot be read are not there, a line each."""

    def add(self, why: str) -> None:
        self.reasons[why] = self.reasons.get(why, 0) + 1

    def lines(self) -> Iterator[str]:
        """What is left out and why, a line per reason."""
        for why, count in self.reasons.items():
            yield f"left out: {counted(count, 'trial')} {why}"
        for problem in self.unreadable[:_SHOWN]:
            yield f"left out: {problem}"
        if (more := len(self.unreadable) - _SHOWN) > 0:
            yield f"left out: {counted(more, 'more trial')} with files that cannot be read"


def exported_trials(
    run: StoredRun, choice: TrialChoice, left_out: LeftOutTrials, *, needs_trajectory: bool = True
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
        if needs_trajectory and (not parts or _lacks_a_step(result, parts)):
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


def _lacks_a_step(result: TrialResult, parts: Sequence[ExportedPart]) -> bool:
    """Whether a step of the task in which something was said is not among the parts."""
    there = [part.task_step for part in parts]
    return any(step.steps and step not in there for step in result.task_steps)


def _why_without_steps(run: StoredRun, result: TrialResult, directory: Path) -> str:
    if run.imported:
        return "without a trajectory: results alone were imported"
    if result.steps:
        return "with a trajectory.json missing"
    if not directory.is_dir():
        return "whose directory is missing"
    return f"without a trajectory: {result.agent} makes none, or never began"


def require_trials(count: int, left_out: LeftOutTrials) -> None:
    """Refuse an export of nothing. Raises UsageError."""
    if not count:
        raise UsageError(f"nothing to export: {'; '.join(left_out.lines()) or 'no trial has a result yet'}")
