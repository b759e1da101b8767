"""The networks of one trial's services, and the namespace that those without a network of their own share.

The engine's own pools end at some thirty networks. With an `inner` network the engine's machine has no address there,
so that it cannot be reached either.
"""

from __future__ import annotations

import ipaddress
import random
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tbench.compose.project import DEFAULT_NETWORK, Project, Service
from tbench.errors import TrialError
from tbench.sandbox.docker.compose.options import NO_SERVERS, ServiceEndpoint, ServiceOptions
from tbench.sandbox.docker.create import ROUTER, TRIAL, Recipe, engine_errors
from tbench.sandbox.docker.engine import Engine, EngineError

_LONGEST_PREFIX = 28
_SPARE = 6
"""Addresses of a network that no service has: its own two, the gateway's, and those of copies for a verifier."""
_TRIES = 30
_TAKEN = ("overlap", "is already used", "already in use")


@dataclass(frozen=True)
class EngineNetwork:
    """A network that services are on, as the engine has it."""

    name: str
    subnet: str | None = None
    """Its addresses, where they were chosen here."""

    def address(self, number: int) -> str | None:
        """One of its highest addresses, which the engine gives last to those that ask for any."""
        return None if self.subnet is None else str(ipaddress.IPv4Network(self.subnet)[-2 - number])


async def create_network(
    engine: Engine, pool: str, containers: int, labels: Mapping[str, str], *, inner: bool
) -> EngineNetwork:
    """Make a network for so many containers. Raises TrialError.

    An inner network leads nowhere else. Where another process takes the addresses first, others are tried.
    """
    name = f"tbench-{uuid.uuid4().hex[:16]}"
    with engine_errors("making a network for the services"):
        used = await _used(engine)
        for subnet in _free(pool, containers, used):
            try:
                await _create(engine, name, subnet, labels, inner=inner)
                return EngineNetwork(name, subnet)
            except EngineError as error:
                if not any(words in str(error) for words in _TAKEN):
                    raise
    raise TrialError(
        "sandbox_failed",
        f"no addresses are free in {pool} for a network of services: 'tbench clean' removes what killed runs left, "
        "and --network-pool names other addresses",
    )


async def _create(engine: Engine, name: str, subnet: str, labels: Mapping[str, str], *, inner: bool) -> None:
    options = {"com.docker.network.bridge.inhibit_ipv4": "true"} if inner else {}
    await engine.call(
        engine.api.create_network,
        name,
        driver="bridge",
        check_duplicate=True,
        internal=inner,
        labels=dict(labels),
        options=options,
        ipam={"Driver": "default", "Config": [{"Subnet": subnet}]},
    )


async def _used(engine: Engine) -> list[ipaddress.IPv4Network]:
    """The IPv4 addresses of all networks that the engine has."""
    found = []
    for network in await engine.call(engine.api.networks):
        for entry in (network.get("IPAM") or {}).get("Config") or ():
            try:
                found.append(ipaddress.IPv4Network(entry.get("Subnet") or "", strict=False))
            except ValueError:
                continue  # IPv6
    return found


def _free(pool: str, containers: int, used: Iterable[ipaddress.IPv4Network]) -> Iterator[str]:
    """Some subnets of the pool that nobody has, in a random order: other processes choose at the same time."""
    prefix = min(_LONGEST_PREFIX, 32 - (containers + _SPARE - 1).bit_length())
    known = list(used)
    subnets = list(ipaddress.IPv4Network(pool).subnets(new_prefix=prefix))
    random.shuffle(subnets)
    free = (subnet for subnet in subnets if not any(subnet.overlaps(other) for other in known))
    for _, subnet in zip(range(_TRIES), free, strict=False):
        yield str(subnet)


