"""Creates and removes containers: a trial's with its limits, labels and network, and short-lived helpers beside it."""

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
from tbench.sandbox.docker.owner import LABEL_OWNER, LABEL_RUN, LABEL_SHARED, LABEL_TRIAL, NETWORK, owner
from tbench.sandbox.docker.removing import force_remove
from tbench.sandbox.startup import NOTHING, Startup
from tbench.tasks.network import NetworkPolicy

if TYPE_CHECKING:
    from tbench.sandbox.docker.compose.options import ServiceOptions

ROUTER, TRIAL = "192.0.0.1", "192.0.0.2"
"""Addresses of a router and of the trial behind it: of a range for such links, which is never routed (RFC 7335)."""
_HELPER_SEC = 60.0
_LOG_LINES, _LOG_BYTES = 10_000, 1 << 20
_BOUNDED_LOG: Any = {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}}
"""How the engine keeps what an entry point prints."""


@dataclass(frozen=True)
class ContainerLimits:
    """The cpus, memory and processes that a container may use."""

    cpus: float
    memory_mb: float
    pids: int


@dataclass(frozen=True)
class Recipe:
    """What a trial's container is made of."""

    image: Image
    limits: ContainerLimits
    tools_volume: str
    run: str
    trial: str
    has_internet: bool
    environment: Mapping[str, str]
    hostname: str | None = None
    """None for the engine's own choice, the container's id."""
    workdir: str | None = None
    """Working directory; None for the image's own."""
    agent_user: str | None = None
    closed_to: tuple[str, ...] = ()
    """Addresses that the container must not reach."""
    no_new_privileges: bool = False
    """Whether sudo, su and other setuid programs have no effect for whoever is not root already."""
    name_servers: tuple[str, ...] = ()
    """Name servers that a router asks; empty for the engine's."""
    cap_add: tuple[str, ...] = ()
    """Linux capabilities besides the engine's usual ones."""
    original: Image | None = None
    """The task's own image, where `image` is a snapshot of a sandbox that was made of it."""
    beside: str | None = None
    """Id of the container whose network and volumes this one shares."""
    loose: LooseFiles | None = None
    """Files that are copied into the working directory."""
    cpuset: tuple[int, ...] = ()
    """Numbers of the cpus to run on; empty for any."""
    gpus: int = 0
    gpu_ids: tuple[int, ...] = ()
    """Numbers of its GPUs; empty where the engine chooses them."""
    storage_mb: float | None = None
    """Limit of its own files; None for no limit."""
    starts: bool = True
    """Whether what the image starts with a container is started."""
    is_fresh: bool = False
    """Whether the agent never is in the container."""
    options: ServiceOptions | None = None
    """What a compose file says of the container; None for a trial of one container."""
    more_labels: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    """Owner label; empty for this process's."""
    proxy: ContainerProxy = WITHOUT_PROXY
    is_proxied: bool = False
    """Whether the container is told of the proxy for life: it has a network that is open to all."""
    direct: tuple[str, ...] = ()
    """Names of services that are reached without it."""
    network: NetworkPolicy | None = None
    """The first of its networks, where a router stands before it; None for one network for life, or none."""

    @property
    def startup(self) -> Startup:
        """What runs in the container without being asked for; in that of a snapshot as in its original."""
        return (self.original or self.image).startup if self.starts else NOTHING

    @property
    def is_held(self) -> bool:
        """Whether the entry point has to wait until the container's network is made, or is closed."""
        changes = self.has_router or bool(self.has_internet and self.closed_to)
        return bool(self.startup.entrypoint) and changes and not self.beside

    @property
    def has_router(self) -> bool:
        """Whether a router of its own stands between the container and the bridge; services share one."""
        return self.network is not None and self.beside is None and self.options is None

    @property
    def starts_told(self) -> bool:
        """Whether the container itself has the variables, for what the engine starts in it.

        Commands get theirs when they are started: what a container has is in every image that is made of it.
        """
        return self.is_proxied and (bool(self.startup.entrypoint) or self.options is not None)

    def proxy_variables(self) -> dict[str, str]:
        """The variables about the proxy in which its network is open to all."""
        own = {**(self.original or self.image).proxies, **self.environment}
        return self.proxy.told(own=own, direct=(self.hostname, *self.direct))

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the container: run, trial, and the owner of now, also where another one kept the original."""
        return {
            **self.more_labels,
            LABEL_RUN: self.run,
            LABEL_TRIAL: self.trial,
            LABEL_OWNER: self.owner or owner(),
        }


def host_config_of(limits: ContainerLimits, engine: Engine) -> dict[str, Any]:
    """The part of a host configuration that sets limits."""
    memory = int(limits.memory_mb * (1 << 20))
    return {
        # Never more than the machine has: the engine refuses that.
        "nano_cpus": int(min(limits.cpus, engine.info.cpus) * 1e9),
        "mem_limit": memory,
        "memswap_limit": memory,
        "pids_limit": limits.pids,
    }


def create_arguments(engine: Engine, recipe: Recipe) -> dict[str, Any]:
    """Arguments for the SDK's `create_container`."""
    host_config = engine.api.create_host_config(
        **host_config_of(recipe.limits, engine),
        network_mode=_network_mode(recipe),
        # What lies in volumes is not in the image of a copy.
        volumes_from=[recipe.beside] if recipe.beside else None,
        cap_add=list(recipe.cap_add) or None,
        # With raw sockets a trial could forge addresses on the bridge that all share, and go past all routes.
        dns=[ROUTER] if recipe.has_router else None,
        # Without a network of its own the engine does not write down its name.
        extra_hosts={recipe.hostname: TRIAL} if recipe.has_router and recipe.hostname else None,
        cap_drop=["NET_RAW"] if recipe.has_internet and "NET_RAW" not in recipe.cap_add else None,
        security_opt=["no-new-privileges"] if recipe.no_new_privileges else None,
        binds=[f"{recipe.tools_volume}:{TOOLS}:ro"],
        # The tmux socket must survive `rm -rf /tmp/*`, read-only roots and other users.
        tmpfs={f"{TOOLS}/run": "mode=1777,size=16m"},
        **_extras(recipe),
    )
    arguments = {
        "image": recipe.image.id,
        # Our own init, not the engine's: that one ends, and the container with it, when its child is killed.
        "entrypoint": [f"{TOOLS}/bin/init", *(["--held"] if recipe.is_held else [])],
        "command": list(recipe.startup.entrypoint),
        "environment": {**recipe.environment, **(recipe.proxy_variables() if recipe.starts_told else {})},
        # A copy has that of the container whose network it shares.
        "hostname": None if recipe.beside else recipe.hostname,
        "working_dir": recipe.workdir or recipe.image.workdir,
        "labels": recipe.labels,
        "host_config": host_config,
    }
    if recipe.options is None:
        return arguments
    return recipe.options.applied(engine.api, arguments, is_beside=recipe.beside is not None)


