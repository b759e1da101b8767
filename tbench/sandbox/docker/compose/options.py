"""Translates a compose file's services into container options of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tbench.compose.project import MAIN, Service, ServiceCheck, ServiceMount
from tbench.sandbox.startup import IDLE_COMMAND, Startup

_LOG_SIZE = "16m"
"""Maximum size of a service's log."""
_NANO = 10**9
_NETWORK_ARGUMENTS = ("extra_hosts", "dns", "dns_opt")
"""Arguments that belong to a network, which may be another container's."""
NO_SERVERS: Mapping[str, Any] = {"dns": ["192.0.2.1"], "dns_opt": ["timeout:1", "attempts:1"]}
"""Arguments that disable public host names: otherwise the engine itself might query its host's name servers. The
address is unused (RFC 5737), so that an agent cannot listen on it."""


@dataclass(frozen=True)
class ServiceEndpoint:
    """A container's connection to a network: the engine's name of the network, and the container's aliases there."""

    network: str
    aliases: tuple[str, ...] = ()
    address: str | None = None
    """IPv4 address in this network; None for any."""


@dataclass(frozen=True)
class ServiceOptions:
    """Options of a service's container that differ from those of a trial without services."""

    container: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the SDK's `create_container` that replace the usual ones."""
    host: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the SDK's `create_host_config` in addition to the usual ones."""
    network_mode: str | None = None
    """Network mode of the engine, such as `none`; None for the networks of `endpoints`."""
    endpoints: tuple[ServiceEndpoint, ...] = ()
    files: tuple[tuple[str, Path], ...] = ()
    """Pairs of a path in the container and the task's file to copy there."""

    @property
    def has_own_network(self) -> bool:
        """Whether its network is neither the host's nor another container's."""
        return self.network_mode is None or not (self.network_mode == "host" or ":" in self.network_mode)

    def without_capability(self, capability: str) -> ServiceOptions:
        """Return these options without one of the engine's default capabilities, unless the compose file adds it."""
        return replace(self, host={**self.host, "cap_drop": [*self.host.get("cap_drop", ()), capability]})

    def with_hosts(self, hosts: Mapping[str, str]) -> ServiceOptions:
        """Return these options with addresses in /etc/hosts, by name; those of the compose file take precedence."""
        return replace(self, host={**self.host, "extra_hosts": {**hosts, **self.host.get("extra_hosts", {})}})

    def without_aliases(self) -> ServiceOptions:
        """Return these options on the same networks, but without the service's names there."""
        return replace(self, endpoints=tuple(ServiceEndpoint(each.network) for each in self.endpoints))

    def apply_to(self, api: Any, usual: Mapping[str, Any], *, shares_network: bool) -> dict[str, Any]:
        """Return the `usual` arguments of `create_container` with these options.

        With `shares_network` the container already has network and volumes of another container.
        """
        host = dict(self.host)
        container = dict(self.container)
        if shares_network:
            for key in ("binds", *_NETWORK_ARGUMENTS):
                host.pop(key, None)
            container.pop("ports", None)
        elif self.network_mode is not None:
            host["network_mode"] = self.network_mode
        elif self.endpoints:
            first = self.endpoints[0]
            host["network_mode"] = first.network
            container["networking_config"] = api.create_networking_config(
                {first.network: api.create_endpoint_config(aliases=list(first.aliases), ipv4_address=first.address)}
            )
        own = api.create_host_config(**host)
        if "network_mode" not in host:
            own.pop("NetworkMode", None)
        arguments = {**usual, **container, "host_config": _merge_host_configs(usual["host_config"], own)}
        if not self.has_own_network:
            arguments["hostname"] = None
        return arguments


