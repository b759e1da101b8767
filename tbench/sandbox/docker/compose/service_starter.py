"""Starts the services of one trial in the order of their dependencies, and treats them as one sandbox."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.concurrency import all_of
from tbench.compose.project import MAIN, Condition, Project, Service, network_owner
from tbench.errors import TrialError
from tbench.sandbox.backend import BUSYBOX
from tbench.sandbox.docker.cleaning import list_labelled
from tbench.sandbox.docker.compose.conditions import wait_until_completed, wait_until_healthy
from tbench.sandbox.docker.compose.networks import (
    EngineNetwork,
    addresses,
    behind_router,
    create_network,
    holder_options,
    holder_recipe,
    hosts_of,
    needed_networks,
    offline_namespace,
)
from tbench.sandbox.docker.compose.options import ServiceEndpoint, ServiceOptions, service_options
from tbench.sandbox.docker.compose.service_setup import (
    choose_volumes,
    create_volume,
    fill_volume,
    prepare,
    single_files,
)
from tbench.sandbox.docker.container import Container
from tbench.sandbox.docker.create import (
    Recipe,
    container_errors,
    create,
    create_arguments,
    engine_errors,
    ensure_scratch_image,
    finish,
    last_output,
    run_helper,
)
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.networks import closing_script
from tbench.sandbox.docker.removing import force_remove, remove_or_remember
from tbench.sandbox.docker.router import Router
from tbench.sandbox.owner import LABEL_HOLDS, LABEL_PROJECT, LABEL_ROUTER, LABEL_SERVICE, NETWORK

_REMOVE_LINK = f"{BUSYBOX} ip link del eth0"
"""Script that removes the only link of a namespace. The engine shares /etc/hosts only if there is one."""
StartMain = Callable[[Recipe], Awaitable[str]]
"""Starts the container of `main` and returns its id; leaves nothing behind when it raises."""


@dataclass
class ServiceResources:
    """Containers, networks and volumes of a trial's services on the engine."""

    project: str = field(default_factory=lambda: uuid.uuid4().hex[:16])
    """Id that all of them have as a label."""
    containers: dict[str, str] = field(default_factory=dict)
    """Container ids by service."""
    holders: dict[str, str] = field(default_factory=dict)
    """Ids of containers that hold network namespaces, by service; under `main` the shared namespace."""
    router: Router | None = None
    networks: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)

    async def remove(self, engine: Engine) -> None:
        """Remove everything by force, in bounded time. Never raises."""
        await asyncio.gather(*(force_remove(engine, container) for container in self.containers.values()))
        removing = [force_remove(engine, holder) for holder in self.holders.values()]
        if self.router is not None:
            removing.append(self.router.remove())
        await asyncio.gather(*removing)
        await asyncio.gather(
            *(remove_or_remember(engine, "network", name) for name in self.networks),
            *(remove_or_remember(engine, "volume", name, force=True) for name in self.volumes),
        )

    async def logs(self, engine: Engine) -> dict[str, bytes]:
        """Return the last output of each service except `main`, by name."""
        names = [name for name in self.containers if name != MAIN]
        output = await asyncio.gather(*(last_output(engine, self.containers[name]) for name in names))
        return dict(zip(names, output, strict=True))


async def find_services(engine: Engine, project: str) -> tuple[ServiceResources, dict[str, str]]:
    """Find the services of a project by its id, and continue paused ones. Raises EngineError.

    Also returns their image ids by name.
    """
    label = f"{LABEL_PROJECT}={project}"
    listed = await list_labelled(engine, "container", label)
    containers = [each for each in listed if LABEL_SERVICE in each["Labels"]]  # without helpers that fill volumes
    paused = [each["Id"] for each in containers if each["State"] == "paused"]
    await asyncio.gather(*(engine.call(engine.api.unpause, each) for each in paused))
    networks = [each["Name"] for each in await list_labelled(engine, "network", label)]
    volumes = [each["Name"] for each in await list_labelled(engine, "volume", label)]
    found = ServiceResources(project, networks=networks, volumes=volumes)
    images = {}
    for container in containers:
        service = container["Labels"][LABEL_SERVICE]
        if container["Labels"].get(LABEL_HOLDS):
            found.holders[service] = container["Id"]
        else:
            found.containers[service], images[service] = container["Id"], container["ImageID"]
    return found, images


