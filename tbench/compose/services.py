"""Reads the services of a compose file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tbench.compose import keys
from tbench.compose.keys import Notices, command_words, duration_sec, size_bytes
from tbench.compose.mounts import TaskFolder, VolumeReader, read_tmpfs
from tbench.compose.project import (
    CONDITIONS,
    DEFAULT_NETWORK,
    Condition,
    ImageBuild,
    Service,
    ServiceCheck,
)
from tbench.compose.variables import Variables, read_variable_files
from tbench.compose.yaml_tree import YamlNode

# Ports are never published, since concurrent trials would need the same port of the machine.

_PORT = re.compile(
    r"(?:(?P<address>\[[\da-fA-F:]+\]|\d+(?:\.\d+){3}):)?(?:(?P<published>\d*(?:-\d+)?):)?"
    r"(?P<target>\d+(?:-\d+)?)(?:/(?P<protocol>tcp|udp|sctp))?"
)
_LONG = {"target", "published", "protocol"}
_LONG_IGNORED = dict.fromkeys(("host_ip", "mode", "name", "app_protocol"), "ports are not published")
_MAX_PORTS = 2_000
"""Maximum number of ports in one entry."""


@dataclass(frozen=True)
class ServicePorts:
    """Ports in a service's network, and on the machine if they were published, each as `8080/tcp`."""

    inside: tuple[str, ...] = ()
    published: tuple[str, ...] = ()


def read_expose(node: YamlNode) -> tuple[str, ...]:
    """Parse the key `expose`. Raises TaskInvalid."""
    found: list[str] = []
    for item in node.items():
        match = _PORT.fullmatch(item.text())
        if match is None or match["published"] or match["address"]:
            item.fail(f"has to be a port such as 8080 or 53/udp (got {item.text()!r})")
        found += _port_range(item, match["target"], match["protocol"] or "tcp")
    return tuple(found)


def read_ports(node: YamlNode, notices: Notices) -> ServicePorts:
    """Parse the key `ports`. Raises TaskInvalid."""
    inside: list[str] = []
    published: list[str] = []
    for item in node.items():
        target, outside, protocol = _long(item, notices) if item.is_mapping else _short(item)
        inside += _port_range(item, target, protocol)
        if outside:
            published += _port_range(item, outside, protocol)
    if node.items():
        notices.ignored[node.key] = "ports are not published on the machine; services reach each other by name"
    return ServicePorts(tuple(dict.fromkeys(inside)), tuple(dict.fromkeys(published)))


def _short(node: YamlNode) -> tuple[str, str, str]:
    match = _PORT.fullmatch(node.text())
    if match is None:
        node.fail(f"has to be [PUBLISHED:]PORT such as 8080:80 (got {node.text()!r})")
    return match["target"], match["published"] or "", match["protocol"] or "tcp"


def _long(node: YamlNode, notices: Notices) -> tuple[str, str, str]:
    entries = notices.table(node, _LONG, _LONG_IGNORED)
    if "target" not in entries:
        node.fail("needs a target")
    texts = {key: entry.text() for key, entry in entries.items()}
    return texts["target"], texts.get("published", ""), texts.get("protocol", "tcp")


def _port_range(node: YamlNode, ports: str, protocol: str) -> Iterator[str]:
    """Yield the ports of a number or a range."""
    first, _, last = ports.partition("-")
    if not first.isdigit() or (last and not last.isdigit()):
        node.fail(f"has to be a port or a range of ports (got {ports!r})")
    low, high = int(first), int(last or first)
    if not 0 < low <= high < 1 << 16 or high - low >= _MAX_PORTS:
        node.fail(f"has to be a port from 1 to 65535, or a range of at most {_MAX_PORTS:,} (got {ports!r})")
    return (f"{port}/{protocol}" for port in range(low, high + 1))


