"""The stored files of a trial, or of one task step: recording, replies, verdict."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile
from pathlib import Path

from harness.thoughts import ReplyTexts, step_texts
from harness.trajectory import Compaction, Message, Step, Trajectory
from reports.trial.verdict import VerifierView, read_verifier
from tbench.results import TaskStepResult, TrialResult
from tbench.storage.read_run import RunUnreadable, read_steps, read_trajectory
from tbench.storage.recording import CastEvent, cast_event, cast_events, first_action_times
from tbench.storage.run_files import (
    RECORDING_NAME,
    STEPS_NAME,
    TRAJECTORY_NAME,
    inside_trials,
    step_directory,
    trial_directory,
)
from tbench.text import size_text

# A recording in the form for the page's player, and the times at which steps began, typed and ended.

LARGEST_BYTES = 6 << 20
"""Maximum number of bytes of a recording in a page; the rest is left out with a note."""
_STEP = re.compile(r"step (\d{1,9})")
_OUTPUT = re.compile(rb'^\[[^"]{1,30}"o"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of a step, in seconds into the recording: request to the model, first key, end of the step."""

    begin: float
    typed: float
    end: float


@dataclass(frozen=True, slots=True)
class SessionCast:
    """Recording (asciicast version 2), as much of it as fits in a page."""

    text: str
    """Complete lines, the header first; empty if there is no recording."""
    duration_sec: float = 0.0
    size_bytes: int = 0
    typed: tuple[CastEvent, ...] = ()
    steps: dict[int, float] = field(default_factory=dict)
    """Start time of each step that has a marker, by number."""
    remarks: tuple[tuple[float, str], ...] = ()
    """Time and text of other markers, about the terminal."""
    notes: tuple[str, ...] = ()
    """Missing parts, one sentence each."""


def read_cast(file: Path, limit_bytes: int = LARGEST_BYTES) -> SessionCast:
    """Read the recording of a session; anything but asciicast version 2 gives an empty one with a note."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            raw = opened.read(limit_bytes)
    except (OSError, ValueError) as error:
        gone = isinstance(error, FileNotFoundError | NotADirectoryError | ValueError)
        return SessionCast("", notes=() if gone else (f"the recording cannot be read: {error}",))
    if not _is_asciicast(raw):
        return SessionCast("", size_bytes=size, notes=("the recording is not asciicast version 2 and is not shown",))
    notes = []
    whole, _, torn = raw.rpartition(b"\n")
    if len(raw) < size:
        notes.append(f"the recording is {size_text(size)}; only its first {size_text(len(whole))} are on this page")
    elif torn and cast_event(torn) is None:
        notes.append("the recording is cut off in the middle of a line and plays up to that point")
    else:
        whole = raw.rstrip(b"\n")
    if not _OUTPUT.search(whole):
        return SessionCast("", size_bytes=size, notes=("the recording contains no output and is not shown",))
    return _parse_cast(whole.decode("utf-8", "replace"), size, notes)


def _is_asciicast(raw: bytes) -> bool:
    try:
        header = json.loads(raw.partition(b"\n")[0], parse_constant=_no_number)
        return isinstance(header, dict) and header.get("version") == 2
    except (ValueError, RecursionError):
        return False


def _no_number(name: str) -> None:
    """Reject NaN and infinities, which no browser parses."""
    raise ValueError(name)


def _parse_cast(text: str, size: int, notes: list[str]) -> SessionCast:
    typed: list[CastEvent] = []
    remarks: list[tuple[float, str]] = []
    steps: dict[int, float] = {}
    for event in cast_events(text.split("\n"), "im"):
        if event.kind == "i":
            typed.append(event)
        elif (step := _STEP.fullmatch(event.text)) is not None:
            steps.setdefault(int(step[1]), event.at)
        else:
            remarks.append((event.at, event.text))
    return SessionCast(text, _duration(text), size, tuple(typed), steps, tuple(remarks), tuple(notes))


def _duration(text: str) -> float:
    """Return the time of the last event that can be read."""
    for line in reversed(text[-200_000:].split("\n")):
        if (event := cast_event(line)) is not None:
            return event.at
    return 0.0


def step_times(steps: Sequence[Step], cast: SessionCast) -> list[StepTimes | None]:
    """Return the times of each step; None for all of them if nothing relates them to the recording.

    A step begins at its marker, and types when its actions appear in the recording, in their order. Recordings of
    other programs have no markers: there, a step begins before its actions, by the time that the model took.
    """
    typed = first_action_times(steps, cast.typed)
    if not cast.text or not (cast.steps or typed):
        return [None] * len(steps)
    begins: list[float] = []
    least = expected = 0.0
    for step in steps:
        begin = cast.steps.get(step.index)
        if begin is None:
            begin = typed[step.index] - step.model_sec if step.index in typed else expected
        begins.append(min(max(least, begin), cast.duration_sec))
        least = max(begins[-1], typed.get(step.index, 0.0))
        expected = typed.get(step.index, begins[-1] + step.model_sec) + step.command_sec
    ends = [*begins, cast.duration_sec][1:]  # none for a trial without steps
    return [
        StepTimes(begin, min(max(typed.get(step.index, begin), begin), end), max(begin, end))
        for step, begin, end in zip(steps, begins, ends, strict=True)
    ]


_LARGEST_BYTES = 256 << 20
_NOTHING = SessionCast("")


@dataclass(frozen=True, slots=True)
class TrialSection:
    """Stored files of a trial, or of one of its task steps."""

    name: str
    """Name of the task step; empty for a task without steps."""
    number: int | None
    """Number of the task step; None for a task without steps."""
    result: TaskStepResult | None
    protocol: str
    steps: tuple[Step, ...]
    replies: tuple[ReplyTexts, ...]
    """Texts of the steps' replies."""
    prompt: tuple[Message, ...]
    """Messages before the first reply."""
    compactions: tuple[Compaction, ...]
    cast: SessionCast
    times: tuple[StepTimes | None, ...]
    verifier: VerifierView | None
    notes: tuple[str, ...]
    """Parts that cannot be shown, one sentence each."""
    is_kept: bool = True
    """Whether its directory is there."""


