"""The user's options, and the setup they resolve to: presets applied, every value checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from harness.chat import without_password
from harness.limits import Limits
from harness.model import Rendering, Sampling
from harness.protocols import PROTOCOLS, UnknownProtocol, load_protocol
from harness.protocols.base import ActionProtocol, ShellMode
from harness.protocols.text import OUTPUT_LIMIT_BYTES
from harness.terminal import Settling
from tbench.agents.presets import PRESETS, Preset
from tbench.agents.user_agent import AgentClass, load_agent_class
from tbench.errors import UsageError
from tbench.sandbox.backend import NetworkChoice
from tbench.tasks.sources import BUNDLED
from tbench.verify.policy import Keep, Verify

_DEFAULT = Preset(
    protocol="keystrokes-json",
    observation_bytes=OUTPUT_LIMIT_BYTES,
    settling="adaptive",
    shell_state="persistent",
)
"""Values for what neither the user nor a preset sets; for the rest, the models' own defaults."""
_OPTION_OF = {
    "template": "--render",
    "command_sec": "--command-timeout",
    "completion_tokens": "--max-completion-tokens",
    "on_overflow": "--on-overflow",
    "strip_thinking": "--strip-thinking",
}
_NAMED_TOGETHER = ("send_reasoning", "strip_thinking", "chat_template_kwargs")
"""Fields that Rendering's messages name when they are about several fields."""


@dataclass(frozen=True)
class ModelOptions:
    """Options for a model at the keyboard. The preset, or else tbench, decides what is None or left out."""

    base_url: str | None = None
    model: str | None = None
    preset: str | None = None
    protocol: str | None = None
    prompt: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    rendering: Mapping[str, Any] = field(default_factory=dict)
    observation_bytes: int | None = None
    settling: Settling | None = None
    shell_state: ShellMode | None = None
    neutralise_special_tokens: bool = False
    request_timeout_sec: float = 600.0
    retry_budget_sec: float = 900.0
    max_outage_sec: float = 3600.0


@dataclass(frozen=True)
class RunOptions:
    """Options of a run, as the user gave them."""

    source: str
    seeds: tuple[int, ...]
    patterns: tuple[str, ...] = ()
    concurrency: int = 4
    agent: str = "model"
    cpu_overcommit: float = 1.0
    retries: int = 1
    max_load: float | None = None
    build: bool = False
    verify: Verify = "shared"
    keep: Keep = "none"
    snapshot: bool = False
    network: NetworkChoice = "task"
    block_host: bool = False
    no_new_privileges: bool = False
    output: str | None = None
    model: ModelOptions = ModelOptions()

    def as_config(self) -> dict[str, Any]:
        """The options that RunConfig has under the same name."""
        elsewhere = {"patterns", "agent", "output", "model"}
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in elsewhere}


def as_stored(options: RunOptions) -> dict[str, Any]:
    """The options as run.json stores them: absolute paths, no user name or password, no output directory."""
    source = options.source if options.source == BUNDLED else str(Path(options.source).resolve())
    model = replace(
        options.model,
        base_url=without_password(options.model.base_url) if options.model.base_url else None,
        prompt=str(Path(options.model.prompt).resolve()) if options.model.prompt else None,
    )
    stored: dict[str, Any] = _OPTIONS.dump_python(
        replace(options, source=source, model=model, output=None), mode="json"
    )
    return stored


def from_stored(stored: object, output: str, of_the_model: Mapping[str, Any], **changes: Any) -> RunOptions:
    """The options of a stored run, replaced by those given now (None is not given). Raises UsageError."""
    try:
        options = _OPTIONS.validate_python(stored)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        raise UsageError(
            f"{output}: its run.json does not say how it was started ({'.'.join(map(str, problem['loc']))}: "
            f"{problem['msg']}); give the whole command again, with --output {output} --resume"
        ) from None
    return replace(
        options, output=output, model=replace(options.model, **_not_none(of_the_model)), **_not_none(changes)
    )


def _not_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


_OPTIONS: TypeAdapter[RunOptions] = TypeAdapter(RunOptions)


@dataclass(frozen=True)
class AgentSetup:
    """The resolved settings of the agent, checked as far as that goes without the endpoint.

    Without a model there is no sampling and no rendering; a protocol belongs to tbench's own loop alone.
    """

    name: str
    """The agent's name in run.json and in every result."""
    preset: str | None = None
    protocol: ActionProtocol | None = None
    user_agent: AgentClass | None = None
    sampling: Sampling | None = None
    rendering: Rendering | None = None
    limits: Limits | None = None
    settling: Settling | None = None
    shell_state: ShellMode | None = None
    observation_bytes: int | None = None
    neutralise_special_tokens: bool | None = None

    @classmethod
    def of(cls, options: RunOptions) -> AgentSetup:
        """Resolve and check the options. Raises UsageError."""
        if options.agent in ("oracle", "nop"):
            return cls(options.agent)
        if ":" in options.agent:
            return _user_agent(options.agent, options.model)
        if options.agent in PRESETS:
            raise UsageError(f"--agent {options.agent}: is a preset; give --preset {options.agent} instead")
        if options.agent != "model":
            raise UsageError(
                f"--agent {options.agent}: unknown; known: model, oracle, nop, or your own as module:Class"
            )
        return _model_agent(options.model)

    def as_config(self) -> dict[str, Any]:
        """The settings by RunConfig's names, for run.json."""
        return {
            "agent": self.name,
            "agent_sha256": self.user_agent.sha256 if self.user_agent else None,
            "preset": self.preset,
            "protocol": self.protocol.name if self.protocol else None,
            "prompt_hash": self.protocol.prompt_hash if self.protocol else None,
            "observation_bytes": self.observation_bytes,
            "neutralise_special_tokens": self.neutralise_special_tokens,
            "settling": self.settling,
            "shell_state": self.shell_state,
            "sampling": self.sampling.model_dump() if self.sampling else None,
            "rendering": self.rendering.model_dump() if self.rendering else None,
            "limits": self.limits.model_dump() if self.limits else None,
        }


