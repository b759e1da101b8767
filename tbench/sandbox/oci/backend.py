"""The backend without an engine: containers that tbench starts by itself, as root or as an ordinary user."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import platform
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from harness.concurrency import cancel
from tbench.config.limits_in_force import DISK, LimitState, describe_limits
from tbench.errors import TrialError, UsageError
from tbench.events import Phase
from tbench.results import ImageOrigin
from tbench.sandbox.backend import BUSYBOX, TOOLS, Capacity, SandboxSettings, Say, open_backend
from tbench.sandbox.disk_watch import DiskWatch
from tbench.sandbox.image import Image
from tbench.sandbox.leftovers import Reaped
from tbench.sandbox.limits import PROBE_LIMITS, READ_LIMITS, limit_states, read_limits
from tbench.sandbox.oci.cleaning import remove_leftovers
from tbench.sandbox.oci.container import OciContainer, Place
from tbench.sandbox.oci.images import Images
from tbench.sandbox.oci.store import OciError, State, Store, how_to_install, missing_programs, run, runtime_name
from tbench.sandbox.pinning import Lease, UnitPool
from tbench.sandbox.recipe import SandboxRecipe, choose_networks
from tbench.tasks.environment import Environment

_PROBED: dict[Store, tuple[dict[str, LimitState], str]] = {}
"""By store, found out once per process: which limits are enforced, and which program mounts overlays."""
_PROBE_SEC = 30.0


class OciBackend:
    """A `Backend` that makes the containers of one run in a store, and reopens kept ones."""

    sandbox_type: type = OciContainer
    name = "oci"

    def __init__(self, store: Store, settings: SandboxSettings) -> None:
        self.image_ids: dict[str, str] = {}
        self.image_origins: dict[str, ImageOrigin] = {}
        self._store, self._settings = store, settings
        self._place = Place(store, Images(store, settings))
        self._tools = ""
        self._limits: dict[str, LimitState] = {}
        self._cpus = UnitPool(())
        self._say: Say = lambda _: None
        self._disk_watch = DiskWatch(self._free_mb, self._written_mb, lambda line: self._say(line))
        self._reaping: asyncio.Task[Reaped] | None = None
        self._kept_mb = 0.0
        self._runtime_version, self._driver = "", ""

    async def open(self, say: Say) -> None:
        settings, config, doctor = self._settings, self._settings.config, f"'tbench doctor {self._store.option}'"
        self._store.require_programs()
        if config.block_host:
            raise UsageError("--block-host: oci cannot keep containers away from the host; use Docker")
        if config.network == "bridge" and (missing := missing_programs("slirp4netns")):
            raise UsageError(f"--network bridge: needs slirp4netns: {how_to_install(missing)}")
        self._say = say
        self._place = Place(self._store, Images(self._store, settings, say))
        self._reaping = asyncio.create_task(remove_leftovers(self._store))
        try:
            tools = await self._place.images.tools()
            self._runtime_version = (await run(self._store.runtime("--version"))).split("\n")[0]
        except (OciError, TimeoutError) as error:
            raise UsageError(f"oci cannot be made ready: {error}; {doctor} may say more") from error
        self._tools = str(self._place.images.layers(tools.id)[0]) + TOOLS
        if notice := settings.container_proxy.notice:
            say(notice)
        if self._store not in _PROBED:
            _PROBED[self._store] = await self._probe(tools)
        states, self._driver = _PROBED[self._store]
        self._limits = dict(states)
        self._place = dataclasses.replace(self._place, has_limits=LimitState.IN_FORCE in self._limits.values())
        if config.pin_cpus:
            self._cpus = UnitPool(sorted(os.sched_getaffinity(0)))
            self._limits["pinned cpus"] = LimitState.IN_FORCE if self._place.has_limits else LimitState.NOT_IN_FORCE
        if words := describe_limits(self._limits):
            if config.require_limits:
                raise UsageError(f"--require-limits: oci's containers have {words}; see {doctor}")
            say(f"limits: {words}: trials may exceed their tasks' limits (--require-limits forbids that)")
        found = await self._reaping
        self._kept_mb = found.kept_mb
        for line in found.lines:
            say(line)

    async def _probe(self, tools: Image) -> tuple[dict[str, LimitState], str]:
        """Start a container to find out which limits are in force, and which program mounts its files.

        Raises UsageError if none starts at all.
        """
        names = ("memory", "swap", "cpus", "pids")
        recipe = SandboxRecipe(
            image=tools, limits=PROBE_LIMITS, tools_volume=self._tools, run=self._settings.run, trial="",
            has_internet=False, environment={}, starts=False,
        )  # fmt: skip
        failed = dict.fromkeys(names, LimitState.NOT_IN_FORCE)
        for has_limits in (True, False):
            try:
                container = await OciContainer.start(dataclasses.replace(self._place, has_limits=has_limits), recipe)
            except TrialError as error:
                why = error
                continue
            try:
                seen = await container.shell(READ_LIMITS, timeout_sec=_PROBE_SEC, user="root")
                found = limit_states(read_limits(seen.output.decode()), PROBE_LIMITS)
                root = await container.shell(f"{BUSYBOX} head -n 1 /proc/mounts", timeout_sec=_PROBE_SEC, user="root")
                return found if has_limits else failed, root.output.decode().partition(" ")[0] or "overlay"
            except TrialError as error:
                why = error
            finally:
                await container.remove()
        remedy = "" if runtime_name() == "runc" else f"; it starts them with crun; try runc: {how_to_install(['runc'])}"
        raise UsageError(f"oci cannot start a container: {why}{remedy}")

    async def close(self) -> None:
        if self._reaping is not None:
            await cancel(self._reaping)
        await self._disk_watch.close()
        await self._place.originals.close()

    def capacity(self) -> Capacity:
        return dataclasses.replace(machine_capacity(), kept_mb=self._kept_mb)

    def describe(self) -> dict[str, Any]:
        capacity = self.capacity()
        return {
            "backend": "oci",
            "version": self._runtime_version,
            "cpus": capacity.cpus,
            "memory_mb": round(capacity.memory_mb),
            "storage_driver": self._driver,
            "cgroup_version": "2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "1",
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
            **({"limits": dict(self._limits)} if self._limits else {}),
        }

    async def sandbox(
        self, environment: Environment, trial: str, on_phase: Callable[[Phase], None] = lambda _: None
    ) -> OciContainer:
        self._require_supported(environment)
        on_phase("image")
        image = await self._image(environment)
        on_phase("sandbox")
        variables = environment.variables()
        await asyncio.to_thread(environment.require_unchanged)
        container = await self._start(self._recipe(environment, trial, image, variables))
        return await container.when_healthy(environment.settings.healthcheck)

    def refuse(self, environment: Environment) -> str:
        networks = choose_networks(self._settings.config.network, environment.networks)
        if environment.project is not None:
            return "needs the services of a compose file, which oci does not start"
        if not networks.is_plain:
            return "its network changes between phases, or allows only some hosts, which oci cannot do"
        if networks.start.mode == "public" and (missing := missing_programs("slirp4netns")):
            return f"needs the internet, and oci needs slirp4netns for it: {how_to_install(missing)}"
        return "needs GPUs, which oci cannot give it" if environment.settings.gpus else ""

    def _require_supported(self, environment: Environment) -> None:
        if why := self.refuse(environment):
            raise TrialError("task_unsupported", f"{environment.name}: {why}")

    async def prepare(self, environment: Environment) -> None:
        self._require_supported(environment)
        await self._image(environment)

    async def _image(self, environment: Environment) -> Image:
        image = await self._place.images.get(environment)
        self.image_ids[environment.name] = image.id
        if image.origin is not None:
            self.image_origins[environment.name] = image.origin
        return image

    async def _start(self, recipe: SandboxRecipe) -> OciContainer:
        cpus = self._cpus.take(recipe.limits.cpus)

        def release() -> None:
            self._cpus.give_back(cpus, recipe.limits.cpus)

        try:
            container = await OciContainer.start(self._place, dataclasses.replace(recipe, cpuset=cpus))
        except BaseException:
            release()
            raise
        container.lease = Lease(cpus, (), release)
        self._watch_disk(container, recipe)
        return container

    def _watch_disk(self, container: OciContainer, recipe: SandboxRecipe) -> None:
        """Watch an agent's disk use, from the container's start on."""
        if recipe.storage_mb is not None and DISK not in self._limits:
            self._limits[DISK] = LimitState.WATCHED
            self._say("storage_mb is only watched: a directory of this machine has no quota")
        if not recipe.is_fresh:
            name = container.container_id
            container.disk = self._disk_watch.add(name, recipe.trial, recipe.storage_mb, container.end_processes)

    async def _free_mb(self) -> float | None:
        return (await asyncio.to_thread(shutil.disk_usage, self._store.containers)).free / (1 << 20)

    async def _written_mb(self, names: Collection[str]) -> dict[str, float]:
        layers = {name: self._store.containers / name / "upper" for name in names}
        return await asyncio.to_thread(
            lambda: {name: _disk_use_mb(layer) for name, layer in layers.items() if layer.is_dir()}
        )

    def _recipe(self, environment: Environment, trial: str, image: Image, variables: dict[str, str]) -> SandboxRecipe:
        return SandboxRecipe.for_trial(environment, self._settings, trial, image, variables, tools_volume=self._tools)

    async def reopen(self, environment: Environment, trial: str, kept: str) -> OciContainer:
        directory = self._store.containers / Path(kept).name
        state = State.read(directory)
        image = None if state is None else self._place.images.find(state.image)
        if state is None or image is None or not state.is_running:
            raise TrialError("sandbox_lost", f"the kept container {kept[-12:]} is gone")
        recipe = self._recipe(environment, trial, image, environment.variables())
        container = OciContainer(self._place, self._with_original(recipe), directory, state)
        self._watch_disk(container, recipe)
        return container

    async def from_snapshot(self, environment: Environment, trial: str, image_id: str) -> OciContainer:
        image = self._place.images.find(image_id)
        if image is None:
            raise TrialError("image_unavailable", f"the snapshot {image_id[:19]} is gone")
        recipe = self._recipe(environment, trial, image, environment.variables())
        return await self._start(self._with_original(recipe))

    def _with_original(self, recipe: SandboxRecipe) -> SandboxRecipe:
        original = self._place.images.find(recipe.image.original) if recipe.image.original else None
        return dataclasses.replace(recipe, original=original)


async def set_up(store: Store, say: Say) -> None:
    """Get the tools, and check that a container starts. Raises UsageError."""
    async with open_backend(OciBackend(store, SandboxSettings("setup")), say):
        pass


def _disk_use_mb(folder: Path) -> float:
    """Return the megabytes of all readable files below a folder."""
    blocks = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                blocks += Path(directory, name).lstat().st_blocks
    return blocks / 2048


def machine_capacity() -> Capacity:
    """Return the resources of this machine that this process may use."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 20)
    return Capacity(len(os.sched_getaffinity(0)), memory, is_this_machine=True)
