"""What a compose file says of a container, in the words of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tbench.compose.project import MAIN, Service, ServiceCheck, ServiceMount
from tbench.sandbox.startup import STAYS, Startup

_LOG_SIZE = "16m"
"""Most that the engine keeps of a service's output."""
_PER_SECOND = 10**9
_OF_A_NETWORK = ("extra_hosts", "dns", "dns_opt")
"""Arguments that belong to a network, which need not be the container's own."""
NO_SERVERS: Mapping[str, Any] = {"dns": ["192.0.2.1"], "dns_opt": ["timeout:1", "attempts:1"]}
"""Arguments where no name of the world exists: the engine itself might ask its host's servers, and says nothing where
nobody answers: at an address that none has, so that an agent has no way to listen there."""


@dataclass(frozen=True)
class ServiceEndpoint:
    """A network that a container is on, by the engine's name for it, and the names that the container has there."""

    network: str
    aliases: tuple[str, ...] = ()
    address: str | None = None
    """Its IPv4 address there; None for any."""


@dataclass(frozen=True)
class ServiceOptions:
    """What of a container is not as in the trials of one container."""

    container: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the SDK's `create_container`, in place of the usual ones."""
    host: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the SDK's `create_host_config`, which are added to the usual ones."""
    network_mode: str | None = None
    """A mode of the engine, such as `none`; None where it is on the networks of `endpoints`."""
    endpoints: tuple[ServiceEndpoint, ...] = ()
    files: tuple[tuple[str, Path], ...] = ()
    """Files of the task by the path at which they are put into the container."""

    @property
    def has_own_network(self) -> bool:
        """Whether its network is neither the engine's host's nor another container's."""
        return self.network_mode is None or not (self.network_mode == "host" or ":" in self.network_mode)

    def without(self, capability: str) -> ServiceOptions:
        """The same without one of the engine's usual capabilities, unless the file asks for it."""
        return replace(self, host={**self.host, "cap_drop": [*self.host.get("cap_drop", ()), capability]})

    def nameless(self) -> ServiceOptions:
        """The same for another container of the same kind: on the same networks, but not under the service's names."""
        return replace(self, endpoints=tuple(ServiceEndpoint(each.network) for each in self.endpoints))

    def applied(self, api: Any, usual: Mapping[str, Any], *, is_beside: bool) -> dict[str, Any]:
        """The arguments `usual` for `create_container`, changed accordingly.

        With `is_beside` network and volumes are another container's already.
        """
        host = dict(self.host)
        container = dict(self.container)
        if is_beside:
            for key in ("binds", *_OF_A_NETWORK):
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
        arguments = {**usual, **container, "host_config": _joined(usual["host_config"], own)}
        if not self.has_own_network:
            arguments["hostname"] = None
        return arguments


def _joined(usual: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The host's part of both: lists and mappings are put together, of the rest `own` wins."""
    joined = dict(usual)
    for key, value in own.items():
        before = joined.get(key)
        if isinstance(value, list) and isinstance(before, list):
            joined[key] = [*before, *value]
        elif isinstance(value, dict) and isinstance(before, dict):
            joined[key] = {**before, **value}
        else:
            joined[key] = value
    added = set(joined.get("CapAdd") or ())
    joined["CapDrop"] = [name for name in joined.get("CapDrop") or () if name not in added] or None
    return joined


def service_options(
    service: Service,
    *,
    network_mode: str | None,
    endpoints: tuple[ServiceEndpoint, ...],
    volumes: Mapping[str, str],
    is_podman: bool,
    knows_names_outside: bool,
) -> ServiceOptions:
    """The options of a service. `volumes` are the engine's names for those of the project, and for copied files."""
    options = ServiceOptions(network_mode=network_mode, endpoints=endpoints)
    container, host = _container(service), _host(service)
    if service.name != MAIN and not is_podman:
        host["log_config"] = {"type": "json-file", "config": {"max-size": _LOG_SIZE, "max-file": "1"}}
    host["binds"] = [bind for mount in service.mounts if (bind := _bind(mount, volumes)) is not None]
    if anonymous := [mount.target for mount in service.mounts if mount.kind == "anonymous"]:
        container["volumes"] = anonymous
    if not knows_names_outside and endpoints:
        host |= NO_SERVERS
    if not options.has_own_network:
        for key in _OF_A_NETWORK:
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
    # None is the image's, whatever the agent's container has in its place.
    kept = {"entrypoint", "command", "healthcheck"} if service.name != MAIN else set()
    found["healthcheck"] = own
    return {key: value for key, value in found.items() if value or key in kept}


def _list(words: tuple[str, ...] | None) -> list[str] | None:
    return None if words is None else list(words)


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
        return None  # a single file, which is put into the container
    # What is copied in is all there is, as where a folder is mounted.
    options = [*(["ro"] if mount.read_only else []), *(["nocopy"] if mount.no_copy or mount.kind == "copy" else [])]
    return ":".join([source, mount.target, *([",".join(options)] if options else [])])


def healthcheck(check: ServiceCheck) -> dict[str, Any]:
    """A healthcheck in the engine's words; what it lacks is the image's."""
    times = {
        "interval": check.interval_sec,
        "timeout": check.timeout_sec,
        "start_period": check.start_period_sec,
    }
    found: dict[str, Any] = {key: int(sec * _PER_SECOND) for key, sec in times.items() if sec is not None}
    if check.retries is not None:
        found["retries"] = check.retries
    return {"test": list(check.test), **found}


def startup_of(service: Service, usual: Startup) -> Startup:
    """What the image starts with a container of the service, `usual`, or what the file says in its place."""
    healthcheck = usual.healthcheck if service.healthcheck is None else None  # that of the file is the engine's
    if service.entrypoint is None and service.command is None:
        return replace(usual, healthcheck=healthcheck)
    entrypoint = usual.own_entrypoint if service.entrypoint is None else service.entrypoint
    return replace(usual, entrypoint=(*entrypoint, *(service.command or STAYS)), healthcheck=healthcheck)
