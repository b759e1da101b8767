"""Agents at a terminal: a language model in tbench's own loop, and users' own agents."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import ClassVar, Protocol

from harness.agent import Agent
from harness.checkpoint import Conversation
from harness.custom import CustomAgent, CustomRun, crash_error
from harness.errors import (
    AgentCrashed,
    EndpointUnavailable,
    NeverAnswered,
    ReplyTimeout,
    RequestRefused,
    RequestTooLarge,
    TerminalLost,
    TerminalUnreachable,
)
from harness.limits import Limits, Settling, ShellMode
from harness.model import Model, Seeds, bind_trial
from harness.oversight import Approval
from harness.protocols.base import ActionProtocol
from harness.protocols.bash import BashProtocol
from harness.terminal import COLUMNS, ROWS, Terminal, TerminalSpec
from harness.terminal.tap import Recording
from harness.trajectory import Outcome, Step, Trajectory
from tbench.agents.trial_agent import AgentReport, Workplace, agent_user, terminal_socket
from tbench.errors import TrialError
from tbench.results import Stage
from tbench.sandbox.backend import BUSYBOX, HidesSecrets
from tbench.tasks.prompt_parts import instruction_with_servers, skills_block

# The agent's instruction: the task's, MCP servers, and the skills in the sandbox.

_FIND_SEC = 30.0
_MAX_BYTES = 64 << 10
"""Maximum number of bytes of a SKILL.md that are read."""
_MAX_SKILLS = 500
# Prints paths and texts in turn, each ended by NUL.
_SKILLS = f"""cd {{workdir}} 2>/dev/null
{BUSYBOX} find {{folder}} -mindepth 2 -maxdepth 2 -name SKILL.md -type f 2>/dev/null | {BUSYBOX} sort |
{BUSYBOX} head -n {_MAX_SKILLS} | while read -r path; do
    printf '%s\\0' "$path"
    {BUSYBOX} head -c {_MAX_BYTES} "$path" 2>/dev/null | {BUSYBOX} tr -d '\\0'
    printf '\\0'
done
"""


async def full_instruction(place: Workplace) -> str:
    """Return the whole instruction for an agent in its sandbox. Raises TrialError."""
    instruction = instruction_with_servers(place.task)
    if folder := place.task.file.environment.skills_dir:
        instruction += skills_block(await _skills(place, folder))
    return instruction


async def _skills(place: Workplace, folder: str) -> dict[str, str]:
    """Read the SKILL.md files one folder down that the agent's user can read."""
    script = _SKILLS.format(workdir=shlex.quote(place.sandbox.workdir), folder=shlex.quote(folder))
    ended = await place.sandbox.shell(script, timeout_sec=_FIND_SEC, user=agent_user(place.task))
    parts = ended.output.decode("utf-8", "replace").split("\0")
    return dict(zip(parts[::2], parts[1::2], strict=False))


@dataclass(eq=False)
class ModelAgent:
    """A language model that works at a terminal; one instance per trial."""

    model: Model
    protocol: ActionProtocol
    limits: Limits
    _: KW_ONLY
    settling: Settling = "adaptive"
    shell_mode: ShellMode = "persistent"
    neutralise_special_tokens: bool = False
    approval: Approval | None = None
    name: str = "tbench"
    why_anew: ClassVar[str] = ""
    _agent: Agent | None = field(default=None, init=False)

    async def work(self, place: Workplace) -> AgentReport:
        with bind_trial(self.model) as model:
            return await self._work_with(model, place)

    async def _work_with(self, model: Model, place: Workplace) -> AgentReport:
        protocol, mode = self.protocol, self.shell_mode
        spec = TerminalSpec(attended=not protocol.types_commands, shell_mode=mode)
        terminal = _terminal(place, spec, self.settling, on_outage=lambda seconds: agent.exclude_time(seconds))
        agent = self._agent = Agent(
            model,
            terminal,
            protocol.in_shell(mode) if isinstance(protocol, BashProtocol) else protocol,
            place.with_task_timeout(self.limits),
            seeds=_seeds(place, self.model),
            neutralise_special_tokens=self.neutralise_special_tokens,
            hide=place.sandbox.hide if isinstance(place.sandbox, HidesSecrets) else str,
            on_step=lambda step: _begin_step(step, terminal, place),
            on_step_done=lambda step: _store_step(step, terminal, place),
            oversight=place.oversight,
            approval=self.approval,
            earlier=place.earlier._agent if isinstance(place.earlier, ModelAgent) else None,
            on_checkpoint=place.on_checkpoint,
            before=place.before,
            again=place.again,
        )
        return await _work_at_terminal(place, terminal, agent)

    def partial(self) -> Trajectory | None:
        """Return the trajectory so far, also after `work` was cut short; None before it began."""
        return None if self._agent is None else self._agent.trajectory


