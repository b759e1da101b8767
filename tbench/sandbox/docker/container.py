"""A sandbox in one container, with the task's limits and tbench's labels."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import re
import tempfile
import uuid
from collections.abc import Awaitable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from tbench.errors import TrialError
from tbench.sandbox.archive import ChunkReader, FileEntry, LooseFiles, pack, unpack
from tbench.sandbox.backend import (
    BUSYBOX,
    LOG_DIRECTORIES,
    BackendFacts,
    Sandbox,
)
from tbench.sandbox.commands import EndOfOutput
from tbench.sandbox.container import ROOT, BaseContainer
from tbench.sandbox.docker.commands import EngineCommands
from tbench.sandbox.docker.compose.service_setup import prepare
from tbench.sandbox.docker.create import (
    ROUTER,
    Recipe,
    container_error,
    create,
    create_arguments,
    engine_errors,
    finish,
    last_output,
    run_helper,
    with_origin,
)
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.memory_watch import MemoryWatch
from tbench.sandbox.docker.networks import backend_facts, closing_script
from tbench.sandbox.docker.removing import force_remove, remove_or_remember
from tbench.sandbox.docker.router import Router
from tbench.sandbox.owner import (
    KEPT_PREFIX,
    LABEL_BEGAN,
    LABEL_ORIGINAL,
    LABEL_ROUTER,
    LABEL_SERVICE,
    LABEL_SNAPSHOT,
    SNAPSHOT_KEPT,
)
from tbench.sandbox.recipe import ContainerLimits, Originals
from tbench.sandbox.stream import OutputStream
from tbench.tasks.network import NetworkPolicy

__all__ = ["Container", "ContainerLimits", "Recipe"]

_COMMIT_SEC = 900.0
_EMBEDDED_DNS = "127.0.0.11"
"""The engine's name server for containers on networks other than its default bridge."""
_EXEC_SEC = 60.0
_INIT_READY_SEC = 60.0
_INIT_READY = (
    f"until [ $({BUSYBOX} grep -c -e '^Name:.init$' -e '^State:.S' /proc/1/status) = 2 ]; "
    f"do {BUSYBOX} usleep 5000; done"
)
"""Script that waits until PID 1 is our init and sleeps, which it only does when it waits for signals."""
_LOOSE_SEC = 600.0
_PAUSE_SEC = 20.0


