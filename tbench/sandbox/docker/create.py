"""Creates containers: those of trials with limits, labels and network, and short-lived helpers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from harness.concurrency import wait_until_ended
from tbench.errors import Origin, TrialError
from tbench.results import Stage
from tbench.sandbox.backend import BUSYBOX, TOOLS
from tbench.sandbox.docker.engine import Engine, EngineError, is_disk_full
from tbench.sandbox.docker.removing import force_remove
from tbench.sandbox.owner import LABEL_SHARED, NETWORK
from tbench.sandbox.package import PACKAGE
from tbench.sandbox.recipe import ContainerLimits, SandboxRecipe

if TYPE_CHECKING:
    from tbench.sandbox.docker.compose.options import ServiceOptions

T = TypeVar("T")
ROUTER, TRIAL = "192.0.0.1", "192.0.0.2"
"""Addresses of a router and of the trial behind it, from a range that is never routed (RFC 7335)."""
_HELPER_SEC = 60.0
_LOG_LINES, _LOG_BYTES = 10_000, 1 << 20
_BOUNDED_LOG: Any = {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}}
"""Log settings for the output of an entry point."""


@dataclass(frozen=True)
class Recipe(SandboxRecipe):
    """Specification of a trial's container, which may be one of several services."""

    options: ServiceOptions | None = None
    """Options from a compose file; None for a trial of one container."""

    @property
    def has_router(self) -> bool:
        return super().has_router and self.options is None

    @property
    def has_proxy_variables(self) -> bool:
        return super().has_proxy_variables or (self.is_proxied and self.options is not None)

    def plain(self) -> Self:
        return dataclasses.replace(super().plain(), options=None)


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
        volumes_from=list(filter(None, (recipe.shares_with or recipe.volumes_of,))) or None,
        cap_add=list(recipe.cap_add) or None,
        dns=[ROUTER] if recipe.has_router else None,
        # The engine adds no entry for the host name if the container has no network.
        extra_hosts={recipe.hostname: TRIAL} if recipe.has_router and recipe.hostname else None,
        # With raw sockets a trial could forge addresses on the shared bridge and bypass all routes.
        cap_drop=["NET_RAW"] if recipe.has_internet and "NET_RAW" not in recipe.cap_add else None,
        security_opt=["no-new-privileges"] if recipe.no_new_privileges else None,
        binds=[
            f"{recipe.tools_volume}:{TOOLS}:ro",
            *([f"{recipe.package_volume}:{PACKAGE}:ro"] if recipe.package_volume else []),
        ],
        # The tmux socket must survive `rm -rf /tmp/*`, read-only roots and other users.
        tmpfs={f"{TOOLS}/run": "mode=1777,size=16m"},
        log_config=_BOUNDED_LOG if recipe.startup.entrypoint else None,
        cpuset_cpus=",".join(map(str, recipe.cpuset)) or None,
        device_requests=[_gpus(recipe)] if recipe.gpus else None,
        storage_opt=None if recipe.storage_mb is None else {"size": f"{recipe.storage_mb:.0f}m"},
    )
    arguments = {
        "image": recipe.image.id,
        # Our own init: the engine's init ends, and the container with it, when the init's child is killed.
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


def _gpus(recipe: Recipe) -> Any:
    """Return the device request for NVIDIA GPUs, by number if they are pinned."""
    which = {"device_ids": list(map(str, recipe.gpu_ids))} if recipe.gpu_ids else {"count": recipe.gpus}
    return {"driver": "nvidia", "capabilities": [["gpu"]], **which}


def _network_mode(recipe: Recipe) -> str:
    if recipe.shares_with:
        return f"container:{recipe.shares_with}"
    return NETWORK if recipe.has_internet and not recipe.has_router else "none"


async def _leave(_: object) -> None:
    """Do nothing: the default `undo`."""


async def finish(making: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[None]] = _leave) -> T:
    """Await `making` to its end even when cancelled, since the engine continues; then `undo` gets what was made."""
    task = asyncio.ensure_future(making)
    try:
        await wait_until_ended(task)
    except asyncio.CancelledError:
        with contextlib.suppress(TrialError, EngineError):
            await undo(task.result())
        raise
    return task.result()


async def create(engine: Engine, config: Mapping[str, Any]) -> str:
    """Create a container and return its id. The name is chosen here, to find the container if the answer is lost.

    `config` contains arguments for the SDK's `create_container`. Raises TrialError (sandbox_failed, engine_unreachable,
    image_no_space, task_unsupported).
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

    return await finish(trying(), partial(force_remove, engine))


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


async def start_init(engine: Engine, tools_volume: str, labels: Mapping[str, str], **host_config: Any) -> str:
    """Start a container in which only our init runs; returns its id. Raises TrialError, EngineError."""
    config = engine.api.create_host_config(binds=[f"{tools_volume}:{TOOLS}:ro"], cap_drop=["ALL"], **host_config)
    image = await ensure_scratch_image(engine)
    arguments = {"image": image, "entrypoint": [f"{TOOLS}/bin/init"], "command": [], "labels": dict(labels)}
    container = await create(engine, {**arguments, "host_config": config})
    try:
        await engine.call(engine.api.start, container)
    except BaseException:
        await asyncio.shield(force_remove(engine, container))
        raise
    return container


@contextlib.asynccontextmanager
async def copying_container(
    engine: Engine, labels: Mapping[str, str], *, image: str | None = None, binds: Sequence[str] = ()
) -> AsyncIterator[str]:
    """Create a container for the block without starting it: the engine mounts its volumes for copying anyway.

    Without `image` it is empty. Raises TrialError, EngineError.
    """
    config: dict[str, Any] = {"image": image, "labels": dict(labels)}
    if image is None:
        config |= {"image": await ensure_scratch_image(engine), "command": ["nothing"]}
    config["host_config"] = engine.api.create_host_config(binds=list(binds), network_mode="none")
    container = await create(engine, config)
    try:
        yield container
    finally:
        await force_remove(engine, container)


async def run_helper(
    engine: Engine,
    tools_volume: str,
    script: str,
    *,
    labels: Mapping[str, str],
    image: str | None = None,
    shell: Sequence[str] = (BUSYBOX, "sh"),
    binds: Sequence[str] = (),
    **host_config: Any,
) -> str:
    """Run `script` as root in a new container and return its output.

    By default the image is empty, and the shell comes from the tools volume, so that nothing of any image runs.
    Raises EngineError, also if the script fails.
    """
    binds = binds or [f"{tools_volume}:{TOOLS}:ro"]
    arguments: dict[str, Any] = {
        "image": image or await ensure_scratch_image(engine),
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
    # Its thread cannot be stopped, and the objects that it uses must not be removed meanwhile.
    return await finish(running())


_SCRATCH_IMAGE = "tbench/nothing:1"
_EMPTY_TAR = bytes(10240)


async def ensure_scratch_image(engine: Engine) -> str:
    """Return the id of an empty image, for containers that only run our own tools; makes it if it is missing.

    Raises EngineError.
    """
    name = _SCRATCH_IMAGE
    found: Any = await engine.find(engine.api.inspect_image, name)
    if found is None:
        # Name with tag: Podman ignores a separate tag.
        changes = [f"LABEL {LABEL_SHARED}=nothing"]
        await engine.call(engine.api.import_image_from_data, _EMPTY_TAR, repository=name, changes=changes, again=True)
        found = await engine.call(engine.api.inspect_image, name)
    return str(found["Id"])
