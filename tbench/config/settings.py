"""The configuration of a run. To add an option, add a field: its docstring is the help, its name the flag."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)

from harness.endpoint.address import full_url, without_password
from harness.errors import EndpointError
from harness.limits import OUTPUT_LIMIT_BYTES, LimitSettings, Settling, ShellMode
from harness.model import Rendering, SamplingSettings
from harness.trajectory import Frozen
from tbench.config.layers import PRESETS, from_preset, given_values, preset
from tbench.config.setting import Option
from tbench.config.values import (
    INHERIT,
    NONE,
    RetryChoice,
    checked_capabilities,
    checked_proxy_choice,
    checked_shard,
    known_types,
    retryable_types,
    shown_proxy,
)

NetworkChoice = Literal["task", "none", "bridge"]
"""Which trials have a network: `task` (as the task says), `none`, or `bridge` (all of them)."""
Verify = Literal["shared", "isolated", "both"]
"""Where the verifier runs: in the agent's container, in a copy without its processes, or in both."""
Keep = Literal["none", "failed", "all"]
PullChoice = Literal["missing", "always", "never"]
"""Which published images are pulled: those that are missing, all that are not pinned, or none."""
LogLevel = Literal["debug", "info", "warning", "error"]
Verbosity = Literal["quiet", "normal", "verbose"]


PAST_CLOSED_ADDRESSES = {"NET_ADMIN", "NET_RAW"}
"""Capabilities to change routes, and to send frames that no route holds up."""
_MULTIPLIER = Option(metavar="X", measured=False)
_NOT_MEASURED = Option(measured=False)
_SMALLEST_POOL = 24
"""Longest prefix of a pool of addresses."""


AUTO_OTHERWISE, AUTO_MOST = 16, 512
"""With the concurrency `auto`: how many trials where nobody tells of a load, and how many at the most."""


class _Auto(int):
    """No number of trials yet."""


def _number_or_auto(value: Any, check: ValidatorFunctionWrapHandler) -> int:
    """A number of 1 or more; 0 for `auto`, which no other 0 stands for."""
    if value == "auto" or isinstance(value, _Auto):
        return _Auto()
    number: int = check(value)
    if number < 1:
        raise ValueError("must be 1 or more, or auto")
    return number


class _AutoSeconds(float):
    """No time limit of the user's own."""


def _seconds_or_auto(value: Any, check: ValidatorFunctionWrapHandler) -> float:
    """Seconds, 1 or more; 0 for `auto`, which no other 0 stands for."""
    if value == "auto" or isinstance(value, _AutoSeconds):
        return _AutoSeconds()
    seconds: float = check(value)
    if not 1 <= seconds < math.inf:
        raise ValueError("must be 1 or more, or auto")
    return seconds


def _known_preset(name: str | None) -> str | None:
    if name is not None:
        preset(name)
    return name


