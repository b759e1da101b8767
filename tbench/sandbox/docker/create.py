"""Creates and removes containers: a trial's with its limits, labels and network, and short-lived helpers beside it."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tbench.errors import TrialError
from tbench.results import Stage
from tbench.sandbox.backend import BUSYBOX, TOOLS
from tbench.sandbox.docker.engine import Engine, EngineError, EngineUnreachable
from tbench.sandbox.docker.image import Image, is_disk_full
from tbench.sandbox.docker.labels import LABEL_OWNER, LABEL_RUN, LABEL_TRIAL, NETWORK
from tbench.sandbox.docker.owner import owner

REMOVE_SEC = 60.0
_HELPER_SEC = 60.0


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
    cap_add: tuple[str, ...] = ()
    """Linux capabilities besides the engine's usual ones."""
    original: Image | None = None
    """The task's own image, where `image` is a snapshot of a sandbox that was made of it."""
    beside: str | None = None
    """Id of the container whose network and volumes this one shares."""

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the container: run, trial, and this process as the owner, also where another kept the original."""
        return {LABEL_RUN: self.run, LABEL_TRIAL: self.trial, LABEL_OWNER: owner()}


def create_arguments(engine: Engine, recipe: Recipe) -> dict[str, Any]:
    """Arguments for the SDK's `create_container`."""
    memory = int(recipe.limits.memory_mb * (1 << 20))
    host_config = engine.api.create_host_config(
        # Never more than the machine has: the engine refuses that.
        nano_cpus=int(min(recipe.limits.cpus, engine.info.cpus) * 1e9),
        mem_limit=memory,
        memswap_limit=memory,
        pids_limit=recipe.limits.pids,
        network_mode=_network_mode(recipe),
        # What lies in volumes is not in the image of a copy.
        volumes_from=[recipe.beside] if recipe.beside else None,
        cap_add=list(recipe.cap_add) or None,
        # With raw sockets a trial could forge addresses on the bridge that all share, and go past all routes.
        cap_drop=["NET_RAW"] if recipe.has_internet and "NET_RAW" not in recipe.cap_add else None,
        security_opt=["no-new-privileges"] if recipe.no_new_privileges else None,
        binds=[f"{recipe.tools_volume}:{TOOLS}:ro"],
        # The tmux socket must survive `rm -rf /tmp/*`, read-only roots and other users.
        tmpfs={f"{TOOLS}/run": "mode=1777,size=16m"},
    )
    return {
        "image": recipe.image.id,
        # Our own init, not the engine's: that one ends, and the container with it, when its child is killed.
        "entrypoint": [f"{TOOLS}/bin/init"],
        "command": [],
        "environment": dict(recipe.environment),
        # A copy has that of the container whose network it shares.
        "hostname": None if recipe.beside else recipe.hostname,
        "working_dir": recipe.workdir or recipe.image.workdir,
        "labels": recipe.labels,
        "host_config": host_config,
    }


def _network_mode(recipe: Recipe) -> str:
    if recipe.beside:
        return f"container:{recipe.beside}"
    return NETWORK if recipe.has_internet else "none"


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


def container_error(error: EngineError, doing: str) -> TrialError:
    """The TrialError for an engine's failure at `doing` ("creating", "starting") a container."""
    if is_disk_full(error):
        return TrialError("image_no_space", f"{doing} the container failed: {error}", stage=Stage.SANDBOX)
    if error.status is None:
        return unreachable(error)
    return TrialError("sandbox_failed", f"{doing} the container failed: {error}")


def unreachable(error: Exception) -> TrialError:
    """The TrialError for an engine that did not answer and did not come back."""
    return TrialError("engine_unreachable", str(error) or "the engine did not answer in time")


async def force_remove(engine: Engine, container: str) -> None:
    """Remove a container, trying twice: an engine under load sometimes says that a removal is already under way.

    Bounded. An engine that is away is waited for; if it does not come back, a later run removes the container.
    """
    for _ in range(2):
        try:
            await engine.call(engine.api.remove_container, container, force=True, v=True, deadline_sec=REMOVE_SEC)
            return
        except EngineError as error:
            if error.status in (404, 409) or isinstance(error, EngineUnreachable):
                return


async def run_helper(
    engine: Engine,
    image_id: str,
    tools_volume: str,
    script: str,
    *,
    labels: Mapping[str, str],
    **host_config: Any,
) -> str:
    """Run `script` with the tools volume's shell as root in a container with `host_config`; returns its output.

    Nothing of the image is run; it is only what a container must have. Raises EngineError, also where the script fails.
    """
    arguments: dict[str, Any] = {
        "image": image_id,
        "entrypoint": [BUSYBOX, "sh", "-c", script],
        "command": [],
        "user": "0",
        "labels": dict(labels),
        "host_config": engine.api.create_host_config(binds=[f"{tools_volume}:{TOOLS}:ro"], **host_config),
    }

    def once() -> str:
        api = engine.api
        created = api.create_container(**arguments)["Id"]
        try:
            api.start(created)
            code = api.wait(created, timeout=int(_HELPER_SEC))["StatusCode"]
            said: str = api.logs(created).decode("utf-8", "replace").strip()
        finally:
            with contextlib.suppress(Exception):
                api.remove_container(created, force=True, v=True)
        if code != 0:
            raise EngineError(f"a helper ended with {code}: {said[-200:]}")
        return said

    # Shielded: its thread cannot be stopped, and what it works on must not be removed under it.
    return await asyncio.shield(asyncio.ensure_future(engine.call(once, deadline_sec=2 * _HELPER_SEC)))
