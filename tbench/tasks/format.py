"""The schema of task.toml: the keys of Harbor's format up to version 1.4, their defaults and their types.

A key that has no effect here is read all the same: tbench.tasks.features says by name which tasks cannot run for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tbench.results import LARGEST_REWARD

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)
_MB_PER_UNIT = {"": 1 / (1 << 20), "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_LEGACY_SIZES = {"memory": "memory_mb", "storage": "storage_mb"}

RewardRange = tuple[float, float]
"""The least and the largest reward of a task."""
REWARD_RANGE: RewardRange = (0.0, 1.0)
"""That of a task which says nothing of it."""
NetworkMode = Literal["public", "no-network", "allowlist"]


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


class AgentSection(_Section):
    """[agent]: limits of the agent's phase."""

    timeout_sec: float | None = Field(default=None, gt=0)
    user: str | int | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] = []


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
    allowed_hosts: list[str] = []
    healthcheck: Healthcheck | None = None
    mcp_servers: list[Any] = []
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

    @property
    def network(self) -> NetworkMode:
        """The network mode in effect: the legacy `allow_internet` counts where no newer key of the network is given."""
        if self.allow_internet is False and not {"network_mode", "allowed_hosts"} & self.model_fields_set:
            return "no-network"
        return self.network_mode

    @property
    def has_internet(self) -> bool:
        """Whether the container has a network at all."""
        return self.network != "no-network"


class VerifierSection(_Section):
    """[verifier]: limits of tests/test.sh, and where it runs."""

    timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = {}
    user: str | int | None = None
    reward_range: tuple[_Bound, _Bound] = REWARD_RANGE
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] = []
    environment_mode: Literal["shared", "separate"] | None = None
    environment: EnvironmentSection | None = None
    collect: list[Any] = []

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
    artifacts: list[Any] = []
    steps: list[Any] = []
    multi_step_reward_strategy: str | None = None


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
        elif isinstance(value, dict) and (section := section_of(field.annotation)) is not None:
            yield from unknown_keys(value, section, f"{prefix}{key}.")


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The model behind `Model` or `Model | None`."""
    candidates = get_args(annotation) or (annotation,)
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _size_mb(value: Any, key: str) -> float:
    match = _SIZE.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{key}: {value!r} is not a size such as 512M or 2G")
    return float(match[1]) * _MB_PER_UNIT[match[2].upper()]