def _variable_names(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if re.fullmatch(r"\w+", name) is None:
            raise ValueError(f"{name!r} is no name of a variable; give the name alone, once for each")
    return tuple(sorted(set(names)))


def _private_pool(text: str) -> str:
    try:
        pool = ipaddress.IPv4Network(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no IPv4 network such as 10.213.0.0/16: {error}") from None
    if not pool.is_private or pool.prefixlen > _SMALLEST_POOL:
        raise ValueError(f"{text!r} has to be private, and of 256 addresses or more, such as 10.213.0.0/16")
    return str(pool)


def _approval(setting: str | None) -> str | None:
    """A choice of who approves. Raises ValueError."""
    if setting is not None and setting != "ask":
        name, _, file = setting.removeprefix("ask,").partition("=")
        if name != "allowlist" or not file:
            raise ValueError("write ask, allowlist=FILE, or ask,allowlist=FILE")
    return setting


def protocols() -> Iterable[str]:
    """The names of the action protocols."""
    from harness.protocols import PROTOCOLS  # with their prompts, which most commands do without

    return PROTOCOLS


class TasksConfig(Frozen):
    """What to run"""

    measured: ClassVar[bool] = False

    source: Annotated[str, Option(("--dataset", "-d"), argument="TASKS", metavar="NAME", is_path=True, daily=True)] = (
        "bundled"
    )
    """A directory of tasks, a dataset, git+URL@REV#FOLDER, or 'bundled'. The directory may be that of one task."""
    include: Annotated[tuple[str, ...], Option(("--task", "-t"), metavar="GLOB", daily=True)] = ()
    """Only tasks whose name matches this glob; repeatable."""
    exclude: Annotated[tuple[str, ...], Option(("--exclude", "-x"), metavar="GLOB", daily=True)] = ()
    """Not the tasks whose name matches this glob; repeatable."""
    limit: Annotated[int | None, Option(("--limit", "-l"), daily=True)] = Field(default=None, ge=1)
    """Most tasks; the first by name are taken."""
    seeds: Annotated[int, Option(("--seeds", "-k"), daily=True)] = Field(default=1, ge=1)
    """Trials per task, each with a seed of its own."""
    first_seed: int = Field(default=0, ge=0)
    """The first seed; the others follow it."""
    shuffle: Annotated[int | None, Option(bare="0", metavar="[SEED]")] = None
    """A random order of tasks within each seed. The same number is the same order."""
    registry: Annotated[str | None, Option(metavar="FILE|URL", is_path=True)] = None
    """A registry.json in which datasets are looked up before tbench's own list."""
    refresh: bool = False
    """Fetch the dataset again, also where it is in the cache."""
    offline: bool = False
    """Take the dataset from the cache, and ask no server for it."""

    @property
    def planned_seeds(self) -> tuple[int, ...]:
        return tuple(range(self.first_seed, self.first_seed + self.seeds))


class EndpointConfig(SamplingSettings):
    """How a model is asked, wherever it is."""

    options: ClassVar[Mapping[str, Option]] = {"omit_seed": Option(("--no-seed/--send-seed",))}

    name: Annotated[str | None, Option(("--model", "-m"), daily=True, measured=False)] = None
    """The model's id, where the endpoint lists several."""
    request_timeout_sec: Annotated[
        float,
        WrapValidator(_seconds_or_auto),
        PlainSerializer(lambda seconds: seconds or "auto"),
        WithJsonSchema({"anyOf": [{"type": "number", "minimum": 1}, {"const": "auto"}]}),
        Option(metavar="SEC|auto", measured=False),
    ] = Field(default_factory=_AutoSeconds, json_schema_extra={"default": "auto"})
    """Seconds for a request. `auto` is by max_tokens and the endpoint's pace."""
    retry_budget_sec: Annotated[float, _NOT_MEASURED] = Field(default=900.0, ge=0)
    """Seconds to try a failing endpoint. Then it is an error."""
    max_outage_sec: Annotated[float, _NOT_MEASURED] = Field(default=3600.0, ge=0)
    """Seconds to pause while the endpoint is away. Then the run stops; 0 is no pause."""
    other_weights: Annotated[Literal["pause", "take"], _NOT_MEASURED] = "pause"
    """Other weights under the same name. The run pauses as in an outage until the first are back, or it takes them."""


class ServerConfig(Frozen):
    """One of several servers of a model."""

    base_url: str
    weight: float = Field(default=1.0, gt=0, le=1e6)
    """Its share of the trials, beside the weights of the others."""

    @model_validator(mode="before")
    @classmethod
    def _of_url(cls, value: Any) -> Any:
        return {"base_url": value} if isinstance(value, str) else value


def _servers(servers: tuple[ServerConfig, ...]) -> tuple[ServerConfig, ...]:
    try:
        urls = [full_url(each.base_url) for each in servers]
    except EndpointError as error:
        raise ValueError(str(error)) from None
    if twice := sorted({without_password(url) for url in urls if urls.count(url) > 1}):
        raise ValueError(f"{twice[0]} is listed twice; give its weight instead")
    return servers


class ModelConfig(EndpointConfig, Rendering):
    """Model"""

    options: ClassVar[Mapping[str, Option]] = {
        **EndpointConfig.options,
        "template": Option(("--render",), metavar="HOW"),
        "send_reasoning": Option(bare="on"),
    }

    base_url: Annotated[
        str | None, Option(daily=True, measured=False, instead_of="endpoints", several="endpoints", has_password=True)
    ] = None
    """The endpoint, such as http://localhost:8000/v1; repeatable. Without it, OPENAI_BASE_URL says. Several are servers
    of one model."""
    endpoints: Annotated[
        tuple[ServerConfig, ...],
        AfterValidator(_servers),
        Option(("--endpoint",), metavar="URL", measured=False, instead_of="base_url", has_password=True),
    ] = ()
    """Several servers of one model; repeatable. In a file each is a table [[model.endpoints]] with base_url and
    weight. A trial stays at one; a new one goes to the server with the fewest for its weight."""

    @property
    def servers(self) -> tuple[ServerConfig, ...]:
        """Where the model is asked: several servers, one, or none."""
        return self.endpoints or (() if self.base_url is None else (ServerConfig(base_url=self.base_url),))


class AgentConfig(Frozen):
    """Agent"""

    name: Annotated[str, Option(("--agent", "-a"), daily=True, words=lambda: ("model", "oracle", "nop"))] = "model"
    """Who works: model, oracle, nop, or a module:Class of yours. `model` is a language model at the keyboard, `oracle`
    the reference solution, `nop` nobody."""
    preset: Annotated[
        str | None, AfterValidator(_known_preset), Option(daily=True, measured=False, words=lambda: PRESETS)
    ] = None
    """Settings of terminus-2, tmax, mini-swe-agent or thinking-bash. What is given beside it wins."""
    protocol: Annotated[str, Option(words=protocols)] = "keystrokes-json"
    """How replies become actions. It is keystrokes-json, keystrokes-xml, bash-block, bash-tool or thinking-bash."""
    prompt: Annotated[str | None, Option(is_path=True)] = None
    """A file whose blocks replace the protocol's prompts."""
    observation_bytes: int = Field(default=OUTPUT_LIMIT_BYTES, ge=200)
    """Longer observations lose their middle."""
    settling: Annotated[Settling, Option(("--strict/--adaptive",))] = "adaptive"
    """Wait out the durations, or until all is quiet. Fixed-sleep harnesses do the former."""
    shell_state: ShellMode | None = None
    """One shell for all commands of a bash protocol, or one for each. `persistent` is the default; `fresh` runs each in
    a process of its own."""
    neutralise_special_tokens: bool = False
    """Defuse control tokens in all that the model is told. A space is put into each."""
    approve: Annotated[
        str | None, AfterValidator(_approval), Option(metavar="ask|allowlist=FILE", words=lambda: ("ask",))
    ] = None
    """Do only what a person or a rule approves. It is ask, allowlist=FILE, or ask,allowlist=FILE. `ask` has replies
    wait for tbench approve; FILE has regular expressions, one per line, of commands and typed lines that are allowed.
    What no rule allows is refused, or with both asked about."""

    @property
    def asks_before_acting(self) -> bool:
        """Whether a person is asked about what no rule allows."""
        return (self.approve or "").partition(",")[0] == "ask"


class LimitsConfig(LimitSettings):
    """Limits"""

    options: ClassVar[Mapping[str, Option]] = {
        "completion_tokens": Option(("--max-completion-tokens",)),
        "on_overflow": Option(metavar="HOW"),
    }

    context_tokens: int | None = Field(default=None, ge=256)
    """Most tokens of prompt and reply together. A server that allows less has its way."""
    command_sec: Annotated[float, Option(("--command-timeout",))] = Field(default=120.0, ge=0.1)
    """Seconds for one command in the bash protocols."""


class SandboxConfig(Frozen):
    """Sandbox"""

    engines: Annotated[tuple[str, ...], Option(("--engine",), metavar="ADDRESS", measured=False)] = ()
    """An engine's unix://, ssh:// or tcp:// address; repeatable. Without it, DOCKER_HOST says. Trials go to the machine
    with most cpus and memory left; those of one that is lost begin anew on another."""
    ray: Annotated[str | None, Option(metavar="HOST:PORT", measured=False)] = None
    """A Ray cluster's address, auto or local. Each of its nodes with the resource `engine` has trials."""
    build: Annotated[bool, _NOT_MEASURED] = False
    """Build images even where they exist."""
    no_build_cache: Annotated[bool, Option(("--no-build-cache/--build-cache",), measured=False)] = False
    """What is built at all is built anew, step by step. Images that can be pulled are not built, but with --build."""
    pull: Annotated[PullChoice, _NOT_MEASURED] = "missing"
    """Pull published images that are missing, always, or never. With `always` the registry is asked for the newest,
    unless a digest pins the image; with `never` what is missing is built."""
    pull_concurrency: Annotated[int, _NOT_MEASURED] = Field(default=3, ge=1)
    """Images pulled at once."""
    pull_timeout_sec: Annotated[float, _NOT_MEASURED] = Field(default=1800.0, ge=1, allow_inf_nan=False)
    """Seconds for an attempt to pull an image. One that is under way then is too slow, and is not begun again."""
    prefetch: Annotated[bool, _NOT_MEASURED] = False
    """Get the images of all tasks before anything else."""
    drop_images: Annotated[bool, Option(("--drop-images/--leave-images",), measured=False)] = False
    """Remove the image of a task after its last trial. Only what this run has pulled or built, and nobody else uses."""
    keep: Annotated[Keep, _NOT_MEASURED] = "none"
    """Leave the containers of these trials running."""
    snapshot: Annotated[bool, _NOT_MEASURED] = False
    """Keep every trial's files before the verifier as an image."""
    network: NetworkChoice = "task"
    """Who has a network: as the task says, nobody, everybody."""
    block_host: bool = False
    """Trials and builds cannot reach the engine's host and the endpoint."""
    pin_cpus: bool = False
    """Each trial has cpus of its own, by number. Then nproc tells the task's cpus, not the machine's."""
    require_limits: Annotated[bool, Option(measured=False)] = False
    """Refuse an engine on which limits are not in force. They are those of memory, swap, cpus and processes."""
    no_new_privileges: Annotated[bool, Option(("--no-new-privileges/--new-privileges",))] = False
    """sudo, su and other setuid programs have no effect in trials."""
    allow_env: Annotated[tuple[str, ...], AfterValidator(_variable_names), Option(metavar="VAR")] = ()
    """Tasks may take this variable from tbench's environment; repeatable. Every other is to them as if not set."""
    trust: bool = False
    """Compose files may have what they ask for of the engine's machine. That is paths, devices and namespaces."""
    network_pool: Annotated[str, AfterValidator(_private_pool), Option(measured=False, metavar="CIDR")] = (
        "10.213.0.0/16"
    )
    """Addresses for the networks of compose tasks. Each trial has a small one."""
    container_proxy: Annotated[
        str,
        AfterValidator(checked_proxy_choice),
        PlainSerializer(shown_proxy),
        Option(metavar="URL", measured=False, words=lambda: (INHERIT, NONE), has_password=True),
    ] = INHERIT
    """The proxy of containers and builds. It holds where they have a network: a URL, `none`, or `inherit`, the one
    under `proxies` in Docker's configuration, or else that of tbench's environment. Its password is stored nowhere."""
    cap_add: Annotated[tuple[str, ...], AfterValidator(checked_capabilities), Option(metavar="CAP")] = ()
    """Trials have this Linux capability besides Docker's own; repeatable. NET_RAW, which no trial with a network has by
    itself, is one."""

    @model_validator(mode="after")
    def _one_kind_of_machines(self) -> SandboxConfig:
        if self.engines and self.ray is not None:
            raise ValueError("engines and ray: give one of them")
        return self

    @model_validator(mode="after")
    def _nothing_undoes_what_is_closed(self) -> SandboxConfig:
        if self.block_host and (undoing := sorted(PAST_CLOSED_ADDRESSES & set(self.cap_add))):
            raise ValueError(f"cap_add {undoing[0]} goes past what block_host closes; leave one of them out")
        return self


class OverridesConfig(Frozen):
    """Overrides"""

    timeout_multiplier: Annotated[float, Option(metavar="X")] = Field(default=1.0, gt=0, le=1000)
    """Every timeout of a task times this. The four below win over it, each for its own."""
    agent_timeout_multiplier: Annotated[float | None, Option(metavar="X")] = Field(default=None, gt=0, le=1000)
    """The agent's timeout times this."""
    verifier_timeout_multiplier: Annotated[float | None, Option(metavar="X")] = Field(default=None, gt=0, le=1000)
    """The verifier's timeout times this."""
    build_timeout_multiplier: Annotated[float | None, _MULTIPLIER] = Field(default=None, gt=0, le=1000)
    """The timeout of image builds times this."""
    healthcheck_timeout_multiplier: Annotated[float | None, _MULTIPLIER] = Field(default=None, gt=0, le=1000)
    """The healthcheck's patience times this. That is its timeout, its start period and its retries."""
    cpus: Annotated[float | None, Option(("--override-cpus",))] = Field(default=None, ge=0.01, le=1e6)
    """Cpus of every trial, whatever tasks say."""
    memory_mb: Annotated[int | None, Option(("--override-memory",), metavar="MB")] = Field(
        default=None, ge=6, le=1 << 40
    )
    """Megabytes of memory of every trial, whatever tasks say."""


class VerifyConfig(Frozen):
    """Verification"""

    mode: Annotated[Verify, Option(("--verify",))] = "both"
    """Where the verifier runs: the agent's container, a fresh one with its work, or both where that is no pass. Tasks
    that have a verifier with a container of its own are verified there."""
    metric: Annotated[str | None, Option(metavar="NAME")] = Field(default=None, min_length=1)
    """The number of a verifier's reward.json that counts. By itself it is `reward`, or the only one."""
    artifacts_mb: Annotated[int, _NOT_MEASURED] = Field(default=4096, ge=1, le=1 << 20)
    """Megabytes that a trial may hand to a verifier of its own."""


class ScheduleConfig(Frozen):
    """Scheduling"""

    measured: ClassVar[bool] = False

    concurrency: Annotated[
        int,
        WrapValidator(_number_or_auto),
        PlainSerializer(lambda number: number or "auto"),
        WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "auto"}]}),
        Option(("--concurrency", "-n"), daily=True, metavar="INT|auto"),
    ] = Field(default=4)
    """Trials at once, or auto: as many as vLLM has room for. `auto` goes by the server's `/metrics`."""
    order: Literal["seeds", "longest"] = "seeds"
    """First the trials of whole seeds, or those that take longest. How long is known from `--durations`, from the runs
    beside this one, of whatever model, from the oracle, or else from the time limits. `longest` ends sooner; cut short,
    it may have no whole seed."""
    shard: Annotated[str | None, Option(metavar="I/N"), AfterValidator(checked_shard)] = None
    """Only a share of the trials, from 0/N to N-1/N. `tbench merge` puts the shards together. Each has about as long to
    do, by the time limits of the tasks or by `--durations`."""
    durations: Annotated[tuple[str, ...], Option(metavar="RUN", is_path=True)] = ()
    """Runs that say how long trials take; repeatable. They decide --order longest and what is in a --shard."""
    calibrate: Annotated[Literal["off", "missing", "all"], Option(metavar="WHICH")] = "missing"
    """Tasks measured by oracle and nop, too: off, missing, all. Beside the trials, in the room that they cannot use;
    `missing` ends with the last of them, `all` measures anew and is waited for. Unhealthy tasks stand beside the
    score."""
    retries: int = Field(default=1, ge=0)
    """Further attempts at a trial whose error another one may heal."""
    retry_only: Annotated[tuple[str, ...], AfterValidator(retryable_types), Option(metavar="TYPE")] = ()
    """Only such errors are tried again; repeatable. Or with commas; one that stands by its kind is none of them."""
    retry_never: Annotated[tuple[str, ...], AfterValidator(known_types), Option(metavar="TYPE")] = ()
    """Such errors are not tried again; repeatable. Or with commas; nor does `tbench resume` try them."""
    cpu_overcommit: float = Field(default=1.0, ge=0.1)
    """The cpus that trials may use, as a multiple of the machine's. Above 1, load may decide timed tests
    and timeouts; where trials mostly wait for the model that is a fair price. Memory is never overcommitted."""
    max_load: float | None = Field(default=None, ge=0.1)
    """Load per cpu above which no trial starts beside others. It is the average over one minute."""

    @model_validator(mode="after")
    def _retries_agree(self) -> ScheduleConfig:
        if both := sorted(set(self.retry_only) & set(self.retry_never)):
            raise ValueError(f"retry_only and retry_never: both name {both[0]}; leave it out of one")
        return self

    @property
    def retry_choice(self) -> RetryChoice:
        """Which errors are tried again."""
        return RetryChoice(frozenset(self.retry_only), frozenset(self.retry_never))

    @property
    def is_auto(self) -> bool:
        """Whether the model's servers decide how many trials go at once."""
        return not self.concurrency

    @property
    def at_once(self) -> int:
        """Trials at once, to begin with."""
        return self.concurrency or AUTO_OTHERWISE

    @property
    def most_at_once(self) -> int:
        """Trials at once, at the most."""
        return self.concurrency or AUTO_MOST


