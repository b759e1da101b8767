"""Reads and validates one task directory (Terminal-Bench 2.x form). Starts nothing."""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tbench.errors import TaskInvalid, TrialError

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)
_MB_PER_UNIT = {"": 1 / (1 << 20), "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_CANARY = re.compile(r"^\s*(?:<!--.*canary.*-->|#.*canary.*)\s*$", re.IGNORECASE)
_TEMPLATE = re.compile(r"\$\{(\w+)(?::-(.*))?\}")
_HASHED = ("task.toml", "instruction.md", "README.md", "trajectory")
_HASHED_TREES = ("environment", "tests", "solution", "steps")
_NOT_HASHED = re.compile(r"(^|/)(__pycache__/.*|.*\.pyc|\.DS_Store|.*\.sw[po]|.*~)$")

NetworkMode = Literal["public", "no-network", "allowlist"]


class _Section(BaseModel):
    """Part of a file that others own: unknown keys are tolerated, and reported by `tbench task check`."""

    # TOML has inf and nan; as a limit neither can be given to an engine or a clock.
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class TaskTable(_Section):
    name: str | None = None
    description: str = ""


class AgentSection(_Section):
    timeout_sec: float | None = Field(default=None, gt=0)
    user: str | int | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] = []


class VerifierSection(_Section):
    timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = {}
    user: str | int | None = None
    environment_mode: str = "shared"
    environment: dict[str, Any] | None = None
    collect: list[Any] = []


class SolutionSection(_Section):
    env: dict[str, str] = {}


class Healthcheck(_Section):
    command: str
    interval_sec: float = Field(default=5.0, gt=0)
    timeout_sec: float = Field(default=30.0, gt=0)
    start_period_sec: float = Field(default=0.0, ge=0)
    retries: int = Field(default=3, ge=1)


class EnvironmentSection(_Section):
    build_timeout_sec: float = Field(default=600.0, gt=0)
    docker_image: str | None = None
    cpus: float = Field(default=1.0, gt=0)
    memory_mb: float = Field(default=2048.0, gt=0)
    storage_mb: float = Field(default=10240.0, gt=0)
    pids_limit: int = Field(default=4096, gt=0)
    gpus: int = 0
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
        """`memory = "2G"` and `storage = "10G"` of version 1.0 files."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        for legacy, key in (("memory", "memory_mb"), ("storage", "storage_mb")):
            if legacy in values and key not in values:
                values[key] = _size_mb(values.pop(legacy), legacy)
        return values

    @property
    def has_internet(self) -> bool:
        return self.allow_internet is not False and self.network_mode != "no-network"


class TaskFile(_Section):
    """task.toml."""

    version: Any = None
    schema_version: Any = None
    task: TaskTable = TaskTable()
    metadata: dict[str, Any] = {}
    agent: AgentSection = AgentSection()
    verifier: VerifierSection = VerifierSection()
    solution: SolutionSection = SolutionSection()
    environment: EnvironmentSection = EnvironmentSection()
    artifacts: list[Any] = []
    steps: list[Any] = []
    multi_step_reward_strategy: str | None = None


class Task:
    """One task directory, read once. Immutable; `hash` names its content."""

    def __init__(self, path: Path, file: TaskFile, raw: Mapping[str, Any]) -> None:
        self.path = path
        self.file = file
        self._raw = raw
        self.name = path.name

    @classmethod
    def read(cls, path: Path) -> Task:
        """Raises TaskInvalid, naming file and key."""
        path = path.resolve()
        toml = path / "task.toml"
        if not toml.is_file():
            raise TaskInvalid(f"{toml}: missing; a task directory needs task.toml, instruction.md, tests/test.sh")
        try:
            raw = tomllib.loads(toml.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise TaskInvalid(f"{toml}: not valid TOML: {error}") from None
        try:
            file = TaskFile.model_validate(raw)
        except ValidationError as error:
            raise TaskInvalid(f"{toml}: {_first_problem(error)}") from None
        task = cls(path, file, raw)
        task._check_files()
        return task

    def _check_files(self) -> None:
        # Multi-step and compose tasks have their files elsewhere: they are named as unsupported, not as malformed.
        if not self.unsupported:
            self._check_parts()
        for entry in self.path.rglob("*"):
            if entry.is_symlink() and not entry.resolve().is_relative_to(self.path):
                raise TaskInvalid(f"{entry}: symlink leaves the task directory; copy the file in")

    def _check_parts(self) -> None:
        for required in ("instruction.md", "tests/test.sh"):
            if not (self.path / required).is_file():
                raise TaskInvalid(f"{self.path / required}: missing")
        if not self.dockerfile.is_file() and not self.file.environment.docker_image:
            raise TaskInvalid(f"{self.dockerfile}: missing, and task.toml names no environment.docker_image")

    @property
    def dockerfile(self) -> Path:
        return self.path / "environment" / "Dockerfile"

    @cached_property
    def instruction(self) -> str:
        """instruction.md without leading canary lines and the blanks after them."""
        lines = (self.path / "instruction.md").read_text(encoding="utf-8", errors="replace").splitlines(True)
        start = 0
        while start < len(lines) and (_CANARY.match(lines[start]) or not lines[start].strip()):
            start += 1
        return "".join(lines[start:])

    @cached_property
    def hash(self) -> str:
        """sha256 over `rel NUL sha256(file) LF` of the files that define the task, as the official digests have it."""
        lines = (
            f"{path.relative_to(self.path).as_posix()}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n"
            for path in sorted(self._hashed_files(), key=lambda p: p.relative_to(self.path).as_posix())
        )
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def _hashed_files(self) -> Iterator[Path]:
        candidates = [self.path / name for name in _HASHED]
        for tree in _HASHED_TREES:
            candidates += (self.path / tree).rglob("*")
        for path in candidates:
            if path.is_file() and not _NOT_HASHED.search(path.relative_to(self.path).as_posix()):
                yield path

    @cached_property
    def unsupported(self) -> list[str]:
        """Features that this task needs and tbench does not have; empty for a task that can run."""
        environment = self.file.environment
        found = {
            "environment/docker-compose.yaml": (self.path / "environment" / "docker-compose.yaml").is_file(),
            "steps": bool(self.file.steps),
            f"environment.gpus = {environment.gpus}": environment.gpus > 0,
            "network_mode = allowlist": "allowlist" in (environment.network_mode, self.file.agent.network_mode),
            "verifier.environment_mode = separate": self.file.verifier.environment_mode != "shared",
            "environment.mcp_servers": bool(environment.mcp_servers),
        }
        return [feature for feature, present in found.items() if present]

    @cached_property
    def unknown_keys(self) -> list[str]:
        """Dotted keys of task.toml that tbench does not read ([metadata] is free)."""
        return sorted(_unknown_keys(self._raw, TaskFile, ""))


def resolve_env(env: Mapping[str, str], host: Mapping[str, str] | None = None) -> dict[str, str]:
    """Values of the form `${VAR}` or `${VAR:-default}` from the host's environment.

    Raises TrialError(env_missing) for a variable that is neither set nor has a default.
    """
    host = os.environ if host is None else host
    resolved = {}
    for key, value in env.items():
        match = _TEMPLATE.fullmatch(value)
        if match is None:
            resolved[key] = value
            continue
        name, default = match.groups()
        found = host.get(name, default)
        if found is None:
            raise TrialError("env_missing", f"{key} = {value}: set {name} in the environment of tbench")
        resolved[key] = found
    return resolved


def host_variables(task: Task) -> set[str]:
    """Names of what its `env` tables take from tbench's own environment."""
    file = task.file
    tables = (file.environment.env, file.verifier.env, file.solution.env)
    return {match[1] for table in tables for value in table.values() if (match := _TEMPLATE.fullmatch(value))}


def _size_mb(value: Any, key: str) -> float:
    match = _SIZE.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{key}: {value!r} is not a size such as 512M or 2G")
    return float(match[1]) * _MB_PER_UNIT[match[2].upper()]


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in problem["loc"]) or "file"
    shown = "" if isinstance(problem["input"], dict) else f" (got {problem['input']!r})"
    return f"{key}: {problem['msg']}{shown}"


def _unknown_keys(raw: Mapping[str, Any], model: type[BaseModel], prefix: str) -> Iterator[str]:
    legacy = {"memory", "storage"} if model is EnvironmentSection else set()
    described = {"authors", "keywords", "version"} if model is TaskTable else set()
    for key, value in raw.items():
        field = model.model_fields.get(key)
        if field is None:
            if key not in legacy | described:
                yield prefix + key
        elif isinstance(value, dict) and (section := _section(field.annotation)) is not None:
            yield from _unknown_keys(value, section, f"{prefix}{key}.")


def _section(annotation: Any) -> type[BaseModel] | None:
    """The model behind `Model` or `Model | None`."""
    candidates = get_args(annotation) or (annotation,)
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
