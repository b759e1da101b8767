"""Creates containers: those of trials with limits, labels and network, and short-lived helpers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tbench.errors import Origin, TrialError
from tbench.results import Stage
from tbench.sandbox.archive import LooseFiles
from tbench.sandbox.backend import BUSYBOX, TOOLS, Sandbox
from tbench.sandbox.container_proxy import WITHOUT_PROXY, ContainerProxy
from tbench.sandbox.docker.engine import Engine, EngineError, is_disk_full
from tbench.sandbox.docker.image import Image
from tbench.sandbox.docker.owner import (
    LABEL_DIRECTORY,
    LABEL_OWNER,
    LABEL_RUN,
    LABEL_SHARED,
    LABEL_TRIAL,
    NETWORK,
    owner,
)
from tbench.sandbox.docker.removing import force_remove
from tbench.sandbox.startup import NO_STARTUP, Startup
from tbench.tasks.network import NetworkPolicy

if TYPE_CHECKING:
    from tbench.sandbox.docker.compose.options import ServiceOptions

ROUTER, TRIAL = "192.0.0.1", "192.0.0.2"
"""Addresses of a router and of the trial behind it, from a range that is never routed (RFC 7335)."""
_HELPER_SEC = 60.0
_LOG_LINES, _LOG_BYTES = 10_000, 1 << 20
_BOUNDED_LOG: Any = {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}}
"""Log settings for the output of an entry point."""


@dataclass(frozen=True)
class ContainerLimits:
    """Limits of a container's CPUs, memory and processes."""

    cpus: float
    memory_mb: float
    pids: int


@dataclass(frozen=True)
class Recipe:
    """Specification of a trial's container."""

    image: Image
    limits: ContainerLimits
    tools_volume: str
    run: str
    trial: str
    has_internet: bool
    environment: Mapping[str, str]
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
    options: ServiceOptions | None = None
    """Options from a compose file; None for a trial of one container."""
    more_labels: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""
    """Directory of its run; empty if it is not found again after a cut."""
    owner: str = ""
    """Owner label; empty for this process's."""
    proxy: ContainerProxy = WITHOUT_PROXY
    is_proxied: bool = False
    """Whether the container can always use the proxy, since its network is public."""
    direct: tuple[str, ...] = ()
    """Names of services that are reached without the proxy."""
    network: NetworkPolicy | None = None
    """First network policy, enforced by a router; None if its network never changes."""

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
        return self.network is not None and self.shares_with is None and self.options is None

    @property
    def has_proxy_variables(self) -> bool:
        """Whether the container itself has the proxy variables, for commands that the engine starts in it.

        Other commands get them when they are started, since a container's variables end up in its snapshots.
        """
        return self.is_proxied and (bool(self.startup.entrypoint) or self.options is not None)

    def proxy_variables(self) -> dict[str, str]:
        """Return the proxy variables for times when its network is public."""
        own = {**(self.original or self.image).proxies, **self.environment}
        return self.proxy.variables_for(own=own, direct=(self.hostname, *self.direct))

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the container: run, trial and owner."""
        return {
            **self.more_labels,
            LABEL_RUN: self.run,
            LABEL_TRIAL: self.trial,
            LABEL_OWNER: self.owner or owner(),
            **({LABEL_DIRECTORY: self.directory} if self.directory and not self.is_fresh else {}),
        }


def limits_host_config(limits: ContainerLimits, engine: Engine) -> dict[str, Any]:
    """Return the part of a host configuration that sets limits."""
    memory = int(limits.memory_mb * (1 << 20))
    return {
        # The engine refuses more than the machine has.
        "nano_cpus": int(min(limits.cpus, engine.info.cpus) * 1e9),
        "mem_limit": memory,
        "memswap_limit": memory,
        "pids_limit": limits.pids,
    }


def create_arguments(engine: Engine, recipe: Recipe) -> dict[str, Any]:
    """Return the arguments for the SDK's `create_container`."""
    host_config = engine.api.create_host_config(
        **limits_host_config(recipe.limits, engine),
        network_mode=_network_mode(recipe),
        # The content of volumes is not in a copy's image.
        volumes_from=[recipe.shares_with] if recipe.shares_with else None,
        cap_add=list(recipe.cap_add) or None,
        dns=[ROUTER] if recipe.has_router else None,
        # The engine adds no entry for the host name if the container has no network.
        extra_hosts={recipe.hostname: TRIAL} if recipe.has_router and recipe.hostname else None,
        # With raw sockets a trial could forge addresses on the shared bridge and bypass all routes.
        cap_drop=["NET_RAW"] if recipe.has_internet and "NET_RAW" not in recipe.cap_add else None,
        security_opt=["no-new-privileges"] if recipe.no_new_privileges else None,
        binds=[f"{recipe.tools_volume}:{TOOLS}:ro"],
        # The tmux socket must survive `rm -rf /tmp/*`, read-only roots and other users.
        tmpfs={f"{TOOLS}/run": "mode=1777,size=16m"},
        **_extras(recipe),
    )
    arguments = {
        "image": recipe.image.id,
        # Our own init: the engine's ends, and the container with it, when its child is killed.
        "entrypoint": [f"{TOOLS}/bin/init", *(["--held"] if recipe.is_held else [])],
        "command": list(recipe.startup.entrypoint),
        "environment": {**recipe.environment, **(recipe.proxy_variables() if recipe.has_proxy_variables else {})},
        # With a shared network, the host name is shared as well.
        "hostname": None if recipe.shares_with else recipe.hostname,
        "working_dir": recipe.workdir or recipe.image.workdir,
        "labels": recipe.labels,
        "host_config": host_config,
    }
    if recipe.options is None:
        return arguments
    return recipe.options.apply_to(engine.api, arguments, shares_network=recipe.shares_with is not None)