def _model_agent(wanted: ModelOptions) -> AgentSetup:
    if not wanted.base_url:
        raise UsageError("no endpoint: give --base-url http://HOST:PORT/v1 or set OPENAI_BASE_URL (or --agent oracle)")
    preset = _preset(wanted)
    observation_bytes = wanted.observation_bytes or preset.observation_bytes or OUTPUT_LIMIT_BYTES
    protocol = _protocol(wanted.protocol or preset.protocol, wanted.prompt, observation_bytes)
    sampling, rendering, limits = _checked(wanted, preset)
    if protocol.tools and rendering.template != "server":
        raise UsageError(f"--protocol {protocol.name}: calls a tool, which only --render server has a place for")
    return AgentSetup(
        name=f"tbench:{protocol.name}",
        preset=wanted.preset,
        protocol=protocol,
        sampling=sampling,
        rendering=rendering,
        limits=limits,
        settling=wanted.settling or preset.settling or _DEFAULT.settling,
        shell_state=_shell_state(protocol, wanted, preset),
        observation_bytes=observation_bytes,
        neutralise_special_tokens=wanted.neutralise_special_tokens,
    )


def _user_agent(name: str, wanted: ModelOptions) -> AgentSetup:
    given = {
        "--protocol": wanted.protocol,
        "--prompt": wanted.prompt,
        "--observation-bytes": wanted.observation_bytes,
        "--on-overflow": wanted.limits.get("on_overflow"),
        "--neutralise-special-tokens": wanted.neutralise_special_tokens or None,
    }
    if senseless := [option for option, value in given.items() if value is not None]:
        raise UsageError(f"--agent {name}: {', '.join(senseless)}: belong to tbench's own agent; leave them out")
    preset = _preset(wanted)
    sampling, rendering, limits = _checked(wanted, preset)
    has_model = bool(wanted.base_url)
    return AgentSetup(
        name=name,
        preset=wanted.preset,
        user_agent=load_agent_class(name),
        sampling=sampling if has_model else None,
        rendering=rendering if has_model else None,
        limits=limits,
        settling=wanted.settling or preset.settling or _DEFAULT.settling,
        shell_state=wanted.shell_state or preset.shell_state or _DEFAULT.shell_state,
    )


def for_earlier_run(setup: AgentSetup, options: RunOptions, earlier: Mapping[str, Any]) -> AgentSetup:
    """The setup of a resumed run (`earlier` is its run.json): it keeps its shell state whatever its preset says now."""
    # Without the key it is from before there was --shell-state: every shell was persistent then.
    if options.model.shell_state is None and earlier.get("shell_state") != "fresh":
        return replace(setup, shell_state=setup.shell_state and "persistent")
    return setup


def _preset(wanted: ModelOptions) -> Preset:
    if wanted.preset is None:
        return _DEFAULT
    if wanted.preset not in PRESETS:
        raise UsageError(f"--preset {wanted.preset}: unknown; known: {', '.join(PRESETS)}")
    return PRESETS[wanted.preset]


def _shell_state(protocol: ActionProtocol, wanted: ModelOptions, preset: Preset) -> ShellMode | None:
    """The shell state; None for a protocol that types keys. Raises UsageError where the user gave that one a state."""
    if protocol.types_commands:
        return wanted.shell_state or preset.shell_state or _DEFAULT.shell_state
    if wanted.shell_state is not None:
        fitting = ", ".join(name for name in PROTOCOLS if load_protocol(name).types_commands)
        raise UsageError(f"--shell-state fits the bash protocols: {fitting}; {protocol.name} types keys; leave it out")
    return None


def _protocol(name: str, prompt: str | None, observation_bytes: int) -> ActionProtocol:
    try:
        return load_protocol(name, Path(prompt) if prompt else None, observation_bytes)
    except UnknownProtocol as error:
        raise UsageError(f"--protocol: {error}") from None
    except (ValueError, OSError) as error:
        raise UsageError(f"--prompt {prompt}: {error}") from None


def _checked(wanted: ModelOptions, preset: Preset) -> tuple[Sampling, Rendering, Limits]:
    """Sampling, rendering and limits: the user's values win over the preset's. Raises UsageError."""
    try:
        return (
            Sampling(**{**preset.sampling, **wanted.sampling}),
            Rendering(**{**preset.rendering, **wanted.rendering}),
            Limits(**{**preset.limits, **wanted.limits}),
        )
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(map(str, problem["loc"]))
        words = problem["msg"].removeprefix("Value error, ")
        if not key:  # it is about several of them
            raise UsageError(_with_options(words)) from None
        raise UsageError(f"{_OPTION_OF.get(key, key)}: {words} (got {problem['input']!r})") from None


def _with_options(words: str) -> str:
    """Copy of a message with options in place of field names."""
    for name in _NAMED_TOGETHER:
        option = f"--{name.replace('_', '-')}"
        words = words.replace(f"{name}=", f"{option} ").replace(name, option)
    return words