def read_sections(run: Path, result: TrialResult, *, is_kept: bool = True) -> tuple[TrialSection, ...]:
    """Read a trial's stored files: a section for each task step, else one. `is_kept`: the run has files of trials."""
    if not is_kept:
        return tuple(_section(None, *each) for each in zip(result.task_steps, count(1))) or (_NOTHING_KEPT,)
    trial = trial_directory(run, result.task, result.seed, result.attempt)
    if not result.task_steps:
        return (_section(inside_trials(run, trial)),)
    return tuple(
        _section(inside_trials(run, step_directory(trial, step.name)), step, number)
        for number, step in enumerate(result.task_steps, start=1)
    )


def _section(directory: Path | None, step: TaskStepResult | None = None, number: int | None = None) -> TrialSection:
    name = step.name if step is not None else ""
    if directory is None:
        notes = ("only its result is stored",) if step is None or step.begun else ()
        return TrialSection(name, number, step, "", (), (), (), (), _NOTHING, (), None, notes, is_kept=False)
    notes_of_steps: list[str] = []
    trajectory = _trajectory(directory, notes_of_steps)
    steps = trajectory.steps
    cast = read_cast(directory / RECORDING_NAME)
    goes_on = ("continues the conversation of the previous step",) if trajectory.inherited else ()
    return TrialSection(
        name=name,
        number=number,
        result=step,
        protocol=trajectory.protocol,
        steps=steps,
        replies=tuple(map(step_texts, steps)),
        prompt=_prompt(trajectory),
        compactions=trajectory.compactions,
        cast=cast,
        times=tuple(step_times(steps, cast)),
        verifier=read_verifier(directory / "verifier"),
        notes=(*notes_of_steps, *goes_on, *cast.notes),
    )


_NOTHING_KEPT = _section(None)
"""The section of every trial without task steps in a run whose trials were removed."""


def _prompt(trajectory: Trajectory) -> tuple[Message, ...]:
    """Return the messages before the first reply; for a continued conversation, only the new instruction."""
    if trajectory.inherited and not trajectory.compactions:
        return trajectory.messages[trajectory.inherited - 1 : trajectory.inherited]
    return tuple(takewhile(lambda message: message.role in ("system", "user"), trajectory.messages))


def _trajectory(directory: Path, notes: list[str]) -> Trajectory:
    """Read the stored trajectory, or steps.jsonl if only that can be read. Problems are added to `notes`."""
    files = (directory / name for name in (TRAJECTORY_NAME, STEPS_NAME))
    if (size := max((file.stat().st_size for file in files if file.is_file()), default=0)) > _LARGEST_BYTES:
        notes.append(f"the steps take {size_text(size)} on disk, too much for a page: see {TRAJECTORY_NAME}")
        return Trajectory(protocol="")
    try:
        if (whole := read_trajectory(directory)) is not None:
            return whole
    except RunUnreadable as problem:
        notes.append(str(problem))
    return Trajectory(protocol="", steps=tuple(_steps(directory, notes)))


def _steps(directory: Path, notes: list[str]) -> Sequence[Step]:
    if not (directory / STEPS_NAME).exists():
        return ()
    try:
        return read_steps(directory)
    except RunUnreadable as problem:
        notes.append(str(problem))
        return ()
