"""Packaged agents: their command runs in the sandbox's terminal, and sends requests to tbench's gateway."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from harness.custom import AgentModel, Assignment
from harness.errors import AgentCrashed
from harness.limits import Limits
from harness.model import Model
from harness.oversight import Approval
from harness.protocols.base import CommandResult
from harness.trajectory import Message, Outcome, Reply, Trajectory
from tbench.agents.model_agent import UserAgent
from tbench.agents.recipe import NO_SESSION, Recipe
from tbench.agents.trial_agent import AgentReport, Workplace, agent_user
from tbench.errors import TrialError
from tbench.files import safe_relative, write_atomically, write_json
from tbench.gateway.connections import PROGRAM, Connections
from tbench.gateway.server import Gateway
from tbench.sandbox.backend import TOOLS
from tbench.sandbox.package import PACKAGE

LOGS = "/logs/agent"
"""Directory in the sandbox for the agent's own files."""
LEFT_OUT = "left_out.json"
"""File in the directory of the agent's files, with the fields and tools of requests that had no effect."""
_KEPT_BYTES = 16 << 20
"""Maximum size of the agent's own files that are stored for a trial."""
_NO_LIMIT_SEC = 24 * 3600.0
_SHOWN_LINES = 5
_LOOK_SEC = 60.0
_UNKNOWN_CONTEXT = 131_072
"""Context length that is reported to an agent if the server reports none; refusals then correct it."""
_LONGEST_ARGUMENT = 120 << 10
"""Bytes of an instruction that fit into an argument of a command on Linux."""


class PackagedAgent:
    """An agent that a recipe describes; one instance per trial."""

    why_anew = ""
    why_replayed = "its agent's connections to tbench have ended"

    def __init__(
        self, recipe: Recipe, model: Model, model_name: str, limits: Limits, approval: Approval | None = None
    ) -> None:
        self.name, self._approval = recipe.title, approval
        self._recipe, self._model, self._model_name, self._limits = recipe, model, model_name, limits
        self._inner: UserAgent | None = None

    async def work(self, place: Workplace) -> AgentReport:
        if place.earlier is not None:
            raise TrialError("task_unsupported", NO_SESSION.format(agent=self.name))
        for program in self._recipe.needs:
            looked = f"command -v {shlex.quote(program)}"
            found = await place.sandbox.shell(looked, timeout_sec=_LOOK_SEC, user=agent_user(place.task))
            if found.exit_code:
                raise TrialError("task_unsupported", f"the image has no {program}, which {self.name} needs")
        bugs: list[Exception] = []
        make = partial(_Work, self._recipe, self._model_name, place, bugs.append)
        self._inner = UserAgent(
            make, self._model, self._limits, name=self.name, acts_unseen=True, approval=self._approval
        )
        try:
            return await self._inner.work(place)
        except TrialError:
            # After a verdict, the verifier has stored the agent's files. Without one, they are needed most.
            with contextlib.suppress(TrialError, OSError):
                await _keep_files(place)
            if bugs:
                raise bugs[0] from None
            raise

    def partial(self) -> Trajectory | None:
        return None if self._inner is None else self._inner.partial()


