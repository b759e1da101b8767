"""The configuration of a run. To add an option, add a field: its docstring is the help text, its name the flag."""

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
from tbench.config import values
from tbench.config.layers import PRESETS, from_preset, given_values, preset
from tbench.config.setting import Option

NetworkChoice = Literal["task", "none", "bridge"]
"""Which trials have a network: those whose task asks for one (`task`), none, or all (`bridge`)."""
Verify = Literal["shared", "isolated", "both"]
"""Container of the verifier: the agent's, a fresh one with the agent's work, or both."""
Keep = Literal["none", "failed", "all"]
PullChoice = Literal["missing", "always", "never"]
"""Which published images are pulled: missing ones, all that are not pinned by digest, or none."""
LogLevel = Literal["debug", "info", "warning", "error"]
Verbosity = Literal["quiet", "normal", "verbose"]


BLOCK_BYPASSING_CAPABILITIES = {"NET_ADMIN", "NET_RAW"}
"""Capabilities that get past blocked addresses: they change routes, or send frames that bypass routing."""
_MULTIPLIER = Option(metavar="X", measured=False)
_NOT_MEASURED = Option(measured=False)
_PRICE = Field(default=None, ge=0, allow_inf_nan=False)
_SMALLEST_POOL = 24
"""Longest prefix length of an address pool."""


AUTO_FALLBACK, AUTO_MAX = 16, 512
"""Concurrent trials with concurrency `auto`: the number if no server reports its load, and the maximum."""


class _AutoNumber(int):
    """The concurrency `auto`, stored as 0."""


class _AutoSeconds(float):
    """The time limit `auto`, stored as 0."""


def _at_least_one_or(auto: type[_AutoNumber | _AutoSeconds]) -> WrapValidator:
    """Validate a number of at least 1; `auto` becomes 0, which is not accepted as a number."""

    def validate(value: Any, check: ValidatorFunctionWrapHandler) -> float:
        if value == "auto" or isinstance(value, auto):
            return auto()
        number: float = check(value)
        if not 1 <= number < math.inf:
            raise ValueError("must be at least 1, or auto")
        return number

    return WrapValidator(validate)


def _known_preset(name: str | None) -> str | None:
    if name is not None:
        preset(name)
    return name


