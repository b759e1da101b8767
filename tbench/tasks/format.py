"""The schema of task.toml up to version 1.4: keys, defaults, types, steps, and features that tbench lacks.

Keys of unsupported features are read as well, so that the rejection of a task can name the feature (FEATURES).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tbench.results import LARGEST_REWARD
from tbench.tasks.artifacts import MAIN, Artifact, CollectHook, ServiceName
from tbench.tasks.network import NetworkMode, NetworkPolicy, Networks, normalise_host

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)
_MB_PER_UNIT = {"": 1 / (1 << 20), "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_LEGACY_SIZES = {"memory": "memory_mb", "storage": "storage_mb"}

RewardRange = tuple[float, float]
"""Lowest and highest reward of a task."""
REWARD_RANGE: RewardRange = (0.0, 1.0)
"""Default range of rewards."""
_BAD_NAME = re.compile(r"""[<>:"/\\|?*]|^\s*$|[. ]$|^(?:con|prn|aux|nul|(?:com|lpt)[1-9])(?:\.|$)""", re.IGNORECASE)
"""Names that some system does not allow for directories."""
_LONGEST_NAME = 100


AllowedHosts = list[Annotated[str, AfterValidator(normalise_host)]]
_Bound = Annotated[float, Field(strict=True, ge=-LARGEST_REWARD, le=LARGEST_REWARD)]


class _Section(BaseModel):
    """A table of task.toml. Unknown keys are ignored here; some make tbench refuse the task (`refused_keys`)."""

    # TOML allows inf and nan, which are useless as limits.
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class TaskTable(_Section):
    """[task]: name and description for a registry of tasks."""

    name: str | None = None
    version: Any = None
    description: str = ""
    authors: list[Any] = []
    keywords: list[Any] = []


def _require_allowlist(mode: NetworkMode | None, hosts: list[str] | None, *, reject_empty: bool = False) -> None:
    """Reject hosts without the mode "allowlist"; `reject_empty` also rejects an empty list. Raises ValueError."""
    if mode != "allowlist" and (hosts or (reject_empty and hosts is not None)):
        raise ValueError('allowed_hosts only works with network_mode = "allowlist"; set that mode or remove the hosts')


class _Phase(_Section):
    """Network keys of one phase, agent or verifier; without them the phase has the environment's network."""

    network_mode: NetworkMode | None = None
    allowed_hosts: AllowedHosts | None = None

    @model_validator(mode="after")
    def _hosts_of_an_allowlist(self) -> Self:
        _require_allowlist(self.network_mode, self.allowed_hosts, reject_empty=self.network_mode is None)
        return self

    def network_in(self, start: NetworkPolicy) -> NetworkPolicy:
        """Return the phase's network in a container with the network `start`."""
        if self.network_mode is None:
            return start
        return NetworkPolicy(self.network_mode, tuple(self.allowed_hosts or ()))


class AgentSection(_Phase):
    """[agent]: limits and network of the agent's phase."""

    timeout_sec: float | None = Field(default=None, gt=0)
    user: str | int | None = None


class SolutionSection(_Section):
    """[solution]: limit and environment of solve.sh."""

    timeout_sec: float | None = Field(default=None, gt=0)
    """None for the agent's."""
    env: dict[str, str] = {}


class Healthcheck(_Section):
    """[environment.healthcheck]: a command that has to succeed before the agent starts."""

    command: str
    interval_sec: float = Field(default=5.0, gt=0)
    timeout_sec: float = Field(default=30.0, gt=0)
    start_period_sec: float = Field(default=0.0, ge=0)
    start_interval_sec: float = Field(default=5.0, gt=0)
    """Seconds between checks during the start period."""
    retries: int = Field(default=3, ge=1)


class McpServer(_Section):
    """[[environment.mcp_servers]]: a server that is mentioned in the agent's prompt."""

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
            raise ValueError(f"a server with transport {self.transport!r} needs a {needed}")
        return self