class ServiceStarter:
    """Starts the services of one trial."""

    def __init__(
        self,
        engine: Engine,
        project: Project,
        recipes: Mapping[str, Recipe],
        *,
        folder: Path,
        pool: str,
        start_main: StartMain,
        is_offline: bool,
    ) -> None:
        """`recipes` are the services' by name; `folder` has the compose file; `is_offline`: the task has no network."""
        self.made = ServiceResources()
        self._engine = engine
        self._project = project
        self._recipes = recipes
        self._folder = folder
        self._pool = pool
        self._start_main = start_main
        self._behind = self._sharing_namespace(is_offline and not recipes[MAIN].has_internet)
        """Services that share one namespace, which has a router or no network."""
        self._networks: dict[str, EngineNetwork] = {}
        self._addresses: dict[tuple[str, str], str] = {}
        self._volumes = choose_volumes(project, folder)
        self._started = {name: asyncio.Event() for name in project.services}
        self._waits: dict[tuple[str, Condition], asyncio.Task[None]] = {}

    async def start(self) -> ServiceResources:
        """Start all services, and wait until each is healthy, or runs without a check, or has ended with 0.

        Raises TrialError with the services' logs, and then leaves nothing behind.
        """
        try:
            await self._prepare()
            await all_of(*(self._start(service) for service in self._project.services.values()))
            await all_of(*(self._wait_for(name, "service_healthy") for name in self._project.services))
        except TrialError as error:
            logs, masks = await self.made.logs(self._engine), self._recipes[MAIN].proxy.masks
            files = {f"services/{name}.log": masks.mask(log) for name, log in logs.items()}
            await asyncio.shield(self.made.remove(self._engine))
            error.files = {**files, **error.files}
            raise
        except BaseException:
            await asyncio.shield(self.made.remove(self._engine))
            raise
        finally:
            for wait in self._waits.values():
                wait.cancel()
            await asyncio.gather(*self._waits.values(), return_exceptions=True)
        return self.made

    def _sharing_namespace(self, is_offline: bool) -> frozenset[str]:
        if self._recipes[MAIN].network is not None:
            return behind_router(self._project)
        return offline_namespace(self._project) if is_offline else frozenset()

    # -- networks and volumes --------------------------------------------------------------------

    async def _prepare(self) -> None:
        """Create networks, volumes and the router concurrently, then the shared namespace."""
        recipe = self._recipes[MAIN]
        await all_of(
            *(self._make_network(name) for name in needed_networks(self._project, self._behind)),
            *(self._make_volume(key, name) for key, name in self._volumes.items()),
            *([self._start_router(recipe)] if self._behind and recipe.network is not None else []),
        )
        has_name_server = self._engine.info.has_name_server
        self._addresses = addresses(self._project, self._behind, self._networks, has_name_server=has_name_server)
        if self._behind:
            await self._hold_shared_network(recipe)

    async def _start_router(self, recipe: Recipe) -> None:
        labels = {**recipe.labels, LABEL_ROUTER: self.made.project}
        starting = Router.start(self._engine, recipe.tools_volume, labels, recipe.name_servers)
        with container_errors("starting the router of"):
            self.made.router = await starting

    async def _hold_shared_network(self, recipe: Recipe) -> None:
        """Start the container that holds the shared namespace, and link it with the router. Raises TrialError."""
        hostname, router = self._project.main.hostname or recipe.hostname, self.made.router
        options = holder_options(
            self._project, self._behind, self._networks, self._addresses, hostname, has_router=router is not None
        )
        needs_link = options.network_mode == "none" and not self._engine.info.shares_hosts_offline
        if needs_link:
            options = replace(options, network_mode=NETWORK)
        with container_errors("making a network for"):
            labels = {LABEL_PROJECT: self.made.project, LABEL_SERVICE: MAIN}
            holder = await self._start_holder(MAIN, holder_recipe(recipe, labels), options)
            if needs_link:
                await self._in_network_of(holder, recipe, _REMOVE_LINK)
            if router is not None and recipe.network is not None:
                await router.link(holder, recipe.closed_to)
                await router.use(recipe.network)

    async def _make_network(self, name: str) -> None:
        network, any_recipe = self._project.networks[name], self._recipes[MAIN]
        if network.external is not None:
            self._networks[name] = EngineNetwork(network.external)
            return
        members = sum(name in service.networks for service in self._project.services.values())
        inner = network.internal or not any_recipe.has_internet or bool(any_recipe.closed_to)

        async def make() -> None:
            labels = self._labels(any_recipe)
            made = self._networks[name] = await create_network(self._engine, self._pool, members, labels, inner=inner)
            self.made.networks.append(made.name)

        await finish(make())

    async def _make_volume(self, key: str, name: str) -> None:
        kind, _, source = key.partition(":")
        volume = self._project.volumes[source] if kind == "volume" else None
        if volume is not None and volume.external is not None:
            return
        labels = self._labels(self._recipes[MAIN])
        self.made.volumes.append(name)
        await finish(create_volume(self._engine, name, labels))
        copied = self._folder / source if volume is None else None
        if copied.exists() if copied is not None else volume is not None and volume.world_writable:
            await fill_volume(self._engine, name, copied, labels)

    def _labels(self, recipe: Recipe) -> dict[str, str]:
        return {**recipe.labels, LABEL_PROJECT: self.made.project}

    # -- containers ------------------------------------------------------------------------------

    async def _start(self, service: Service) -> None:
        """Start one service when its dependencies fulfil their conditions."""
        await all_of(*(self._wait_for(name, condition) for name, condition in service.needs.items()))
        recipe = self._recipe(service)
        if service.name == MAIN:
            self.made.containers[MAIN] = await self._start_main(recipe)
        else:
            await self._start_sidecar(service, recipe)
        self._started[service.name].set()

    async def _start_sidecar(self, service: Service, recipe: Recipe) -> None:
        engine = self._engine
        if recipe.has_internet and recipe.closed_to and recipe.options and recipe.options.has_own_network:
            holder = await self._hold_network(service, recipe)
            options = replace(recipe.options, network_mode=f"container:{holder}", endpoints=())
            recipe = replace(recipe, options=options)
        container = self.made.containers[service.name] = await create(engine, create_arguments(engine, recipe))
        with container_errors(f"starting {service.name}:"):
            if recipe.options is not None:
                await prepare(engine, container, recipe.options)
            await engine.call(engine.api.start, container)

    async def _hold_network(self, service: Service, recipe: Recipe) -> str:
        """Start a container that only holds the service's network namespace, and block addresses there; returns its id.

        In the service's own container it would be too late, since its program runs from the start.
        """
        assert recipe.options is not None
        with container_errors(f"closing the network of {service.name} for"):
            plain = replace(recipe.options, container={}, host={}, files=())
            holder = await self._start_holder(service.name, recipe, plain)
            await self._in_network_of(holder, recipe, closing_script(recipe.closed_to))
        return holder

    async def _in_network_of(self, holder: str, recipe: Recipe, script: str) -> None:
        """Run a script that changes the network of a holder. Raises EngineError."""
        more: dict[str, Any] = {"network_mode": f"container:{holder}", "cap_add": ["NET_ADMIN"]}
        await run_helper(self._engine, recipe.tools_volume, script, labels=recipe.labels, **more)

    async def _start_holder(self, service: str, recipe: Recipe, options: ServiceOptions) -> str:
        """Start a container that only holds a network namespace; returns its id. Raises TrialError, EngineError."""
        engine = self._engine
        labels = {**recipe.more_labels, LABEL_HOLDS: "network"}
        usual = create_arguments(engine, replace(recipe, options=options, more_labels=labels, is_proxied=False))
        holder = await create(engine, {**usual, "image": await ensure_scratch_image(engine)})
        self.made.holders[service] = holder
        await prepare(engine, holder, options)
        await engine.call(engine.api.start, holder)
        return holder

    def _recipe(self, service: Service) -> Recipe:
        """Return the recipe of a service with networks, volumes and other options of the compose file."""
        recipe = self._recipes[service.name]
        mode = self._network_mode(service, recipe)
        endpoints = tuple(
            ServiceEndpoint(
                self._networks[name].name, (service.name, *aliases), self._addresses.get((service.name, name))
            )
            for name, aliases in service.networks.items()
            if service.name not in self._behind
        )
        # With blocked addresses the trial's own networks are inner, and the shared bridge gives access to the outside.
        reaches_out = any(not self._project.networks[name].internal for name in service.networks)
        if recipe.closed_to and recipe.has_internet and endpoints and reaches_out and mode is None:
            endpoints = (*endpoints, ServiceEndpoint(NETWORK))
        options = service_options(
            service,
            network_mode=mode,
            endpoints=endpoints,
            volumes=self._volumes,
            is_podman=self._engine.info.is_podman,
            resolves_public_names=recipe.has_internet and reaches_out,
        )
        if endpoints and not self._engine.info.has_name_server:
            options = options.with_hosts(hosts_of(self._project, service, self._addresses))
        if self._shares_outside_network(service):
            options = options.without_capability("NET_RAW")
        options = replace(options, files=single_files(service, self._volumes, self._folder))
        labels = {**service.labels, LABEL_PROJECT: self.made.project, LABEL_SERVICE: service.name}
        if service.name == MAIN and self.made.router is not None:
            labels[LABEL_ROUTER] = self.made.project
        has_internet = recipe.has_internet and (mode == NETWORK or (mode is None and reaches_out))
        is_proxied = recipe.is_proxied and self._reaches_outside(service)
        return replace(recipe, options=options, more_labels=labels, has_internet=has_internet, is_proxied=is_proxied)

    def _reaches_outside(self, service: Service) -> bool:
        """Whether the network of a service, possibly shared with another, reaches beyond the trial's own networks."""
        holder = network_owner(self._project.services, service)
        reaches_out = any(not self._project.networks[name].internal for name in holder.networks)
        return reaches_out or holder.network_mode in ("bridge", "host")

    def _shares_outside_network(self, service: Service) -> bool:
        """Whether it shares a network that reaches outside, where raw sockets would bypass blocked addresses."""
        holder = network_owner(self._project.services, service)
        if holder.name in self._behind:
            return self.made.router is not None
        is_out = self._reaches_outside(service) and holder.network_mode != "host"
        return holder is not service and is_out and self._recipes[holder.name].has_internet

    def _network_mode(self, service: Service, recipe: Recipe) -> str | None:
        if service.name in self._behind and MAIN in self.made.holders:
            return f"container:{self.made.holders[MAIN]}"
        if (shared := service.shares_network_of) is not None:
            holder = self.made.holders.get(MAIN if shared in self._behind else shared)
            return f"container:{holder or self.made.containers[shared]}"
        if service.network_mode == "bridge":
            return NETWORK if recipe.has_internet else "none"
        return service.network_mode or (None if service.networks else "none")

    async def _wait_for(self, name: str, condition: Condition) -> None:
        """Wait until a service fulfils a condition; several waiters share one check."""
        await self._started[name].wait()
        if condition == "service_started":
            return
        waiting = self._waits.get((name, condition))
        if waiting is None:
            wait = wait_until_healthy if condition == "service_healthy" else wait_until_completed
            waiting = asyncio.create_task(wait(self._engine, name, self.made.containers[name]))
            self._waits[name, condition] = waiting
        await asyncio.shield(waiting)