class Container(BaseContainer[Recipe]):
    """The container of one trial: a `Sandbox` with all optional protocols except `HasServices`."""

    def __init__(
        self,
        engine: Engine,
        container_id: str,
        recipe: Recipe,
        memory_watch: MemoryWatch | None = None,
        originals: Originals | None = None,
    ) -> None:
        commands = EngineCommands(engine, container_id, is_fresh=recipe.is_fresh, masks=recipe.proxy.masks)
        super().__init__(container_id, recipe, commands)
        self._engine = engine
        self._memory_watch = memory_watch
        self._originals = originals or Originals()
        self._router: Router | None = None

    @classmethod
    async def start(
        cls,
        engine: Engine,
        recipe: Recipe,
        memory_watch: MemoryWatch | None = None,
        originals: Originals | None = None,
    ) -> Container:
        """Create and start a container, and wait for the image's own healthcheck.

        Raises TrialError (sandbox_failed, sandbox_lost, engine_unreachable, image_no_space, task_unsupported,
        healthcheck_failed), and then leaves nothing behind.
        """
        arguments = create_arguments(engine, recipe)
        if recipe.has_router:
            arguments["labels"][LABEL_ROUTER] = uuid.uuid4().hex
        with with_origin("create", recipe.is_fresh):
            container = cls(engine, await create(engine, arguments), recipe, memory_watch, originals)
        with with_origin("start", recipe.is_fresh):
            await container._start(arguments["labels"])
        return container

    async def _start(self, labels: Mapping[str, str]) -> None:
        engine, recipe = self._engine, self._recipe
        try:
            if self._needs_log_directories:
                await self.put(LOG_DIRECTORIES)
            if recipe.options is not None and not recipe.shares_with:
                await prepare(engine, self.container_id, recipe.options)
            starting = engine.call(engine.api.start, self.container_id)
            if recipe.has_router:
                await _await_all(starting, self._start_router(labels))
                await self._link_with_router()
            else:
                await starting
            if recipe.has_internet and recipe.closed_to and not (recipe.shares_with or recipe.has_router):
                # Nothing of the image runs yet: PID 1 is our own init, which holds the entry point back.
                network_mode = f"container:{self.container_id}"
                await self._run_helper(
                    closing_script(recipe.closed_to), network_mode=network_mode, cap_add=["NET_ADMIN"]
                )
            if recipe.is_held:
                await self._wait_for_init()
                await engine.call(engine.api.kill, self.container_id, "SIGUSR1")
            if recipe.startup.healthcheck is not None:
                await self.wait_until_healthy(recipe.startup.healthcheck)
            if recipe.loose is not None:
                await self._put_loose(recipe.loose)
        except EngineError as error:
            await self.remove()
            raise container_error(error, "starting") from error
        except BaseException:
            await asyncio.shield(self.remove())
            raise

    async def _wait_for_init(self) -> None:
        """Wait until our init handles signals: an earlier signal would be lost and the entry point never start."""
        ended = await self.shell(_INIT_READY, timeout_sec=_INIT_READY_SEC, user="root")
        if ended.exit_code != 0:
            raise TrialError("sandbox_failed", f"the container's init was not ready after {_INIT_READY_SEC:.0f} s")

    async def _start_router(self, labels: Mapping[str, str]) -> None:
        recipe = self._recipe
        self._router = await Router.start(self._engine, recipe.tools_volume, labels, recipe.name_servers)

    async def _link_with_router(self) -> None:
        recipe = self._recipe
        assert self._router is not None and recipe.network is not None
        await self._router.link(self.container_id, recipe.closed_to)
        await self._router.use(recipe.network)
        if self._engine.info.is_podman:
            # Podman writes no name servers for a container without a network.
            await self.shell(f"echo nameserver {ROUTER} >/etc/resolv.conf", timeout_sec=_EXEC_SEC, user="root")

    async def find_router(self) -> None:
        """Find the router of a container that another process started. Raises EngineError."""
        self._router = await Router.find(self._engine, self._recipe.tools_volume, self.container_id)

    async def use_network(self, policy: NetworkPolicy) -> None:
        if self._router is not None and policy != self._network:
            await self._router.use(policy)
            self._network = policy

    @property
    def identity(self) -> str:
        return self.container_id

    async def pause(self) -> None:
        with engine_errors("pausing the container"):
            await self._engine.call(self._engine.api.pause, self.container_id, deadline_sec=_PAUSE_SEC)

    async def has_visitor(self) -> bool:
        with engine_errors("looking for terminals in the container", "sandbox_lost"):
            state = await self._engine.call(self._engine.api.inspect_container, self.container_id)
            # No command of tbench has a terminal of this kind.
            found = [
                await self._engine.call(self._engine.api.exec_inspect, each) for each in state.get("ExecIDs") or ()
            ]
        return any(each["Running"] and each["ProcessConfig"].get("tty") for each in found)

    @property
    def ran_out_of_memory(self) -> bool:
        return self._memory_watch is not None and self._memory_watch.ran_out_of_memory(self.container_id)

    async def put(self, files: Mapping[str, FileEntry]) -> None:
        with with_origin("put_archive", self.is_fresh, "copying files into the container", "sandbox_failed"):
            await self._engine.call(self._engine.api.put_archive, self.container_id, "/", pack(files))

    async def _put_loose(self, loose: LooseFiles) -> None:
        def copying() -> None:
            with tempfile.TemporaryFile() as file:
                loose.pack(file)
                file.seek(0)
                self._engine.api.put_archive(self.container_id, self.workdir, file)

        await self._engine.call(copying, again=True, deadline_sec=_LOOSE_SEC)

    async def fetch(self, directory: str, limit_bytes: int) -> dict[str, bytes]:
        def read() -> dict[str, bytes]:
            chunks, _ = self._engine.api.get_archive(self.container_id, directory, chunk_size=1 << 20)
            found = unpack(io.BufferedReader(ChunkReader(chunks), 1 << 20), limit_bytes)
            return {path: self._masks.mask(content) for path, content in found.items()}

        with with_origin("get_archive", self.is_fresh, f"reading {directory}"):
            try:
                return await self._engine.call(read, again=True)
            except EngineError as error:
                if error.status == 404 and "no such container" not in str(error).lower():
                    return {}
                raise

    async def backend_facts(self) -> BackendFacts:
        with with_origin("inspect", self.is_fresh, "reading the container's name servers and mounts"):
            given = await backend_facts(self._engine, self.container_id)
        if self._recipe.network is not None:
            return dataclasses.replace(given, servers=frozenset({ROUTER}))
        own = () if self._recipe.options is None else (_EMBEDDED_DNS,)
        return dataclasses.replace(given, servers=given.servers.union(own))

    async def original(self) -> Sandbox:
        return await self._originals.get(self._original_recipe, partial(Container.start, self._engine), _is_running)

    def can_be_apart(self) -> bool:
        return super().can_be_apart() and self._recipe.options is None

    async def start_copy(self, *, is_apart: bool = False) -> Container:
        recipe, is_apart = self._original_recipe, is_apart and self.can_be_apart()
        own, other = ("volumes_of", "shares_with") if is_apart else ("shares_with", "volumes_of")
        shared: dict[str, Any] = {own: self.container_id, other: None}
        return await self._another(dataclasses.replace(recipe, network=self._network, **shared))

    async def make_fresh(self) -> Sandbox:
        recipe = self._original_recipe
        options = recipe.options.without_aliases() if recipe.options is not None else None
        return await self._another(dataclasses.replace(recipe, options=options, network=self._network))

    async def _another(self, recipe: Recipe) -> Container:
        # Without the labels of a service, by which services are found again.
        recipe = dataclasses.replace(recipe, is_fresh=True, more_labels={})
        return await Container.start(self._engine, recipe, self._memory_watch, self._originals)

    async def open_as_root(self, script: str, limit_sec: int) -> tuple[OutputStream, EndOfOutput]:
        commands = EngineCommands(self._engine, self.container_id)
        return await commands.script(script, limit_sec=limit_sec, user=ROOT, environment={})

    async def logs(self) -> Mapping[str, bytes]:
        if not self._recipe.startup.entrypoint:
            return {}
        printed = await last_output(self._engine, self.container_id)
        return {"entrypoint.log": self._masks.mask(printed)} if printed else {}

    async def snapshot(self) -> str:
        # Processes are paused meanwhile, so that files are consistent. The image gets the container's labels (run,
        # trial, owner) and its time of creation, since earlier changes still count as changes of the original image.
        with with_origin("inspect", self.is_fresh, "reading its time of creation"):
            began_at = (await backend_facts(self._engine, self.container_id)).began_at
        variables = self._recipe.proxy_variables() if self._recipe.has_proxy_variables else ()
        changes = [
            # One label each: Podman would take several for a single value.
            f"LABEL {LABEL_SNAPSHOT}={SNAPSHOT_KEPT}",
            f"LABEL {LABEL_ORIGINAL}={self._original_recipe.image.id}",
            f"LABEL {LABEL_BEGAN}={datetime.fromtimestamp(began_at, UTC).isoformat()}",
            # Emptied, since the engine stores the container's variables in the image.
            *(f"ENV {name}=" for name in variables),
        ]
        committing = partial(self._engine.api.commit, self.container_id, changes=changes)

        async def discard(committed: Mapping[str, Any]) -> None:
            # Its parent stays.
            await remove_or_remember(self._engine, "image", committed["Id"], noprune=True)

        with with_origin("commit", self.is_fresh, "copying the sandbox", "verifier_failed"):
            committed = await finish(self._engine.call(committing, deadline_sec=_COMMIT_SEC), discard)
        return str(committed["Id"])

    async def keep(self) -> str:
        service = self._recipe.more_labels.get(LABEL_SERVICE, "")
        trial = re.sub(r"[^\w.-]+", "-", f"{self._recipe.trial}-{service}".rstrip("-"))
        name = f"{KEPT_PREFIX}{trial}-{self.container_id[:12]}"
        with engine_errors("keeping the sandbox", "sandbox_lost"):
            if self._router is not None:
                await self._router.keep(f"{name}-router")
            await self._engine.call(self._engine.api.rename, self.container_id, name)
        self.lease.release()
        return self.container_id

    async def make_room(self) -> tuple[str, ...]:
        with with_origin("make_room", self.is_fresh, "making room in the container", "sandbox_failed"):
            used = await self._engine.call(self._engine.api.stats, self.container_id, stream=False, again=True)
            processes, memory = used.get("pids_stats", {}).get("current", 0), used.get("memory_stats", {})
            return await self._free(processes, memory.get("usage", 0), memory.get("stats") or {})

    async def _kill_processes(self) -> None:
        # From another cgroup, and all at once, so that a fork bomb cannot start new ones meanwhile.
        await self._run_helper("kill -9 -1", network_mode="none", pid_mode=f"container:{self.container_id}")

    async def end_processes(self) -> None:
        """Kill all processes, or else stop the container. Never raises."""
        try:
            await self._kill_processes()
        except EngineError:  # perhaps because the disk is full
            with contextlib.suppress(EngineError):
                await self._engine.call(self._engine.api.kill, self.container_id)

    async def _limit_memory(self, size: int) -> bool:
        updating = self._engine.api.update_container
        try:
            await self._engine.call(updating, self.container_id, mem_limit=size, memswap_limit=size)
        except EngineError as error:
            if error.status != 404 or "container" in str(error):
                raise
            return False  # as in Podman 4
        return True

    async def _run_helper(self, script: str, **host_config: Any) -> None:
        recipe = self._recipe
        image = self._image.id
        await run_helper(self._engine, recipe.tools_volume, script, labels=recipe.labels, image=image, **host_config)

    async def remove(self) -> None:
        removing = [force_remove(self._engine, self.container_id)]
        if self._router is not None:
            removing.append(self._router.remove())
        await asyncio.gather(*removing)
        self.lease.release()


async def _await_all(*doing: Awaitable[None]) -> None:
    """Await all, and raise the first error only when all have ended."""
    for failed in await asyncio.gather(*doing, return_exceptions=True):
        if isinstance(failed, BaseException):
            raise failed


async def _is_running(sandbox: Sandbox) -> bool:
    assert isinstance(sandbox, Container)
    with engine_errors("inspecting a container", "engine_unreachable"):
        state = await sandbox._engine.find(sandbox._engine.api.inspect_container, sandbox.container_id)
    return state is not None and bool(state["State"]["Running"])
