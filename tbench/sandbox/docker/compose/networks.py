"""Networks of one trial's services, and the network namespace that several services share.

Subnets are chosen here, since the engine's own pools are exhausted after about thirty networks. An `inner` network has
no route to the outside and no address of the engine's machine, so neither can be reached.
"""

from __future__ import annotations

import ipaddress
import random
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from tbench.compose.project import DEFAULT_NETWORK, Project, Service, network_owner
from tbench.errors import TrialError
from tbench.sandbox.docker.compose.options import NO_SERVERS, ServiceEndpoint, ServiceOptions
from tbench.sandbox.docker.create import ROUTER, TRIAL, Recipe, engine_errors
from tbench.sandbox.docker.engine import Engine, EngineError

_LONGEST_PREFIX = 28
_SPARE = 6
"""Addresses beside one per service: network, broadcast, gateway, and copies for a verifier."""
_ATTEMPTS = 30
_TAKEN = ("overlap", "is already used", "already in use")


@dataclass(frozen=True)
class EngineNetwork:
    """A network of services on the engine."""

    name: str
    subnet: str | None = None
    """Subnet, if it was chosen here."""

    def address(self, number: int) -> str | None:
        """Return one of its highest addresses, which the engine assigns last."""
        return None if self.subnet is None else str(ipaddress.IPv4Network(self.subnet)[-2 - number])


async def create_network(
    engine: Engine, pool: str, containers: int, labels: Mapping[str, str], *, inner: bool
) -> EngineNetwork:
    """Create a network for a number of containers. Raises TrialError.

    An inner network has no route to the outside. If another process takes the addresses first, others are tried.
    """
    name = f"tbench-{uuid.uuid4().hex[:16]}"
    with engine_errors("making a network for the services"):
        used = await _used_subnets(engine)
        for subnet in _free_subnets(pool, containers, used):
            try:
                await _create(engine, name, subnet, labels, inner=inner)
                return EngineNetwork(name, subnet)
            except EngineError as error:
                if not any(text in str(error) for text in _TAKEN):
                    raise
    raise TrialError(
        "sandbox_failed",
        f"no free addresses in {pool} for a network of services: remove leftovers of killed runs with 'tbench clean', "
        "or use other addresses with --network-pool",
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


async def _used_subnets(engine: Engine) -> list[ipaddress.IPv4Network]:
    """Return the IPv4 subnets of all networks on the engine."""
    found = []
    for network in await engine.call(engine.api.networks):
        for entry in (network.get("IPAM") or {}).get("Config") or ():
            try:
                found.append(ipaddress.IPv4Network(entry.get("Subnet") or "", strict=False))
            except ValueError:
                continue  # IPv6
    return found


def _free_subnets(pool: str, containers: int, used: Iterable[ipaddress.IPv4Network]) -> Iterator[str]:
    """Yield free subnets of the pool, in random order, since other processes choose at the same time."""
    prefix = min(_LONGEST_PREFIX, 32 - (containers + _SPARE - 1).bit_length())
    known = list(used)
    subnets = list(ipaddress.IPv4Network(pool).subnets(new_prefix=prefix))
    random.shuffle(subnets)
    free = (subnet for subnet in subnets if not any(subnet.overlaps(other) for other in known))
    for _, subnet in zip(range(_ATTEMPTS), free, strict=False):
        yield str(subnet)


# As in Harbor, `main` and the services without explicit networks share one namespace if the task's network changes,
# allows only some hosts, or is disabled. They reach each other on localhost, with their names in /etc/hosts. Services
# with explicit networks stay on them, without a route to the outside. The shared namespace has a router, or no route:
#
# main, services - eth0 ====== inside - router - eth0 ====== bridge of the trials

LOCALHOST = "127.0.0.1"


def offline_namespace(project: Project) -> frozenset[str]:
    """Return the services that share a namespace without a router; empty if only `main` would be there."""
    found = behind_router(project)
    return found if len(found) > 1 else frozenset()


def behind_router(project: Project) -> frozenset[str]:
    """Return the services behind a router; empty if the network of `main` is internal, the host's or none."""
    first = network_owner(project.services, project.main)
    if first.network_mode is not None:
        return frozenset({first.name} if first.network_mode == "bridge" else ())
    if all(project.networks[name].internal for name in first.networks):
        return frozenset()
    if set(first.networks) != {DEFAULT_NETWORK}:
        return frozenset({first.name})
    return frozenset(name for name, each in project.services.items() if set(each.networks) == {DEFAULT_NETWORK})


def needed_networks(project: Project, behind: Collection[str]) -> Iterator[str]:
    """Yield the external networks, and those with members that are not behind the router."""
    for name, network in project.networks.items():
        if network.external is not None or any(True for _ in _others_on(project, behind, name)):
            yield name


def addresses(
    project: Project, behind: Collection[str], networks: Mapping[str, EngineNetwork], *, has_name_server: bool = True
) -> dict[tuple[str, str], str]:
    """Choose addresses, by service and network, for /etc/hosts, which is written before the services start.

    If the networks have a name server, only services behind a router need them, and only on the networks of `main`.
    """
    of_main = tuple(network_owner(project.services, project.main).networks) if behind else ()
    found: dict[tuple[str, str], str] = {}
    for name in of_main if has_name_server else networks:
        members: list[Collection[str]] = [[each] for each in _others_on(project, behind, name)]
        if not has_name_server and name in of_main:
            members.append(behind)
        for number, services in enumerate(members if name in networks else ()):
            if (address := networks[name].address(number)) is not None:
                found |= {(service, name): address for service in services}
    return found


def hosts_of(project: Project, service: Service, others: Mapping[tuple[str, str], str]) -> dict[str, str]:
    """Return the addresses that a service finds in its networks, by the names of the services there."""
    return {
        alias: address
        for (name, network), address in others.items()
        if network in service.networks
        for alias in (name, *project.services[name].networks[network])
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
    """Return the options of the container that holds the shared namespace: its networks, and names of services."""
    here = TRIAL if has_router else LOCALHOST
    names = {name: [name, *chain(*each.networks.values())] for name, each in project.services.items()}
    first = network_owner(project.services, project.main)
    known = ((service, address) for (service, network), address in others.items() if network in first.networks)
    hosts = {alias: address for service, address in known for alias in names[service]}
    for service in behind:
        hosts |= project.services[service].extra_hosts
        own = (*names[service], project.services[service].hostname)
        hosts |= {alias: here for alias in own if alias}
    hosts |= {hostname: here} if hostname else {}
    known_by = tuple(alias for service in behind for alias in names[service])
    endpoints = tuple(
        ServiceEndpoint(networks[name].name, known_by, others.get((first.name, name)))
        for name in first.networks
        if name in networks
    )
    servers = {"dns": [ROUTER]} if has_router else NO_SERVERS
    return ServiceOptions(
        host={**servers, "extra_hosts": hosts}, network_mode=None if endpoints else "none", endpoints=endpoints
    )


def holder_recipe(recipe: Recipe, labels: Mapping[str, str]) -> Recipe:
    """Turn the recipe of `main` into the recipe of the container that holds the shared namespace."""
    return replace(recipe, more_labels=labels, starts=False, environment={}, gpus=0, storage_mb=None, agent_user=None)