def _extras(recipe: Recipe) -> dict[str, Any]:
    """Return the parts of the host configuration that few tasks need."""
    extras: dict[str, Any] = {}
    if recipe.startup.entrypoint:
        extras["log_config"] = _BOUNDED_LOG
    if recipe.cpuset:
        extras["cpuset_cpus"] = ",".join(map(str, recipe.cpuset))
    if recipe.gpus:
        extras["device_requests"] = [_gpus(recipe)]
    if recipe.storage_mb is not None:
        extras["storage_opt"] = {"size": f"{recipe.storage_mb:.0f}m"}
    return extras


def _gpus(recipe: Recipe) -> dict[str, Any]:
    """Return the device request for NVIDIA GPUs, by number if they are pinned."""
    which = {"device_ids": list(map(str, recipe.gpu_ids))} if recipe.gpu_ids else {"count": recipe.gpus}
    return {"driver": "nvidia", "capabilities": [["gpu"]], **which}


def _network_mode(recipe: Recipe) -> str:
    if recipe.shares_with:
        return f"container:{recipe.shares_with}"
    return NETWORK if recipe.has_internet and not recipe.has_router else "none"


async def create(engine: Engine, config: Mapping[str, Any]) -> str:
    """Create a container and return its id. The name is chosen here, to find the container if the answer is lost.

    `config` contains arguments for the SDK's `create_container`. Raises TrialError (sandbox_failed, engine_unreachable,
    image_no_space).
    """
    name = f"tbench-{uuid.uuid4().hex[:16]}"

    async def trying() -> str:
        for _ in range(2):
            try:
                created = await engine.call(engine.api.create_container, **config, name=name, again=True)
                return str(created["Id"])
            except EngineError as error:
                if error.status is None:
                    await force_remove(engine, name)
                if error.status != 409:
                    raise container_error(error, "creating") from error
                # Created by an earlier call whose answer was lost; it may be incomplete.
                await force_remove(engine, name)
        raise TrialError("sandbox_failed", f"creating the container failed: {name} exists already, again and again")

    creating = asyncio.ensure_future(trying())
    try:
        return await asyncio.shield(creating)
    except asyncio.CancelledError:
        # The engine goes on creating: wait for its answer, or the container would never be removed.
        with contextlib.suppress(TrialError):
            await force_remove(engine, await creating)
        raise


