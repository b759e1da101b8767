"""Features of Harbor's task format that tbench lacks, by name: a task that needs one of them is not run.

Only what would change how a task is run or verified is named; what has no such effect in Harbor either is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from tbench.tasks.format import NetworkMode, TaskFile

_NO_FILES = {".gitkeep"}
_STAGE = re.compile(r"^\s*FROM\s", re.MULTILINE | re.IGNORECASE)
_ENTRYPOINT = re.compile(
    r"""^\s* ENTRYPOINT \s+ (?!
        \[\s*\] \s*$
        | \[\s* "(?:/\S*/)?(?:tini|dumb-init|catatonit)" (?:\s*,\s*"-[^"]*")* \s*\] \s*$
    ) \S""",
    re.MULTILINE | re.IGNORECASE | re.VERBOSE,
)
"""An entry point that starts something: neither an empty one nor an init for orphans, which containers have here."""


def missing_features(file: TaskFile, path: Path) -> list[str]:
    """The features that the task at `path` needs and tbench lacks."""
    return [name for name, is_needed in FEATURES.items() if is_needed(file, path)]


def _has_allowlist(file: TaskFile, _: Path) -> bool:
    return "allowlist" in (file.environment.network_mode, file.agent.network_mode, file.verifier.network_mode)


def _has_allowed_hosts(file: TaskFile, _: Path) -> bool:
    return bool(file.environment.allowed_hosts or file.agent.allowed_hosts or file.verifier.allowed_hosts)


def _has_bare_files(file: TaskFile, path: Path) -> bool:
    """Whether environment/ has files but builds no image: Harbor copies them into the container."""
    folder = path / "environment"
    if not file.environment.docker_image or not folder.is_dir():
        return False
    names = {entry.name for entry in folder.iterdir()}
    return bool(names - _NO_FILES) and not names & {"Dockerfile", "docker-compose.yaml"}


def _has_entry_point(_: TaskFile, path: Path) -> bool:
    """Whether the last stage of the Dockerfile starts something of its own with the container."""
    dockerfile = path / "environment" / "Dockerfile"
    if not dockerfile.is_file():
        return False
    last_stage = _STAGE.split(dockerfile.read_text(encoding="utf-8", errors="replace"))[-1]
    return _ENTRYPOINT.search(last_stage) is not None


def _differs(mode: NetworkMode | None, file: TaskFile) -> bool:
    """Whether a phase asks for another network than the container's; a container can have only one."""
    return mode not in (None, "allowlist", file.environment.network)


def _has_file(name: str) -> Callable[[TaskFile, Path], bool]:
    return lambda _, path: (path / name).is_file()


FEATURES: Mapping[str, Callable[[TaskFile, Path], bool]] = {
    "steps": lambda file, _: bool(file.steps),
    "multi_step_reward_strategy": lambda file, _: bool(file.steps and file.multi_step_reward_strategy),
    "trajectory.json": _has_file("trajectory.json"),
    "environment/docker-compose.yaml": _has_file("environment/docker-compose.yaml"),
    "environment/ without a Dockerfile": _has_bare_files,
    "ENTRYPOINT in environment/Dockerfile": _has_entry_point,
    "environment.os = windows": lambda file, _: file.environment.os == "windows",
    "environment.gpus": lambda file, _: file.environment.gpus > 0,
    "environment.gpu_types": lambda file, _: bool(file.environment.gpus > 0 and file.environment.gpu_types),
    "environment.tpu": lambda file, _: file.environment.tpu is not None,
    "environment.mcp_servers": lambda file, _: bool(file.environment.mcp_servers),
    "environment.skills_dir": lambda file, _: bool(file.environment.skills_dir),
    "network_mode = allowlist": _has_allowlist,
    "allowed_hosts": _has_allowed_hosts,
    "agent.network_mode unlike the environment's": lambda file, _: _differs(file.agent.network_mode, file),
    "verifier.network_mode unlike the environment's": lambda file, _: _differs(file.verifier.network_mode, file),
    "verifier.environment_mode = separate": lambda file, _: file.verifier.environment_mode == "separate",
    "verifier.environment": lambda file, _: file.verifier.environment is not None,
    "tests/Dockerfile": _has_file("tests/Dockerfile"),
    "tests/docker-compose.yaml": _has_file("tests/docker-compose.yaml"),
    "verifier.collect": lambda file, _: bool(file.verifier.collect),
}
