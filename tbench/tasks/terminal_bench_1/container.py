"""Converts the services of a Terminal-Bench 1 task: one to task.toml and a Dockerfile, several to a compose file."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tbench.errors import TaskInvalid
from tbench.tasks.dockerfile import copy_line, for_platform, with_lines
from tbench.tasks.format import size_mb
from tbench.tasks.terminal_bench_1.description import read_yaml

# Services in the docker-compose.yaml of a Terminal-Bench 1 task, with the harness's variables filled in

COMPOSE_NAME = "docker-compose.yaml"
HARNESS_VARIABLE = "${T_BENCH_"
"""Prefix of the variables that the harness of Terminal-Bench 1 sets."""
_DEFAULT_MAIN = "client"
_KNOWN_VARIABLES = {
    "TEST_DIR": "/tests",
    "CONTAINER_LOGS_PATH": "/logs",
    "CONTAINER_AGENT_LOGS_PATH": "/agent-logs",
}
"""Values of the harness's variables that are visible in containers."""
_VARIABLE = re.compile(r"\$\{?T_BENCH_(\w+)(?::?-[^}]*)?\}?")

Settings = Mapping[str, Any]
"""Keys and values of a service."""


@dataclass(frozen=True)
class Services:
    """Services of a task."""

    path: Path
    """The compose file."""
    main: str
    """Name of the service in which the agent works."""
    all: Mapping[str, Settings]
    rest: Settings
    """Other keys of the file."""

    @property
    def settings(self) -> Settings:
        """Settings of the main service."""
        return self.all[self.main]

    def invalid(self, key: str, why: str, service: str | None = None) -> TaskInvalid:
        """Return the error for a key of a service, by default the main one."""
        where = ".".join(filter(None, ("services", service or self.main, key)))
        return TaskInvalid(f"{self.path}: {where}: {why}")


def read_services(path: Path) -> Services:
    """Read the services from the file at `path`. Raises OSError, and TaskInvalid, which names file and key."""
    raw = read_yaml(path)
    services = raw.get("services") if isinstance(raw, dict) else None
    if not isinstance(services, dict) or not services:
        raise TaskInvalid(f"{path}: services: must be a table of services")
    for name, settings in services.items():
        if not isinstance(name, str) or not isinstance(settings, dict):
            raise TaskInvalid(f"{path}: services.{name}: must be a table of keys and values")
    main = _DEFAULT_MAIN if _DEFAULT_MAIN in services else next(iter(services))
    rest = {key: value for key, value in raw.items() if key not in ("services", "version", "name")}
    known = {**_KNOWN_VARIABLES, "TASK_DOCKER_NAME_PREFIX": f"tb__{path.absolute().parent.name}".replace(".", "-")}
    filled = {name: _substituted(settings, known) for name, settings in services.items()}
    return Services(path, main, filled, _substituted(rest, known))


def variables(services: Services, name: str) -> dict[str, str]:
    """Return the environment variables of a service. Raises TaskInvalid."""
    given = services.all[name].get("environment") or {}
    pairs: Iterator[tuple[Any, Any]]
    if isinstance(given, list):
        split = (str(each).partition("=") for each in given)
        pairs = ((key, value if equals else None) for key, equals, value in split)
    elif isinstance(given, dict):
        pairs = iter(given.items())
    else:
        raise services.invalid("environment", "must be a table or a list of KEY=VALUE", name)
    return {str(key): _value(str(key), value) for key, value in pairs}


def volumes(services: Services, name: str) -> list[Any]:
    """Return the volumes of a service, without those for the harness's logs, which /logs replaces.

    Raises TaskInvalid.
    """
    given = services.all[name].get("volumes") or []
    if not isinstance(given, list):
        raise services.invalid("volumes", "must be a list", name)
    return [each for each in given if not _source_of(each).startswith(HARNESS_VARIABLE)]


