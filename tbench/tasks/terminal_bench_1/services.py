"""The docker-compose.yaml of a Terminal-Bench 1 task: its services, with what the harness fills in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbench.errors import TaskInvalid
from tbench.tasks.terminal_bench_1.yaml_file import read_yaml

NAME = "docker-compose.yaml"
OF_THE_HARNESS = "${T_BENCH_"
"""How what the harness alone knows begins: names and the directories of its logs."""
_USUAL_MAIN = "client"
_FILLED_IN = {
    "TEST_DIR": "/tests",
    "CONTAINER_LOGS_PATH": "/logs",
    "CONTAINER_AGENT_LOGS_PATH": "/agent-logs",
}
"""What the harness's variables stand for that a container sees."""
_VARIABLE = re.compile(r"\$\{?T_BENCH_(\w+)(?::?-[^}]*)?\}?")

Settings = Mapping[str, Any]
"""Keys and values of a service."""


@dataclass(frozen=True)
class Services:
    """The services of a task."""

    path: Path
    """The file that they are described in."""
    main: str
    """The service that the agent works in."""
    all: Mapping[str, Settings]
    rest: Settings
    """The other keys of the file."""

    @property
    def settings(self) -> Settings:
        """Those of the main service."""
        return self.all[self.main]

    def wrong(self, key: str, why: str, service: str | None = None) -> TaskInvalid:
        """The error about a key of a service, the main one if none is named."""
        return TaskInvalid(f"{self.path}: services.{service or self.main}.{key}: {why}")


def read_services(path: Path) -> Services:
    """The services that the file at `path` describes. Raises TaskInvalid, naming file and key, and OSError."""
    raw = read_yaml(path)
    services = raw.get("services") if isinstance(raw, dict) else None
    if not isinstance(services, dict) or not services:
        raise TaskInvalid(f"{path}: services: is missing, or no table of services")
    for name, settings in services.items():
        if not isinstance(name, str) or not isinstance(settings, dict):
            raise TaskInvalid(f"{path}: services.{name}: is no table of keys and values")
    main = _USUAL_MAIN if _USUAL_MAIN in services else next(iter(services))
    rest = {key: value for key, value in raw.items() if key not in ("services", "version", "name")}
    known = {**_FILLED_IN, "TASK_DOCKER_NAME_PREFIX": f"tb__{path.absolute().parent.name}".replace(".", "-")}
    filled = {name: _filled_in(settings, known) for name, settings in services.items()}
    return Services(path, main, filled, _filled_in(rest, known))


def variables(services: Services, name: str) -> dict[str, str]:
    """The environment of a service, as strings. Raises TaskInvalid."""
    given = services.all[name].get("environment") or {}
    pairs: Iterator[tuple[Any, Any]]
    if isinstance(given, list):
        split = (str(each).partition("=") for each in given)
        pairs = ((key, value if equals else None) for key, equals, value in split)
    elif isinstance(given, dict):
        pairs = iter(given.items())
    else:
        raise services.wrong("environment", "is neither a table nor a list of KEY=VALUE", name)
    return {str(key): _value(str(key), value) for key, value in pairs}


def volumes(services: Services, name: str) -> list[Any]:
    """The volumes of a service without those for the harness's logs, which /logs replaces. Raises TaskInvalid."""
    given = services.all[name].get("volumes") or []
    if not isinstance(given, list):
        raise services.wrong("volumes", "is no list", name)
    return [each for each in given if not _source_of(each).startswith(OF_THE_HARNESS)]


def build_of(services: Services, name: str) -> dict[str, Any] | None:
    """How the image of a service is built; None where it is not. Raises TaskInvalid."""
    given = services.all[name].get("build")
    if given is None or isinstance(given, str):
        return {"context": given} if given else None
    if not isinstance(given, dict):
        raise services.wrong("build", "is neither a folder nor a table", name)
    return {"context": ".", **given}


def build_files(services: Services, name: str) -> tuple[Path, Path] | None:
    """Folder and Dockerfile, both within the task, that a service is built of; None where it is not built.

    Raises TaskInvalid for one that is elsewhere or missing.
    """
    build = build_of(services, name)
    if build is None:
        return None
    root = services.path.parent
    context = root / str(build["context"])
    dockerfile = context / str(build.get("dockerfile") or "Dockerfile")
    for key, path in (("context", context), ("dockerfile", dockerfile)):
        if not path.resolve().is_relative_to(root.resolve()):
            raise services.wrong(f"build.{key}", f"{build[key]} is outside of the task", name)
    if not dockerfile.is_file():
        raise services.wrong("build.dockerfile", f"{dockerfile} is missing", name)
    return context, dockerfile


def _source_of(volume: Any) -> str:
    return str(volume.get("source", "") if isinstance(volume, dict) else volume)


def _value(key: str, value: Any) -> str:
    if value is None:
        return f"${{{key}:-}}"  # whatever the host has
    return str(value).lower() if isinstance(value, bool) else str(value)


def _filled_in(value: Any, known: Mapping[str, str]) -> Any:
    """Copy of a value in which the harness's variables stand for what a container sees of them, as far as known."""
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: known.get(found[1], f"{OF_THE_HARNESS}{found[1]}}}"), value)
    if isinstance(value, dict):
        return {str(key): _filled_in(each, known) for key, each in value.items()}
    return [_filled_in(each, known) for each in value] if isinstance(value, list) else value
