"""Tries tasks: the reference solution has to pass, and doing nothing must not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tbench.api.runner import Runner, TrialFailed
from tbench.cli.printing import print_line
from tbench.cli.task.findings import Level, TaskFinding
from tbench.config.settings import RunConfig
from tbench.errors import EngineUnavailable, UsageError
from tbench.results import is_weak
from tbench.reward import canonical, is_solved
from tbench.tasks.task import Task
from tbench.text import one_line

TriedAgent = Literal["oracle", "nop"]
_AGENTS: tuple[TriedAgent, ...] = ("oracle", "nop")
_OUTPUT_BYTES = 4096


@dataclass(frozen=True)
class Tried:
    """How a trial of an agent that asks no model ended: with a reward, or an error in words."""

    reward: float | None
    error: str | None = None
    tamper: tuple[str, ...] = ()
    """What speaks against the reward, but for what is often honest work."""
    last_words: str = ""
    """The last line that the verifier printed."""


TriedAgents = Mapping[TriedAgent, Tried]


async def try_tasks(tasks: Sequence[Task], config: RunConfig) -> dict[str, TriedAgents]:
    """One trial of each agent in each task, by the task's name. Raises UsageError."""
    by_agent = {}
    for agent in _AGENTS:
        fitting = [task for task in tasks if agent != "oracle" or task.has_oracle]
        by_agent[agent] = await _try(fitting, agent, config) if fitting else {}
    return {
        task.name: {agent: found[task.name] for agent, found in by_agent.items() if task.name in found}
        for task in tasks
    }


def findings_of(name: str, tried: TriedAgents) -> Iterator[TaskFinding]:
    """What the trials of a task tell: the oracle has to score 1, and doing nothing 0."""
    for agent, each in tried.items():
        yield TaskFinding(_level(agent, each.reward), agent, f"{name}: {_words(agent, each)}")
        for sign in each.tamper if agent == "oracle" else ():
            yield TaskFinding("hint", agent, f"{name}: its work looks like tampering: {sign}")


def _level(agent: TriedAgent, reward: float | None) -> Level:
    """A part of the reward may be what a task wants to give."""
    if reward is None:
        return "problem"
    reward = canonical(reward)
    if is_solved(reward) if agent == "oracle" else reward <= 0:
        return "note"
    return "hint" if 0 < reward < 1 else "problem"


def _words(agent: TriedAgent, tried: Tried) -> str:
    if tried.reward is None:
        return f"no verdict: {tried.error}"
    if _level(agent, tried.reward) == "note":
        return f"scores {tried.reward:g}"
    last = f"; the verifier's last words: {tried.last_words!r}" if tried.last_words else ""
    return f"scores {tried.reward:g}, and {'1' if agent == 'oracle' else '0'} was expected{last}"


async def _try(tasks: Sequence[Task], agent: TriedAgent, config: RunConfig) -> dict[str, Tried]:
    try:
        async with Runner(config.with_values(agent={"name": agent}), say=_say) as runner:
            done = await asyncio.gather(*(_tried(runner, task) for task in tasks))
    except EngineUnavailable as error:
        raise UsageError(f"{error}; --static checks without an engine") from None
    return {task.name: each for task, each in zip(tasks, done, strict=True)}


async def _tried(runner: Runner, task: Task) -> Tried:
    try:
        record = await runner.trial(task)
    except TrialFailed as failure:
        error = failure.result.error
        return Tried(None, f"{error.type}: {error.message}" if error else str(failure))
    strong = tuple(sign for sign in record.result.integrity.tamper if not is_weak(sign))
    return Tried(record.reward, None, strong, _last_words(record.directory))


def _last_words(directory: Path) -> str:
    try:
        end = (directory / "verifier" / "stdout.txt").read_bytes()[-_OUTPUT_BYTES:]
    except OSError:
        return ""
    lines = [line for line in end.decode("utf-8", "replace").splitlines() if line.strip()]
    return one_line(lines[-1], 200) if lines else ""


def _say(text: str) -> None:
    print_line(text, err=True)