def _variable_names(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if re.fullmatch(r"\w+", name) is None:
            raise ValueError(f"{name!r} is not the name of a variable; give only names, one per option")
    return tuple(sorted(set(names)))


def _private_pool(text: str) -> str:
    try:
        pool = ipaddress.IPv4Network(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not an IPv4 network such as 10.213.0.0/16: {error}") from None
    if not pool.is_private or pool.prefixlen > _SMALLEST_POOL:
        raise ValueError(f"{text!r} must be a private network of at least 256 addresses, such as 10.213.0.0/16")
    return str(pool)


def _approval(setting: str | None) -> str | None:
    """Validate the value of `--approve`. Raises ValueError."""
    if setting is not None and setting != "ask":
        name, _, file = setting.removeprefix("ask,").partition("=")
        if name != "allowlist" or not file:
            raise ValueError("must be ask, allowlist=FILE, or ask,allowlist=FILE")
    return setting


def protocols() -> Iterable[str]:
    """Return the names of the action protocols."""
    from harness.protocols import PROTOCOLS  # few commands need the names

    return PROTOCOLS


class TasksConfig(Frozen):
    """Tasks"""

    measured: ClassVar[bool] = False

    source: Annotated[str, Option(("--dataset", "-d"), argument="TASKS", metavar="NAME", is_path=True, daily=True)] = (
        "bundled"
    )
    """A directory of tasks, a dataset's name, git+URL@REV#FOLDER, or 'bundled' (default). The directory can also be a
    single task."""
    include: Annotated[tuple[str, ...], Option(("--task", "-t"), metavar="GLOB", daily=True)] = ()
    """Only tasks whose name matches this glob; repeatable."""
    exclude: Annotated[tuple[str, ...], Option(("--exclude", "-x"), metavar="GLOB")] = ()
    """Skip tasks whose name matches this glob; repeatable."""
    limit: Annotated[int | None, Option(("--limit", "-l"), daily=True)] = Field(default=None, ge=1)
    """Maximum number of tasks; the first by name are used."""
    seeds: Annotated[int, Option(("--seeds", "-k"), daily=True)] = Field(default=1, ge=1)
    """Trials per task, each with its own seed."""
    first_seed: int = Field(default=0, ge=0)
    """The first seed; the others count up from it."""
    shuffle: Annotated[int | None, Option(bare="0", metavar="[SEED]")] = None
    """Shuffle the tasks within each seed. The same number gives the same order."""
    registry: Annotated[str | None, Option(metavar="FILE|URL", is_path=True)] = None
    """A registry.json to search for datasets before tbench's own list."""
    refresh: bool = False
    """Fetch the dataset again even if it is cached."""
    offline: bool = False
    """Use the cached dataset and contact no server."""

    @property
    def planned_seeds(self) -> tuple[int, ...]:
        return tuple(range(self.first_seed, self.first_seed + self.seeds))


class EndpointConfig(SamplingSettings):
    """Settings of requests to a model, without its address."""

    options: ClassVar[Mapping[str, Option]] = {"omit_seed": Option(("--no-seed/--send-seed",))}

    name: Annotated[str | None, Option(("--model", "-m"), daily=True, measured=False, per_model=True)] = None
    """Id of the model, if the endpoint lists several; repeatable in tbench run. Each model gets a run of its own, and
    the runs are compared. In a file, each of several models is a table [[model]]."""
    request_timeout_sec: Annotated[
        float,
        _at_least_one_or(_AutoSeconds),
        PlainSerializer(lambda seconds: seconds or "auto"),
        WithJsonSchema({"anyOf": [{"type": "number", "minimum": 1}, {"const": "auto"}]}),
        Option(metavar="SEC|auto", measured=False),
    ] = Field(default_factory=_AutoSeconds, json_schema_extra={"default": "auto"})
    """Timeout of a request in seconds. `auto` derives it from max_tokens and the speed of the endpoint."""
    retry_budget_sec: Annotated[float, _NOT_MEASURED] = Field(default=900.0, ge=0)
    """Seconds to retry a failing request. Then the trial ends with an error."""
    max_outage_sec: Annotated[float, _NOT_MEASURED] = Field(default=3600.0, ge=0)
    """Maximum seconds to pause while the endpoint is down. Then the run stops; 0 means no pause."""
    other_weights: Annotated[Literal["pause", "take"], _NOT_MEASURED] = "pause"
    """What to do if the endpoint's weights change. `pause` waits, as in an outage, until the original ones are back;
    `take` continues with the new ones."""


class ServerConfig(Frozen):
    """One of several servers of a model."""

    base_url: str
    weight: float = Field(default=1.0, gt=0, le=1e6)
    """Share of the trials, relative to the weights of the other servers."""

    @model_validator(mode="before")
    @classmethod
    def _from_url(cls, value: Any) -> Any:
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
    """The endpoint, such as http://localhost:8000/v1; repeatable. The default is OPENAI_BASE_URL, or else a server that
    answers on port 8000 of this machine, if OPENAI_API_KEY is not set. Several endpoints have to serve the same
    model."""
    endpoints: Annotated[
        tuple[ServerConfig, ...],
        AfterValidator(_servers),
        Option(("--endpoint",), metavar="URL", measured=False, instead_of="base_url", has_password=True),
    ] = ()
    """One of several servers of the same model; repeatable. In a file, each is a table [[model.endpoints]] with
    base_url and weight. A trial stays on one server; a new trial goes to the server with the fewest trials for its
    weight."""

    @property
    def servers(self) -> tuple[ServerConfig, ...]:
        """The servers of the model: none, one or several."""
        return self.endpoints or (() if self.base_url is None else (ServerConfig(base_url=self.base_url),))


class AgentConfig(Frozen):
    """Agent"""

    name: Annotated[
        str,
        Option(("--agent", "-a"), daily=True, metavar="NAME", per_agent=True, words=lambda: ("model", "oracle", "nop")),
    ] = "model"
    """model, oracle, nop, module:Class, codex …; repeatable. `model` is a language model in tbench's own loop,
    `oracle` runs the reference solution, `nop` does nothing. `tbench agent list` lists packaged agents; FILE.toml is a
    recipe for another one. In tbench run, each of several agents gets a run with each model, and the runs are
    compared."""
    # Not measured by itself: the agent's name in `Locked` contains the version.
    version: Annotated[str | None, Option(("--agent-version",), metavar="VERSION", measured=False)] = None
    """Another version of a packaged agent."""
    preset: Annotated[
        str | None,
        AfterValidator(_known_preset),
        Option(daily=True, measured=False, metavar="NAME", choices=lambda: PRESETS),
    ] = None
    """Apply the settings of another harness. Your own settings override the preset's."""
    protocol: Annotated[str, Option(daily=True, metavar="NAME", choices=protocols)] = "keystrokes-json"
    """The format of replies."""
    prompt: Annotated[str | None, Option(is_path=True)] = None
    """A file with blocks that replace the protocol's prompts."""
    observation_bytes: int = Field(default=OUTPUT_LIMIT_BYTES, ge=200)
    """Maximum bytes of an observation; the middle is cut out."""
    settling: Annotated[Settling, Option(("--strict/--adaptive",))] = "adaptive"
    """Wait the requested time, or until the shell is ready. Harnesses with fixed sleeps are strict."""
    shell_state: ShellMode | None = None
    """In bash protocols, one shell for all commands, or one for each. The default is `persistent`."""
    neutralise_special_tokens: bool = False
    """Break control tokens in the model's input with a space."""
    approve: Annotated[
        str | None, AfterValidator(_approval), Option(metavar="ask|allowlist=FILE", words=lambda: ("ask",))
    ] = None
    """Run only commands that a person or a rule approves. The value is ask, allowlist=FILE, or ask,allowlist=FILE. With
    `ask`, replies wait for tbench approve. Each line of FILE is a regular expression for allowed commands and typed
    lines. Everything else is refused or, with ask,allowlist=FILE, waits for approval."""

    @property
    def asks_before_acting(self) -> bool:
        """Whether a person decides about commands that no rule allows."""
        return (self.approve or "").partition(",")[0] == "ask"


class LimitsConfig(LimitSettings):
    """Limits"""

    options: ClassVar[Mapping[str, Option]] = {
        "completion_tokens": Option(("--max-completion-tokens",)),
        "on_overflow": Option(metavar="HOW"),
    }

    context_tokens: int | None = Field(default=None, ge=256)
    """Maximum tokens of prompt and reply together. A lower limit of the server applies."""
    command_sec: Annotated[float, Option(("--command-timeout",))] = Field(default=120.0, ge=0.1)
    """Timeout of a command in the bash protocols, in seconds."""


NO_ENGINE = "oci:"
"""Beginning of the address for containers without an engine; a directory may follow."""


class SandboxConfig(Frozen):
    """Sandbox"""

    engines: Annotated[tuple[str, ...], Option(("--engine",), metavar="ADDRESS", daily=True, measured=False)] = ()
    """Address of a container engine, or 'oci:' for none; repeatable. With 'oci:' tbench starts containers by itself.
    The default is DOCKER_HOST, or else the first engine of this machine that answers. A trial goes to the machine with
    the largest free share of CPUs and memory; if a machine is lost, its trials continue on another one."""
    ray: Annotated[str | None, Option(metavar="HOST:PORT", measured=False)] = None
    """Address of a Ray cluster, or auto, or local. `auto` is the cluster on this machine, `local` a new one on this
    machine only. Every node with the resource `engine` runs trials."""
    build: Annotated[bool, _NOT_MEASURED] = False
    """Build images even if they exist."""
    no_build_cache: Annotated[bool, Option(("--no-build-cache/--build-cache",), measured=False)] = False
    """Build images without Docker's build cache. Images that can be pulled are only built with --build."""
    pull: Annotated[PullChoice, _NOT_MEASURED] = "missing"
    """Pull published images if missing, always, or never. `always` also looks for newer versions of images
    that are not pinned by digest; with `never`, missing images are built."""
    pull_concurrency: Annotated[int, _NOT_MEASURED] = Field(default=3, ge=1)
    """Concurrent pulls of images."""
    pull_timeout_sec: Annotated[float, _NOT_MEASURED] = Field(default=1800.0, ge=1, allow_inf_nan=False)
    """Timeout of a pull in seconds. A pull that times out is not retried."""
    prefetch: Annotated[bool, _NOT_MEASURED] = False
    """Pull or build the images of all tasks first."""
    drop_images: Annotated[bool, Option(("--drop-images/--leave-images",), measured=False)] = False
    """Remove a task's image after its last trial. Images that this run did not pull or build, or that something else
    uses, stay."""
    keep: Annotated[Keep, _NOT_MEASURED] = "none"
    """Keep containers of no trial, of failed trials, or of all. A trial without a verdict counts as failed."""
    snapshot: Annotated[bool, _NOT_MEASURED] = False
    """Save the files of every trial as an image before the verifier runs."""
    network: NetworkChoice = "task"
    """Network access: as the task says, for no trial, or for all."""
    block_host: bool = False
    """Keep trials and builds from reaching the host and the endpoint."""
    pin_cpus: bool = False
    """Pin each trial to its own CPUs. `nproc` then prints the task's number of CPUs, not the machine's."""
    require_limits: Annotated[bool, Option(measured=False)] = False
    """Refuse engines that do not enforce resource limits. The limits are on memory, swap, CPUs and processes."""
    no_new_privileges: Annotated[bool, Option(("--no-new-privileges/--new-privileges",))] = False
    """Disable sudo, su and other setuid programs in trials."""
    allow_env: Annotated[tuple[str, ...], AfterValidator(_variable_names), Option(metavar="VAR")] = ()
    """Let tasks read this variable of tbench's environment; repeatable. All others are unset for tasks."""
    ignore_keys: Annotated[tuple[str, ...], Option(metavar="GLOB")] = ()
    """Ignore unknown task.toml keys that match this; repeatable. Otherwise, their tasks are refused."""
    trust: bool = False
    """Let compose files access the engine's machine. This includes paths, devices and namespaces."""
    network_pool: Annotated[str, AfterValidator(_private_pool), Option(measured=False, metavar="CIDR")] = (
        "10.213.0.0/16"
    )
    """Address pool for the networks of compose tasks. Each trial gets a small network."""
    container_proxy: Annotated[
        str,
        AfterValidator(values.validate_proxy_choice),
        PlainSerializer(values.proxy_text),
        Option(metavar="URL", measured=False, words=lambda: (values.INHERIT, values.NONE), has_password=True),
    ] = values.INHERIT
    """Proxy for containers and builds that have network access. It is a URL, `none`, or `inherit`: what `proxies` in
    Docker's configuration says, or else tbench's environment. The password is never stored."""
    cap_add: Annotated[tuple[str, ...], AfterValidator(values.validate_capabilities), Option(metavar="CAP")] = ()
    """Add this Linux capability to Docker's defaults; repeatable. Trials with a network have NET_RAW only if you add
    it."""

    @property
    def has_no_engine(self) -> bool:
        """Whether tbench starts containers by itself."""
        return any(each.startswith(NO_ENGINE) for each in self.engines)

    @property
    def engine_options(self) -> str:
        """The options with which another command uses the same engines, after a blank."""
        return "".join(f" --engine {each}" for each in self.engines)

    @model_validator(mode="after")
    def _one_kind_of_machines(self) -> SandboxConfig:
        if self.engines and self.ray is not None:
            raise ValueError("engines and ray exclude each other; give only one of them")
        if self.has_no_engine and len(self.engines) > 1:
            raise ValueError(f"{NO_ENGINE} cannot be combined with other engines; give only one of them")
        return self

    @model_validator(mode="after")
    def _nothing_undoes_what_is_closed(self) -> SandboxConfig:
        if self.block_host and (undoing := sorted(BLOCK_BYPASSING_CAPABILITIES & set(self.cap_add))):
            raise ValueError(f"cap_add {undoing[0]} would bypass block_host; leave one of them out")
        return self


class OverridesConfig(Frozen):
    """Overrides"""

    timeout_multiplier: Annotated[float, Option(metavar="X", daily=True)] = Field(default=1.0, gt=0, le=1000)
    """Multiply every timeout of a task by this. The multipliers of single timeouts take precedence."""
    agent_timeout_multiplier: Annotated[float | None, Option(metavar="X")] = Field(default=None, gt=0, le=1000)
    """Multiply the agent's timeout by this."""
    verifier_timeout_multiplier: Annotated[float | None, Option(metavar="X")] = Field(default=None, gt=0, le=1000)
    """Multiply the verifier's timeout by this."""
    build_timeout_multiplier: Annotated[float | None, _MULTIPLIER] = Field(default=None, gt=0, le=1000)
    """Multiply the timeout of image builds by this."""
    healthcheck_timeout_multiplier: Annotated[float | None, _MULTIPLIER] = Field(default=None, gt=0, le=1000)
    """Multiply a healthcheck's timeout, start time and retries."""
    cpus: Annotated[float | None, Option(("--override-cpus",))] = Field(default=None, ge=0.01, le=1e6)
    """CPUs of every trial, in place of the tasks' values."""
    memory_mb: Annotated[int | None, Option(("--override-memory",), metavar="MB")] = Field(
        default=None, ge=6, le=1 << 40
    )
    """Memory of every trial in MB, in place of the tasks' values."""
    resume_trajectory: bool = False
    """Continue one conversation over all parts of a task."""

    @property
    def timeout_factors(self) -> dict[str, float]:
        """The factor for each kind of timeout: its specific multiplier if given, else the general one."""
        own = {
            "agent": self.agent_timeout_multiplier,
            "verifier": self.verifier_timeout_multiplier,
            "build": self.build_timeout_multiplier,
            "healthcheck": self.healthcheck_timeout_multiplier,
        }
        return {kind: self.timeout_multiplier if factor is None else factor for kind, factor in own.items()}


class VerifyConfig(Frozen):
    """Verification"""

    mode: Annotated[Verify, Option(("--verify",), daily=True)] = "both"
    """Verify in the agent's container, a fresh one, or both. The fresh container gets the agent's work; `both` begins
    with it, and uses the agent's container if necessary. A verifier with its own container, defined by the task, always
    runs there."""
    metric: Annotated[str | None, Option(metavar="NAME")] = Field(default=None, min_length=1)
    """The number in reward.json that is the reward. The default is `reward`, or the only number."""
    artifacts_mb: Annotated[int, _NOT_MEASURED] = Field(default=4096, ge=1, le=1 << 20)
    """Maximum MB that a trial hands to a separate verifier."""


GoOn = Literal["exact", "replay", "anew"]


class ScheduleConfig(Frozen):
    """Scheduling"""

    measured: ClassVar[bool] = False

    concurrency: Annotated[
        int,
        _at_least_one_or(_AutoNumber),
        PlainSerializer(lambda number: number or "auto"),
        WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "auto"}]}),
        Option(("--concurrency", "-n"), daily=True, metavar="INT|auto", without_model=("INT", "Concurrent trials.")),
    ] = Field(default=4)
    """Concurrent trials, or auto: as many as vLLM has capacity for. `auto` reads the server's `/metrics`; without
    metrics, it means 16."""
    order: Literal["seeds", "longest"] = "seeds"
    """Start trials seed by seed, or the longest first. Durations come from `--durations`, from runs of any
    model in the same folder, from the oracle, or else from the time limits. `longest` finishes sooner, but an
    interrupted run may have no complete seed."""
    shard: Annotated[str | None, Option(metavar="I/N"), AfterValidator(values.validate_shard)] = None
    """Run part I of N of the trials; I counts from 0. `tbench merge` combines the shards. All shards take about equally
    long, as judged by the tasks' time limits or by `--durations`."""
    durations: Annotated[tuple[str, ...], Option(metavar="RUN", is_path=True)] = ()
    """A run from which to take the durations of trials; repeatable. They are used by --order longest and --shard."""
    calibrate: Annotated[Literal["off", "missing", "all"], Option(metavar="WHICH")] = "missing"
    """Tasks to calibrate with oracle and nop: off, missing, or all. Calibration uses only capacity that the trials
    leave free. `missing` measures only tasks without a calibration, and stops when the last trial ends; `all` measures
    every task again, and the run waits for it.
    Unhealthy tasks are shown next to the score."""
    retries: int = Field(default=1, ge=0)
    """Maximum number of retries of a trial after a retryable error."""
    retry_only: Annotated[tuple[str, ...], AfterValidator(values.retryable_types), Option(metavar="TYPE")] = ()
    """Retry only these types of error; repeatable, or separated by commas. Only retryable types are accepted."""
    retry_never: Annotated[tuple[str, ...], AfterValidator(values.known_types), Option(metavar="TYPE")] = ()
    """Never retry these types of error; repeatable, or separated by commas. `tbench resume` does not retry them
    either."""
    cpu_overcommit: float = Field(default=1.0, ge=0.1)
    """CPUs that trials can reserve, as a multiple of the machine's. Above 1, load can affect timed tests and timeouts,
    which is acceptable if trials mostly wait for the model. Memory is never overcommitted."""
    max_load: float | None = Field(default=None, ge=0.1)
    """Start no further trial while the load per CPU is above this. The load is the average over one minute."""

    go_on: GoOn = "exact"
    """How to continue an interrupted trial whose container is gone. `exact` and `replay` replay its replies in a new
    container; if the terminal then shows something else, `exact` starts again, and `replay` continues anyway. `anew`
    always starts again."""
    stop_after: Annotated[str | None, AfterValidator(values.validate_duration), Option(("--for",), metavar="TIME")] = (
        None
    )
    """Stop after a time such as 8h; `tbench resume` continues the run."""
    stop_at: Annotated[str | None, AfterValidator(values.validate_time), Option(("--until",), metavar="HH:MM")] = None
    """Stop at a time of day. `tbench resume` continues the run."""
    count_differing: bool = False
    """Score interrupted trials even if replaying them gave a different terminal. Otherwise, they are excluded from the
    score."""
    keep_cut: Annotated[str, AfterValidator(values.validate_duration), Option(metavar="TIME")] = "24h"
    """Keep containers of interrupted trials this long; 0: not at all."""

    @model_validator(mode="after")
    def _retries_agree(self) -> ScheduleConfig:
        if both := sorted(set(self.retry_only) & set(self.retry_never)):
            raise ValueError(f"retry_only and retry_never both contain {both[0]}; remove it from one of them")
        return self

    @property
    def retry_choice(self) -> values.RetryChoice:
        """The types of error to retry."""
        return values.RetryChoice(frozenset(self.retry_only), frozenset(self.retry_never))

    @property
    def is_auto(self) -> bool:
        """Whether the concurrency follows the load of the model's servers."""
        return not self.concurrency

    @property
    def at_once(self) -> int:
        """Initial number of trials at once."""
        return self.concurrency or AUTO_FALLBACK

    @property
    def most_at_once(self) -> int:
        """Maximum number of trials at once."""
        return self.concurrency or AUTO_MAX


