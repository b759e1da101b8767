"""Findings of `tbench task check`: from the files of a task, and from trials of oracle and nop."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tbench.compose.project import COMPOSE_FILE
from tbench.reward import canonical, is_solved
from tbench.sandbox.dockerfile import network_bypass, read_dockerfile
from tbench.tasks.pitfalls import hints_about
from tbench.tasks.task import Task
from tbench.verify.calibration import MeasuredTrial

Level = Literal["problem", "hint", "note"]
"""A problem makes a task unusable, a hint is a likely mistake, a note is for information."""


@dataclass(frozen=True)
class TaskFinding:
    """A finding about a task, printed as one line."""

    level: Level
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def cannot_run(reason: str) -> TaskFinding:
    """Return the finding that a task cannot run."""
    return TaskFinding("problem", "cannot run", reason)


def static_findings(task: Task) -> Iterator[TaskFinding]:
    """Yield the findings from a task's files."""
    for feature in task.unsupported:
        yield cannot_run(f"{task.name}: needs {feature}, which tbench does not have")
    toml = task.path / "task.toml"
    for wish in task.requested_variables:
        known = "" if wish.variable in os.environ else " (not set here)"
        where = f"{task.path / wish.file}: {wish.key}"
        yield TaskFinding("note", f"asks for {wish.variable}{known}", f"{where}; {wish.without_consent}")
    for key in sorted(set(task.unknown_keys) - set(task.refused_keys)):
        yield TaskFinding("note", "ignored", f"{toml}: {key}")
    yield from _service_findings(task)
    for name in task.left_out:
        yield TaskFinding("hint", "left out", f"{task.path / name}: excluded from hash and containers by .gitignore")
    if not task.has_oracle:
        yield TaskFinding("note", "no oracle", f"{task.path / 'solution' / 'solve.sh'} is missing")
    try:
        for hint in hints_about(task):
            yield TaskFinding("hint", hint.kind, f"{hint.where}: {hint.words}")
    except OSError as error:
        yield TaskFinding("hint", "looks wrong", f"{error.filename or task.path}: {error.strerror or error}")
    if task.dockerfile.is_file() and (why := network_bypass(read_dockerfile(task.dockerfile))) is not None:
        yield TaskFinding("note", "not built with --block-host", f"{task.dockerfile}: {why}")


def trial_findings(name: str, trials: Sequence[MeasuredTrial]) -> Iterator[TaskFinding]:
    """Yield the findings from trials of a task: the oracle must score 1, and nop 0."""
    for each in trials:
        yield TaskFinding(_level(each), each.agent, f"{name}: {_score_text(each)}")
        for sign in each.signs if each.agent == "oracle" else ():
            yield TaskFinding("hint", each.agent, f"{name}: its work looks like tampering: {sign}")


def _level(trial: MeasuredTrial) -> Level:
    """Return the level of a measured score: a partial reward may be intended, so it is only a hint."""
    if trial.reward is None:
        return "problem"
    reward = canonical(trial.reward)
    if is_solved(reward) if trial.agent == "oracle" else reward <= 0:
        return "note"
    return "hint" if 0 < reward < 1 else "problem"


def _score_text(trial: MeasuredTrial) -> str:
    if trial.reward is None:
        return f"no verdict: {trial.error_words}"
    shown = f"scores {canonical(trial.reward):g}"
    if _level(trial) == "note":
        return shown
    last = f"; last output of the verifier: {trial.last_words!r}" if trial.last_words else ""
    return f"{shown}, expected {'1' if trial.agent == 'oracle' else '0'}{last}"


def _service_findings(task: Task) -> Iterator[TaskFinding]:
    """Yield the compose keys that have no effect, and those that need `--trust`."""
    for folder, services in task.compose_files.items():
        for key, why in services.ignored.items():
            yield TaskFinding("note", "ignored", f"{task.path / folder / COMPOSE_FILE}: {key}: {why}")
    for path, key in ((path, key) for path, keys in task.host_access.items() for key in keys):
        yield TaskFinding("note", "asks for the host", f"{path}: {key}; without --trust the task cannot run")
