"""The one service of a task as keys of task.toml and lines of a Dockerfile, where it says no more than these can."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tbench.tasks.dockerfile import copy_line, for_platform, with_lines
from tbench.tasks.terminal_bench_1.services import (
    OF_THE_HARNESS,
    Services,
    Settings,
    build_files,
    build_of,
    variables,
    volumes,
)

_WITHOUT_EFFECT = {
    *("container_name", "tty", "stdin_open", "init", "restart", "labels", "stop_grace_period", "stop_signal"),
    *("pull_policy", "healthcheck", "expose", "ports", "logging"),
}
"""Keys that change nothing for what works in the only container: nothing waits for its health, or reaches its ports."""
_READ = {
    *("build", "image", "command", "environment", "volumes", "deploy", "working_dir", "user", "platform", "entrypoint"),
    *("cpus", "mem_limit", "pids_limit", "network_mode", "networks", "depends_on"),
}
_STAYS = re.compile(r"(?:exec )?(?:sleep (?:infinity|\d+[smhd]?)|tail -f /dev/null)|(?:/bin/)?(?:ba)?sh(?: -[il]+)?")
"""Commands that do nothing but stay."""
_SHELL = re.compile(r"(?:/usr)?(?:/bin/)?(?:ba)?sh")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_MB = {"": 1 / (1 << 20), "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0**2}
_OF_THE_HOST = re.compile(r"\$\{\w+(?::-[^}]*)?\}")


@dataclass(frozen=True)
class LimitsOfMain:
    """What a service may use; None where it does not say."""

    cpus: float | None = None
    memory_mb: float | None = None
    pids: int | None = None


@dataclass(frozen=True)
class OneContainer:
    """What the only service of a task comes to."""

    limits: LimitsOfMain = LimitsOfMain()
    variables: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    image: str | None = None
    """An image that is not built."""
    has_network: bool = True
    platform: str | None = None
    lines: tuple[str, ...] = ()
    """Lines for the end of the Dockerfile."""

    def dockerfile(self, text: str) -> str:
        """The Dockerfile with what the service says besides."""
        return with_lines(for_platform(text, self.platform) if self.platform else text, self.lines)


def one_container(services: Services) -> OneContainer | str:
    """What the only service comes to, or in words what needs a compose file. Raises TaskInvalid."""
    settings = services.settings
    if (why := _needs_compose(services)) is not None:
        return why
    lines = [_bind_line(services, volume) for volume in volumes(services, services.main) if not _is_empty(volume)]
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


def limits_of(services: Services) -> LimitsOfMain:
    """The limits of the main service. Raises TaskInvalid."""
    settings = services.settings
    limits = _table(_table(_table(settings.get("deploy")).get("resources")).get("limits"))
    cpus = limits.get("cpus", settings.get("cpus"))
    memory, pids = limits.get("memory", settings.get("mem_limit")), limits.get("pids", settings.get("pids_limit"))
    return LimitsOfMain(
        None if cpus is None else _number(services, "cpus", cpus),
        None if memory is None else _size_mb(services, memory),
        None if pids is None or pids == -1 else int(_number(services, "pids", pids)),
    )


def _needs_compose(services: Services) -> str | None:
    """What a single container without a compose file does not have; None where it has all."""
    settings, build = services.settings, build_of(services, services.main) or {}
    if more := sorted(set(settings) - _WITHOUT_EFFECT - _READ):
        return more[0]
    if more := sorted(set(build) - {"context", "dockerfile"}):
        return f"build.{more[0]}"
    deploy = _table(settings.get("deploy"))
    if set(deploy) - {"resources"} or set(_table(deploy.get("resources")).get("reservations") or {}) & {"devices"}:
        return "deploy"
    if not _only_stays(settings.get("command")):
        return "command"
    if settings.get("network_mode") not in (None, "bridge", "default", "none"):
        return "network_mode"
    if set(settings.get("networks") or ()) - {"default"}:
        return "networks"
    return "depends_on" if settings.get("depends_on") else None


def _own_variables(services: Services) -> dict[str, str]:
    found = variables(services, services.main)
    for key, value in found.items():
        whole = _OF_THE_HOST.fullmatch(value) is not None
        if OF_THE_HARNESS in value or ("$" in value.replace("$$", "") and not whole):
            raise services.wrong(f"environment.{key}", f"{value} is put together of variables; write out the value")
        found[key] = value.replace("$$", "$")
    return found


def _bind_line(services: Services, volume: Any) -> str:
    """The line that copies what a volume shows of the task's own directory."""
    if isinstance(volume, dict):
        source, target = str(volume.get("source", "")), str(volume.get("target", ""))
    else:
        source, _, rest = str(volume).partition(":")
        target = rest.partition(":")[0]
    built = build_files(services, services.main)
    context = (built[0] if built else services.path.parent).resolve()
    path = (services.path.parent / source).resolve()
    if not source.startswith(".") or not path.is_relative_to(context):
        raise services.wrong("volumes", f"{source} is outside of the folder that the image is built of")
    if not path.exists() or not target.startswith("/"):
        raise services.wrong("volumes", f"{source}:{target}: is missing in the task, or has no absolute path")
    return copy_line(path.relative_to(context).as_posix(), f"{target.rstrip('/')}/" if path.is_dir() else target)


def _is_empty(volume: Any) -> bool:
    """Whether a volume is a named or nameless one, in which is what the image has there."""
    if isinstance(volume, dict):
        return volume.get("type") in ("volume", "tmpfs")
    return not str(volume).startswith((".", "/", "~", "$")) or ":" not in str(volume)


def _only_stays(command: Any) -> bool:
    words = _argv(command)
    if len(words) == 3 and _SHELL.fullmatch(words[0]) and re.fullmatch(r"-[a-z]*c", words[1]):
        words = _argv(words[2])
    return not words or _STAYS.fullmatch(" ".join(words).rstrip("; ")) is not None


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
        raise services.wrong(key, f"{value} is no plain text; write out the value")
    return str(value)


def _number(services: Services, key: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < 1e9:
        raise services.wrong(key, f"{value} is no number above 0")
    return number


def _size_mb(services: Services, value: Any) -> float:
    found = _SIZE.fullmatch(str(value).strip())
    if found is None:
        raise services.wrong("memory", f"{value} is no size such as 512M or 2G")
    return float(found[1]) * _MB[found[2].lower()]


def _table(value: Any) -> Settings:
    return value if isinstance(value, dict) else {}
