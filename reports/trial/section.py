"""What is stored of a trial, or of one step of a task that has several: read from its directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from harness.trajectory import Compaction, Message, Step, Trajectory
from reports.trial.recording import SessionCast, StepTimes, read_cast, times_of
from reports.trial.reply import ReplyWords, words_of
from reports.trial.verdict import VerifierView, read_verifier
from tbench.results import TaskStepResult, TrialResult
from tbench.storage.read_run import RunUnreadable, read_steps, read_trajectory
from tbench.storage.run_files import STEPS_NAME, TRAJECTORY_NAME, step_directory, trial_directory
from tbench.text import size_shown

RECORDING_NAME = "session.cast"
_LARGEST_BYTES = 256 << 20
_NOTHING = SessionCast("")


@dataclass(frozen=True, slots=True)
class TrialSection:
    """The stored work on a task, or on one of its steps."""

    name: str
    """The name of the task's step; empty for a task without steps."""
    number: int | None
    """Its place among the steps of the task; None for a task without steps."""
    result: TaskStepResult | None
    protocol: str
    steps: tuple[Step, ...]
    words: tuple[ReplyWords, ...]
    """What the replies of the steps say."""
    told: tuple[Message, ...]
    """The messages that came before the first reply."""
    compactions: tuple[Compaction, ...]
    cast: SessionCast
    times: tuple[StepTimes | None, ...]
    verifier: VerifierView | None
    notes: tuple[str, ...]
    """What cannot be shown of it, one sentence each."""


def sections_of(run: Path, result: TrialResult) -> tuple[TrialSection, ...]:
    """What is stored of a trial: a section for each step of its task that has several, else one."""
    trial = trial_directory(run, result.task, result.seed, result.attempt)
    if not result.task_steps:
        return (_section(_inside(run, trial)),)
    return tuple(
        _section(_inside(run, step_directory(trial, step.name)), step, number)
        for number, step in enumerate(result.task_steps, start=1)
    )


def _inside(run: Path, directory: Path) -> Path | None:
    """The directory, where it is inside the run: names of tasks and steps may hold `..`, and nul, and anything."""
    try:
        place = directory.resolve()
        return place if place.is_relative_to((run / "trials").resolve()) and place.is_dir() else None
    except (OSError, ValueError, RuntimeError):
        return None


def _section(directory: Path | None, step: TaskStepResult | None = None, number: int | None = None) -> TrialSection:
    name = step.name if step is not None else ""
    if directory is None:
        notes = ("nothing is stored of it but its result",) if step is None or step.begun else ()
        return TrialSection(name, number, step, "", (), (), (), (), _NOTHING, (), None, notes)
    notes_of_steps: list[str] = []
    trajectory = _trajectory(directory, notes_of_steps)
    steps = trajectory.steps
    cast = read_cast(directory / RECORDING_NAME)
    return TrialSection(
        name=name,
        number=number,
        result=step,
        protocol=trajectory.protocol,
        steps=steps,
        words=tuple(map(words_of, steps)),
        told=tuple(takewhile(lambda message: message.role in ("system", "user"), trajectory.messages)),
        compactions=trajectory.compactions,
        cast=cast,
        times=tuple(times_of(steps, cast)),
        verifier=read_verifier(directory / "verifier"),
        notes=(*notes_of_steps, *cast.notes),
    )


def _trajectory(directory: Path, notes: list[str]) -> Trajectory:
    """The stored trajectory; where only steps.jsonl can be read, that. Problems become `notes`."""
    if (size := max(_sizes(directory))) > _LARGEST_BYTES:
        notes.append(f"its steps are {size_shown(size)} on disk, too much for a page: see {TRAJECTORY_NAME}")
        return Trajectory(protocol="")
    try:
        if (whole := read_trajectory(directory)) is not None:
            return whole
    except RunUnreadable as problem:
        notes.append(str(problem))
    return Trajectory(protocol="", steps=tuple(_steps(directory, notes)))


def _sizes(directory: Path) -> Iterator[int]:
    yield 0
    for name in (TRAJECTORY_NAME, STEPS_NAME):
        file = directory / name
        if file.is_file():
            yield file.stat().st_size


def _steps(directory: Path, notes: list[str]) -> Sequence[Step]:
    if not (directory / STEPS_NAME).exists():
        return ()
    try:
        return read_steps(directory)
    except RunUnreadable as problem:
        notes.append(str(problem))
        return ()
