"""Specifications of containers, and containers of unchanged images with which the agent's are compared."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from tbench.config.settings import NetworkChoice
from tbench.sandbox.archive import LooseFiles, loose_files
from tbench.sandbox.backend import Sandbox, SandboxSettings
from tbench.sandbox.container_proxy import WITHOUT_PROXY, ContainerProxy
from tbench.sandbox.image import Image
from tbench.sandbox.owner import LABEL_DIRECTORY, LABEL_MEMORY, LABEL_OWNER, LABEL_RUN, LABEL_TRIAL, owner
from tbench.sandbox.startup import NO_STARTUP, Startup
from tbench.tasks.environment import Environment
from tbench.tasks.network import NetworkPolicy, Networks


@dataclass(frozen=True)
class ContainerLimits:
    """Limits of a container's CPUs, memory and processes."""

    cpus: float
    memory_mb: float
    pids: int


_SMALL = ContainerLimits(cpus=1.0, memory_mb=256.0, pids=256)


@dataclass(frozen=True)
class SandboxRecipe:
    """Specification of a trial's container."""

    image: Image
    limits: ContainerLimits
    tools_volume: str
    run: str
    trial: str
    has_internet: bool
    environment: Mapping[str, str]
    package_volume: str = ""
    """Volume with the agent's package; empty if it has none."""
    hostname: str | None = None
    """Host name; None for the engine's default, the container's id."""
    workdir: str | None = None
    """Working directory; None for the image's own."""
    agent_user: str | None = None
    closed_to: tuple[str, ...] = ()
    """Addresses that the container must not reach."""
    no_new_privileges: bool = False
    """Whether sudo, su and other setuid programs have no effect for users other than root."""
    name_servers: tuple[str, ...] = ()
    """Name servers of a router; empty for the engine's."""
    cap_add: tuple[str, ...] = ()
    """Linux capabilities in addition to the engine's default ones."""
    original: Image | None = None
    """The task's own image if `image` is a snapshot of one of its sandboxes."""
    shares_with: str | None = None
    """Id of the container whose network and volumes this one shares."""
    volumes_of: str | None = None
    """Id of the container whose volumes this one shares, but not its network."""
    loose: LooseFiles | None = None
    """Files that are copied into the working directory."""
    cpuset: tuple[int, ...] = ()
    """Numbers of the CPUs to run on; empty for any."""
    gpus: int = 0
    gpu_ids: tuple[int, ...] = ()
    """Numbers of its GPUs; empty if the engine chooses them."""
    storage_mb: float | None = None
    """Disk limit; None for no limit."""
    starts: bool = True
    """Whether the image's startup commands run."""
    is_fresh: bool = False
    """Whether the agent never works in the container."""
    more_labels: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""
    """Directory of its run; empty if it cannot be found again after an interruption."""
    owner: str = ""
    """Owner label; empty for this process's."""
    proxy: ContainerProxy = WITHOUT_PROXY
    is_proxied: bool = False
    """Whether the container can always use the proxy, since its network is public."""
    direct: tuple[str, ...] = ()
    """Names of services that are reached without the proxy."""
    network: NetworkPolicy | None = None
    """First network policy, enforced by a router; None if its network never changes."""

    @classmethod
    def for_trial(
        cls, whose: Environment, settings: SandboxSettings, trial: str, image: Image, variables: Mapping[str, str],
        **more: Any,
    ) -> Self:  # fmt: skip
        """Return the recipe for the environment `whose` of a trial; `more` are fields that depend on the backend."""
        task, networks = whose.settings, choose_networks(settings.config.network, whose.networks)
        is_public = networks.is_plain and networks.start.mode == "public"
        return cls(
            image=image,
            limits=ContainerLimits(task.cpus, task.memory_mb, task.pids_limit),
            run=settings.run,
            trial=trial,
            has_internet=is_public or not networks.is_plain,
            network=None if networks.is_plain else networks.start,
            proxy=settings.container_proxy,
            is_proxied=is_public,
            environment=variables,
            hostname=hostname_of(whose.task.name),
            workdir=task.workdir,
            agent_user=whose.user,
            is_fresh=whose.role != "agent",
            loose=loose_files(whose),
            gpus=task.gpus,
            # Only if the task sets it: the schema's default does not request a limit.
            storage_mb=task.storage_mb if "storage_mb" in task.model_fields_set else None,
            no_new_privileges=settings.config.no_new_privileges,
            cap_add=settings.config.cap_add,
            **more,
        )

    @property
    def startup(self) -> Startup:
        """Startup commands of the image; a snapshot has those of the image that it was made from."""
        return (self.original or self.image).startup if self.starts else NO_STARTUP

    @property
    def is_held(self) -> bool:
        """Whether the entry point has to wait until the container's network is ready."""
        changes = self.has_router or bool(self.has_internet and self.closed_to)
        return bool(self.startup.entrypoint) and changes and not self.shares_with

    @property
    def has_router(self) -> bool:
        """Whether the container has its own router; services share one."""
        return self.network is not None and self.shares_with is None

    @property
    def has_proxy_variables(self) -> bool:
        """Whether the container itself has the proxy variables, for commands that the engine starts in it.

        Other commands get them when they are started, since a container's variables end up in its snapshots.
        """
        return self.is_proxied and bool(self.startup.entrypoint)

    def proxy_variables(self) -> dict[str, str]:
        """Return the proxy variables for times when its network is public."""
        own = {**(self.original or self.image).proxies, **self.environment}
        return self.proxy.variables_for(own=own, direct=(self.hostname, *self.direct))

    def plain(self) -> Self:
        """Return the recipe of a small container of the unchanged image, for comparison."""
        # Network policies of phases are not needed here, and would cost a router.
        return dataclasses.replace(
            self,
            limits=_SMALL,
            trial="",
            environment={},
            agent_user=None,
            closed_to=(),
            shares_with=None,
            volumes_of=None,
            starts=False,
            is_fresh=True,
            more_labels={},
            network=None,
            has_internet=self.has_internet and self.network is None,
            loose=None,
            cpuset=(),
            gpus=0,
            storage_mb=None,
        )

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the container: run, trial, owner, and those by which it is found again."""
        found_again_by = {LABEL_DIRECTORY: self.directory, LABEL_MEMORY: f"{self.limits.memory_mb:.0f}"}
        return {
            **self.more_labels,
            LABEL_RUN: self.run,
            LABEL_TRIAL: self.trial,
            LABEL_OWNER: self.owner or owner(),
            **(found_again_by if self.directory and not self.is_fresh else {}),
        }


_Recipe = TypeVar("_Recipe", bound=SandboxRecipe)
IsRunning = Callable[[Sandbox], Awaitable[bool]]


class Originals:
    """Containers of unchanged images with which agents' are compared: one per image, with and without internet."""

    def __init__(self) -> None:
        self._started: dict[tuple[str, bool], Sandbox] = {}
        self._locks: dict[tuple[str, bool], asyncio.Lock] = {}

    async def get(
        self, recipe: _Recipe, start: Callable[[_Recipe], Awaitable[Sandbox]], is_running: IsRunning
    ) -> Sandbox:
        """Return the container of the recipe's image, started on first use or if it was lost. Raises TrialError."""
        key = recipe.image.id, recipe.has_internet
        async with self._locks.setdefault(key, asyncio.Lock()):
            if (known := self._started.get(key)) is not None and not await is_running(known):
                await self._started.pop(key).remove()
            if key not in self._started:
                self._started[key] = await start(recipe.plain())
            return self._started[key]

    async def remove_for_image(self, image_id: str) -> None:
        """Remove the containers of one image. Never raises."""
        found = [key for key in self._started if key[0] == image_id]
        await asyncio.gather(*(self._started.pop(key).remove() for key in found))

    async def close(self) -> None:
        """Remove all containers. Never raises."""
        started, self._started = list(self._started.values()), {}
        await asyncio.gather(*(each.remove() for each in started))


def choose_networks(choice: NetworkChoice, networks: Networks) -> Networks:
    """Return a container's network policies: the run's choice, or else the task's."""
    if choice == "task":
        return networks
    chosen = NetworkPolicy("public" if choice == "bridge" else "no-network")
    return Networks(chosen, chosen, chosen)


def hostname_of(task: str) -> str:
    """Return the host name for all trials of a task.

    It is part of the first prompt, which has to be the same for equal trials. It looks like the engine's default, and
    gives the agent no information.
    """
    return hashlib.sha256(task.encode()).hexdigest()[:12]