class HelperFailed(EngineError):
    """The script of a helper container failed, but the engine works."""


@contextlib.contextmanager
def engine_errors(doing: str, kind: str = "sandbox_failed", stage: Stage | None = None) -> Iterator[None]:
    """Convert an EngineError of the block into a TrialError; see `engine_error`."""
    try:
        yield
    except EngineError as error:
        raise engine_error(error, doing, kind, stage) from error


@contextlib.contextmanager
def container_errors(doing: str) -> Iterator[None]:
    """Convert an EngineError of the block into a TrialError; see `container_error`."""
    try:
        yield
    except EngineError as error:
        raise container_error(error, doing) from error


@contextlib.contextmanager
def with_origin(call: str, is_fresh: bool, doing: str = "", kind: str = "sandbox_lost") -> Iterator[None]:
    """Set the origin of the block's TrialErrors: the call, and whether it is about a fresh or the agent's container.

    An EngineError becomes a TrialError of the `kind`, or sandbox_lost if the container is gone.
    """
    try:
        yield
    except EngineError as error:
        failed = engine_error(error, doing, "sandbox_lost" if error.status in (404, 409) else kind)
        failed.origin = Origin(call, is_fresh, error.status)
        raise failed from error
    except TrialError as error:
        error.origin = error.origin or Origin(call, is_fresh, getattr(error.__cause__, "status", None))
        raise


def engine_error(error: Exception, doing: str, kind: str, stage: Stage | None = None) -> TrialError:
    """Return the TrialError for an engine's failure: `engine_unreachable` without an answer, otherwise `kind`."""
    if getattr(error, "status", None) is None and not isinstance(error, HelperFailed):
        return TrialError("engine_unreachable", str(error) or "the engine did not answer in time")
    return TrialError(kind, f"{doing} failed: {error}", stage=stage)


def container_error(error: EngineError, doing: str) -> TrialError:
    """Return the TrialError for a failure at `doing` ("creating", "starting") a container."""
    doing = f"{doing} the container"
    if is_disk_full(error):
        return TrialError("image_no_space", f"{doing} failed: {error}", stage=Stage.SANDBOX)
    # No other attempt will find a device that the machine does not have.
    kind = "task_unsupported" if "could not select device driver" in str(error) else "sandbox_failed"
    return engine_error(error, doing, kind, Stage.SANDBOX)


def lacks_quota(error: TrialError) -> bool:
    """Whether the engine refused a container because it cannot limit its disk."""
    return re.search(r"storage[- ]opt|pquota|quota not supported", str(error), re.IGNORECASE) is not None


async def last_output(engine: Engine, container: str) -> bytes:
    """Return a container's last output, at most 10,000 lines and a megabyte; empty if the engine fails."""
    try:
        printed: bytes = await engine.call(engine.api.logs, container, tail=_LOG_LINES, again=True)
    except EngineError:
        return b""
    return printed[-_LOG_BYTES:]