class RequestsConfig(Frozen):
    """Scheduling"""

    concurrency: Annotated[int, Option(("--concurrency", "-n"), daily=True)] = Field(default=16, ge=1)
    """Requests at once."""


class OutputConfig(Frozen):
    """Output"""

    measured: ClassVar[bool] = False

    directory: Annotated[str | None, Option(("--output", "-o"), metavar="DIR", daily=True, is_path=True)] = None
    """The run's directory; must be new or empty, but for --resume."""
    min_coverage: Annotated[float, Option(daily=True)] = Field(default=0.0, ge=0, le=1)
    """Exit with 3 if fewer trials have a verdict, or none has."""
    log_level: Annotated[LogLevel, Option(metavar="LEVEL", daily=True)] = "info"
    """What run.log holds: from debug, info, warning or error on."""
    verbosity: Annotated[Verbosity, Option(("--verbose/--quiet", "-v/-q"), daily=True)] = "normal"
    """Print each step, or nothing but the score. `normal` is the live view on a terminal, and a line per trial
    elsewhere."""
    json_lines: Annotated[bool, Option(("--json",), daily=True)] = False
    """Print lines of JSON instead: events, and then the summary."""


class RunConfig(Frozen):
    """The configuration of a run. It holds no secrets: a key is named by an environment variable."""

    tasks: TasksConfig = TasksConfig()
    model: ModelConfig = ModelConfig()
    agent: AgentConfig = AgentConfig()
    limits: LimitsConfig = LimitsConfig()
    sandbox: SandboxConfig = SandboxConfig()
    overrides: OverridesConfig = OverridesConfig()
    verify: VerifyConfig = VerifyConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    output: OutputConfig = OutputConfig()

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, given: Any) -> Any:
        """What the preset says of settings that are not given."""
        if not isinstance(given, Mapping):
            return given
        filled = from_preset(given)
        return {**given, **{name: {**given_values(given.get(name)), **part} for name, part in filled.items()}}

    def with_values(self, **sections: Mapping[str, Any]) -> RunConfig:
        """Copy with other values, by section; everything is checked again. Raises ValidationError."""
        return RunConfig.model_validate(
            # As values: what is written of them does without passwords.
            {name: {**dict(getattr(self, name)), **sections.get(name, {})} for name in RunConfig.model_fields}
        )
