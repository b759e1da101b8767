"""The containers of a run's trials: image, network, healthcheck; and those that were kept for another look."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable, Mapping

from tbench.errors import TrialError, UsageError
from tbench.events import Phase
from tbench.sandbox.backend import Sandbox
from tbench.sandbox.docker.container import Container, Limits, Recipe
from tbench.sandbox.docker.engine import LABEL_OWNER, LABEL_RUN, Engine, EngineError
from tbench.sandbox.docker.image import Image, Images
from tbench.sandbox.docker.memory_watch import MemoryWatch
from tbench.sandbox.docker.network import NetworkChoice, endpoint_addresses, has_network, host_addresses
from tbench.sandbox.docker.owner import owner
from tbench.tasks.format import Healthcheck
from tbench.tasks.task import Task, resolve_env


class EngineSandboxes:
    """Makes the containers of a run on an engine.

    With `block_host`, none of them reaches the engine's host or the endpoint at `base_url`.
    """

    def __init__(
        self,
        engine: Engine,
        images: Images,
        tools_volume: str,
        run: str,
        *,
        network: NetworkChoice = "task",
        block_host: bool = False,
        no_new_privileges: bool = False,
        base_url: str | None = None,
        memory_watch: MemoryWatch | None = None,
    ) -> None:
        self._engine = engine
        self._images = images
        self._tools_volume = tools_volume
        self._run = run
        self.image_ids: dict[str, str] = {}
        self._network = network
        self._block_host = block_host
        self._no_new_privileges = no_new_privileges
        self._base_url = base_url
        self._memory_watch = memory_watch
        self._closed_to: tuple[str, ...] = ()
        self._asking = asyncio.Lock()

    async def __call__(self, task: Task, trial: str, on_phase: Callable[[Phase], None]) -> Sandbox:
        settings = task.file.environment
        environment = resolve_env(settings.env)
        on_phase("image")
        image = await self._images.get(task)
        self.image_ids[task.name] = image.id
        on_phase("sandbox")
        recipe = await self._recipe(task, trial, image, environment)
        container = await Container.start(self._engine, recipe, self._memory_watch)
        if settings.healthcheck is not None:
            try:
                await wait_until_healthy(container, settings.healthcheck)
            except BaseException:
                await asyncio.shield(container.remove())
                raise
        return container

    async def _recipe(self, task: Task, trial: str, image: Image, environment: Mapping[str, str]) -> Recipe:
        settings, user = task.file.environment, task.file.agent.user
        online = settings.has_internet and task.file.agent.network_mode != "no-network"
        return Recipe(
            image=image,
            limits=Limits(settings.cpus, settings.memory_mb, settings.pids_limit),
            tools_volume=self._tools_volume,
            run=self._run,
            trial=trial,
            has_internet=has_network(self._network, online),
            environment=environment,
            workdir=settings.workdir,
            agent_user=str(user) if user is not None else None,
            no_new_privileges=self._no_new_privileges,
            closed_to=await self._closed(image) if self._block_host else (),
        )

    async def adopt(self, task: Task, trial: str, container_id: str) -> Sandbox:
        """A container that was kept. Raises TrialError when it is gone."""
        try:
            state = await self._engine.call(self._engine.api.inspect_container, container_id)
            image = Image.from_inspection(
                "kept", await self._engine.call(self._engine.api.inspect_image, state["Image"])
            )
        except EngineError as error:
            raise TrialError("sandbox_lost", f"the kept container {container_id[:12]} is gone: {error}") from error
        recipe = await self._recipe(task, trial, image, resolve_env(task.file.environment.env))
        return Container(self._engine, container_id, recipe)

    async def from_snapshot(self, task: Task, trial: str, image_id: str) -> Sandbox:
        """A new container with the files of a snapshot. Raises TrialError."""
        image = await self._images.find(image_id)
        if image is None:
            raise TrialError("image_unavailable", f"the snapshot {image_id[:19]} is gone")
        recipe = await self._recipe(task, trial, image, resolve_env(task.file.environment.env))
        return await Container.start(self._engine, recipe)

    async def _closed(self, image: Image) -> tuple[str, ...]:
        """What no trial may reach; asked for once."""
        async with self._asking:
            if not self._closed_to:
                labels = {LABEL_RUN: self._run, LABEL_OWNER: owner()}
                try:
                    host = await host_addresses(self._engine, image.id, self._tools_volume, labels)
                    self._closed_to = (*host, *await endpoint_addresses(self._base_url))
                except (EngineError, UsageError) as error:
                    raise TrialError("sandbox_failed", f"--block-host: {error}") from error
            return self._closed_to


async def wait_until_healthy(sandbox: Sandbox, check: Healthcheck) -> None:
    """Raises TrialError(healthcheck_failed) after `retries` failures; checks begun in the start period are not counted.

    They follow each other by `start_interval_sec`, the others by `interval_sec`.
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