_NAMESPACES = ("service:", "container:")
_RESTARTS = {"no", "always", "on-failure", "unless-stopped"}
_RESTART_OF_DEPLOY = {"none": "no", "any": "always", "on-failure": "on-failure"}
_NETWORK_KEYS = {"aliases"}
_NETWORK_IGNORED = dict.fromkeys(("priority", "gw_priority", "interface_name"), "networks have no priorities")
_NETWORK_UNSUPPORTED = {"ipv4_address", "ipv6_address", "link_local_ips", "mac_address", "driver_opts"}


@dataclass(frozen=True)
class ReadService:
    """A service with the settings that affect other services."""

    service: Service
    published: tuple[str, ...]
    """Ports that the file publishes on the machine."""
    aliases_of_others: Mapping[str, tuple[str, ...]]
    """Additional names of other services, from `links`."""
    optional: frozenset[str]
    """Services that it depends on only if they exist."""
    has_profiles: bool


class ServiceReader:
    """Reads services of one file. Methods raise TaskInvalid."""

    def __init__(self, folder: TaskFolder, variables: Variables, notices: Notices) -> None:
        """`folder` is the compose file's."""
        self._folder = folder
        self._variables = variables
        self._notices = notices

    def read(self, name: str, node: YamlNode) -> ReadService:
        notices = self._notices
        given = notices.table(node, keys.SERVICE, keys.SERVICE_IGNORED, keys.SERVICE_UNSUPPORTED)
        depends_on, optional = _depends_on(given.get("depends_on"))
        aliases = _links(given.get("links"))
        ports = read_ports(given["ports"], notices) if "ports" in given else ServicePorts()
        exposed = read_expose(given["expose"]) if "expose" in given else ()
        self._note_replicas(given)
        has_build = "build" in given and not given["build"].is_null
        values: dict[str, Any] = {
            **{key: parse(given[key]) for key, parse in _PARSERS.items() if key in given},
            "name": name,
            "depends_on": {**dict.fromkeys(aliases, "service_started"), **depends_on},
            "ports": tuple(dict.fromkeys((*ports.inside, *exposed))),
            "environment": self._environment(given),
            "build": self._build(given["build"]) if has_build else None,
            "restart": self._restart(given),
        }
        if "volumes" in given:
            volumes = VolumeReader(name, self._folder, notices)
            volumes.read(given["volumes"])
            values |= {"mounts": tuple(volumes.mounts), "tmpfs": {**values.get("tmpfs", {}), **volumes.tmpfs}}
        values |= {**self._network(given), **self._resources(given)}
        self._check_privileges(given, values)
        return ReadService(
            Service(**values),
            published=ports.published,
            aliases_of_others=aliases,
            optional=optional,
            has_profiles="profiles" in given and bool(given["profiles"].items()),
        )

    def _build(self, node: YamlNode) -> ImageBuild:
        if not node.is_mapping:
            return ImageBuild(self._context(node))
        notices = self._notices
        given = notices.table(node, keys.BUILD, keys.BUILD_IGNORED, keys.BUILD_UNSUPPORTED)
        if "dockerfile" in given and "dockerfile_inline" in given:
            node.fail("dockerfile and dockerfile_inline exclude each other; remove one of them")
        args = _pairs(given["args"]) if "args" in given else {}
        context = self._context(given["context"]) if "context" in given else "."
        dockerfile = given["dockerfile"].text() if "dockerfile" in given else None
        if dockerfile is not None and self._folder.relative(f"{context}/{dockerfile}") is None:
            notices.add_host_access(given["dockerfile"], dockerfile)
        return ImageBuild(
            context,
            dockerfile,
            given["dockerfile_inline"].text() if "dockerfile_inline" in given else None,
            {key: value for key, value in args.items() if value is not None},
            given["target"].text() if "target" in given else None,
        )

    def _context(self, node: YamlNode) -> str:
        text = node.text()
        if "://" in text or text.startswith(("git@", "github.com/")):
            self._notices.add_unsupported(node, f"a remote context: {text}")
            return "."
        inside = self._folder.relative(text)
        if inside is None:
            self._notices.add_host_access(node, text)
        elif not (self._folder.path / inside).is_dir():
            node.fail(f"{text}: no such folder in the task")
        is_below = inside is not None and not inside.startswith("..")
        return str(inside) if is_below else str((self._folder.path / text).resolve())

    def _restart(self, given: Mapping[str, YamlNode]) -> tuple[str, int]:
        if "restart" in given:
            policy, _, most = given["restart"].text().partition(":")
            if policy not in _RESTARTS or (most and not (policy == "on-failure" and most.isdigit())):
                given["restart"].fail(f"has to be {', '.join(sorted(_RESTARTS))} or on-failure:N")
            return policy, int(most or 0)
        policies = self._deploy(given).get("restart_policy")
        if policies is None:
            return "no", 0
        ignored = dict.fromkeys(("delay", "window"), "the engine chooses the pauses")
        entries = self._notices.table(policies, {"condition", "max_attempts"}, ignored)
        condition = entries["condition"].one_of(sorted(_RESTART_OF_DEPLOY)) if "condition" in entries else "any"
        max_attempts = entries["max_attempts"].integer() if "max_attempts" in entries else 0
        return _RESTART_OF_DEPLOY[condition], max_attempts if condition == "on-failure" else 0

    def _network(self, given: Mapping[str, YamlNode]) -> dict[str, Any]:
        # Other services can use this name, too.
        more = (given["container_name"].name(),) if "container_name" in given else ()
        if more:
            self._notices.ignored[given["container_name"].key] = "it is only a name on the network"
        if (mode := given.get("network_mode")) is not None and not mode.is_null:
            if "networks" in given:
                mode.fail("cannot be combined with networks; remove one of them")
            return {"network_mode": self._network_mode(mode)}
        return {"networks": self._networks(given.get("networks"), more)}

    def _network_mode(self, node: YamlNode) -> str:
        mode = node.text()
        if mode == "host" or mode.startswith("container:"):
            self._notices.add_host_access(node, mode)
        elif not (mode in ("none", "bridge") or (mode.startswith("service:") and mode != "service:")):
            node.fail(f"has to be none, bridge, host or service:NAME (got {mode!r})")
        return mode

    def _networks(self, node: YamlNode | None, aliases: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        if node is None or node.is_null:
            return {DEFAULT_NETWORK: aliases}
        if not node.is_mapping:
            return {item.name(): aliases for item in node.items()}
        found = {}
        for name, entry in node.mapping().items():
            given = self._notices.table(entry, _NETWORK_KEYS, _NETWORK_IGNORED, _NETWORK_UNSUPPORTED)
            own = tuple(item.name() for item in given["aliases"].items()) if "aliases" in given else ()
            found[name] = (*aliases, *own)
        return found

    def _environment(self, given: Mapping[str, YamlNode]) -> dict[str, str]:
        found = read_variable_files(given["env_file"], self._folder, self._variables) if "env_file" in given else {}
        for key, value in _pairs(given["environment"]).items() if "environment" in given else ():
            if value is not None:
                found[key] = value
            elif (
                taken := self._variables.look_up(f"{given['environment'].key}.{key}", key, has_default=True)
            ) is not None:
                found[key] = taken
        return found

    def _deploy(self, given: Mapping[str, YamlNode]) -> dict[str, YamlNode]:
        return self._notices.table(given.get("deploy"), keys.DEPLOY, keys.DEPLOY_IGNORED)

    def _resources(self, given: Mapping[str, YamlNode]) -> dict[str, Any]:
        notices = self._notices
        parts = notices.table(self._deploy(given).get("resources"), {"limits", "reservations"})
        limits = parts["limits"].table({"cpus", "memory", "pids"}) if "limits" in parts else {}
        cpus, memory = limits.get("cpus", given.get("cpus")), limits.get("memory", given.get("mem_limit"))
        pids = limits.get("pids", given.get("pids_limit"))
        set_limits = {
            "cpus": cpus.number() if cpus is not None else 0,
            "memory_mb": size_bytes(memory) / (1 << 20) if memory is not None else 0,
            "pids_limit": max(pids.integer(-1), 0) if pids is not None else 0,  # -1 means no limit
        }
        return {
            "limits": {name: limit for name, limit in set_limits.items() if limit},
            "gpus": self._gpus(given, parts.get("reservations")),
        }

    def _gpus(self, given: Mapping[str, YamlNode], reservations: YamlNode | None) -> int:
        ignored = dict.fromkeys(("cpus", "memory", "generic_resources"), "resources are limited, not reserved")
        reserved = self._notices.table(reservations, {"devices"}, ignored)
        devices = reserved["devices"].items() if "devices" in reserved else []
        if "gpus" in given and not given["gpus"].is_null:
            if not given["gpus"].is_list:
                return -1 if given["gpus"].text() == "all" else given["gpus"].integer()
            devices = [*devices, *given["gpus"].items()]
        count = 0
        for device in devices:
            entries = self._notices.table(
                device, {"count", "capabilities"}, {"driver": "GPUs are Nvidia's"}, {"device_ids", "options"}
            )
            is_all = "count" not in entries or entries["count"].text() == "all"
            count = -1 if is_all or count < 0 else count + entries["count"].integer()
        return count

    def _note_replicas(self, given: Mapping[str, YamlNode]) -> None:
        deploy = given["deploy"].mapping() if "deploy" in given else {}
        for node in (given.get("scale"), deploy.get("replicas")):
            if node is not None and not node.is_null and node.integer() != 1:
                self._notices.add_unsupported(node, f"{node.integer()} containers of a service")

    def _check_privileges(self, given: Mapping[str, YamlNode], found: dict[str, Any]) -> None:
        """Check the privileges among the values found, and record those that give access to the host."""
        notices = self._notices
        if found.get("privileged"):
            notices.add_host_access(given["privileged"])
        if found.get("devices"):
            notices.add_host_access(given["devices"], ", ".join(found["devices"]))
        found["cap_add"] = self._capabilities(given["cap_add"]) if "cap_add" in given else ()
        for option in found.get("security_opt", ()):
            if option.replace("=", ":").removesuffix(":true") != "no-new-privileges":
                notices.add_host_access(given["security_opt"], option)
        for key in ("pid", "ipc", "userns_mode"):
            mode = found.get(key, "private")
            if mode == "host":
                notices.add_host_access(given[key], mode)
            elif mode == "private" or mode.startswith(_NAMESPACES):
                if mode != "private":
                    notices.add_unsupported(given[key], mode)
                found[key] = None
            elif mode != "shareable" or key != "ipc":
                given[key].fail(f"unknown mode {mode!r}")

    def _capabilities(self, node: YamlNode) -> tuple[str, ...]:
        names = tuple(item.text().upper().removeprefix("CAP_") for item in node.items())
        for name in names:
            if name not in keys.SAFE_CAPABILITIES:
                self._notices.add_host_access(node, name)
        return names


def _ulimit(node: YamlNode) -> tuple[int, int]:
    if not node.is_mapping:
        return node.integer(-1), node.integer(-1)
    given = node.table({"soft", "hard"})
    if "soft" not in given or "hard" not in given:
        node.fail("needs soft and hard")
    return given["soft"].integer(-1), given["hard"].integer(-1)


def _pairs(node: YamlNode) -> dict[str, str | None]:
    """Parse a mapping, or a list of `NAME=text`; a name without `=text` has the value None."""
    found: dict[str, str | None] = {}
    if node.is_mapping:
        found = {name: None if entry.is_null else entry.text() for name, entry in node.mapping().items()}
    else:
        for item in node.items():
            name, equals, text = item.text().partition("=")
            found[name] = text if equals else None
    for name, value in found.items():
        if not name or "=" in name or "\0" in name + (value or ""):
            node.fail(f"{name!r} is not a valid variable name")
    return found


def _texts_by_name(node: YamlNode) -> dict[str, str]:
    return {key: value or "" for key, value in _pairs(node).items()}


def _text_if_given(node: YamlNode) -> str | None:
    return None if node.is_null else node.text()


def _healthcheck(node: YamlNode) -> ServiceCheck:
    times = {"interval", "timeout", "start_period", "start_interval"}
    given = node.table({"test", "retries", "disable", *times})
    if "disable" in given and given["disable"].boolean():
        return ServiceCheck(("NONE",))
    return ServiceCheck(
        test=_test(given["test"]) if "test" in given else (),
        retries=given["retries"].integer() if "retries" in given else None,
        **{f"{key}_sec": duration_sec(given[key]) for key in times if key in given},
    )


def _test(node: YamlNode) -> tuple[str, ...]:
    if not node.is_list:
        return ("CMD-SHELL", node.text())
    test = node.texts()
    if not test or test[0] not in ("CMD", "CMD-SHELL", "NONE"):
        node.fail("has to begin with CMD, CMD-SHELL or NONE")
    if (test[0] == "NONE") != (len(test) == 1) or (test[0] == "CMD-SHELL" and len(test) != 2):
        node.fail(f"{test[0]} must be followed by {'nothing' if test[0] == 'NONE' else 'one script, or by words'}")
    return test


def _depends_on(node: YamlNode | None) -> tuple[dict[str, Condition], frozenset[str]]:
    if node is None:
        return {}, frozenset()
    if not node.is_mapping:
        return {item.name(): "service_started" for item in node.items()}, frozenset()
    found: dict[str, Condition] = {}
    optional = set()
    for name, entry in node.mapping().items():
        given = entry.table({"condition", "restart", "required"})
        wanted = given["condition"].one_of(CONDITIONS) if "condition" in given else "service_started"
        found[name] = next(condition for condition in CONDITIONS if condition == wanted)
        if "required" in given and not given["required"].boolean():
            optional.add(name)
    return found, frozenset(optional)


def _links(node: YamlNode | None) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for item in node.items() if node is not None else ():
        name, _, alias = item.text().partition(":")
        found[name] = (*found.get(name, ()), *((alias,) if alias else ()))
    return found


def _extra_hosts(node: YamlNode) -> dict[str, str]:
    if node.is_mapping:
        return {name: entry.text() for name, entry in node.mapping().items()}
    found = {}
    for item in node.items():
        name, separator, address = item.text().partition("=" if "=" in item.text() else ":")
        if not separator:
            item.fail(f"has to be HOST=ADDRESS (got {item.text()!r})")
        found[name] = address
    return found


_PARSERS: Mapping[str, Callable[[YamlNode], Any]] = {
    **dict.fromkeys(("command", "entrypoint"), command_words),
    **dict.fromkeys(("working_dir", "user", "hostname", "stop_signal"), _text_if_given),
    **dict.fromkeys(("init", "tty", "stdin_open", "read_only", "privileged"), YamlNode.boolean),
    **dict.fromkeys(("group_add", "dns", "cap_drop", "security_opt", "devices"), YamlNode.texts),
    **dict.fromkeys(("pid", "ipc", "userns_mode"), YamlNode.text),
    "image": lambda node: None if node.is_null else node.text() or node.fail("is empty"),
    "platform": lambda node: node.text() or None,
    # tbench's own labels control cleaning.
    "labels": lambda node: {k: v for k, v in _texts_by_name(node).items() if not k.startswith("tbench.")},
    "healthcheck": _healthcheck,
    "extra_hosts": _extra_hosts,
    "tmpfs": read_tmpfs,
    "shm_size": size_bytes,
    "ulimits": lambda node: {name: _ulimit(entry) for name, entry in node.mapping().items()},
    "sysctls": _texts_by_name,
}
"""Parsers of keys that are independent of all other keys."""
