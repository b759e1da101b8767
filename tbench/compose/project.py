"""What a compose file says, as frozen values: services, their order and what each is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

COMPOSE_FILE = "docker-compose.yaml"
"""Name of the file that makes a folder one of several containers."""
MAIN = "main"
"""Name of the service in which the agent works."""
DEFAULT_NETWORK = "default"
IMAGE_OF_MAIN = "tbench-image-of-main"
"""Stands for the image of `main`, which has no other name in a compose file: `${MAIN_IMAGE_NAME}`."""
LOGS_OF_MAIN = "tbench-logs"
"""Stands for the folder of a trial's logs on the host, which there is none of here."""
SHARED_LOGS = ("agent", "artifacts")
"""Folders of `/logs` in `main` that other services can share. That of the verifier is made anew for it."""

Condition = Literal["service_started", "service_healthy", "service_completed_successfully"]
CONDITIONS: tuple[Condition, ...] = ("service_started", "service_healthy", "service_completed_successfully")


@dataclass(frozen=True)
class ImageBuild:
    """How the image of a service is built."""

    context: str
    """Directory: a path relative to the compose file's, or an absolute one."""
    dockerfile: str | None = None
    """Path relative to the context; None for `Dockerfile`."""
    inline: str | None = None
    """Text of the Dockerfile, in place of a file."""
    args: Mapping[str, str] = field(default_factory=dict)
    target: str | None = None


@dataclass(frozen=True)
class ServiceCheck:
    """The healthcheck of a service. What is None, or no test at all, is as the image has it."""

    test: tuple[str, ...] = ()
    """`CMD` and its words, `CMD-SHELL` and a script, or `NONE` for no check."""
    interval_sec: float | None = None
    timeout_sec: float | None = None
    retries: int | None = None
    start_period_sec: float | None = None
    start_interval_sec: float | None = None


MountKind = Literal["volume", "anonymous", "copy", "host"]
"""`volume`: a named one of the trial; `copy`: files of the task; `host`: a path of the engine's machine."""


@dataclass(frozen=True)
class ServiceMount:
    """What a service finds at a path."""

    kind: MountKind
    source: str
    """Name of the volume, or path: relative to the compose file's for a copy, absolute for the host."""
    target: str
    read_only: bool = False
    no_copy: bool = False
    """Whether an empty volume stays empty, whatever the image has at this path."""


@dataclass(frozen=True)
class Service:
    """One container of a trial."""

    name: str
    image: str | None = None
    build: ImageBuild | None = None
    command: tuple[str, ...] | None = None
    """None for the image's own; so with `entrypoint`."""
    entrypoint: tuple[str, ...] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None
    user: str | None = None
    group_add: tuple[str, ...] = ()
    hostname: str | None = None
    depends_on: Mapping[str, Condition] = field(default_factory=dict)
    healthcheck: ServiceCheck | None = None
    ports: tuple[str, ...] = ()
    """What it listens on, as far as the file says: `8080/tcp`. Nothing of it is published."""
    mounts: tuple[ServiceMount, ...] = ()
    tmpfs: Mapping[str, str] = field(default_factory=dict)
    """Options by path."""
    networks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Aliases by network."""
    network_mode: str | None = None
    """`none`, `bridge`, `host` or `service:NAME`; None where it is on `networks`."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Those that the file gives, named as in a task's [environment]: `cpus`, `memory_mb`, `pids_limit`."""
    gpus: int = 0
    """How many; -1 for all."""
    platform: str | None = None
    restart: tuple[str, int] = ("no", 0)
    """The engine's policy, and how often at most; 0 for no bound."""
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
        """The service whose network it is in."""
        kind, _, name = (self.network_mode or "").partition(":")
        return name if kind == "service" else None

    @property
    def needs(self) -> Mapping[str, Condition]:
        """The services that come before it, and how far each has to be."""
        shared = self.shares_network_of
        return {**({shared: "service_started"} if shared else {}), **self.depends_on}


@dataclass(frozen=True)
class TrialNetwork:
    """A network of the services of one trial."""

    name: str
    internal: bool = False
    external: str | None = None
    """Name of a network of the engine that is used in its place."""


@dataclass(frozen=True)
class TrialVolume:
    """A named volume of the services of one trial."""

    name: str
    external: str | None = None
    """Name of a volume of the engine that is used in its place."""
    for_all: bool = False
    """Whether every user may write in it, as in a folder of logs."""


@dataclass(frozen=True)
class Project:
    """The services of one trial, each after those that it needs; `main` is always one of them."""

    services: Mapping[str, Service]
    networks: Mapping[str, TrialNetwork]
    """Those that a service is on."""
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
        """All services but `main`."""
        return (service for service in self.services.values() if service.name != MAIN)