def build_of(services: Services, name: str) -> dict[str, Any] | None:
    """Return the build settings of a service; None if its image is not built. Raises TaskInvalid."""
    given = services.all[name].get("build")
    if given is None or isinstance(given, str):
        return {"context": given} if given else None
    if not isinstance(given, dict):
        raise services.invalid("build", "must be a folder or a table", name)
    return {"context": ".", **given}


def build_files(services: Services, name: str) -> tuple[Path, Path] | None:
    """Return build context and Dockerfile of a service, both within the task; None if its image is not built.

    Raises TaskInvalid if one is missing or outside of the task.
    """
    build = build_of(services, name)
    if build is None:
        return None
    root = services.path.parent
    context = root / str(build["context"])
    dockerfile = context / str(build.get("dockerfile") or "Dockerfile")
    for key, path in (("context", context), ("dockerfile", dockerfile)):
        if not path.resolve().is_relative_to(root.resolve()):
            raise services.invalid(f"build.{key}", f"{build[key]} is outside the task", name)
    if not dockerfile.is_file():
        raise services.invalid("build.dockerfile", f"{dockerfile} is missing", name)
    return context, dockerfile


def _source_of(volume: Any) -> str:
    return str(volume.get("source", "") if isinstance(volume, dict) else volume)


def _value(key: str, value: Any) -> str:
    if value is None:
        return f"${{{key}:-}}"  # the host's value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _substituted(value: Any, known: Mapping[str, str]) -> Any:
    """Return a copy of a value with the harness's known variables replaced."""
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: known.get(found[1], f"{HARNESS_VARIABLE}{found[1]}}}"), value)
    if isinstance(value, dict):
        return {str(key): _substituted(each, known) for key, each in value.items()}
    return [_substituted(each, known) for each in value] if isinstance(value, list) else value


_IGNORED_KEYS = {
    *("container_name", "tty", "stdin_open", "init", "restart", "labels", "stop_grace_period", "stop_signal"),
    *("pull_policy", "healthcheck", "expose", "ports", "logging"),
}
"""Keys without effect in a single container: no other service needs its health or ports."""
_SUPPORTED_KEYS = {
    *("build", "image", "command", "environment", "volumes", "deploy", "working_dir", "user", "platform", "entrypoint"),
    *("cpus", "mem_limit", "pids_limit", "network_mode", "networks", "depends_on"),
}
_IDLE = re.compile(r"(?:exec )?(?:sleep (?:infinity|\d+[smhd]?)|tail -f /dev/null)|(?:/bin/)?(?:ba)?sh(?: -[il]+)?")
"""Commands that only keep a container running."""
_SHELL = re.compile(r"(?:/usr)?(?:/bin/)?(?:ba)?sh")
_HOST_VARIABLE = re.compile(r"\$\{\w+(?::-[^}]*)?\}")


@dataclass(frozen=True)
class OneContainer:
    """Settings of a task with a single service."""

    limits: Mapping[str, float | None] = field(default_factory=dict)
    """Limits, named as in [environment]; None if not set."""
    variables: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    image: str | None = None
    """Image, if it is not built."""
    has_network: bool = True
    platform: str | None = None
    lines: tuple[str, ...] = ()
    """Lines to append to the Dockerfile."""

    def dockerfile(self, text: str) -> str:
        """Return the Dockerfile with the service's platform and additional lines."""
        return with_lines(for_platform(text, self.platform) if self.platform else text, self.lines)


def one_container(services: Services) -> OneContainer | str:
    """Convert a single service; return the reason as text if it needs a compose file. Raises TaskInvalid."""
    settings = services.settings
    if (why := _needs_compose(services)) is not None:
        return why
    lines = [_bind_line(services, volume) for volume in volumes(services, services.main) if not _needs_no_copy(volume)]
    if "entrypoint" in settings:
        lines.append(f"ENTRYPOINT {json.dumps(_argv(settings['entrypoint']))}")
    image = settings.get("image")
    return OneContainer(
        limits=limits_of(services),
        variables=_own_variables(services),
        workdir=_plain_text(services, "working_dir"),
        user=_plain_text(services, "user"),
        image=str(image) if build_of(services, services.main) is None else None,
        has_network=settings.get("network_mode") != "none",
        platform=_plain_text(services, "platform"),
        lines=tuple(lines),
    )


