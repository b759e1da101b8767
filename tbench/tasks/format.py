"""The schema of task.toml up to version 1.4: keys, defaults, types, steps, and features that tbench lacks.

A key that has no effect here is read all the same: tbench.tasks.features says by name which tasks cannot run for it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tbench.results import LARGEST_REWARD
from tbench.tasks.artifacts import MAIN, Artifact, CollectHook
from tbench.tasks.network import NetworkMode, NetworkPolicy, Networks, allowed_host

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)
_MB_PER_UNIT = {"": 1 / (1 << 20), "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_LEGACY_SIZES = {"memory": "memory_mb", "storage": "storage_mb"}

RewardRange = tuple[float, float]
"""The least and the largest reward of a task."""
REWARD_RANGE: RewardRange = (0.0, 1.0)
"""That of a task which says nothing of it."""
_NO_NAME = re.compile(r"""[<>:"/\\|?*]|^\s*$|[. ]$|^(?:con|prn|aux|nul|(?:com|lpt)[1-9])(?:\.|$)""", re.IGNORECASE)
"""What makes a word no name of a directory on every system."""
_LONGEST_NAME = 100


AllowedHosts = list[Annotated[str, AfterValidator(allowed_host)]]
_Bound = Annotated[float, Field(strict=True, ge=-LARGEST_REWARD, le=LARGEST_REWARD)]


class _Section(BaseModel):
    """A table of task.toml. Unknown keys are tolerated, and reported by `tbench task check`: others own the format."""

    # TOML has inf and nan; as a limit neither can be given to an engine or a clock.
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class TaskTable(_Section):
    """[task]: name and description for a registry of tasks."""

    name: str | None = None
    version: Any = None
    description: str = ""
    authors: list[Any] = []
    keywords: list[Any] = []


def _require_allowlist(mode: NetworkMode | None, hosts: list[str] | None, *, needless: bool = False) -> None:
    """Refuse hosts without the mode that they are for; `needless`: also an empty list of them. Raises ValueError."""
    if mode != "allowlist" and (hosts or (needless and hosts is not None)):
        raise ValueError('allowed_hosts is of use with network_mode = "allowlist" only; set that, or drop it')


class _Phase(_Section):
    """The keys of a network that holds while one of agent and verifier works; without them it is the environment's."""

    network_mode: NetworkMode | None = None
    allowed_hosts: AllowedHosts | None = None

    @model_validator(mode="after")
    def _hosts_of_an_allowlist(self) -> Self:
        _require_allowlist(self.network_mode, self.allowed_hosts, needless=self.network_mode is None)
        return self

    def network_in(self, start: NetworkPolicy) -> NetworkPolicy:
        """The network of the phase in a container that has the network `start`."""
        if self.network_mode is None:
            return start
        return NetworkPolicy(self.network_mode, tuple(self.allowed_hosts or ()))


class AgentSection(_Phase):
    """[agent]: limits of the agent's phase, and its network."""

    timeout_sec: float | None = Field(default=None, gt=0)
    user: str | int | None = None


class SolutionSection(_Section):
    """[solution]: the environment of solve.sh."""

    env: dict[str, str] = {}


class Healthcheck(_Section):
    """[environment.healthcheck]: a command that has to succeed before the agent begins."""

    command: str
    interval_sec: float = Field(default=5.0, gt=0)
    timeout_sec: float = Field(default=30.0, gt=0)
    start_period_sec: float = Field(default=0.0, ge=0)
    start_interval_sec: float = Field(default=5.0, gt=0)
    """Time between checks in the start period."""
    retries: int = Field(default=3, ge=1)