_STOP_SEC = 30.0


class ComposeContainer(Container):
    """The agent's container (`main`) with its services, which are kept and removed together with it.

    Copies share its network, where services are known by their names; a snapshot only contains `main`.
    """

    def __init__(self, main: Container, resources: ServiceResources, sidecars: Mapping[str, Recipe]) -> None:
        """`sidecars` are the recipes of the services except `main`."""
        recipe = main._recipe
        if recipe.options is None:
            # A kept container, whose network fresh containers share.
            recipe = replace(recipe, options=ServiceOptions(network_mode=f"container:{main.container_id}"))
        super().__init__(main._engine, main.container_id, recipe, main._memory_watch, main._originals)
        self.lease, self.disk = main.lease, main.disk
        self._resources = resources
        self._router = resources.router = resources.router or main._router
        self._sidecars = sidecars

    async def pause(self) -> None:
        others = [self.service(name) for name in self._sidecars if name in self._resources.containers]
        # All at once: there is little time, and a container that cannot be paused must not keep the others running.
        main, *rest = await asyncio.gather(
            super().pause(), *(Container.pause(each) for each in others), return_exceptions=True
        )
        # A service that has ended cannot be paused.
        for failed in (main, *(each for each in rest if not isinstance(each, TrialError))):
            if isinstance(failed, BaseException):
                raise failed

    @property
    def ran_out_of_memory(self) -> bool:
        return any(self.service(name).ran_out_of_memory for name in self._sidecars) or super().ran_out_of_memory

    def service(self, name: str) -> Container:
        if name == MAIN:
            return self
        if name not in self._sidecars or name not in self._resources.containers:
            known = ", ".join(self._resources.containers)
            raise TrialError("sandbox_failed", f"no service {name!r}; known services: {known}")
        return Container(self._engine, self._resources.containers[name], self._sidecars[name], self._memory_watch)

    async def stop_main(self) -> None:
        with engine_errors("stopping the agent's container"):
            try:
                await self._engine.call(self._engine.api.kill, self.container_id, deadline_sec=_STOP_SEC)
            except EngineError as error:
                # Ended already, or gone.
                if error.status not in (404, 409):
                    raise

    async def logs(self) -> Mapping[str, bytes]:
        own, others = await asyncio.gather(super().logs(), self._resources.logs(self._engine))
        return {**own, **{f"services/{name}.log": self._masks.mask(log) for name, log in others.items()}}

    async def keep(self) -> str:
        kept = await super().keep()
        others = [self.service(name) for name in self._sidecars]
        recipes = {MAIN: self._recipe, **self._sidecars}
        others += [Container(self._engine, each, recipes[name]) for name, each in self._resources.holders.items()]
        await asyncio.gather(*(other.keep() for other in others))
        return kept

    async def remove(self) -> None:
        await self._resources.remove(self._engine)
        self.lease.release()
