"""Resolves a configuration's model, agent and limits, and checks them before anything starts."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from harness.limits import Limits, ShellMode
from harness.oversight import Approval, BadApproval
from tbench.agents.packages import Manifest, require_package
from tbench.agents.recipe import Recipe, is_recipe, known_recipes, load_recipe
from tbench.agents.trial_agent import NopAgent, OracleAgent, TrialAgent
from tbench.config.document import Locked
from tbench.config.layers import AGENT_LOOP_SETTINGS, PRESETS
from tbench.config.settings import AgentConfig, LimitsConfig, ModelConfig
from tbench.errors import UsageError
from tbench.results import AGENTS_WITHOUT_MODEL
from tbench.sandbox.package import AgentPackage

if TYPE_CHECKING:
    from harness.custom import CustomAgent
    from harness.endpoint.replicas import Endpoint
    from harness.model import ServedModel
    from harness.protocols.base import ActionProtocol
LOCAL_ENDPOINT = "http://localhost:8000/v1"
"""Where vLLM serves by default."""
NO_ENDPOINT = f"no endpoint: give --base-url http://HOST:PORT/v1, set OPENAI_BASE_URL, or serve one at {LOCAL_ENDPOINT}"


@dataclass(frozen=True)
class AgentClass:
    """A user's class that implements harness.custom.CustomAgent."""

    name: str
    """Name as given, `module:Class`."""
    make: Callable[[], CustomAgent]
    sha256: str
    """sha256 of the module's file, without its imports: other code is another agent."""


def load_agent_class(name: str) -> AgentClass:
    """Import the class `module:Class`; the current directory is searched, too. Raises UsageError."""
    module_name, _, class_name = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), class_name)):
        raise UsageError(f"--agent {name}: must look like package.module:Class")
    module = _import(name, module_name)
    found: Any = getattr(module, class_name, None)
    if found is None:
        raise UsageError(f"--agent {name}: {module.__file__} has no {class_name}")
    if problem := _agent_problem(found):
        raise UsageError(f"--agent {name}: {problem}; see docs/python.md")
    if module.__file__ is None:
        raise UsageError(f"--agent {name}: the module has no file")
    return AgentClass(name, found, hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest())