class McpServer(_Section):
    """[[environment.mcp_servers]]: a server that the agent is told of."""

    name: str
    transport: Literal["stdio", "sse", "streamable-http"] = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = []
    headers: dict[str, str] = {}

    @field_validator("transport", mode="before")
    @classmethod
    def _whole_name(cls, value: Any) -> Any:
        return "streamable-http" if value == "http" else value

    @model_validator(mode="after")
    def _reachable(self) -> McpServer:
        needed = "command" if self.transport == "stdio" else "url"
        if not getattr(self, needed):
            raise ValueError(f"a server with transport {self.transport!r} has a {needed}; give it")
        return self


class EnvironmentSection(_Section):
    """[environment]: the container, its limits and its network."""

    build_timeout_sec: float = Field(default=600.0, gt=0)
    docker_image: str | None = None
    os: Literal["linux", "windows"] = "linux"
    cpus: float = Field(default=1.0, gt=0)
    memory_mb: float = Field(default=2048.0, gt=0)
    storage_mb: float = Field(default=10240.0, gt=0)
    pids_limit: int = Field(default=4096, gt=0)
    gpus: int = 0
    gpu_types: list[str] = []
    tpu: dict[str, Any] | None = None
    env: dict[str, str] = {}
    workdir: str | None = None
    network_mode: NetworkMode = "public"
    allow_internet: bool | None = None
    allowed_hosts: AllowedHosts | None = None
    healthcheck: Healthcheck | None = None
    mcp_servers: list[McpServer] = []
    skills_dir: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _legacy_sizes(cls, values: Any) -> Any:
        """Translate `memory = "2G"` and `storage = "10G"` of version 1.0 files."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        for legacy, key in _LEGACY_SIZES.items():
            if legacy in values and key not in values:
                values[key] = _size_mb(values.pop(legacy), legacy)
        return values

    @field_validator("os", mode="before")
    @classmethod
    def _any_case(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @model_validator(mode="after")
    def _hosts_of_an_allowlist(self) -> Self:
        _require_allowlist(self.network_mode, self.allowed_hosts)
        return self

    @property
    def network(self) -> NetworkPolicy:
        """The network at the start: the legacy `allow_internet` counts where no newer key of the network is given."""
        if self.allow_internet is False and not {"network_mode", "allowed_hosts"} & self.model_fields_set:
            return NetworkPolicy("no-network")
        return NetworkPolicy(self.network_mode, tuple(self.allowed_hosts or ()))


class VerifierSection(_Phase):
    """[verifier]: limits of tests/test.sh, its network, and where it runs."""

    timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = {}
    user: str | int | None = None
    reward_range: tuple[_Bound, _Bound] = REWARD_RANGE
    metric: str | None = None
    """Name of the number in reward.json that counts."""
    environment_mode: Literal["shared", "separate"] | None = None
    environment: EnvironmentSection | None = None
    collect: tuple[CollectHook, ...] = ()

    @field_validator("reward_range")
    @classmethod
    def _from_low_to_high(cls, bounds: RewardRange) -> RewardRange:
        if bounds[0] >= bounds[1]:
            raise ValueError("is the least and the largest reward, in this order, such as [0, 1]")
        return bounds

    @model_validator(mode="after")
    def _one_place(self) -> VerifierSection:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError(
                'environment_mode = "shared" contradicts [verifier.environment], which describes a container of the '
                "verifier's own; drop one of them"
            )
        return self

    @property
    def is_separate(self) -> bool:
        """Whether tests/test.sh runs in a container of the verifier's own."""
        return self.environment_mode == "separate" or self.environment is not None

    @property
    def image(self) -> str | None:
        """Name of the image of its own container."""
        return self.environment.docker_image if self.environment is not None else None


class StepSection(_Section):
    """[[steps]]: one of the steps of a task. What it says of agent and verifier holds for it in place of the task's."""

    name: str
    agent: AgentSection = AgentSection()
    verifier: VerifierSection = VerifierSection()
    min_reward: _Bound | dict[str, _Bound] | None = None
    """The least reward, or the least of each of these metrics, with which the next step begins."""
    healthcheck: Healthcheck | None = None
    artifacts: tuple[Artifact, ...] = ()

    @field_validator("name")
    @classmethod
    def _names_a_directory(cls, name: str) -> str:
        if _NO_NAME.search(name) or not name.isprintable() or len(name.encode()) > _LONGEST_NAME:
            raise ValueError(f"is the name of a directory in steps/, of at most {_LONGEST_NAME} bytes")
        return name