def limits_of(services: Services) -> dict[str, float | None]:
    """Return the limits of the main service. Raises TaskInvalid."""
    settings = services.settings
    limits = _table(_table(_table(settings.get("deploy")).get("resources")).get("limits"))
    cpus = limits.get("cpus", settings.get("cpus"))
    memory, pids = limits.get("memory", settings.get("mem_limit")), limits.get("pids", settings.get("pids_limit"))
    if memory is not None and size_mb(memory) is None:
        raise services.invalid("memory", f"{memory} is not a size such as 512M or 2G")
    return {
        "cpus": None if cpus is None else _number(services, "cpus", cpus),
        "memory_mb": None if memory is None else size_mb(memory),
        "pids_limit": None if pids is None or pids == -1 else int(_number(services, "pids", pids)),
    }


def _needs_compose(services: Services) -> str | None:
    """Return a key that needs a compose file; None if a single container supports all keys."""
    settings, build = services.settings, build_of(services, services.main) or {}
    if more := sorted(set(settings) - _IGNORED_KEYS - _SUPPORTED_KEYS):
        return more[0]
    if more := sorted(set(build) - {"context", "dockerfile"}):
        return f"build.{more[0]}"
    deploy = _table(settings.get("deploy"))
    if set(deploy) - {"resources"} or set(_table(deploy.get("resources")).get("reservations") or {}) & {"devices"}:
        return "deploy"
    if not _is_idle(settings.get("command")):
        return "command"
    if settings.get("network_mode") not in (None, "bridge", "default", "none"):
        return "network_mode"
    if set(settings.get("networks") or ()) - {"default"}:
        return "networks"
    return "depends_on" if settings.get("depends_on") else None


def _own_variables(services: Services) -> dict[str, str]:
    found = variables(services, services.main)
    for key, value in found.items():
        whole = _HOST_VARIABLE.fullmatch(value) is not None
        if HARNESS_VARIABLE in value or ("$" in value.replace("$$", "") and not whole):
            raise services.invalid(f"environment.{key}", f"{value} contains variables; write out the value")
        found[key] = value.replace("$$", "$")
    return found


def _bind_line(services: Services, volume: Any) -> str:
    """Return a Dockerfile line that copies a volume's content from the task directory."""
    if isinstance(volume, dict):
        source, target = str(volume.get("source", "")), str(volume.get("target", ""))
    else:
        source, _, rest = str(volume).partition(":")
        target = rest.partition(":")[0]
    built = build_files(services, services.main)
    context = (built[0] if built else services.path.parent).resolve()
    path = (services.path.parent / source).resolve()
    if not source.startswith(".") or not path.is_relative_to(context):
        raise services.invalid("volumes", f"{source} is outside the image's build context")
    if not path.exists() or not target.startswith("/"):
        raise services.invalid("volumes", f"{source}:{target}: is missing in the task, or the target is not absolute")
    return copy_line(path.relative_to(context).as_posix(), f"{target.rstrip('/')}/" if path.is_dir() else target)


def _needs_no_copy(volume: Any) -> bool:
    """Whether nothing of the task's directory is mounted: a named or anonymous volume, or a tmpfs."""
    if isinstance(volume, dict):
        return volume.get("type") in ("volume", "tmpfs")
    return not str(volume).startswith((".", "/", "~", "$")) or ":" not in str(volume)


def _is_idle(command: Any) -> bool:
    words = _argv(command)
    if len(words) == 3 and _SHELL.fullmatch(words[0]) and re.fullmatch(r"-[a-z]*c", words[1]):
        words = _argv(words[2])
    return not words or _IDLE.fullmatch(" ".join(words).rstrip("; ")) is not None