async def run_helper(
    engine: Engine,
    image_id: str,
    tools_volume: str,
    script: str,
    *,
    labels: Mapping[str, str],
    shell: Sequence[str] = (BUSYBOX, "sh"),
    binds: Sequence[str] = (),
    **host_config: Any,
) -> str:
    """Run `script` as root in a new container and return its output.

    By default the shell is that of the tools volume, and nothing of the image runs. Raises EngineError, also if the
    script fails.
    """
    binds = binds or [f"{tools_volume}:{TOOLS}:ro"]
    arguments: dict[str, Any] = {
        "image": image_id,
        "entrypoint": [*shell, "-c", script],
        "command": [],
        "user": "0",
        "labels": dict(labels),
        "host_config": engine.api.create_host_config(binds=list(binds), **host_config),
    }

    def once() -> str:
        api = engine.api
        created = api.create_container(**arguments)["Id"]
        try:
            api.start(created)
            code = api.wait(created, timeout=int(_HELPER_SEC))["StatusCode"]
            output: str = api.logs(created).decode("utf-8", "replace").strip()
        finally:
            try:
                api.remove_container(created, force=True, v=True)
            except Exception:  # noqa: BLE001 - the removal is tried again below, where errors are not fatal
                left.append(created)
        if code != 0:
            raise HelperFailed(f"a helper ended with {code}: {output[-200:]}")
        return output

    async def running() -> str:
        try:
            return await engine.call(once, deadline_sec=2 * _HELPER_SEC)
        finally:
            for container in left:
                await force_remove(engine, container)

    left: list[str] = []
    helping = asyncio.ensure_future(running())
    try:
        return await asyncio.shield(helping)
    except asyncio.CancelledError:
        # Its thread cannot be stopped, and the objects that it uses must not be removed meanwhile.
        with contextlib.suppress(EngineError):
            await helping
        raise


_SCRATCH_IMAGE = "tbench/nothing:1"
_EMPTY_TAR = bytes(10240)


async def ensure_scratch_image(engine: Engine) -> str:
    """Return the id of an empty image, for containers that only run our own tools; makes it if it is missing.

    Raises EngineError.
    """
    name = _SCRATCH_IMAGE
    try:
        return str((await engine.call(engine.api.inspect_image, name))["Id"])
    except EngineError as error:
        if error.status != 404:
            raise
    # Name with tag: Podman ignores a separate tag.
    changes = [f"LABEL {LABEL_SHARED}=nothing"]
    await engine.call(engine.api.import_image_from_data, _EMPTY_TAR, repository=name, changes=changes, again=True)
    return str((await engine.call(engine.api.inspect_image, name))["Id"])


_SMALL = ContainerLimits(cpus=1.0, memory_mb=256.0, pids=256)

Start = Callable[[Recipe], Awaitable[Sandbox]]
IsRunning = Callable[[Sandbox], Awaitable[bool]]


class Originals:
    """Containers of unchanged images, one per image, to which the agent's changes are compared."""

    def __init__(self) -> None:
        self._started: dict[tuple[str, bool], Sandbox] = {}
        self._locks: dict[tuple[str, bool], asyncio.Lock] = {}

    async def get(self, recipe: Recipe, start: Start, is_running: IsRunning) -> Sandbox:
        """Return the container of the recipe's image, started on first use or if it was lost. Raises TrialError."""
        key = recipe.image.id, recipe.has_internet
        async with self._locks.setdefault(key, asyncio.Lock()):
            if (known := self._started.get(key)) is not None and not await is_running(known):
                await self._started.pop(key).remove()
            if key not in self._started:
                # Network policies of phases are not needed here, and would cost a router.
                plain = dataclasses.replace(
                    recipe,
                    limits=_SMALL,
                    trial="",
                    environment={},
                    agent_user=None,
                    closed_to=(),
                    shares_with=None,
                    starts=False,
                    is_fresh=True,
                    options=None,
                    more_labels={},
                    network=None,
                    has_internet=recipe.has_internet and recipe.network is None,
                    loose=None,
                    cpuset=(),
                    gpus=0,
                    storage_mb=None,
                )
                self._started[key] = await start(plain)
            return self._started[key]

    async def remove_for_image(self, image_id: str) -> None:
        """Remove the containers of one image. Never raises."""
        found = [key for key in self._started if key[0] == image_id]
        await asyncio.gather(*(self._started.pop(key).remove() for key in found))

    async def close(self) -> None:
        """Remove all containers. Never raises."""
        started, self._started = list(self._started.values()), {}
        await asyncio.gather(*(each.remove() for each in started))
