"""Continues interrupted trials: reads the remains of each, and says why a trial starts again instead."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Literal

from harness.checkpoint import Conversation
from tbench.agents.trial_agent import SaysWhyAnew, SaysWhyReplayed, TrialAgent
from tbench.config.settings import GoOn
from tbench.errors import REWOUND, TrialError, UsageError
from tbench.results import ErrorInfo, TrialResult
from tbench.runs.control import RewindPoint
from tbench.runs.replay_log import replay_steps
from tbench.runs.task_steps import EndedPart
from tbench.runs.trial_progress import Cut, TrialPlan
from tbench.sandbox.backend import Backend, Reopens, Sandbox
from tbench.sandbox.run_machine import RunMachine
from tbench.sandbox.underway import UnderWay, forget, trials_under_way
from tbench.storage.read_run import read_checkpoints, read_steps
from tbench.storage.run_files import (
    ENDED_NAME,
    TRIAL_RESULT_NAME,
    step_directory,
    trial_directory,
)
from tbench.tasks.environment import agent_environment
from tbench.tasks.task import Task
from tbench.text import names_text, one_line

SANDBOX_GONE = frozenset({"sandbox_lost", "engine_unreachable"})
"""Errors after which no sandbox is left."""
_MOST_REPLAYS_LOST = 3
"""How often a replay of the same replies may be repeated."""
INHERITED = "the conversation that its next step continues is in memory"
"""Why a trial of a task with several steps starts again if a verifier was interrupted."""


def why_anew(task: Task | None, agent: TrialAgent, phase: Literal["agent", "verifier"], ended: int = 0) -> str:
    """Return why a trial starts again after an interruption; empty if it can continue. `ended` is the number of earlier
    steps."""
    if task is None:
        return "its task cannot be read"
    if phase == "verifier":
        following = [part.step for part in task.parts[ended + 1 :]][:1]
        return INHERITED if any(step and step.inherit_prior_session for step in following) else ""
    return agent.why_anew if isinstance(agent, SaysWhyAnew) else f"the agent {agent.name} cannot continue"


def anew_note(tasks: Sequence[Task], agent: TrialAgent) -> str:
    """Return a note about trials that would start again after a planned stop; empty if there are none."""
    found = {task.name: why for task in tasks if (why := why_anew(task, agent, "agent"))}
    if not found:
        return ""
    whose = "all trials" if len(found) == len(tasks) else f"trials of {names_text(found)}"
    return f"after the planned stop, {whose} will start again: {'; '.join(sorted(set(found.values())))}"


def go_on(
    run: Path, plans: Sequence[TrialPlan], make_agent: Callable[[], TrialAgent], say: Callable[[str], None]
) -> list[TrialPlan]:
    """Return the remaining trials of a run, each with its remains if it can continue.

    The records of trials that are not planned are deleted, so that the next cleaning removes their containers.
    """
    found, planned = {note.trial: note for note in trials_under_way(run)}, {plan.trial for plan in plans}
    for trial in found.keys() - planned:
        forget(run, trial)
    return [_with_cut(run, plan, found, make_agent, say) for plan in plans] if found else list(plans)


def _with_cut(
    run: Path,
    plan: TrialPlan,
    notes: Mapping[str, UnderWay],
    make_agent: Callable[[], TrialAgent],
    say: Callable[[str], None],
) -> TrialPlan:
    if (note := notes.get(plan.trial)) is None:
        return plan
    try:
        if note.keep_sec <= 0:
            raise ValueError("it was interrupted where no other process can continue it")
        ended = _ended_parts(plan.task, trial_directory(run, note.task, note.seed, note.attempt))
        agent = make_agent()
        if why := why_anew(plan.task, agent, note.phase, len(ended)):
            raise ValueError(why)
        assert plan.task is not None
        cut = _read_cut(run, note, plan.task, ended)
        if isinstance(agent, SaysWhyReplayed) and not cut.has_worked:
            cut = replace(cut, why_replayed=agent.why_replayed)
        return replace(plan, attempt=note.attempt, cut=cut)
    except (OSError, ValueError, UsageError) as error:
        say(f"{note.task}/{note.seed} starts again: {error}")
        forget(run, plan.trial)
        return plan


def _ended_parts(task: Task | None, directory: Path) -> tuple[EndedPart, ...]:
    """Read the verdicts of a task's finished steps. Raises OSError and ValueError."""
    files = [step_directory(directory, step.step_name) / ENDED_NAME for step in (task.steps if task else ())]
    return tuple(EndedPart.model_validate_json(path.read_bytes()) for path in takewhile(Path.exists, files))


