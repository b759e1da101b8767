"""The interface between agents and a trial; the oracle, and the agent that does nothing."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from harness.checkpoint import Conversation, ReplayedSteps, Saved
from harness.limits import Limits
from harness.oversight import Oversight
from harness.trajectory import Outcome, Step, Trajectory
from tbench.errors import TrialError
from tbench.sandbox.archive import pack, place_tree
from tbench.sandbox.backend import BUSYBOX, LOG_DIRECTORIES, NOT_STAGED, Sandbox
from tbench.tasks.task import Task

if TYPE_CHECKING:
    from harness.terminal import Terminal

_NO_LIMIT_SEC = 24 * 3600.0
_UNPACK = f"""{BUSYBOX} tar -xf - -C / && {BUSYBOX} mkdir -p {" ".join(LOG_DIRECTORIES)} || exit {NOT_STAGED}
"""
# Output goes to a file: a server that the solution leaves running would keep the stream open.
_SOLVE = """cd {cwd} && exec bash /solution/solve.sh >/logs/agent/oracle.txt 2>&1 </dev/null
"""


@dataclass
class AgentReport:
    """The agent's outcome, and its trajectory if it has one."""

    outcome: Outcome
    trajectory: Trajectory | None = None


@dataclass(frozen=True)
class Workplace:
    """Everything that an agent gets for one trial: task, sandbox, seed, time limit, and callbacks."""

    task: Task
    sandbox: Sandbox
    seed: int
    directory: Path
    timeout_sec: float | None
    on_step: Callable[[int, str], None]
    """Called when a step begins, with its number and the terminal's last line."""
    on_step_done: Callable[[Step], None] = lambda _: None
    """Called with each finished step, in order, as in the final trajectory. Never raises."""
    oversight: Oversight | None = None
    """May hold the agent, send messages to its model, and decide about its replies."""
    earlier: TrialAgent | None = None
    """The agent of the previous task step, whose conversation is continued; None for a new conversation."""
    on_visitors: Callable[[], None] = lambda: None
    """Called if people have attached to a terminal whose tbench process was interrupted."""
    on_terminal: Callable[[Terminal | None], None] = lambda _: None
    """Called with the agent's terminal once it is open, and with None before it is closed."""
    before: Conversation | None = None
    """The conversation to continue, if another process has begun it; only for agents that support this."""
    again: ReplayedSteps | None = None
    """Steps to replay, with the replies in `oversight`, if the sandbox of another process is gone."""
    on_checkpoint: Callable[[Saved], None] = lambda _: None
    """Called with the state of the conversation, whenever it has to be stored. Never raises."""

    def with_task_timeout(self, limits: Limits) -> Limits:
        """Return `limits` with the task's own timeout."""
        return limits.model_copy(update={"timeout_sec": self.timeout_sec})


def agent_user(task: Task) -> str | None:
    """Return the name or id of the agent's user; None for the image's own."""
    user = task.file.agent.user
    return None if user is None else str(user)


def terminal_socket(task: Task) -> str:
    """Return the socket of the agent's terminal. A task step with a user of its own has a socket of its own."""
    from harness.terminal.spec import TerminalSpec  # imports the whole terminal, which an oracle does not need

    user = agent_user(task)
    if user is None or user == agent_user(task.whole):
        return TerminalSpec.socket
    return f"{TerminalSpec.socket}-{hashlib.sha256(user.encode()).hexdigest()[:12]}"


class TrialAgent(Protocol):
    """An agent that works on one trial. `work` raises TrialError for what prevents a verdict."""

    @property
    def name(self) -> str: ...

    async def work(self, place: Workplace) -> AgentReport: ...

    def partial(self) -> Trajectory | None: ...


@runtime_checkable
class SaysWhyAnew(Protocol):
    """An agent that says whether it can continue `Workplace.before`. Other agents cannot."""

    @property
    def why_anew(self) -> str:
        """Why it starts again after tbench was interrupted; empty if it can continue."""


@runtime_checkable
class SaysWhyReplayed(Protocol):
    """An agent that continues by `Workplace.again` only."""

    @property
    def why_replayed(self) -> str:
        """Why it cannot continue in its sandbox after tbench was interrupted."""


class NopAgent:
    """The agent that does nothing: every task must score 0 with it."""

    name = "nop"
    why_anew = "it does nothing"

    async def work(self, place: Workplace) -> AgentReport:
        return AgentReport(Outcome.FINISHED)

    def partial(self) -> Trajectory | None:
        return None


class OracleAgent:
    """The agent that runs solution/solve.sh as the agent's user: every task should score 1.

    No other agent ever sees the solution.
    """

    name = "oracle"
    why_anew = "its script runs as a whole"

    async def work(self, place: Workplace) -> AgentReport:
        if "solve.sh" not in place.task.solution:
            raise TrialError("oracle_missing", f"{place.task.solve_script}: missing, so there is no oracle")
        files = place_tree("/solution", place.task.solution)
        user = agent_user(place.task)
        script = _SOLVE.format(cwd=shlex.quote(place.sandbox.workdir))
        if place.sandbox.runs_as_root and user is None:
            script, stdin = _UNPACK + script, pack(files)
        else:
            stdin = b""
            await place.sandbox.put(files)
        ended = await place.sandbox.shell(
            script,
            timeout_sec=place.task.file.solution.timeout_sec or place.timeout_sec or _NO_LIMIT_SEC,
            user=user,
            environment={"DEBIAN_FRONTEND": "noninteractive", **place.task.resolve_env(place.task.file.solution.env)},
            stdin=stdin,
        )
        if ended.exit_code == NOT_STAGED:
            raise TrialError("sandbox_failed", "the solution could not be put into the container")
        return AgentReport(Outcome.AGENT_TIMEOUT if ended.timed_out else Outcome.FINISHED)

    def partial(self) -> Trajectory | None:
        return None
