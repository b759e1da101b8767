"""Findings about tasks that need nothing to be started, one at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tbench.compose.project import COMPOSE_FILE
from tbench.reward import canonical, is_solved
from tbench.sandbox.docker.dockerfile import read_dockerfile, why_not_closed
from tbench.tasks.format import nearest_key
from tbench.tasks.lint import hints_about
from tbench.tasks.task import Task
from tbench.verify.calibration import MeasuredTrial

# What can be said of tasks without starting anything, a finding at a time.

Level = Literal["problem", "hint", "note"]
"""A problem keeps a task from being used, a hint may be a mistake, a note is good to know."""


@dataclass(frozen=True)
class TaskFinding:
    """One line about a task."""

    level: Level
    kind: str
    words: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.words}"


def cannot_run(words: str) -> TaskFinding:
    """The finding that a task cannot come to a verdict."""
    return TaskFinding("problem", "cannot run", words)


def findings_about(task: Task) -> Iterator[TaskFinding]:
    """Everything that its files tell of a task."""
    for feature in task.unsupported:
        yield cannot_run(f"{task.name}: needs {feature}, which tbench does not have")
    toml = task.path / "task.toml"
    for wish in task.wishes:
        known = "" if wish.variable in os.environ else " (not set here)"
        where = f"{task.path / wish.file}: {wish.key}"
        yield TaskFinding("note", f"asks for {wish.variable}{known}", f"{where}; {wish.without_consent}")
    for key in task.unknown_keys:
        near = nearest_key(key)
        meant = f"; did you mean {near}?" if near else ""
        yield TaskFinding("hint" if near else "note", "ignored", f"{toml}: {key}{meant}")
    yield from _about_services(task)
    for name in task.left_out:
        yield TaskFinding("hint", "left out", f"{task.path / name}: .gitignore keeps it out of hash and containers")
    if not task.has_oracle:
        yield TaskFinding("note", "no oracle", f"{task.path / 'solution' / 'solve.sh'} is missing")
    try:
        for hint in hints_about(task):
            yield TaskFinding("hint", "looks wrong", f"{hint.where}: {hint.words}")
    except OSError as error:
        yield TaskFinding("hint", "looks wrong", f"{error.filename or task.path}: {error.strerror or error}")
    if task.dockerfile.is_file() and (why := why_not_closed(read_dockerfile(task.dockerfile))) is not None:
        yield TaskFinding("note", "not built with --block-host", f"{task.dockerfile}: {why}")


def findings_of(name: str, trials: Sequence[MeasuredTrial]) -> Iterator[TaskFinding]:
    """What the trials of a task tell: the oracle has to score 1, and doing nothing 0."""
    for each in trials:
        yield TaskFinding(_level(each), each.agent, f"{name}: {_words(each)}")
        for sign in each.signs if each.agent == "oracle" else ():
            yield TaskFinding("hint", each.agent, f"{name}: its work looks like tampering: {sign}")


def _level(trial: MeasuredTrial) -> Level:
    """A part of the reward may be what a task wants to give."""
    if trial.reward is None:
        return "problem"
    reward = canonical(trial.reward)
    if is_solved(reward) if trial.agent == "oracle" else reward <= 0:
        return "note"
    return "hint" if 0 < reward < 1 else "problem"


def _words(trial: MeasuredTrial) -> str:
    if trial.reward is None:
        return f"no verdict: {trial.error_words}"
    shown = f"scores {canonical(trial.reward):g}"
    if _level(trial) == "note":
        return shown
    last = f"; the verifier's last words: {trial.last_words!r}" if trial.last_words else ""
    return f"{shown}, and {'1' if trial.agent == 'oracle' else '0'} was expected{last}"


def _about_services(task: Task) -> Iterator[TaskFinding]:
    """What of a task's compose files has no effect, and what they have with consent only."""
    for folder, services in task.compose_files.items():
        for key, why in services.ignored.items():
            yield TaskFinding("note", "ignored", f"{task.path / folder / COMPOSE_FILE}: {key}: {why}")
    for path, key in ((path, key) for path, keys in task.host_access.items() for key in keys):
        yield TaskFinding("note", "asks for the host", f"{path}: {key}; without --trust the task cannot run")
