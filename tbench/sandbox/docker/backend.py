"""The Docker and Podman backend of one run: images, networks, containers and healthchecks of its trials."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.concurrency import cancel
from tbench.compose.project import MAIN, Project, Service
from tbench.config.limits_in_force import DISK, LimitState, describe_limits
from tbench.config.settings import BLOCK_BYPASSING_CAPABILITIES
from tbench.errors import TrialError, UsageError
from tbench.events import Phase
from tbench.results import ImageOrigin
from tbench.sandbox.archive import loose_files
from tbench.sandbox.backend import Capacity, SandboxSettings, Say
from tbench.sandbox.disk_watch import DiskWatch
from tbench.sandbox.docker.cleaning import remove_leftovers, remove_own
from tbench.sandbox.docker.container import Container, Recipe
from tbench.sandbox.docker.create import engine_errors, lacks_quota, run_helper
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.image import Images
from tbench.sandbox.docker.manifest import describe_pulls, free_bytes
from tbench.sandbox.docker.memory_watch import MemoryWatch
from tbench.sandbox.docker.networks import (
    closed_network,
    endpoint_addresses,
    ensure_network,
    host_addresses,
)
from tbench.sandbox.docker.packages import ensure_package
from tbench.sandbox.docker.pulls import Pulls
from tbench.sandbox.docker.removing import remove_refused
from tbench.sandbox.docker.tools import get_tools, repair_tools
from tbench.sandbox.image import Image
from tbench.sandbox.limits import PROBE_LIMITS, READ_LIMITS, limit_states, read_limits
from tbench.sandbox.own_images import base_images
from tbench.sandbox.owner import LABEL_OWNER, LABEL_PROJECT, LABEL_RUN
from tbench.sandbox.pinning import Lease, UnitPool, parse_ranges
from tbench.sandbox.recipe import Originals
from tbench.tasks.environment import Environment

if TYPE_CHECKING:
    # Only loaded for tasks with services.
    from tbench.sandbox.docker.compose.service_starter import ComposeContainer

_GPUS = Path("/proc/driver/nvidia/gpus")
_REAP_FIRST_SEC = 10.0
"""Seconds to wait for the removal of killed runs' leftovers before the trials start; it continues in the background."""