# The services that share one namespace: `main`, and those beside it whose file names no other network.
#
# As in Harbor they do where the network changes, is open to some hosts only, or where the task wants none: each
# answers on localhost as well. Their names are in its /etc/hosts. Services with networks of their own stay on these,
# which lead nowhere else. The way out is a router, or there is none:
#
# main, services - eth0 ====== inside - router - eth0 ====== bridge of the trials

LOCALHOST = "127.0.0.1"


def within(project: Project) -> frozenset[str]:
    """The services that share a namespace without a way out; none where `main` would be alone in it."""
    found = behind_router(project)
    return found if len(found) > 1 else frozenset()


def behind_router(project: Project) -> frozenset[str]:
    """The services whose way out a router is; none where the network of `main` leads nowhere, or is the host's."""
    first = _network_of_main(project)
    if first.network_mode is not None:
        return frozenset({first.name} if first.network_mode == "bridge" else ())
    if all(project.networks[name].internal for name in first.networks):
        return frozenset()
    if set(first.networks) != {DEFAULT_NETWORK}:
        return frozenset({first.name})
    return frozenset(name for name, each in project.services.items() if set(each.networks) == {DEFAULT_NETWORK})


def _network_of_main(project: Project) -> Service:
    """The service whose network `main` has: mostly its own."""
    return network_owner(project, project.main)


def network_owner(project: Project, service: Service) -> Service:
    """The service whose network a service has, in the end."""
    found = service
    for _ in project.services:
        found = project.services[found.shares_network_of or found.name]
    return found


def needed_networks(project: Project, behind: Collection[str]) -> Iterator[str]:
    """The networks that somebody is on who is not behind the router."""
    for name, network in project.networks.items():
        if network.external is not None or any(True for _ in _others_on(project, behind, name)):
            yield name


def addresses(
    project: Project, behind: Collection[str], networks: Mapping[str, EngineNetwork]
) -> dict[tuple[str, str], str]:
    """Addresses of the others, by service and network, on the networks of `main`: they have to be known beforehand."""
    return {
        (service, name): address
        for name in _network_of_main(project).networks
        if name in networks and behind
        for number, service in enumerate(_others_on(project, behind, name))
        if (address := networks[name].address(number)) is not None
    }


def _others_on(project: Project, behind: Collection[str], network: str) -> Iterator[str]:
    return (name for name, each in project.services.items() if name not in behind and network in each.networks)


def holder_options(
    project: Project,
    behind: Collection[str],
    networks: Mapping[str, EngineNetwork],
    others: Mapping[tuple[str, str], str],
    hostname: str | None,
    *,
    has_router: bool,
) -> ServiceOptions:
    """What of the container is unusual that holds the namespace: its networks, and the names that are known in it."""
    here = TRIAL if has_router else LOCALHOST
    names = {name: [name, *(alias for each in own.values() for alias in each)] for name, own in _aliases(project)}
    hosts = {alias: address for (service, _), address in others.items() for alias in names[service]}
    for service in behind:
        hosts |= project.services[service].extra_hosts
        own = (*names[service], project.services[service].hostname)
        hosts |= {alias: here for alias in own if alias}
    hosts |= {hostname: here} if hostname else {}
    known_by = tuple(alias for service in behind for alias in names[service])
    own_networks = _network_of_main(project).networks
    endpoints = tuple(ServiceEndpoint(networks[name].name, known_by) for name in own_networks if name in networks)
    servers = {"dns": [ROUTER]} if has_router else NO_SERVERS
    return ServiceOptions(
        host={**servers, "extra_hosts": hosts}, network_mode=None if endpoints else "none", endpoints=endpoints
    )


def _aliases(project: Project) -> Iterator[tuple[str, Mapping[str, tuple[str, ...]]]]:
    return ((name, service.networks) for name, service in project.services.items())


def holder_recipe(recipe: Recipe, labels: Mapping[str, str]) -> Recipe:
    """The recipe of that container, of `main`'s: nothing is started in it."""
    return replace(recipe, more_labels=labels, starts=False, environment={}, gpus=0, storage_mb=None, agent_user=None)