class RequestsConfig(Frozen):
    """Scheduling"""

    concurrency: Annotated[int, Option(("--concurrency", "-n"), daily=True)] = Field(default=16, ge=1)
    """Concurrent requests."""


class CostConfig(Frozen):
    """Cost"""

    measured: ClassVar[bool] = False
    has_flags: ClassVar[bool] = False

    prompt_price: float | None = _PRICE
    """Price of a million prompt tokens. `tbench summary` then shows the cost of the run and of a solved trial."""
    cached_price: float | None = _PRICE
    """Price of a million prompt tokens from the server's cache. Without it, they cost as much as other prompt
    tokens."""
    completion_price: float | None = _PRICE
    """Price of a million completion tokens."""
    hour_price: float | None = _PRICE
    """Price of an hour of all the endpoint's hardware. Only the time in which an agent is at work counts."""
    gpus: int | None = Field(default=None, ge=1)
    """Number of GPUs of the endpoint, to count GPU-seconds."""
    currency: str = Field(default="USD", pattern=r"^\S{1,16}$")
    """The currency of all prices, as one word."""

    @model_validator(mode="after")
    def _tokens_have_both_prices(self) -> CostConfig:
        given = [each is not None for each in (self.prompt_price, self.completion_price)]
        if any(given) != all(given) or (self.cached_price is not None and not any(given)):
            raise ValueError("prompt_price and completion_price belong together; give both, 0 for what is free")
        return self