class DockerBackend:
    """A `Backend` that makes the containers of one run on an engine, and reopens kept ones."""

    sandbox_type: type = Container

    def __init__(
        self,
        engine: Engine,
        settings: SandboxSettings,
        *,
        on_close: Callable[[], None] = lambda: None,
        name_servers: tuple[str, ...] = (),
    ) -> None:
        """`on_close` is called when everything is closed, for example to close the engine's connection.

        `name_servers` are addresses of name servers for networks with an allowlist, by default the engine's.
        """
        self._name_servers = name_servers
        self.image_ids: dict[str, str] = {}
        self.image_origins: dict[str, ImageOrigin] = {}
        self._engine = engine
        self._settings = settings
        self._on_close = on_close
        self._images = Images(engine)
        self._tools_volume = self._package_volume = ""
        self._memory_watch: MemoryWatch | None = None
        self._originals = Originals()
        self._closed_to: tuple[str, ...] = ()
        self._finding_addresses = asyncio.Lock()
        self._unchanged: set[str] = set()
        """Names of environments with services whose files were checked against the task's hash."""
        self._cpus, self._gpus = UnitPool(()), UnitPool(())
        self._limits_disk = engine.info.may_limit_disk
        self._disk_watch = DiskWatch(self._free_mb, self._written_mb, lambda line: self._say(line))
        self._limits: dict[str, LimitState] = {}
        """Known states of limits, by name."""
        self._checking_tools = asyncio.Lock()
        self._times_filled = 0
        self._needs_recheck = False
        self._say: Say = lambda _: None
        self._reaping: asyncio.Task[None] | None = None
        self._kept_mb = 0.0

    @property
    def name(self) -> str:
        return "Podman" if self._engine.info.is_podman else "Docker"

    async def open(self, say: Say) -> None:
        engine, settings, config = self._engine, self._settings, self._settings.config
        self._images = Images(
            engine,
            build=config.build,
            no_build_cache=config.no_build_cache,
            pull=config.pull,
            pulls=Pulls(engine, at_once=config.pull_concurrency, pull_sec=config.pull_timeout_sec, say=say),
            log_dir=settings.own_logs,
            say=say,
            closed_network=self._closed_network if config.block_host else None,
            proxy=settings.container_proxy,
            made=settings.made_images.setdefault(engine.info.identity, set()),
        )
        self._reaping = asyncio.create_task(self._remove_leftovers(say))
        try:
            waiting = asyncio.wait({self._reaping}, timeout=_REAP_FIRST_SEC)
            tools, _, _ = await asyncio.gather(get_tools(engine, say), ensure_network(engine), waiting)
        except EngineError as error:
            raise UsageError(f"{self.name} cannot be made ready: {error}; 'tbench doctor' may say more") from error
        for notice in (engine.notice, settings.container_proxy.notice):
            if notice:
                say(notice)
        self._tools_volume = tools.volume
        if settings.package is not None:
            self._package_volume = await ensure_package(engine, settings.package, say)
        self._say = say
        states = limit_states(tools.limits, PROBE_LIMITS)
        if config.pin_cpus:
            numbers, states["pinned cpus"] = await self._usable_cpus(tools.limits.get("cpuset", ""))
            self._cpus = UnitPool(numbers)
        self._note_limits(states)
        self._memory_watch = MemoryWatch(engine, settings.run)
        self._gpus = UnitPool(range(self.capacity().gpus or 0))

    async def _remove_leftovers(self, say: Say) -> None:
        """Remove leftovers of killed runs. An engine may take minutes for a single container."""
        found = await remove_leftovers(self._engine)
        self._kept_mb = found.kept_mb
        for line in found.lines:
            say(line)

    def _note_limits(self, seen: Mapping[str, LimitState]) -> None:
        """Record and report limits that are not enforced. Raises UsageError if the run requires them.

        A limit that was once not enforced stays recorded as not enforced, since trials have run without it.
        """
        before = describe_limits(self._limits)
        held = {name for name, state in self._limits.items() if state == LimitState.IN_FORCE}
        self._limits |= {name: state for name, state in seen.items() if name not in self._limits or name in held}
        if (words := describe_limits(self._limits)) and self._settings.config.require_limits:
            raise UsageError(f"--require-limits: {self.name}'s containers have {words}; see 'tbench doctor'")
        if words != before:
            self._say(f"limits: {words}: trials may exceed their tasks' limits (--require-limits forbids that)")

    async def recover(self) -> int:
        """Prepare again after the engine was down, while no trial is on it; returns the number of removed containers.

        Raises UsageError, or EngineError and TrialError if the engine is lost again.
        """
        left = await remove_own(self._engine, self._settings.run)
        tools, _ = await asyncio.gather(repair_tools(self._engine, self._say), ensure_network(self._engine))
        self._note_limits(limit_states(tools.limits, PROBE_LIMITS))
        return left

    def request_recheck(self) -> None:
        self._needs_recheck = True

    async def _repair_tools(self) -> None:
        """Check the tools volume, and repair it if necessary. Raises TrialError."""
        try:
            tools = await repair_tools(self._engine, self._say)
        except (UsageError, EngineError) as error:
            raise TrialError("sandbox_failed", str(error)) from error
        self._needs_recheck = False
        self._times_filled += tools.was_filled

    async def close(self) -> None:
        if self._reaping is not None:
            await cancel(self._reaping)
        await self._originals.close()
        if failures := await remove_refused(self._engine):
            self._say(failures)
        await self._disk_watch.close()
        if self._memory_watch is not None:
            self._memory_watch.close()
        self._on_close()

    def capacity(self) -> Capacity:
        info = self._engine.info
        gpus = _count_gpus(self._engine) if info.has_gpus else 0
        is_here, kept_mb = self._engine.shares_kernel, self._kept_mb
        return Capacity(info.cpus, info.memory_mb, is_this_machine=is_here, gpus=gpus, kept_mb=kept_mb)

    async def _usable_cpus(self, cpuset: str) -> tuple[list[int], LimitState]:
        """Parse the CPU numbers that containers may use, and test whether pinning works. Raises UsageError."""
        try:
            numbers = parse_ranges(cpuset)
            where = {"network_mode": "none", "cpuset_cpus": str(numbers[0])}
            seen = await run_helper(self._engine, self._tools_volume, READ_LIMITS, labels=self._labels, **where)
        except (EngineError, ValueError, LookupError) as error:
            raise UsageError(f"--pin-cpus: the CPUs of {self.name} cannot be determined: {error}") from error
        is_pinned = read_limits(seen).get("cpuset") == str(numbers[0])
        return numbers, LimitState.IN_FORCE if is_pinned else LimitState.NOT_IN_FORCE

    def describe(self) -> dict[str, Any]:
        info = self._engine.info
        return {
            "backend": self.name.lower(),
            "version": info.version,
            "cpus": info.cpus,
            "memory_mb": round(info.memory_mb),
            "storage_driver": info.storage_driver,
            "cgroup_version": info.cgroup_version,
            "architecture": info.architecture,
            **({"limits": dict(self._limits)} if self._limits else {}),
            **({"left": left} if (left := [" ".join(each) for each in self._engine.refused]) else {}),
            **({"container_proxy": shown} if (shown := self._settings.container_proxy.shown) else {}),
        }

    async def sandbox(
        self, environment: Environment, trial: str, on_phase: Callable[[Phase], None] = lambda _: None
    ) -> Container:
        variables = environment.variables()
        project = environment.project
        on_phase("image")
        if project is not None:
            services = await self._start_services(environment, project, trial, on_phase)
            return await services.when_healthy(environment.settings.healthcheck)
        image = await self._image(environment)
        on_phase("sandbox")
        if loose_files(environment) is not None:
            await asyncio.to_thread(environment.require_unchanged)
        recipe = await self._recipe(environment, trial, image, variables)
        container = await self._start(recipe)
        return await container.when_healthy(environment.settings.healthcheck)

    async def prepare(self, environment: Environment) -> None:
        await asyncio.gather(*map(self._image, environment.containers()))

    async def _image(self, environment: Environment) -> Image:
        image = await self._images.get(environment)
        self._note(environment.name, image)
        return image

    async def _start_services(
        self,
        environment: Environment,
        project: Project,
        trial: str,
        on_phase: Callable[[Phase], None],
        snapshot: Image | None = None,
    ) -> ComposeContainer:
        """Start all services of a compose file, `main` from a snapshot if one is given. Raises TrialError."""
        from tbench.sandbox.docker.compose.service_starter import ComposeContainer, ServiceStarter

        for service in project.services.values() if self._settings.config.block_host else ():
            if service.privileged or BLOCK_BYPASSING_CAPABILITIES & set(service.cap_add):
                why = f"the service {service.name} has capabilities that bypass --block-host"
                raise TrialError("task_unsupported", f"{environment.name}: {why}; remove one of the two")
        if environment.name not in self._unchanged:
            await asyncio.to_thread(environment.require_unchanged)
            self._unchanged.add(environment.name)
        parts = dict(zip((MAIN, *(each.name for each in project.sidecars)), environment.containers(), strict=True))
        images = dict(zip(parts, await asyncio.gather(*map(self._image, parts.values())), strict=True))
        on_phase("sandbox")
        recipes = {
            name: await self._recipe_of_service(environment, parts[name], project.services[name], trial, image)
            for name, image in images.items()
        }
        if snapshot is not None:
            recipes[MAIN] = dataclasses.replace(recipes[MAIN], image=snapshot, original=images[MAIN])
        started: list[Container] = []

        async def start_main(recipe: Recipe) -> str:
            started.append(await self._start(recipe))
            return started[0].container_id

        folder = environment.task.path / environment.folder
        networks = environment.networks
        starter = ServiceStarter(
            self._engine,
            project,
            recipes,
            folder=folder,
            pool=self._settings.config.network_pool,
            start_main=start_main,
            is_offline=networks.is_plain and networks.start.mode == "no-network",
        )
        resources = await starter.start()
        return ComposeContainer(started[0], resources, {name: recipes[name] for name in recipes if name != MAIN})

    async def _recipe_of_service(
        self, environment: Environment, part: Environment, service: Service, trial: str, image: Image
    ) -> Recipe:
        """Return the recipe of a service's container, still without networks and volumes."""
        from tbench.sandbox.docker.compose.options import service_startup

        is_main = service.name == MAIN
        image = dataclasses.replace(
            image, user=service.user or image.user, startup=service_startup(service, image.startup)
        )
        variables = {**service.environment, **environment.variables()} if is_main else service.environment
        recipe = await self._recipe(part, trial, image, variables)
        return dataclasses.replace(
            recipe,
            # Other services' programs are started by the engine itself.
            starts=is_main,
            loose=None,
            has_internet=recipe.has_internet and recipe.network is None,
            network=recipe.network if is_main else None,
            hostname=service.hostname or (recipe.hostname if is_main else None),
            direct=environment.project.names if environment.project is not None else (),
            workdir=recipe.workdir or service.working_dir,
            cap_add=recipe.cap_add if is_main else (),
        )

    def _note(self, name: str, image: Image) -> None:
        self.image_ids[name] = image.id
        if image.origin is not None:
            self.image_origins[name] = image.origin

    async def describe_pulls(self, environments: Sequence[Environment], *, ask: bool) -> Sequence[str]:
        names = await self._images.to_pull(environments)
        return await describe_pulls(self._engine, names, ask=ask)

    async def prefetch(self, environments: Sequence[Environment]) -> Mapping[str, TrialError]:
        failed = {}
        for name, image in (await self._images.get_all(environments)).items():
            if isinstance(image, TrialError):
                failed[name] = image
            else:
                self._note(name, image)
        return failed

    async def drop_image(self, environment: Environment, others: Sequence[Environment]) -> int:
        image = self._images.to_drop(environment, others)
        if image is None or image.reference in {name for name, _ in base_images()}:
            return 0
        await self._originals.remove_for_image(image.id)
        return await self._images.drop(environment, image)

    async def _start(self, recipe: Recipe) -> Container:
        """Start a container, on reserved CPUs and GPUs if requested. Raises TrialError."""
        lease = self._lease(recipe)
        recipe = dataclasses.replace(recipe, cpuset=lease.cpus, gpu_ids=lease.gpus)
        try:
            container = await self._start_with_quota(recipe)
        except BaseException:
            lease.release()
            raise
        container.lease = lease
        self._watch_disk(container, recipe, None if self._limits_disk else recipe.storage_mb)
        return container

    def _watch_disk(self, container: Container, recipe: Recipe, limit_mb: float | None) -> None:
        """Watch an agent's disk use; `limit_mb` is the limit that the engine does not enforce."""
        if not recipe.is_fresh:
            container.disk = self._disk_watch.add(
                container.container_id, recipe.trial, limit_mb, container.end_processes
            )

    async def _free_mb(self) -> float | None:
        free = await free_bytes(self._engine)
        return None if free is None else free / (1 << 20)

    async def _written_mb(self, _: Collection[str]) -> dict[str, float]:
        """Return the megabytes that each running container of this run has written. Raises EngineError."""
        label = f"{LABEL_RUN}={self._settings.run}"
        found = await self._engine.call(self._engine.api.containers, size=True, filters={"label": label}, again=True)
        return {each["Id"]: each.get("SizeRw", 0) / (1 << 20) for each in found}

    def _lease(self, recipe: Recipe) -> Lease:
        cpus, gpus = self._cpus.take(recipe.limits.cpus), self._gpus.take(recipe.gpus)

        def release() -> None:
            self._cpus.give_back(cpus, recipe.limits.cpus)
            self._gpus.give_back(gpus, recipe.gpus)

        # If there are too few GPUs, the engine reports it.
        return Lease(cpus, gpus if len(gpus) == recipe.gpus else (), release)

    async def _start_with_quota(self, recipe: Recipe) -> Container:
        if recipe.storage_mb is not None and not self._limits_disk:
            driver = self._engine.info.storage_driver
            self._leave_disk_unlimited(f"the engine's {driver} driver cannot limit it on this file system")
            recipe = dataclasses.replace(recipe, storage_mb=None)
        try:
            container = await self._start_with_tools(recipe)
        except TrialError as error:
            if recipe.storage_mb is None or not lacks_quota(error):
                raise
            self._limits_disk = False
            self._leave_disk_unlimited(str(error))
            return await self._start_with_quota(recipe)
        if recipe.storage_mb is not None:
            self._limits.setdefault(DISK, LimitState.IN_FORCE)
        return container

    def _leave_disk_unlimited(self, why: str) -> None:
        if self._limits.get(DISK) != LimitState.WATCHED:
            self._limits[DISK] = LimitState.WATCHED
            self._say(f"storage_mb is only watched: {why}")

    async def _start_with_tools(self, recipe: Recipe) -> Container:
        """Start a container, a second time if the tools volume was missing or damaged. Raises TrialError."""
        times_filled = self._times_filled
        try:
            return await Container.start(self._engine, recipe, self._memory_watch, self._originals)
        except TrialError as error:
            if error.type != "sandbox_failed" or lacks_quota(error):
                raise
            async with self._checking_tools:
                if self._times_filled == times_filled:
                    await self._repair_tools()
            if self._times_filled == times_filled:
                raise
        return await Container.start(self._engine, recipe, self._memory_watch, self._originals)

    async def _recipe(self, environment: Environment, trial: str, image: Image, variables: Mapping[str, str]) -> Recipe:
        if self._needs_recheck:
            async with self._checking_tools:
                if self._needs_recheck:
                    await self._repair_tools()
        settings = self._settings
        return Recipe.for_trial(
            environment,
            settings,
            trial,
            image,
            variables,
            tools_volume=self._tools_volume,
            package_volume=self._package_volume,
            owner=self._engine.owner,
            directory=str(settings.directory or ""),
            name_servers=self._name_servers,
            closed_to=await self._closed_addresses() if settings.config.block_host else (),
        )

    async def reopen(self, environment: Environment, trial: str, kept: str) -> Container:
        with engine_errors(f"finding the kept container {kept[:12]}", "sandbox_lost"):
            state = await self._engine.call(self._engine.api.inspect_container, kept)
            image = Image.from_inspection(
                "kept", await self._engine.call(self._engine.api.inspect_image, state["Image"])
            )
        if not any(mount.get("Name") == self._tools_volume for mount in state["Mounts"]):
            what = f"the kept container {kept[:12]} was made by another version of tbench"
            raise TrialError("sandbox_lost", f"{what}; use that version")
        if not state["State"]["Running"]:
            raise TrialError("sandbox_lost", f"the kept container {kept[:12]} has ended")
        if state["State"].get("Paused"):
            with engine_errors(f"continuing the kept container {kept[:12]}", "sandbox_lost"):
                await self._engine.call(self._engine.api.unpause, kept)
        recipe = await self._recipe(environment, trial, image, environment.variables())
        limit_mb = None
        if not state["HostConfig"].get("StorageOpt"):
            limit_mb, recipe = recipe.storage_mb, dataclasses.replace(recipe, storage_mb=None)
        container = Container(self._engine, kept, recipe, self._memory_watch, self._originals)
        self._watch_disk(container, recipe, limit_mb)
        await container.find_router()
        project = state["Config"]["Labels"].get(LABEL_PROJECT)
        return container if project is None else await self._with_services(container, recipe, project)

    async def _with_services(self, main: Container, recipe: Recipe, project: str) -> ComposeContainer:
        """Find the services beside a container that another process has left. Raises TrialError."""
        from tbench.sandbox.docker.compose.service_starter import ComposeContainer, find_services

        with engine_errors("finding the kept services", "sandbox_lost"):
            resources, images = await find_services(self._engine, project)
            inspect = self._engine.api.inspect_image
            found = {name: await self._engine.call(inspect, image) for name, image in images.items() if name != MAIN}
        recipes = {
            name: dataclasses.replace(recipe, image=Image.from_inspection(name, image), workdir=None, agent_user=None)
            for name, image in found.items()
        }
        return ComposeContainer(main, resources, recipes)

    async def from_snapshot(self, environment: Environment, trial: str, image_id: str) -> Container:
        image = await self._images.find(image_id)
        if image is None:
            raise TrialError("image_unavailable", f"the snapshot {image_id[:19]} is gone")
        if (project := environment.project) is not None:
            # The snapshot only contains `main`; the other services start from their images.
            return await self._start_services(environment, project, trial, lambda _: None, image)
        recipe = await self._recipe(environment, trial, image, environment.variables())
        original = await self._images.find(image.original) or await self._images.get(environment)
        recipe = dataclasses.replace(recipe, original=original)
        return await self._start(recipe)

    @asynccontextmanager
    async def _closed_network(self) -> AsyncIterator[str]:
        addresses = await self._closed_addresses()
        async with closed_network(self._engine, self._tools_volume, self._labels, addresses) as network:
            yield network

    @property
    def _labels(self) -> dict[str, str]:
        return {LABEL_RUN: self._settings.run, LABEL_OWNER: self._engine.owner}

    async def _closed_addresses(self) -> tuple[str, ...]:
        """Return the addresses that trials and builds must not reach; determined once."""
        async with self._finding_addresses:
            if not self._closed_to:
                try:
                    host = await host_addresses(self._engine, self._tools_volume, self._labels)
                    found = [await endpoint_addresses(url) for url in self._settings.endpoints]
                    self._closed_to = (*host, *(address for addresses in found for address in addresses))
                except (EngineError, UsageError) as error:
                    raise TrialError("sandbox_failed", f"--block-host: {error}") from error
            return self._closed_to


def _count_gpus(engine: Engine) -> int | None:
    """Return the number of GPUs on the engine's machine, as reported or from NVIDIA's driver; None if unknown."""
    if engine.info.gpus is not None:
        return engine.info.gpus
    found = list(_GPUS.iterdir()) if engine.shares_kernel and _GPUS.is_dir() else []
    return len(found) or None