def _import(name: str, module_name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last: a user's file must not shadow an installed module
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            problem: BaseException = error
        else:
            why = f"there is no module {error.name!r} in {here} or among the installed ones"
            raise UsageError(f"--agent {name}: {why}") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code
        problem = error
    raise UsageError(f"--agent {name}: importing it failed: {type(problem).__name__}: {problem} ({_location(problem)})")


def _location(problem: BaseException) -> str:
    if isinstance(problem, SyntaxError):
        return f"{problem.filename}:{problem.lineno}"
    frame = traceback.extract_tb(problem.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"


def _agent_problem(found: Any) -> str:
    """Return why `found` cannot be an agent; empty if it can."""
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


@dataclass(frozen=True)
class AgentSetup:
    """The checked agent settings of a run: each trial's agent is made from them."""

    agent: AgentConfig
    model: ModelConfig
    limits: LimitsConfig
    name: str
    """Name of the agent in run.json and in every result."""
    protocol: ActionProtocol | None = None
    """Protocol of tbench's own loop; None for other agents."""
    user_agent: AgentClass | None = None
    recipe: Recipe | None = None
    """Recipe of a packaged agent; None for other agents."""
    package: AgentPackage | None = None
    """The agent's package, which has to be mounted in every sandbox."""
    manifest: Manifest | None = None
    """Programs and versions in the package."""
    shell_state: ShellMode | None = None
    """Whether commands share a shell; None if the protocol types keys."""
    approval: Approval | None = None
    """Approver of the agent's commands; None without approval."""

    @classmethod
    def from_config(cls, agent: AgentConfig, model: ModelConfig, limits: LimitsConfig) -> AgentSetup:
        """Check a configuration's agent settings. Raises UsageError."""
        name, setup = agent.name, cls(agent, model, limits, agent.name)
        if agent.version is not None and not is_recipe(name):
            raise UsageError(f"--agent-version: no effect with --agent {name}, which has no versions; leave it out")
        if is_recipe(name):
            return _packaged_agent(setup)
        if name in AGENTS_WITHOUT_MODEL:
            return setup
        if ":" in name:
            return _user_agent(setup)
        if name in PRESETS:
            raise UsageError(f"--agent {name}: is a preset; give --preset {name} instead")
        if name != "model":
            known = ", ".join(("model", "oracle", "nop", *known_recipes()))
            raise UsageError(f"--agent {name}: unknown; known: {known}, a recipe.toml, or your own as module:Class")
        return _model_agent(setup)

    @property
    def may_use_model(self) -> bool:
        """Whether the agent may ask a model, and there is a model to ask."""
        if self.user_agent is not None:
            return bool(self.model.servers)
        return self.protocol is not None or self.recipe is not None

    def resolve_names(self, chat: Endpoint | None = None, served: ServedModel | None = None) -> Locked:
        """Return the resolved names of the configuration, with the model that the endpoint serves."""
        return Locked(
            agent=self.name,
            agent_sha256=self._sha256,
            agent_contains=self.manifest.contains if self.manifest else {},
            model=served.id if served else None,
            base_url=chat.urls[0] if chat else None,
            endpoints=chat.urls if chat and len(chat.urls) > 1 else (),
            served=served,
            prompt_hash=self.protocol.prompt_hash if self.protocol else None,
            shell_state=self.shell_state,
            approval=self.approval.fingerprint if self.approval else None,
        )

    @property
    def _sha256(self) -> str | None:
        """Hash of the agent's code or package; None for tbench's own agents."""
        if self.recipe is not None and self.package is not None:
            return hashlib.sha256(f"{self.recipe.digest} {self.package.sha256}".encode()).hexdigest()
        return self.user_agent.sha256 if self.user_agent else None

    def maker(self, chat: Endpoint | None) -> Callable[[], TrialAgent]:
        """Return a function that makes the agent of one trial."""
        own, protocol, agent = self.user_agent, self.protocol, self.agent
        if own is None and protocol is None and self.recipe is None:
            return NopAgent if self.name == "nop" else OracleAgent
        limits = Limits(**self.limits.model_dump())
        if self.recipe is not None:
            from tbench.agents.packaged_agent import PackagedAgent  # imports the gateway's server

            assert chat is not None
            model_name = chat.model or self.model.name or "model"
            return partial(PackagedAgent, self.recipe, chat, model_name, limits, self.approval)
        from tbench.agents.model_agent import ModelAgent, UserAgent

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


def package_of(agent: AgentConfig) -> AgentPackage | None:
    """Return the package of the configured agent; None if it needs none. Raises UsageError."""
    return require_package(load_recipe(agent.name, agent.version), agent.name)[0] if is_recipe(agent.name) else None


def _packaged_agent(setup: AgentSetup) -> AgentSetup:
    name = setup.name
    recipe = load_recipe(name, setup.agent.version)
    if not setup.model.servers:
        raise UsageError(f"{NO_ENDPOINT} (or give --agent oracle)")
    approval = _read_approval(setup.agent.approve)
    _refuse_loop_settings(setup, but="agent.approve")
    if setup.model.template != "server":
        raise UsageError(f"--agent {name}: calls tools, which needs --render server")
    package, manifest = require_package(recipe, name)
    return replace(setup, name=recipe.title, recipe=recipe, package=package, manifest=manifest, approval=approval)


def _model_agent(setup: AgentSetup) -> AgentSetup:
    if not setup.model.servers:
        raise UsageError(f"{NO_ENDPOINT} (or give --agent oracle)")
    protocol = _load_protocol(setup.agent)
    if protocol.tools and setup.model.template != "server":
        raise UsageError(f"--protocol {protocol.name}: calls a tool, which needs --render server")
    shell_state = setup.agent.shell_state
    if protocol.types_commands:
        shell_state = shell_state or "persistent"
    elif shell_state is not None:
        from harness.protocols import PROTOCOLS, load_protocol

        fitting = ", ".join(name for name in PROTOCOLS if load_protocol(name).types_commands)
        raise UsageError(f"--shell-state is for the bash protocols: {fitting}; {protocol.name} types keys; remove it")
    name, approval = f"tbench:{protocol.name}", _read_approval(setup.agent.approve)
    return replace(setup, name=name, protocol=protocol, shell_state=shell_state, approval=approval)


def _refuse_loop_settings(setup: AgentSetup, but: str = "") -> None:
    """Refuse settings without effect on an agent with its own loop, except `but`. Raises UsageError."""
    name, defaults = setup.name, AgentSetup(AgentConfig(), ModelConfig(), LimitsConfig(), setup.name)
    given = [path for path in AGENT_LOOP_SETTINGS if attrgetter(path)(setup) != attrgetter(path)(defaults)]
    if unsupported := [path for path in given if path != but]:
        raise UsageError(f"--agent {name}: {', '.join(unsupported)}: only for tbench's own agent; remove them")


def _user_agent(setup: AgentSetup) -> AgentSetup:
    name = setup.name
    _refuse_loop_settings(setup)
    shell_state = setup.agent.shell_state or "persistent"
    return replace(setup, user_agent=load_agent_class(name), shell_state=shell_state)


def _read_approval(setting: str | None) -> Approval | None:
    """Read the approver setting. Raises UsageError for unusable rules."""
    try:
        return None if setting is None else Approval.read(setting)
    except BadApproval as error:
        raise UsageError(f"--approve: {error}") from None


def _load_protocol(agent: AgentConfig) -> ActionProtocol:
    """Load the protocol with the user's prompts, if any. Raises UsageError."""
    from harness.protocols import UnknownProtocol, load_protocol

    try:
        return load_protocol(agent.protocol, Path(agent.prompt) if agent.prompt else None, agent.observation_bytes)
    except UnknownProtocol as error:
        raise UsageError(f"--protocol: {error}") from None
    except (ValueError, OSError) as error:
        raise UsageError(f"--prompt {agent.prompt}: {error}") from None


async def connect_if_used(
    setup: AgentSetup, say: Callable[[str], None], api_key: str | None = None
) -> tuple[Endpoint | None, ServedModel | None]:
    """Connect to the endpoint if the agent uses one. Raises UsageError."""
    if not setup.may_use_model:
        return None, None
    # Imports the clients, which an oracle does not need.
    from tbench.agents.endpoints import connect, require_tool_calls

    chat, served = await connect(setup.model, say, api_key)
    if setup.recipe is not None and setup.recipe.calls_tools:
        await require_tool_calls(chat, setup.agent.name)
    return chat, served