class OutputConfig(Frozen):
    """Output"""

    measured: ClassVar[bool] = False

    directory: Annotated[str | None, Option(("--output", "-o"), metavar="DIR", daily=True, is_path=True)] = None
    """A new or empty directory for the run; default: one below runs/. With `--resume` it is the run to continue."""
    min_coverage: float = Field(default=0.0, ge=0, le=1)
    """Exit with 3 if less than this share of trials, or none, has a verdict."""
    log_level: Annotated[LogLevel, Option(metavar="LEVEL")] = "info"
    """Lowest level in run.log: debug, info, warning or error."""
    verbosity: Annotated[Verbosity, Option(("--verbose/--quiet", "-v/-q"), daily=True)] = "normal"
    """Print each step, or only the score. `normal` is a live view on a terminal, and a line per trial elsewhere."""
    json_lines: Annotated[bool, Option(("--json",))] = False
    """Print JSON lines instead: events, then the summary."""


class RunConfig(Frozen):
    """The configuration of a run. It contains no secrets: the API key comes from an environment variable."""

    tasks: TasksConfig = TasksConfig()
    model: ModelConfig = ModelConfig()
    agent: AgentConfig = AgentConfig()
    limits: LimitsConfig = LimitsConfig()
    sandbox: SandboxConfig = SandboxConfig()
    overrides: OverridesConfig = OverridesConfig()
    verify: VerifyConfig = VerifyConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    cost: CostConfig = CostConfig()
    output: OutputConfig = OutputConfig()

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, given: Any) -> Any:
        """Set the preset's values for settings that are not given."""
        if not isinstance(given, Mapping):
            return given
        filled = from_preset(given)
        return {**given, **{name: {**given_values(given.get(name)), **part} for name, part in filled.items()}}

    def with_values(self, **sections: Mapping[str, Any]) -> RunConfig:
        """Return a copy with other values, by section, validated again. Raises ValidationError."""
        return RunConfig.model_validate(
            # From the values themselves: the serialised ones have no passwords.
            {name: {**dict(getattr(self, name)), **sections.get(name, {})} for name in RunConfig.model_fields}
        )
