"""The networks of one trial's services: small ones with addresses of a pool of tbench's own.

The engine's own pools end at some thirty networks. With an `inner` network the engine's machine has no address there,
so that it cannot be reached either.
"""

from __future__ import annotations

import ipaddress
import random
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tbench.errors import TrialError
from tbench.sandbox.docker.create import engine_errors
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