class EnvironmentSection(_Section):
    """[environment]: the container with its limits and network."""

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
        """Translate `memory = "2G"` and `storage = "10G"` in files of version 1.0."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        for legacy, key in _LEGACY_SIZES.items():
            if legacy in values and key not in values:
                values[key] = size_mb(size := values.pop(legacy))
                if values[key] is None:
                    raise ValueError(f"{legacy}: {size!r} is not a size such as 512M or 2G")
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
        """Network of the start phase; the legacy key `allow_internet` applies if no newer network key is set."""
        if self.allow_internet is False and not {"network_mode", "allowed_hosts"} & self.model_fields_set:
            return NetworkPolicy("no-network")
        return NetworkPolicy(self.network_mode, tuple(self.allowed_hosts or ()))


class VerifierSection(_Phase):
    """[verifier]: limits and network of tests/test.sh, and the container in which it runs."""

    timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = {}
    user: str | int | None = None
    reward_range: tuple[_Bound, _Bound] = REWARD_RANGE
    metric: str | None = None
    """Name of the number in reward.json that is the reward."""
    environment_mode: Literal["shared", "separate"] | None = None
    environment: EnvironmentSection | None = None
    collect: tuple[CollectHook, ...] = ()
    service: ServiceName = MAIN
    """Compose service in whose container tests/test.sh runs."""

    @field_validator("reward_range")
    @classmethod
    def _from_low_to_high(cls, bounds: RewardRange) -> RewardRange:
        if bounds[0] >= bounds[1]:
            raise ValueError("must be the lowest and the highest reward, in this order, such as [0, 1]")
        return bounds

    @model_validator(mode="after")
    def _one_place(self) -> VerifierSection:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError(
                'environment_mode = "shared" contradicts [verifier.environment], which defines a separate container; '
                "remove one of them"
            )
        return self

    @property
    def is_separate(self) -> bool:
        """Whether tests/test.sh runs in a separate container."""
        return self.environment_mode == "separate" or self.environment is not None

    @property
    def image(self) -> str | None:
        """Name of the image of the separate container."""
        return self.environment.docker_image if self.environment is not None else None


class StepSection(_Section):
    """[[steps]]: a task step, whose agent and verifier keys override those of the task."""

    name: str
    agent: AgentSection = AgentSection()
    verifier: VerifierSection = VerifierSection()
    min_reward: _Bound | dict[str, _Bound] | None = None
    """Minimum reward, or minimum of each metric, without which the next step does not run."""
    inherit_prior_session: bool = False
    """Whether the instruction continues the conversation of the previous step."""
    healthcheck: Healthcheck | None = None
    artifacts: tuple[Artifact, ...] = ()

    @field_validator("name")
    @classmethod
    def _names_a_directory(cls, name: str) -> str:
        if _BAD_NAME.search(name) or not name.isprintable() or len(name.encode()) > _LONGEST_NAME:
            raise ValueError(f"must be the name of a directory in steps/, at most {_LONGEST_NAME} bytes long")
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
        """Networks of the agent's container in its phases; a separate verifier does not run there."""
        start = self.environment.network
        verifier = start if self.verifier.is_separate else self.verifier.network_in(start)
        return Networks(start, self.agent.network_in(start), verifier)

    @field_validator("steps")
    @classmethod
    def _names_differ(cls, steps: list[StepSection]) -> list[StepSection]:
        # Some file systems treat names that differ only in case or Unicode form as equal.
        folded = [unicodedata.normalize("NFC", step.name).casefold() for step in steps]
        for number, step in enumerate(steps):
            if folded[number] in folded[:number]:
                raise ValueError(f"two steps are named {step.name!r}; give each step its own name and directory")
        return steps

    @property
    def services(self) -> frozenset[str]:
        """Services other than the agent's that artifacts and collect hooks refer to."""
        artifacts = (*self.artifacts, *(each for step in self.steps for each in step.artifacts))
        hooks = (*self.verifier.collect, *(each for step in self.steps for each in step.verifier.collect))
        named = {*(each.from_service for each in artifacts), *(each.service for each in hooks)}
        return frozenset(named - {MAIN})

    @property
    def test_services(self) -> frozenset[str]:
        """Services other than the agent's in which tests run."""
        steps = (step.verifier.service for step in self.steps)
        return frozenset({self.verifier.service, *steps} - {MAIN})


def first_problem(error: ValidationError) -> str:
    """Describe the first invalid key: name, reason and value."""
    problem = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in problem["loc"]) or "file"
    shown = "" if isinstance(problem["input"], dict) else f" (got {problem['input']!r})"
    return f"{key}: {problem['msg'].removeprefix('Value error, ')}{shown}"


def unknown_keys(raw: Mapping[str, Any], model: type[BaseModel] = TaskFile, prefix: str = "") -> Iterator[str]:
    """Iterate over the dotted keys of a parsed task.toml that are not in the schema."""
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


_DESCRIPTIONS = {"id", "language", "url", "created_at", "dependencies", "depends_on"}
"""Names of keys that only describe a task or a step. Dependencies do, too: steps run in the order of the file."""
_DESCRIPTIVE_WORDS = {
    *("title", "slug", "description", "explanation", "keywords", "tags", "category", "difficulty", "license"),
    *("author", "authors", "notes", "canary", "estimate"),
}
"""Words that make any key with one of them a description, as in author_email and difficulty_explanation."""
_DESCRIPTIVE_TABLES = ("task.", "metadata.")