def _extras(recipe: Recipe) -> dict[str, Any]:
    """Parts of the host's configuration that few tasks ask for."""
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
    """The request for NVIDIA's GPUs, by number where they are told apart."""
    which = {"device_ids": list(map(str, recipe.gpu_ids))} if recipe.gpu_ids else {"count": recipe.gpus}
    return {"driver": "nvidia", "capabilities": [["gpu"]], **which}


def _network_mode(recipe: Recipe) -> str:
    if recipe.beside:
        return f"container:{recipe.beside}"
    return NETWORK if recipe.has_internet and not recipe.has_router else "none"


async def create(engine: Engine, config: Mapping[str, Any]) -> str:
    """Create a container and return its id. Its name is chosen here, so that it is found if the answer is lost.

    `config` holds arguments for the SDK's `create_container`. Raises TrialError (sandbox_failed, engine_unreachable,
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
                # Made by a first call whose answer was lost; it may not be whole.
                await force_remove(engine, name)
        raise TrialError("sandbox_failed", f"creating the container failed: {name} is always there already")

    creating = asyncio.ensure_future(trying())
    try:
        return await asyncio.shield(creating)
    except asyncio.CancelledError:
        # The engine goes on creating: wait for its answer, or the container would be nobody's.
        with contextlib.suppress(TrialError):
            await force_remove(engine, await creating)
        raise


class HelperFailed(EngineError):
    """A helper's script failed, in a container that the engine has made and run as it was asked."""


@contextlib.contextmanager
def engine_errors(doing: str, kind: str = "sandbox_failed", stage: Stage | None = None) -> Iterator[None]:
    """A block of an engine's calls, whose EngineError becomes a TrialError: see `engine_error`."""
    try:
        yield
    except EngineError as error:
        raise engine_error(error, doing, kind, stage) from error


@contextlib.contextmanager
def container_errors(doing: str) -> Iterator[None]:
    """The same for the making of a container: see `container_error`."""
    try:
        yield
    except EngineError as error:
        raise container_error(error, doing) from error