@dataclass(eq=False)
class UserAgent:
    """A user's own agent: a new instance for each trial, or for each step of a task with several."""

    make: Callable[[], CustomAgent]
    model: Model | None
    limits: Limits
    _: KW_ONLY
    name: str
    settling: Settling = "adaptive"
    shell_mode: ShellMode = "persistent"
    acts_unseen: bool = False
    """Whether the agent is a program that acts itself, and may need `approval` (see CustomRun)."""
    approval: Approval | None = None
    why_anew: ClassVar[str] = "its state is in memory"
    _run: CustomRun | None = field(default=None, init=False)

    async def work(self, place: Workplace) -> AgentReport:
        try:
            agent = self.make()
        except Exception as error:
            raise _user_error(crash_error(error)) from error
        with contextlib.nullcontext() if self.model is None else bind_trial(self.model) as model:
            return await self._work_with(agent, model, place)

    async def _work_with(self, agent: CustomAgent, model: Model | None, place: Workplace) -> AgentReport:
        spec = TerminalSpec(attended=False, shell_mode=self.shell_mode)
        terminal = _terminal(place, spec, self.settling, on_outage=lambda seconds: run.exclude_time(seconds))
        run = self._run = CustomRun(
            agent,
            self.name,
            model,
            terminal,
            place.with_task_timeout(self.limits),
            seeds=_seeds(place, self.model),
            acts_unseen=self.acts_unseen,
            oversight=place.oversight,
            approval=self.approval,
            earlier=before.messages if place.earlier and (before := place.earlier.partial()) else (),
            on_step=lambda step: _begin_step(step, terminal, place),
            on_step_done=lambda step: _store_step(step, terminal, place),
            on_checkpoint=place.on_checkpoint,
            again=place.again,
        )
        try:
            return await _work_at_terminal(place, terminal, run)
        except AgentCrashed as error:
            raise _user_error(error) from error

    def partial(self) -> Trajectory | None:
        return None if self._run is None else self._run.trajectory


class _Conversation(Protocol):
    """A conversation of an agent: harness.agent.Agent, or a run of a user's agent."""

    @property
    def trajectory(self) -> Trajectory: ...

    async def run(self, instruction: str) -> Trajectory: ...


def _seeds(place: Workplace, model: Model | None) -> Seeds:
    scheme = model.sampling.seed_scheme if model is not None else "hashed"
    task = place.task
    # Conversations about different steps of a task are as independent as those about different tasks.
    name = task.name if task.step is None else f"{task.name}/{task.step.name}"
    return Seeds(name, place.seed, scheme)


def _terminal(
    place: Workplace, spec: TerminalSpec, settling: Settling, *, on_outage: Callable[[float], None]
) -> Terminal:
    goes_on = place.before is not None
    recording = Recording(place.directory / "session.cast", columns=COLUMNS, rows=ROWS, goes_on=goes_on)
    connect = partial(place.sandbox.connect, user=agent_user(place.task))
    spec = replace(spec, socket=terminal_socket(place.task))
    return Terminal(connect, spec, recording=recording, settling=settling, on_outage=on_outage)


def _begin_step(step: int, terminal: Terminal, place: Workplace) -> None:
    """Report that a step begins, and mark it in the recording."""
    terminal.mark_step(step)
    place.on_step(step, terminal.last_line)


def _store_step(step: Step, terminal: Terminal, place: Workplace) -> None:
    """Store a finished step, and the recording up to there."""
    terminal.flush_recording()
    place.on_step_done(step)


async def _work_at_terminal(place: Workplace, terminal: Terminal, agent: _Conversation) -> AgentReport:
    """Let `agent` work at an open terminal, then close it. Raises TrialError for failures not caused by the agent."""
    try:
        await _open(terminal, place.before)
        if terminal.had_visitors:
            place.on_visitors()
        place.on_terminal(terminal)
        # A continued conversation already has its instruction.
        trajectory = await agent.run("" if place.before is not None else await full_instruction(place))
    except EndpointUnavailable as error:
        raise TrialError("endpoint_unavailable", str(error)) from error
    except ReplyTimeout as error:
        raise TrialError("reply_timeout", str(error)) from error
    except RequestRefused as error:
        raise TrialError("endpoint_refused", str(error)) from error
    except RequestTooLarge as error:
        raise TrialError("request_too_large", str(error)) from error
    except NeverAnswered as error:
        raise TrialError("never_answered", str(error)) from error
    except TerminalLost as error:  # before the first reply
        await _require_sandbox(place)
        raise TrialError("terminal_failed", str(error) or "the terminal was lost before the first reply") from error
    except TerminalUnreachable as error:
        trajectory = await _after_unreachable(place, agent, error)
    finally:
        place.on_terminal(None)
        with contextlib.suppress(Exception):
            await asyncio.shield(terminal.close())
    outcome = trajectory.outcome
    assert outcome is not None
    if outcome is Outcome.TERMINAL_LOST:
        await _require_sandbox(place)
    if terminal.recording_problem is not None:
        warnings = {**trajectory.warnings, "recording_incomplete": 1}
        trajectory = trajectory.model_copy(update={"warnings": warnings})
    return AgentReport(outcome, trajectory)


async def _after_unreachable(place: Workplace, agent: _Conversation, error: TerminalUnreachable) -> Trajectory:
    """Return the trajectory if the agent used up what its terminal needs. Raises TrialError for another cause."""
    if await _require_sandbox(place):
        raise TrialError("engine_unreachable", f"the terminal cannot be reached: {error}", stage=Stage.AGENT) from error
    return agent.trajectory.model_copy(update={"outcome": Outcome.TERMINAL_LOST})


async def _require_sandbox(place: Workplace) -> bool:
    """Return whether a command can start in the sandbox. Raises TrialError if the sandbox is gone or unreachable."""
    try:
        await place.sandbox.shell("true", timeout_sec=30)
    except TrialError as why:
        # The sandbox exists, but the agent used up its processes or its memory.
        if why.type == "sandbox_failed":
            return False
        raise
    return True


async def _open(terminal: Terminal, before: Conversation | None) -> None:
    try:
        if before is None:
            await terminal.open()
            return
        pending = before.last.pending
        if await terminal.go_on(0 if pending is None else pending.index) > before.last.steps + (pending is not None):
            why = "more was typed than its checkpoints record: the disk may have been full"
            raise TrialError("sandbox_lost", f"the trial cannot continue: {why}")
    except TerminalLost as error:
        raise TrialError("terminal_failed", str(error)) from error


def _user_error(error: AgentCrashed) -> TrialError:
    files = {"traceback.txt": error.trace.encode("utf-8", "replace")} if error.trace else {}
    return TrialError("agent_crashed", str(error), files=files)
