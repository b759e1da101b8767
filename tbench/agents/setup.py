"""Resolves a configuration's model, agent and limits: checked as far as that goes before anything starts."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.custom import CustomAgent
from harness.endpoint.address import full_url, without_password
from harness.endpoint.chat import ChatModel, OutagePolicy, RetryPolicy
from harness.endpoint.replicas import MOVE_ON_SEC, Endpoint, Replicas, WaitNotice
from harness.errors import EndpointError
from harness.limits import Limits, ShellMode
from harness.model import Rendering, Sampling, ServedModel
from harness.oversight import Approval, BadApproval
from harness.protocols import PROTOCOLS, UnknownProtocol, load_protocol
from harness.protocols.base import ActionProtocol
from tbench.agents.model_agent import ModelAgent, UserAgent
from tbench.agents.trial_agent import NopAgent, OracleAgent, TrialAgent
from tbench.config.document import Locked
from tbench.config.layers import OWN_LOOP, PRESETS
from tbench.config.settings import AgentConfig, LimitsConfig, ModelConfig, ServerConfig
from tbench.errors import UsageError

# Finds a user's own agent class by `module:Class`, and hashes its code.


@dataclass(frozen=True)
class AgentClass:
    """A class that fits harness.custom.CustomAgent."""

    name: str
    """The name `module:Class`, as given."""
    make: Callable[[], CustomAgent]
    sha256: str
    """sha256 of the module's file: other code is another agent. What the module imports is not in it."""


def load_agent_class(name: str) -> AgentClass:
    """Import the class `module:Class`, also from the current directory. Raises UsageError."""
    module_name, _, class_name = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), class_name)):
        raise UsageError(f"--agent {name}: must look like package.module:Class")
    module = _import(name, module_name)
    found: Any = getattr(module, class_name, None)
    if found is None:
        raise UsageError(f"--agent {name}: {module.__file__} has no {class_name}")
    if problem := _misfit(found):
        raise UsageError(f"--agent {name}: {problem}; see docs/agents.md")
    return AgentClass(name, found, hashlib.sha256(_file(name, module).read_bytes()).hexdigest())