def _argv(command: Any) -> list[str]:
    if isinstance(command, str):
        try:
            return shlex.split(command)
        except ValueError:
            return [command]
    return [str(word) for word in command] if isinstance(command, list) else []


def _plain_text(services: Services, key: str) -> str | None:
    value = services.settings.get(key)
    if value is None:
        return None
    if isinstance(value, dict | list) or "$" in str(value):
        raise services.invalid(key, f"{value} is not plain text; write out the value")
    return str(value)


def _number(services: Services, key: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < 1e9:
        raise services.invalid(key, f"{value} is not a number above 0")
    return number


def _table(value: Any) -> Settings:
    return value if isinstance(value, dict) else {}


# Several services, or one that needs more than a Dockerfile, as a docker-compose.yaml in the current format

MAIN = "main"
"""Name of the agent's service in the current format."""
_SHARED = ("networks", "volumes")
_HEAD = "# Made of the docker-compose.yaml of a Terminal-Bench 1 task.\n"


def compose_text(services: Services) -> str:
    """Return the compose file with the main service renamed and without the harness's variables. Raises TaskInvalid."""
    if services.main != MAIN and MAIN in services.all:
        raise services.invalid("", f"the agent's service has to be named {MAIN}, but another service has this name")
    described = {
        "services": {
            MAIN if name == services.main else name: _service(services, name) for name in sorted(services.all)
        },
        **{key: _without_names(value) if key in _SHARED else value for key, value in services.rest.items()},
    }
    # Values that are shared by anchors would become aliases.
    return _HEAD + yaml.dump(described, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=120)


class _PlainDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _service(services: Services, name: str) -> dict[str, Any]:
    settings = dict(services.all[name])
    container = str(settings.pop("container_name", ""))
    if build_of(services, name) is not None:
        settings.pop("image", None)
    kept = volumes(services, name)
    settings.pop("volumes", None)
    if kept:
        settings["volumes"] = kept
    for key, value in settings.items():
        if HARNESS_VARIABLE in str(value):
            raise services.invalid(key, "contains a variable of Terminal-Bench that has no meaning here", name)
    settings = _renamed(settings, services.main)
    # Others also find a service by its container name, and the main service by its original name.
    names = {container} if container and HARNESS_VARIABLE not in container and "$" not in container else set()
    names |= {name} if name == services.main != MAIN else set()
    return _with_aliases(settings, sorted(names)) if names and "network_mode" not in settings else settings


def _without_names(described: Any) -> Any:
    """Return networks or volumes without their machine-wide names, which only distinguish tasks."""
    if not isinstance(described, dict):
        return described
    return {
        key: {name: each for name, each in how.items() if name != "name"}
        if isinstance(how, dict) and not how.get("external")
        else how
        for key, how in described.items()
    }


def _renamed(settings: Mapping[str, Any], main: str) -> dict[str, Any]:
    """Return the settings of a service with references to the main service renamed."""
    renamed = dict(settings)
    for key in ("depends_on", "links"):
        value = renamed.get(key)
        if isinstance(value, dict):
            renamed[key] = {MAIN if each == main else each: how for each, how in value.items()}
        elif isinstance(value, list):
            renamed[key] = [MAIN if each == main else each for each in value]
    for key in ("network_mode", "ipc", "pid"):
        if renamed.get(key) == f"service:{main}":
            renamed[key] = f"service:{MAIN}"
    return renamed


def _with_aliases(settings: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """Return the settings with further aliases of the service in each of its networks."""
    given = settings.get("networks") or ["default"]
    networks = dict.fromkeys(map(str, given)) if isinstance(given, list) else dict(given)
    for each, how in networks.items():
        how = dict(how or {})
        how["aliases"] = sorted({*how.get("aliases", []), *names})
        networks[each] = how
    return {**settings, "networks": networks}
