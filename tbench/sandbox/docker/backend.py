"""Docker, or Podman, as the backend of one run: image, network, container and healthcheck of each trial."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import shlex
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tbench.errors import TrialError, UsageError
from tbench.events import Phase
from tbench.results import ImageOrigin
from tbench.sandbox.backend import Capacity, Sandbox, SandboxSettings, Say
from tbench.sandbox.docker.beside import Originals
from tbench.sandbox.docker.cleaning import reap
from tbench.sandbox.docker.closed_network import closed_network
from tbench.sandbox.docker.container import Container, ContainerLimits, Recipe
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.image import Image, Images
from tbench.sandbox.docker.labels import LABEL_OWNER, LABEL_RUN
from tbench.sandbox.docker.memory_watch import MemoryWatch
from tbench.sandbox.docker.network import endpoint_addresses, ensure_network, has_network, host_addresses
from tbench.sandbox.docker.nothing import ensure_nothing
from tbench.sandbox.docker.owner import owner
from tbench.sandbox.docker.tools import ensure_tools
from tbench.tasks.format import Healthcheck
from tbench.tasks.task import Task


class DockerBackend:
    """A `Backend` that makes the containers of one run on an engine, and finds kept ones again."""

    sandbox_type: type = Container

    def __init__(self, engine: Engine, settings: SandboxSettings, *, owns_engine: bool = False) -> None:
        """`owns_engine` says that closing this backend closes the connection, too."""
        self.image_ids: dict[str, str] = {}
        self.image_origins: dict[str, ImageOrigin] = {}
        self._engine = engine
        self._settings = settings
        self._owns_engine = owns_engine
        self._images = Images(engine)
        self._tools_volume = ""
        self._memory_watch: MemoryWatch | None = None
        self._originals = Originals()
        self._closed_to: tuple[str, ...] = ()
        self._finding_addresses = asyncio.Lock()

    @classmethod
    def connect(cls, settings: SandboxSettings, *, concurrency: int = 8, host: str | None = None) -> DockerBackend:
        """Connect to the engine at `host`, by default where DOCKER_HOST says. Raises EngineUnavailable with advice."""
        return cls(Engine.connect(concurrency, host), settings, owns_engine=True)

    @property
    def name(self) -> str:
        return "Podman" if self._engine.info.is_podman else "Docker"

    async def open(self, say: Say) -> None:
        engine, settings = self._engine, self._settings
        self._images = Images(
            engine,
            build=settings.build,
            no_build_cache=settings.no_build_cache,
            log_dir=settings.image_logs,
            say=say,
            closed_network=self._closed_network if settings.block_host else None,
        )
        try:
            self._tools_volume, _, reaped = await asyncio.gather(
                ensure_tools(engine, say), ensure_network(engine), reap(engine)
            )
        except EngineError as error:
            raise UsageError(f"{self.name} cannot be made ready: {error}; 'tbench doctor' may say more") from error
        for line in reaped:
            say(line)
        self._memory_watch = MemoryWatch(engine, settings.run)

    async def close(self) -> None:
        await self._originals.close()
        if self._memory_watch is not None:
            self._memory_watch.close()
        if self._owns_engine:
            self._engine.close()

    def capacity(self) -> Capacity:
        info = self._engine.info
        return Capacity(info.cpus, info.memory_mb, is_this_machine=self._engine.shares_kernel)

    def describe(self) -> dict[str, Any]:
        info = self._engine.info
        return {
            "backend": self.name.lower(),
            "version": info.version,
            "cpus": info.cpus,
            "memory_mb": round(info.memory_mb),
            "storage_driver": info.storage_driver,
            "cgroup_version": info.cgroup_version,
        }

    async def sandbox(self, task: Task, trial: str, on_phase: Callable[[Phase], None] = lambda _: None) -> Container:
        settings = task.file.environment
        environment = task.resolve_env(settings.env)
        on_phase("image")
        image = await self._images.get(task)
        self.image_ids[task.name] = image.id
        if image.origin is not None:
            self.image_origins[task.name] = image.origin
        on_phase("sandbox")
        recipe = await self._recipe(task, trial, image, environment)
        container = await Container.start(self._engine, recipe, self._memory_watch, self._originals)
        if settings.healthcheck is not None:
            try:
                await wait_until_healthy(container, settings.healthcheck)
            except BaseException:
                await asyncio.shield(container.remove())
                raise
        return container

    async def _recipe(self, task: Task, trial: str, image: Image, environment: Mapping[str, str]) -> Recipe:
        asked, user = task.file.environment, task.file.agent.user
        settings = self._settings
        return Recipe(
            image=image,
            limits=ContainerLimits(asked.cpus, asked.memory_mb, asked.pids_limit),
            tools_volume=self._tools_volume,
            run=settings.run,
            trial=trial,
            has_internet=has_network(settings.network, asked.has_internet),
            environment=environment,
            hostname=_hostname(task.name),
            workdir=asked.workdir,
            agent_user=str(user) if user is not None else None,
            no_new_privileges=settings.no_new_privileges,
            cap_add=settings.cap_add,
            closed_to=await self._closed_addresses() if settings.block_host else (),
        )

    async def reopen(self, task: Task, trial: str, kept: str) -> Container:
        try:
            state = await self._engine.call(self._engine.api.inspect_container, kept)
            image = Image.from_inspection(
                "kept", await self._engine.call(self._engine.api.inspect_image, state["Image"])
            )
        except EngineError as error:
            raise TrialError("sandbox_lost", f"the kept container {kept[:12]} is gone: {error}") from error
        recipe = await self._recipe(task, trial, image, task.resolve_env(task.file.environment.env))
        return Container(self._engine, kept, recipe, originals=self._originals)

    async def from_snapshot(self, task: Task, trial: str, image_id: str) -> Container:
        image = await self._images.find(image_id)
        if image is None:
            raise TrialError("image_unavailable", f"the snapshot {image_id[:19]} is gone")
        recipe = await self._recipe(task, trial, image, task.resolve_env(task.file.environment.env))
        # Snapshots of earlier versions do not name it.
        original = (await self._images.find(image.original) if image.original else None) or await self._images.get(task)
        recipe = dataclasses.replace(recipe, original=original)
        return await Container.start(self._engine, recipe, originals=self._originals)

    @asynccontextmanager
    async def _closed_network(self) -> AsyncIterator[str]:
        addresses = await self._closed_addresses()
        async with closed_network(self._engine, self._tools_volume, self._labels, addresses) as network:
            yield network

    @property
    def _labels(self) -> dict[str, str]:
        return {LABEL_RUN: self._settings.run, LABEL_OWNER: owner()}

    async def _closed_addresses(self) -> tuple[str, ...]:
        """Addresses that no trial and no build may reach; they are found out once."""
        async with self._finding_addresses:
            if not self._closed_to:
                try:
                    nothing = await ensure_nothing(self._engine)
                    host = await host_addresses(self._engine, nothing, self._tools_volume, self._labels)
                    self._closed_to = (*host, *await endpoint_addresses(self._settings.base_url))
                except (EngineError, UsageError) as error:
                    raise TrialError("sandbox_failed", f"--block-host: {error}") from error
            return self._closed_to


def _hostname(task: str) -> str:
    """A name for the machine of every trial of a task.

    It stands in the first prompt, which has to be the same for equal trials. It looks as the engine's own would, and
    tells the agent nothing.
    """
    return hashlib.sha256(task.encode()).hexdigest()[:12]


async def wait_until_healthy(sandbox: Sandbox, check: Healthcheck) -> None:
    """Wait for the task's healthcheck. Raises TrialError(healthcheck_failed) after `retries` failures.

    Failures of checks begun in the start period are not counted; those checks are `start_interval_sec` apart, the
    others `interval_sec`.
    """
    started, failures = time.monotonic(), 0
    while True:
        is_starting = time.monotonic() - started < check.start_period_sec
        ended = await sandbox.shell(f"exec /bin/sh -c {shlex.quote(check.command)}", timeout_sec=check.timeout_sec)
        if ended.exit_code == 0 and not ended.timed_out:
            return
        if is_starting:
            await asyncio.sleep(check.start_interval_sec)
            continue
        failures += 1
        if failures >= check.retries:
            words = ended.output[-200:].decode("utf-8", "replace")
            raise TrialError("healthcheck_failed", f"{check.command!r} failed {failures} times: {words}")
        await asyncio.sleep(check.interval_sec)