class _Work:
    """The work on one trial: serves the gateway, and runs the agent's command until it ends."""

    def __init__(self, recipe: Recipe, model_name: str, place: Workplace, on_bug: Callable[[Exception], None]) -> None:
        self._recipe, self._model_name, self._place, self._on_bug = recipe, model_name, place, on_bug

    async def run(self, assignment: Assignment) -> Outcome | None:
        assert assignment.model is not None
        if len(assignment.instruction.encode("utf-8", "replace")) > _LONGEST_ARGUMENT:
            raise AgentCrashed(f"the instruction is longer than {_LONGEST_ARGUMENT} bytes, an argument's limit", "")
        known = (assignment.model.context_tokens, assignment.limits.context_tokens)
        context_tokens = min((tokens for tokens in known if tokens is not None), default=None)
        secret = secrets.token_hex(24)
        gateway = Gateway(
            partial(_ask, assignment.model),
            secret=secret,
            model=self._model_name,
            max_tokens=assignment.model.sampling.max_tokens,
            context_tokens=context_tokens,
        )
        connect = partial(self._place.sandbox.connect, user=agent_user(self._place.task))
        try:
            async with Connections(connect, f"{TOOLS}/bin/{PROGRAM}", gateway.serve).listen() as (port, serving):
                command = self._command(assignment, f"http://127.0.0.1:{port}", secret, context_tokens)
                limit_sec = assignment.limits.timeout_sec or _NO_LIMIT_SEC
                running = asyncio.ensure_future(assignment.terminal.run(command, limit_sec + _NO_LIMIT_SEC))
                try:
                    await asyncio.wait({running, serving}, return_when=asyncio.FIRST_COMPLETED)
                    if serving.done() and not running.done():
                        serving.result()
                    view = await running
                finally:
                    running.cancel()
        finally:
            await gateway.close()
            _note_left_out(self._place, gateway.left_out)
            if gateway.failure is not None:
                self._on_bug(gateway.failure)
        return self._outcome(view, gateway)

    def _outcome(self, view: object, gateway: Gateway) -> Outcome:
        """Return the outcome of a command that has ended. Raises AgentCrashed."""
        output = view.output if isinstance(view, CommandResult) else ""
        exit_code = view.exit_code if isinstance(view, CommandResult) else None
        last = " / ".join(line.strip() for line in output.strip().splitlines()[-_SHOWN_LINES:] if line.strip())
        if exit_code != 0 and gateway.reason_to_give_up is not None:
            return gateway.reason_to_give_up
        if exit_code != 0:
            ended = "did not end by itself" if exit_code is None else f"ended with {exit_code}"
            raise AgentCrashed(f"{self._recipe.title} {ended} after {gateway.answered} replies: {last}"[:1000], output)
        if not gateway.answered:
            raise AgentCrashed(f"{self._recipe.title} ended without a reply of the model: {last}"[:1000], output)
        return Outcome.FINISHED

    def _command(self, assignment: Assignment, url: str, secret: str, context_tokens: int | None) -> str:
        """Return the shell command that runs the agent."""
        assert assignment.model is not None
        command, environment = self._recipe.fill(
            {
                "instruction": shlex.quote(assignment.instruction),
                "url": url,
                "key": secret,
                "model": shlex.quote(self._model_name),
                "context_tokens": str(context_tokens or _UNKNOWN_CONTEXT),
                "max_tokens": str(assignment.model.sampling.max_tokens),
                "package": PACKAGE,
                "logs": LOGS,
            }
        )
        exports = "".join(f"export {name}={shlex.quote(text)}\n" for name, text in environment.items())
        # Requests to the gateway must not go through a proxy.
        direct = 'export NO_PROXY="127.0.0.1${NO_PROXY:+,$NO_PROXY}" no_proxy="127.0.0.1${no_proxy:+,$no_proxy}"\n'
        return f"({exports}{direct}{command.strip()}\n) </dev/null"


async def _ask(
    model: AgentModel, messages: Sequence[Message], max_tokens: int, tools: Sequence[Mapping[str, Any]]
) -> Reply:
    return await model.query(messages, max_tokens=max_tokens, tools=tools)


def _note_left_out(place: Workplace, left_out: Mapping[str, int]) -> None:
    """Store which fields and tools of the agent's requests had no effect. Never raises."""
    if left_out:
        with contextlib.suppress(OSError):  # such as a full disk
            write_json(place.directory / "agent" / LEFT_OUT, dict(sorted(left_out.items())))


async def _keep_files(place: Workplace) -> None:
    """Store the agent's own files beside the trajectory. Raises TrialError and OSError."""
    for name, content in (await place.sandbox.fetch(LOGS, _KEPT_BYTES)).items():
        write_atomically(place.directory / "agent" / safe_relative(name), content)