def refused_keys(keys: Collection[str], ignored: Collection[str]) -> list[str]:
    """Return the unknown keys that may change what the task measures: all but descriptions and the `ignored` globs."""
    return [
        key
        for key in keys
        if not key.startswith(_DESCRIPTIVE_TABLES)
        and not _describes(key.rpartition(".")[2])
        and not any(fnmatchcase(key, each) for each in ignored)
    ]


def _describes(name: str) -> bool:
    return name in _DESCRIPTIONS or not _DESCRIPTIVE_WORDS.isdisjoint(name.split("_"))


def nearest_key(key: str) -> str | None:
    """Return the known key that is most similar to an unknown dotted key; None if no key is similar."""
    table, _, name = key.rpartition(".")
    known = sorted(_known_keys(), key=lambda each: each.count("."))
    in_table = [each for each in known if each.rpartition(".")[0] == table]
    for candidates in (in_table, [each for each in known if each.rpartition(".")[2] == name]):
        if near := get_close_matches(name, [each.rpartition(".")[2] for each in candidates], n=1, cutoff=0.7):
            return next(each for each in candidates if each.rpartition(".")[2] == near[0])
    return None


def _known_keys(model: type[BaseModel] = TaskFile, prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield prefix + name
        if (section := section_of(field.annotation)) is not None:
            yield from _known_keys(section, f"{prefix}{name}.")


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model in `Model`, `Model | None` or `list[Model]`; None for other types."""
    candidates = get_args(annotation) or (annotation,)
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def size_mb(value: Any) -> float | None:
    """Return a size such as 512M or 2G in MB; None for any other value."""
    match = _SIZE.fullmatch(str(value))
    return float(match[1]) * _MB_PER_UNIT[match[2].upper()] if match else None


# Task steps, merged with the settings of the task

_POLICY = {"network_mode", "allowed_hosts"}
"""Keys that belong together: a step that sets one of them overrides both."""


def step_file(file: TaskFile, step: StepSection, *, has_image: bool = False) -> TaskFile:
    """Return the content of task.toml that applies to one step.

    `has_image`: the verifier's image is built from the step's own tests/.
    """
    return file.model_copy(
        update={
            "agent": file.agent.model_copy(update=_overrides(step.agent)),
            "verifier": _verifier(file.verifier, step.verifier, has_image),
            "artifacts": (*file.artifacts, *step.artifacts),
            "steps": [],
        }
    )


def _overrides(section: BaseModel) -> dict[str, Any]:
    """Return the keys that a step sets, which override the task's."""
    names = section.model_fields_set
    if names & _POLICY:
        names = names | _POLICY
    return {name: getattr(section, name) for name in names}


def _verifier(task: VerifierSection, step: VerifierSection, has_image: bool) -> VerifierSection:
    mode = step.environment_mode or ("separate" if step.environment else None) or task.environment_mode
    overrides = _overrides(step) | {
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
        overrides["environment"] = environment
    return task.model_copy(update=overrides)


# Unsupported features of Harbor's task format. Tasks that need one of them are not run. Features that do not change how
# Harbor runs or verifies a task are not listed.


def missing_features(file: TaskFile, path: Path) -> list[str]:
    """Return the unsupported features that the task at `path` needs, with the step if only a step needs it."""
    named = [name for name, is_needed in FEATURES.items() if is_needed(file, path)]
    for step in file.steps:
        merged = step_file(file, step)
        for name, is_needed in FEATURES.items():
            if name not in named and is_needed(merged, path):
                named.append(f"{name} (step {step.name})")
    return named


def _in_any(needs: Callable[[EnvironmentSection], bool]) -> Callable[[TaskFile, Path], bool]:
    """Return whether the environment of the agent or of a separate verifier needs a feature."""
    return lambda file, _: any(needs(each) for each in (file.environment, file.verifier.environment) if each)


FEATURES: Mapping[str, Callable[[TaskFile, Path], bool]] = {
    "trajectory.json": lambda _, path: (path / "trajectory.json").is_file(),
    "steps/*/trajectory.json": lambda file, path: any(
        (path / "steps" / step.name / "trajectory.json").is_file() for step in file.steps
    ),
    "environment.os = windows": _in_any(lambda each: each.os == "windows"),
    "verifier.service beside a verifier in its own container": lambda file, _: (
        file.verifier.is_separate and file.verifier.service != MAIN
    ),
    "environment.tpu": _in_any(lambda each: each.tpu is not None),
}