@contextlib.contextmanager
def asking(call: str, is_fresh: bool, doing: str = "", kind: str = "sandbox_lost") -> Iterator[None]:
    """A block that makes a call about a container, the agent's own or a fresh one: its TrialErrors name the call.

    An engine's failure at `doing` that is no TrialError yet is made one of the `kind`, unless the container is gone.
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
    """The TrialError for an engine's failure: `engine_unreachable` where it did not answer, else of the `kind`."""
    if getattr(error, "status", None) is None and not isinstance(error, HelperFailed):
        return TrialError("engine_unreachable", str(error) or "the engine did not answer in time")
    return TrialError(kind, f"{doing} failed: {error}", stage=stage)


def container_error(error: EngineError, doing: str) -> TrialError:
    """The TrialError for an engine's failure at `doing` ("creating", "starting") a container."""
    doing = f"{doing} the container"
    if is_disk_full(error):
        return TrialError("image_no_space", f"{doing} failed: {error}", stage=Stage.SANDBOX)
    # What is asked of the machine and it has not, no other attempt will find.
    kind = "task_unsupported" if "could not select device driver" in str(error) else "sandbox_failed"
    return engine_error(error, doing, kind, Stage.SANDBOX)


def lacks_quota(error: TrialError) -> bool:
    """Whether the engine refused a container because it cannot limit its disk."""
    return re.search(r"storage[- ]opt|pquota|quota not supported", str(error), re.IGNORECASE) is not None


async def last_output(engine: Engine, container: str) -> bytes:
    """The last that a container has printed, at most 10,000 lines and a megabyte; empty if the engine cannot tell."""
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
    """Run `script` with the tools volume's shell as root in a container with `host_config`; returns its output.

    Nothing of the image is run; it is only what a container must have. With another `shell` and `binds` in place of the
    volume's it may be. Raises EngineError, also where the script fails.
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
            said: str = api.logs(created).decode("utf-8", "replace").strip()
        finally:
            try:
                api.remove_container(created, force=True, v=True)
            except Exception:  # noqa: BLE001 - whatever it was, it is done again, where an error is no reason to fail
                left.append(created)
        if code != 0:
            raise HelperFailed(f"a helper ended with {code}: {said[-200:]}")
        return said

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
        # Its thread cannot be stopped, and what it works on must not be removed under it.
        with contextlib.suppress(EngineError):
            await helping
        raise


# An image without a file, for containers that run our own tools only, also before there is any other image.

_NAME = "tbench/nothing:1"
_EMPTY_TAR = bytes(10240)


async def ensure_nothing(engine: Engine) -> str:
    """The id of the image, made where the engine lacks it. Raises EngineError."""
    try:
        return str((await engine.call(engine.api.inspect_image, _NAME))["Id"])
    except EngineError as error:
        if error.status != 404:
            raise
    # The whole name: Podman ignores a tag that is given separately.
    changes = [f"LABEL {LABEL_SHARED}=nothing"]
    await engine.call(engine.api.import_image_from_data, _EMPTY_TAR, repository=_NAME, changes=changes, again=True)
    return str((await engine.call(engine.api.inspect_image, _NAME))["Id"])


# Images as they were, in containers beside those of trials: what an agent changed is told by them.

_SMALL = ContainerLimits(cpus=1.0, memory_mb=256.0, pids=256)

Start = Callable[[Recipe], Awaitable[Sandbox]]
IsThere = Callable[[Sandbox], Awaitable[bool]]


class Originals:
    """One container per image in which nothing runs but what reads the image's own files."""

    def __init__(self) -> None:
        self._started: dict[tuple[str, bool], Sandbox] = {}
        self._locks: dict[tuple[str, bool], asyncio.Lock] = {}

    async def get(self, recipe: Recipe, start: Start, is_there: IsThere) -> Sandbox:
        """The container of the recipe's image, started when it is first asked for, or was lost. Raises TrialError."""
        key = recipe.image.id, recipe.has_internet
        async with self._locks.setdefault(key, asyncio.Lock()):
            if (known := self._started.get(key)) is not None and not await is_there(known):
                await self._started.pop(key).remove()
            if key not in self._started:
                # Its networks of phases are of no use here, and would cost a router.
                plain = dataclasses.replace(
                    recipe,
                    limits=_SMALL,
                    trial="",
                    environment={},
                    agent_user=None,
                    closed_to=(),
                    beside=None,
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

    async def remove_of(self, image_id: str) -> None:
        """Remove those of one image. Never raises."""
        found = [key for key in self._started if key[0] == image_id]
        await asyncio.gather(*(self._started.pop(key).remove() for key in found))

    async def close(self) -> None:
        """Remove all of them. Never raises."""
        started, self._started = list(self._started.values()), {}
        await asyncio.gather(*(each.remove() for each in started))