class TaskFile(_Section):
    """The content of task.toml."""

    version: Any = None
    schema_version: Any = None
    source: Any = None
    task: TaskTable = TaskTable()
    metadata: dict[str, Any] = {}
    agent: AgentSection = AgentSection()
    verifier: VerifierSection = VerifierSection()
    solution: SolutionSection = SolutionSection()
    environment: EnvironmentSection = EnvironmentSection()
    artifacts: tuple[Artifact, ...] = ()
    steps: list[StepSection] = []
    multi_step_reward_strategy: Literal["mean", "final"] | None = None

    @property
    def networks(self) -> Networks:
        """The networks of the agent's container over its life; a verifier of its own does not work there."""
        start = self.environment.network
        verifier = start if self.verifier.is_separate else self.verifier.network_in(start)
        return Networks(start, self.agent.network_in(start), verifier)

    @field_validator("steps")
    @classmethod
    def _names_differ(cls, steps: list[StepSection]) -> list[StepSection]:
        # Some file systems take names for the same that differ only in this.
        folded = [unicodedata.normalize("NFC", step.name).casefold() for step in steps]
        for number, step in enumerate(steps):
            if folded[number] in folded[:number]:
                raise ValueError(f"two of the steps are called {step.name!r}; each has a directory of its own")
        return steps

    @property
    def services(self) -> frozenset[str]:
        """Services besides the agent's container that artifacts and collect hooks name."""
        artifacts = (*self.artifacts, *(each for step in self.steps for each in step.artifacts))
        hooks = (*self.verifier.collect, *(each for step in self.steps for each in step.verifier.collect))
        named = {*(each.of for each in artifacts), *(each.service for each in hooks)}
        return frozenset(named - {MAIN})


def first_problem(error: ValidationError) -> str:
    """The first wrong key, why it is wrong, and its value."""
    problem = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in problem["loc"]) or "file"
    shown = "" if isinstance(problem["input"], dict) else f" (got {problem['input']!r})"
    return f"{key}: {problem['msg'].removeprefix('Value error, ')}{shown}"


def unknown_keys(raw: Mapping[str, Any], model: type[BaseModel] = TaskFile, prefix: str = "") -> Iterator[str]:
    """Dotted keys of a parsed task.toml that are not in the schema."""
    legacy = _LEGACY_SIZES if model is EnvironmentSection else {}
    for key, value in raw.items():
        field = model.model_fields.get(key)
        if field is None:
            if key not in legacy:
                yield prefix + key
        elif (section := section_of(field.annotation)) is None:
            continue
        elif isinstance(value, dict):
            yield from unknown_keys(value, section, f"{prefix}{key}.")
        elif isinstance(value, list):
            for number, each in ((number, each) for number, each in enumerate(value) if isinstance(each, dict)):
                yield from unknown_keys(each, section, f"{prefix}{key}.{number}.")


def nearest_key(key: str) -> str | None:
    """The known key that was probably meant by an unknown one, as `unknown_keys` has it; None where none is near."""
    table, _, name = key.rpartition(".")
    known = sorted(_known_keys(), key=lambda each: each.count("."))
    beside = [each for each in known if each.rpartition(".")[0] == table]
    for candidates in (beside, [each for each in known if each.rpartition(".")[2] == name]):
        if near := get_close_matches(name, [each.rpartition(".")[2] for each in candidates], n=1, cutoff=0.7):
            return next(each for each in candidates if each.rpartition(".")[2] == near[0])
    return None