def _merge_host_configs(usual: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merge host configurations: lists and mappings are combined, other values are taken from `own`."""
    merged = dict(usual)
    for key, value in own.items():
        before = merged.get(key)
        if isinstance(value, list) and isinstance(before, list):
            merged[key] = [*before, *value]
        elif isinstance(value, dict) and isinstance(before, dict):
            merged[key] = {**before, **value}
        else:
            merged[key] = value
    added = set(merged.get("CapAdd") or ())
    merged["CapDrop"] = [name for name in merged.get("CapDrop") or () if name not in added] or None
    return merged


def service_options(
    service: Service,
    *,
    network_mode: str | None,
    endpoints: tuple[ServiceEndpoint, ...],
    volumes: Mapping[str, str],
    is_podman: bool,
    resolves_public_names: bool,
) -> ServiceOptions:
    """Return the options of a service. `volumes` maps the project's volumes and copied files to the engine's names."""
    options = ServiceOptions(network_mode=network_mode, endpoints=endpoints)
    container, host = _container(service), _host(service)
    if service.name != MAIN and not is_podman:
        host["log_config"] = {"type": "json-file", "config": {"max-size": _LOG_SIZE, "max-file": "1"}}
    host["binds"] = [bind for mount in service.mounts if (bind := _bind(mount, volumes)) is not None]
    if anonymous := [mount.target for mount in service.mounts if mount.kind == "anonymous"]:
        container["volumes"] = anonymous
    if not resolves_public_names and endpoints:
        host |= NO_SERVERS
    if not options.has_own_network:
        for key in _NETWORK_ARGUMENTS:
            host.pop(key, None)
        container.pop("ports", None)
    return replace(options, container=container, host=host)


def _container(service: Service) -> dict[str, Any]:
    found: dict[str, Any] = {
        "stop_signal": service.stop_signal,
        "ports": [tuple(port.split("/")) for port in service.ports],
        "user": service.user,
        "platform": service.platform,
    }
    if service.name != MAIN:
        found |= {
            "entrypoint": _list(service.entrypoint),
            "command": _list(service.command),
            "tty": service.tty,
            "stdin_open": service.stdin_open,
        }
    own = healthcheck(service.healthcheck) if service.healthcheck is not None else None
    # None stands for the image's own setting, and has to replace the agent container's.
    kept = {"entrypoint", "command", "healthcheck"} if service.name != MAIN else set()
    found["healthcheck"] = own
    return {key: value for key, value in found.items() if value or key in kept}


def _list(argv: tuple[str, ...] | None) -> list[str] | None:
    return None if argv is None else list(argv)


def _host(service: Service) -> dict[str, Any]:
    policy, most = service.restart
    found: dict[str, Any] = {
        "tmpfs": dict(service.tmpfs),
        "cap_add": list(service.cap_add),
        "cap_drop": list(service.cap_drop),
        "security_opt": list(service.security_opt),
        "devices": list(service.devices),
        "privileged": service.privileged,
        "shm_size": service.shm_size,
        "ulimits": [{"name": name, "soft": soft, "hard": hard} for name, (soft, hard) in service.ulimits.items()],
        "sysctls": dict(service.sysctls),
        "extra_hosts": dict(service.extra_hosts),
        "dns": list(service.dns),
        "group_add": list(service.group_add),
        "read_only": service.read_only,
        "pid_mode": service.pid,
        "ipc_mode": service.ipc,
        "userns_mode": service.userns_mode,
        "device_requests": [{"count": service.gpus, "capabilities": [["gpu"]]}] if service.gpus else None,
    }
    if service.name != MAIN:
        found["init"] = service.init
        if policy != "no":
            found["restart_policy"] = {"Name": policy, "MaximumRetryCount": most}
    return {key: value for key, value in found.items() if value}


def _bind(mount: ServiceMount, volumes: Mapping[str, str]) -> str | None:
    if mount.kind == "anonymous":
        return None
    source = mount.source if mount.kind == "host" else volumes.get(f"{mount.kind}:{mount.source}")
    if source is None:
        return None  # a single file is copied into the container
    # A copied folder hides the image's content of that path, as a mounted one would.
    options = [*(["ro"] if mount.read_only else []), *(["nocopy"] if mount.no_copy or mount.kind == "copy" else [])]
    return ":".join([source, mount.target, *([",".join(options)] if options else [])])


def healthcheck(check: ServiceCheck) -> dict[str, Any]:
    """Return a healthcheck in the engine's format; missing values are taken from the image."""
    times = {
        "interval": check.interval_sec,
        "timeout": check.timeout_sec,
        "start_period": check.start_period_sec,
    }
    found: dict[str, Any] = {key: int(sec * _NANO) for key, sec in times.items() if sec is not None}
    if check.retries is not None:
        found["retries"] = check.retries
    return {"test": list(check.test), **found}


def service_startup(service: Service, usual: Startup) -> Startup:
    """Return the startup of a service's container: the image's (`usual`) unless the compose file replaces it."""
    healthcheck = usual.healthcheck if service.healthcheck is None else None  # the engine runs the compose file's
    if service.entrypoint is None and service.command is None:
        return replace(usual, healthcheck=healthcheck)
    entrypoint = usual.own_entrypoint if service.entrypoint is None else service.entrypoint
    return replace(usual, entrypoint=(*entrypoint, *(service.command or IDLE_COMMAND)), healthcheck=healthcheck)