def _import(name: str, module_name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last: a file of the user's must not stand in for an installed module
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            problem: BaseException = error
        else:
            words = f"there is no module {error.name!r} in {here} or among the installed"
            raise UsageError(f"--agent {name}: {words}") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code
        problem = error
    raise UsageError(f"--agent {name}: importing it failed: {type(problem).__name__}: {problem} ({_place(problem)})")


def _place(problem: BaseException) -> str:
    if isinstance(problem, SyntaxError):
        return f"{problem.filename}:{problem.lineno}"
    frame = traceback.extract_tb(problem.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"


def _file(name: str, module: ModuleType) -> Path:
    if module.__file__ is None:
        raise UsageError(f"--agent {name}: the module has no file")
    return Path(module.__file__)


def _misfit(found: Any) -> str:
    """Why `found` cannot be an agent; empty where it can."""
    if not inspect.isclass(found):
        return "is not a class"
    run = getattr(found, "run", None)
    if run is None or not inspect.iscoroutinefunction(run):
        return "has no `async def run(self, assignment)`"
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        return f"cannot be made without arguments ({error})"
    try:
        inspect.signature(run).bind(None, None)
    except TypeError as error:
        return f"run() cannot be called with one assignment ({error})"
    return ""


_PREFLIGHT_SEC = 20.0


@dataclass(frozen=True)
class AgentSetup:
    """The agent of a run, ready to be made for each trial."""

    agent: AgentConfig
    model: ModelConfig
    limits: LimitsConfig
    name: str
    """The agent's name in run.json and in every result."""
    protocol: ActionProtocol | None = None
    """The protocol of tbench's own loop; None for other agents."""
    user_agent: AgentClass | None = None
    shell_state: ShellMode | None = None
    """Whether commands share a shell; None without a shell of that kind."""
    approval: Approval | None = None
    """Who approves what is done; None where nobody has to."""

    @classmethod
    def of(cls, agent: AgentConfig, model: ModelConfig, limits: LimitsConfig) -> AgentSetup:
        """Check what a configuration says of the agent. Raises UsageError."""
        name, setup = agent.name, cls(agent, model, limits, agent.name)
        if name in ("oracle", "nop"):
            return setup
        if ":" in name:
            return _user_agent(setup)
        if name in PRESETS:
            raise UsageError(f"--agent {name}: is a preset; give --preset {name} instead")
        if name != "model":
            raise UsageError(f"--agent {name}: unknown; known: model, oracle, nop, or your own as module:Class")
        return _model_agent(setup)

    @property
    def may_use_model(self) -> bool:
        """Whether there is an agent that asks a model, and a model to ask."""
        return self.protocol is not None or (self.user_agent is not None and bool(self.model.servers))

    def locked(self, chat: Endpoint | None = None, served: ServedModel | None = None) -> Locked:
        """What the names in the configuration stand for, with the model that the endpoint serves."""
        return Locked(
            agent=self.name,
            agent_sha256=self.user_agent.sha256 if self.user_agent else None,
            model=served.id if served else None,
            base_url=chat.urls[0] if chat else None,
            endpoints=chat.urls if chat and len(chat.urls) > 1 else (),
            served=served,
            prompt_hash=self.protocol.prompt_hash if self.protocol else None,
            shell_state=self.shell_state,
            approval=self.approval.fingerprint if self.approval else None,
        )

    def maker(self, chat: Endpoint | None) -> Callable[[], TrialAgent]:
        """A function that makes the agent for one trial."""
        own, protocol, agent = self.user_agent, self.protocol, self.agent
        if own is None and protocol is None:
            return NopAgent if self.name == "nop" else OracleAgent
        limits = Limits(**self.limits.model_dump())
        shell_mode = self.shell_state or "persistent"
        if own is not None:
            return lambda: UserAgent(
                own.make, chat, limits, name=self.name, settling=agent.settling, shell_mode=shell_mode
            )
        assert chat is not None and protocol is not None
        return lambda: ModelAgent(
            chat,
            protocol,
            limits,
            settling=agent.settling,
            shell_mode=shell_mode,
            neutralise_special_tokens=agent.neutralise_special_tokens,
            approval=self.approval,
            name=self.name,
        )


def _model_agent(setup: AgentSetup) -> AgentSetup:
    if not setup.model.servers:
        raise UsageError("no endpoint: give --base-url http://HOST:PORT/v1 or set OPENAI_BASE_URL (or --agent oracle)")
    protocol = _checked_protocol(setup.agent)
    if protocol.tools and setup.model.template != "server":
        raise UsageError(f"--protocol {protocol.name}: calls a tool, which only --render server has a place for")
    shell_state = setup.agent.shell_state
    if protocol.types_commands:
        shell_state = shell_state or "persistent"
    elif shell_state is not None:
        fitting = ", ".join(name for name in PROTOCOLS if load_protocol(name).types_commands)
        raise UsageError(f"--shell-state fits the bash protocols: {fitting}; {protocol.name} types keys; leave it out")
    name, approval = f"tbench:{protocol.name}", _checked_approval(setup.agent.approve)
    return replace(setup, name=name, protocol=protocol, shell_state=shell_state, approval=approval)


def _user_agent(setup: AgentSetup) -> AgentSetup:
    name, usual = setup.name, AgentSetup(AgentConfig(), ModelConfig(), LimitsConfig(), setup.name)
    if senseless := [path for path in OWN_LOOP if attrgetter(path)(setup) != attrgetter(path)(usual)]:
        raise UsageError(f"--agent {name}: {', '.join(senseless)}: belong to tbench's own agent; leave them out")
    shell_state = setup.agent.shell_state or "persistent"
    return replace(setup, user_agent=load_agent_class(name), shell_state=shell_state)


def _checked_approval(setting: str | None) -> Approval | None:
    """Who approves. Raises UsageError for rules that cannot be used."""
    try:
        return None if setting is None else Approval.read(setting)
    except BadApproval as error:
        raise UsageError(f"--approve: {error}") from None


def _checked_protocol(agent: AgentConfig) -> ActionProtocol:
    """The protocol with the user's prompts, if any. Raises UsageError."""
    try:
        return load_protocol(agent.protocol, Path(agent.prompt) if agent.prompt else None, agent.observation_bytes)
    except UnknownProtocol as error:
        raise UsageError(f"--protocol: {error}") from None
    except (ValueError, OSError) as error:
        raise UsageError(f"--prompt {agent.prompt}: {error}") from None


def make_chat(
    model: ModelConfig,
    on_wait: Callable[[str, float], None],
    on_outage: Callable[[str], None],
    server: ServerConfig | None = None,
    retry_budget_sec: float | None = None,
    api_key: str | None = None,
) -> ChatModel:
    """A client of one server, not connected yet; without one, of the only one. Raises EndpointError for no URL.

    Without an `api_key`, it is that of the environment.
    """
    at = server.base_url if server is not None else model.servers[0].base_url if model.servers else ""
    chat = ChatModel(
        at,
        model.name,
        Sampling(**model.model_dump(include=set(Sampling.model_fields))),
        api_key=api_key or os.environ.get("OPENAI_API_KEY"),
        request_timeout_sec=model.request_timeout_sec or None,
        retry=RetryPolicy(total_sec=model.retry_budget_sec if retry_budget_sec is None else retry_budget_sec),
        rendering=Rendering(**model.model_dump(include=set(Rendering.model_fields))),
        on_wait=on_wait,
        max_outage=OutagePolicy(max_sec=model.max_outage_sec),
        on_outage=on_outage,
    )
    chat.replier.is_strict = model.other_weights == "pause"
    return chat


async def connect_if_used(
    setup: AgentSetup, say: Callable[[str], None], api_key: str | None = None
) -> tuple[Endpoint | None, ServedModel | None]:
    """Connect to the endpoint where the agent uses one. Raises UsageError."""
    return await connect(setup.model, say, api_key) if setup.may_use_model else (None, None)


async def connect(
    model: ModelConfig, say: Callable[[str], None], api_key: str | None = None
) -> tuple[Endpoint, ServedModel]:
    """Connect to the endpoint, before anything is started: a wrong URL must not cost a run. Raises UsageError."""
    chat = unconnected(model, say, api_key)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(chat.close)
        try:
            served = await chat.connect(budget_sec=min(_PREFLIGHT_SEC, model.retry_budget_sec))
        except EndpointError as error:
            raise UsageError(f"endpoint: {error}") from None
        stack.pop_all()
    return chat, served


def unconnected(model: ModelConfig, say: Callable[[str], None], api_key: str | None = None) -> Endpoint:
    """A client that tells its user of waits and outages, and has asked nothing yet. Raises UsageError."""
    servers = model.servers
    try:
        if len(servers) <= 1:
            tell = WaitNotice("endpoint", say, 0.0)
            return make_chat(model, tell, lambda words: say(f"endpoint {words}"), api_key=api_key)
        budget_sec = min(model.retry_budget_sec, MOVE_ON_SEC)
        chats = []
        for server in servers:
            name = f"endpoint {without_password(full_url(server.base_url))}"
            told = partial(_say_of, name, say)
            chats.append(make_chat(model, WaitNotice(name, say), told, server, budget_sec, api_key))
    except EndpointError as error:
        raise UsageError(f"endpoint: {error}") from None
    weights = [server.weight for server in servers]
    return Replicas(
        chats, lambda words: say(f"endpoint {words}"), weights=weights, retry_budget_sec=model.retry_budget_sec
    )


def _say_of(name: str, say: Callable[[str], None], words: str) -> None:
    say(f"{name} {words}")
