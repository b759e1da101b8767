"""Services, networks and volumes of a compose file, as immutable values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

COMPOSE_FILE = "docker-compose.yaml"
"""Name of a task's compose file."""
MAIN = "main"
"""Name of the service in which the agent works."""
DEFAULT_NETWORK = "default"
MAIN_IMAGE_PLACEHOLDER = "tbench-image-of-main"
"""Placeholder for the image of `main`, the value of `${MAIN_IMAGE_NAME}`."""
MAIN_LOGS_PLACEHOLDER = "tbench-logs"
"""Placeholder for the folder of a trial's logs on the host, which does not exist in tbench."""
SHARED_LOGS = ("agent", "artifacts")
"""Folders of `/logs` in `main` that other services can share; the verifier's folder is new for every verifier."""

Condition = Literal["service_started", "service_healthy", "service_completed_successfully"]
CONDITIONS: tuple[Condition, ...] = ("service_started", "service_healthy", "service_completed_successfully")


@dataclass(frozen=True)
class ImageBuild:
    """Build settings of a service's image."""

    context: str
    """Directory: absolute, or relative to the compose file's directory."""
    dockerfile: str | None = None
    """Path relative to the context; None for `Dockerfile`."""
    inline: str | None = None
    """Text of the Dockerfile, instead of a file."""
    args: Mapping[str, str] = field(default_factory=dict)
    target: str | None = None


@dataclass(frozen=True)
class ServiceCheck:
    """Healthcheck of a service. The image's values replace None and an empty test."""

    test: tuple[str, ...] = ()
    """`CMD` and its words, `CMD-SHELL` and a script, or `NONE` for no check."""
    interval_sec: float | None = None
    timeout_sec: float | None = None
    retries: int | None = None
    start_period_sec: float | None = None
    start_interval_sec: float | None = None


MountKind = Literal["volume", "anonymous", "copy", "host"]
"""`volume`: a named volume of the trial; `anonymous`: a volume without a name; `copy`: files of the task; `host`: a
path of the engine's machine."""


@dataclass(frozen=True)
class ServiceMount:
    """A mount of a service."""

    kind: MountKind
    source: str
    """Name of the volume, or path: relative to the compose file's directory for a copy, absolute for the host."""
    target: str
    read_only: bool = False
    no_copy: bool = False
    """Whether an empty volume stays empty instead of getting the image's files at this path."""


@dataclass(frozen=True)
class Service:
    """One container of a trial."""

    name: str
    image: str | None = None
    build: ImageBuild | None = None
    command: tuple[str, ...] | None = None
    """None for the image's own."""
    entrypoint: tuple[str, ...] | None = None
    """None for the image's own."""
    environment: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None
    user: str | None = None
    group_add: tuple[str, ...] = ()
    hostname: str | None = None
    depends_on: Mapping[str, Condition] = field(default_factory=dict)
    healthcheck: ServiceCheck | None = None
    ports: tuple[str, ...] = ()
    """Ports that it listens on, such as `8080/tcp`. No port is published."""
    mounts: tuple[ServiceMount, ...] = ()
    tmpfs: Mapping[str, str] = field(default_factory=dict)
    """Options by path."""
    networks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Aliases by network."""
    network_mode: str | None = None
    """`none`, `bridge`, `host` or `service:NAME`; None if it is on `networks`."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Limits set in the file, named as in a task's [environment]: `cpus`, `memory_mb`, `pids_limit`."""
    gpus: int = 0
    """Number of GPUs; -1 for all."""
    platform: str | None = None
    restart: tuple[str, int] = ("no", 0)
    """The engine's restart policy, and the maximum number of restarts; 0 for no maximum."""
    init: bool = False
    tty: bool = False
    stdin_open: bool = False
    read_only: bool = False
    privileged: bool = False
    cap_add: tuple[str, ...] = ()
    cap_drop: tuple[str, ...] = ()
    security_opt: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    pid: str | None = None
    ipc: str | None = None
    userns_mode: str | None = None
    shm_size: int | None = None
    """Bytes."""
    ulimits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Soft and hard limit by name."""
    sysctls: Mapping[str, str] = field(default_factory=dict)
    extra_hosts: Mapping[str, str] = field(default_factory=dict)
    dns: tuple[str, ...] = ()
    stop_signal: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def shares_network_of(self) -> str | None:
        """Name of the service whose network it uses."""
        kind, _, name = (self.network_mode or "").partition(":")
        return name if kind == "service" else None

    @property
    def needs(self) -> Mapping[str, Condition]:
        """Services that it depends on, with their conditions."""
        shared = self.shares_network_of
        return {**({shared: "service_started"} if shared else {}), **self.depends_on}


def network_owner(services: Mapping[str, Service], service: Service) -> Service:
    """Return the service whose network a service uses, following `service:NAME` to the end."""
    for _ in services:
        service = services.get(service.shares_network_of or "", service)
    return service


@dataclass(frozen=True)
class TrialNetwork:
    """A network of one trial's services."""

    name: str
    internal: bool = False
    external: str | None = None
    """Name of an existing network of the engine to use instead."""


@dataclass(frozen=True)
class TrialVolume:
    """A named volume of one trial's services."""

    name: str
    external: str | None = None
    """Name of an existing volume of the engine to use instead."""
    world_writable: bool = False
    """Whether every user may write to it, as in folders of logs."""


@dataclass(frozen=True)
class Project:
    """Services of one trial, each after its dependencies, always including `main`."""

    services: Mapping[str, Service]
    networks: Mapping[str, TrialNetwork]
    """Networks that services use."""
    volumes: Mapping[str, TrialVolume]

    @property
    def main(self) -> Service:
        return self.services[MAIN]

    @property
    def names(self) -> tuple[str, ...]:
        """All names by which its services reach each other."""
        aliases = (name for each in self.services.values() for own in each.networks.values() for name in own)
        hosts = (each.hostname for each in self.services.values() if each.hostname)
        return tuple(dict.fromkeys((*self.services, *aliases, *hosts)))

    @property
    def sidecars(self) -> Iterator[Service]:
        """All services except `main`."""
        return (service for service in self.services.values() if service.name != MAIN)
