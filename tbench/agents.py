"""Who works in the sandbox: the model's agent, the oracle that runs the reference solution, or nobody."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.agent import Agent, Limits
from harness.errors import EndpointUnavailable, RequestRefused, TerminalLost
from harness.model import Model
from harness.protocols.base import ActionProtocol
from harness.recording import Recording
from harness.terminal import COLUMNS, ROWS, Settling, Terminal
from harness.trajectory import Outcome, Trajectory
from tbench.errors import TrialError
from tbench.sandbox import FileEntry, Sandbox
from tbench.task import Task, resolve_env
from tbench.verifier import read_tree

_NO_LIMIT_SEC = 24 * 3600.0


@dataclass
class AgentReport:
    """How the agent ended, and what it leaves for the trial's directory."""

    outcome: Outcome
    trajectory: Trajectory | None = None
    files: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Workplace:
    """What an agent gets for one trial."""

    task: Task
    sandbox: Sandbox
    seed: int
    directory: Path
    timeout_sec: float | None
    on_step: Callable[[int, str], None]


class TrialAgent(Protocol):
    """One way to work on a task. Raises TrialError for what keeps the trial from a verdict."""

    @property
    def name(self) -> str: ...

    def files(self, task: Task) -> dict[str, FileEntry]:
        """Files that must be in the container before it starts."""

    async def work(self, place: Workplace) -> AgentReport: ...

    def partial(self) -> Trajectory | None: ...


class NopAgent:
    """Does nothing: every task must score 0 with it."""

    name = "nop"

    def files(self, task: Task) -> dict[str, FileEntry]:
        return {}

    async def work(self, place: Workplace) -> AgentReport:
        return AgentReport(Outcome.FINISHED)

    def partial(self) -> Trajectory | None:
        return None


class OracleAgent:
    """Runs solution/solve.sh: every task should score 1 with it. Only the oracle ever sees the solution."""

    name = "oracle"

    def files(self, task: Task) -> dict[str, FileEntry]:
        if not (task.path / "solution" / "solve.sh").is_file():
            raise TrialError("oracle_missing", f"{task.path / 'solution' / 'solve.sh'}: missing, so there is no oracle")
        return read_tree(task.path / "solution", "/solution")

    async def work(self, place: Workplace) -> AgentReport:
        limit_sec = place.timeout_sec or _NO_LIMIT_SEC
        log = "/logs/agent/oracle.txt"
        # To a file, not the stream: a server that the solution leaves running would hold the stream open.
        ended = await place.sandbox.shell(
            f"cd '{place.sandbox.workdir}' && exec bash /solution/solve.sh >{log} 2>&1 </dev/null",
            timeout_sec=limit_sec,
            environment={"DEBIAN_FRONTEND": "noninteractive", **resolve_env(place.task.file.solution.env)},
        )
        logs = await place.sandbox.fetch("/logs/agent", 8 << 20)
        files = {f"agent/{name}": data for name, data in logs.items()}
        return AgentReport(Outcome.AGENT_TIMEOUT if ended.timed_out else Outcome.FINISHED, files=files)

    def partial(self) -> Trajectory | None:
        return None


class ModelAgent:
    """A language model at the keyboard; one instance per trial."""

    def __init__(
        self,
        model: Model,
        protocol: ActionProtocol,
        limits: Limits,
        *,
        settling: Settling = "adaptive",
        name: str = "tbench",
    ) -> None:
        self.name = name
        self._model = model
        self._protocol = protocol
        self._limits = limits
        self._settling = settling
        self._agent: Agent | None = None

    def files(self, task: Task) -> dict[str, FileEntry]:
        return {}

    async def work(self, place: Workplace) -> AgentReport:
        recording = Recording(place.directory / "session.cast", columns=COLUMNS, rows=ROWS)
        terminal = Terminal(place.sandbox.connect, recording=recording, settling=self._settling)
        self._agent = Agent(
            self._model,
            terminal,
            self._protocol,
            self._limits.model_copy(update={"timeout_sec": place.timeout_sec}),
            seed=place.seed,
            on_step=lambda step: place.on_step(step, terminal.last_line),
        )
        try:
            await self._open(terminal)
            trajectory = await self._agent.run(place.task.instruction)
        except EndpointUnavailable as error:
            raise TrialError("endpoint_unavailable", str(error)) from error
        except RequestRefused as error:
            raise TrialError("endpoint_refused", str(error)) from error
        finally:
            with contextlib.suppress(Exception):
                await asyncio.shield(terminal.close())
        assert trajectory.outcome is not None
        if trajectory.outcome is Outcome.TERMINAL_LOST and not await place.sandbox.is_running():
            raise TrialError("sandbox_lost", "the container ended while the agent was working")
        return AgentReport(trajectory.outcome, trajectory)

    async def _open(self, terminal: Terminal) -> None:
        try:
            await terminal.open()
        except TerminalLost as error:
            raise TrialError("terminal_failed", str(error)) from error

    def partial(self) -> Trajectory | None:
        """What there is of the trajectory when `work` was cut short."""
        return None if self._agent is None else self._agent.trajectory