def _known_keys(model: type[BaseModel] = TaskFile, prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield prefix + name
        if (section := section_of(field.annotation)) is not None:
            yield from _known_keys(section, f"{prefix}{name}.")


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The model behind `Model`, `Model | None` or `list[Model]`."""
    candidates = get_args(annotation) or (annotation,)
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _size_mb(value: Any, key: str) -> float:
    match = _SIZE.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{key}: {value!r} is not a size such as 512M or 2G")
    return float(match[1]) * _MB_PER_UNIT[match[2].upper()]


# What a step of a task says, merged with what the task says: as if it were a task of its own.

_POLICY = {"network_mode", "allowed_hosts"}
"""Keys that hold together: whoever gives one of them gives both."""


def step_file(file: TaskFile, step: StepSection, *, has_image: bool = False) -> TaskFile:
    """The content of task.toml as it is for one step.

    `has_image`: the step's own tests/ is what an image for its verifier is built of.
    """
    return file.model_copy(
        update={
            "agent": file.agent.model_copy(update=_given(step.agent)),
            "verifier": _verifier(file.verifier, step.verifier, has_image),
            "artifacts": (*file.artifacts, *step.artifacts),
            "steps": [],
        }
    )


def _given(section: BaseModel) -> dict[str, Any]:
    """The keys of a table that a step gives, by which those of the task are replaced."""
    names = section.model_fields_set
    if names & _POLICY:
        names = names | _POLICY
    return {name: getattr(section, name) for name in names}


def _verifier(task: VerifierSection, step: VerifierSection, has_image: bool) -> VerifierSection:
    mode = step.environment_mode or ("separate" if step.environment else None) or task.environment_mode
    given = _given(step) | {
        "env": {**task.env, **step.env},
        "collect": (*task.collect, *step.collect),
        "environment_mode": mode,
        "environment": None,
    }
    if mode != "shared":
        environment = step.environment or task.environment
        if environment is not None:
            image = step.environment.docker_image if step.environment else None
            if image is None and not has_image and task.environment is not None:
                image = task.environment.docker_image
            environment = environment.model_copy(update={"docker_image": image})
        given["environment"] = environment
    return task.model_copy(update=given)


# Features of Harbor's task format that tbench lacks, by name: a task that needs one of them is not run.
#
# Only what would change how a task is run or verified is named; what has no such effect in Harbor either is not.


def missing_features(file: TaskFile, path: Path) -> list[str]:
    """The features that the task at `path` needs and tbench lacks; those of a step alone say so."""
    named = [name for name, is_needed in FEATURES.items() if is_needed(file, path)]
    for step in file.steps:
        merged = step_file(file, step)
        for name, is_needed in FEATURES.items():
            if name not in named and is_needed(merged, path):
                named.append(f"{name} (step {step.name})")
    return named


def _environments(file: TaskFile) -> list[EnvironmentSection]:
    """The environments that the task describes: the agent's, and the verifier's own."""
    own = file.verifier.environment
    return [file.environment] if own is None else [file.environment, own]


def _in_any(needs: Callable[[EnvironmentSection], bool]) -> Callable[[TaskFile, Path], bool]:
    return lambda file, _: any(needs(each) for each in _environments(file))


def _has_file(name: str) -> Callable[[TaskFile, Path], bool]:
    return lambda _, path: (path / name).is_file()


def _of_a_step(name: str) -> Callable[[TaskFile, Path], bool]:
    return lambda file, path: any((path / "steps" / step.name / name).is_file() for step in file.steps)


FEATURES: Mapping[str, Callable[[TaskFile, Path], bool]] = {
    "trajectory.json": _has_file("trajectory.json"),
    "steps/*/trajectory.json": _of_a_step("trajectory.json"),
    "environment.os = windows": _in_any(lambda each: each.os == "windows"),
    "environment.tpu": _in_any(lambda each: each.tpu is not None),
}