def _read_cut(run: Path, note: UnderWay, task: Task, ended: tuple[EndedPart, ...]) -> Cut:
    """Read the remains of a trial. Raises ValueError, OSError or UsageError if it cannot continue."""
    directory, lost = trial_directory(run, note.task, note.seed, note.attempt), ""
    if (path := directory / TRIAL_RESULT_NAME).exists():
        error = TrialResult.model_validate_json(path.read_bytes()).error
        if error is None or error.type not in SANDBOX_GONE:
            raise ValueError("its attempt has ended")
        lost = error.message
    if task.steps:
        directory = step_directory(directory, task.steps[len(ended)].step_name)
    try:
        conversation = Conversation.restore(read_checkpoints(directory), read_steps(directory))
    except (OSError, ValueError) as error:
        if note.phase == "agent":
            why = "the model had not been asked yet" if isinstance(error, FileNotFoundError) else str(error)
            raise ValueError(why) from None
        conversation = None
    # A verifier runs again as a whole.
    worked = conversation is not None and note.phase == "agent"
    cut_at = max(note.entered_at, conversation.cut_at if conversation is not None and worked else 0.0)
    return Cut(note, cut_at, conversation, ended, lost)


def after_loss(run: Path, note: UnderWay, task: Task, error: ErrorInfo) -> Cut | None:
    """Return the remains of an attempt that has lost its sandbox, for a replay; None if they do not suffice."""
    if error.type not in SANDBOX_GONE or not note.sandbox:
        return None
    try:
        cut = _read_cut(run, note, task, ())
    except (OSError, ValueError):
        return None
    return None if cut.conversation is None else replace(cut, cut_at=time.time(), lost=error.message)


def after_lost_replay(cut: Cut, error: ErrorInfo) -> Cut | None:
    """Return the remains with which to repeat a replay that ended early; None if that is useless or too often."""
    # The replies themselves may be what ends the container.
    if not error.retryable or error.type == REWOUND or cut.replays_lost == _MOST_REPLAYS_LOST:
        return None
    return replace(cut, lost=error.message, replays_lost=cut.replays_lost + 1)


# -- the container -------------------------------------------------------------------------------


async def find_sandbox(task: Task, cut: Cut, machine: RunMachine) -> Sandbox | str:
    """Return the sandbox of an interrupted trial, or why it is gone. Raises TrialError if this is unknown."""
    if cut.lost:
        return f"its container is gone ({one_line(cut.lost, 200)})"
    if machine.name != cut.note.machine:
        there = cut.note.machine or "the engine that its run used alone"
        return f"its container is on {there}, which is not used now or does not answer"
    if not isinstance(machine.backend, Reopens):
        return f"its container is lost: {machine.backend.name} cannot reopen containers"
    try:
        sandbox = await machine.backend.reopen(agent_environment(task), cut.note.trial, cut.note.sandbox)
        if not cut.why_replayed:
            return sandbox
        await sandbox.remove()
        return cut.why_replayed
    except TrialError as error:
        if error.type != "sandbox_lost":
            raise
        here = place_of(machine.backend)
        if cut.note.place and cut.note.place != here:
            return f"its container is with {cut.note.place}, and not with {here}"
        return f"its container is gone ({one_line(str(error), 200)})"


def place_of(backend: Backend) -> str:
    """Return the engine of a backend and the host of this process, for messages."""
    return f"{backend.name} on {socket.gethostname()}"


def replay_of(cut: Cut, attempt: int, mode: GoOn) -> RewindPoint:
    """Return the replay of a trial whose sandbox is gone. Raises UsageError if it cannot be replayed."""
    if mode == "anew":
        raise UsageError("--go-on anew")
    if (conversation := cut.conversation) is None:
        raise UsageError("it has no recorded replies")
    if cut.ended:
        raise UsageError("earlier steps of its task were verified in the lost container")
    pending = [conversation.last.pending] if conversation.last.pending is not None else []
    steps = [*conversation.steps, *pending]
    done, step = len(conversation.steps), conversation.step
    # The agent repeats the compactions itself.
    (known,) = replay_steps(steps, conversation.interventions, ())
    # The first observation after an interruption shows the whole screen, and a pending step has none yet.
    unlike = {done + 1, *(each.at_step for each in cut.note.went_on)}
    known = [replace(each, observation=None) if at in unlike else each for at, each in enumerate(known, 1)]
    return RewindPoint(attempt, step, (known,), goes_on=True, is_exact=mode == "exact", hold_at=None)
