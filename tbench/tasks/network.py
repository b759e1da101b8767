"""Network policies of tasks: the hosts that a container can reach in its start, agent and verifier phases."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal

NetworkMode = Literal["public", "no-network", "allowlist"]

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_LONGEST_NAME = 253


@dataclass(frozen=True)
class NetworkPolicy:
    """The hosts that can be reached: all, none, or an allowlist."""

    mode: NetworkMode = "public"
    hosts: tuple[str, ...] = ()
    """Host names, `*.name` for all subdomains, and IP networks; empty unless the mode is "allowlist"."""

    @property
    def names(self) -> tuple[str, ...]:
        """Hosts given by name."""
        return tuple(host for host in self.hosts if _network(host) is None)

    @property
    def networks(self) -> tuple[ipaddress.IPv4Network, ...]:
        """Hosts given by IPv4 address, as networks without overlap."""
        found = map(_network, self.hosts)
        of_version_4 = [network for network in found if isinstance(network, ipaddress.IPv4Network)]
        return tuple(ipaddress.collapse_addresses(of_version_4))


@dataclass(frozen=True)
class Networks:
    """Network policies of one container in its phases."""

    start: NetworkPolicy
    agent: NetworkPolicy
    verifier: NetworkPolicy
    of_steps: frozenset[NetworkPolicy] = frozenset()
    """Policies of all task steps."""

    @property
    def is_plain(self) -> bool:
        """Whether the container has the same network, or none, in all phases."""
        return {self.agent, self.verifier, *self.of_steps} == {self.start} and self.start.mode != "allowlist"


def normalise_host(text: str) -> str:
    """Normalise a host of `allowed_hosts`: lower case, no trailing dot. Raises ValueError."""
    host = text.strip().lower().removesuffix(".")
    if (network := _network(host)) is not None:
        return str(network) if "/" in host else str(network.network_address)
    name = host.removeprefix("*.")
    if not name or len(name) > _LONGEST_NAME or not all(map(_LABEL.fullmatch, name.split("."))):
        raise ValueError(
            "must be a host such as example.com, *.example.com, 192.0.2.7 or 192.0.2.0/24, not a URL, path or port"
        )
    if host != name and _network(name) is not None:
        raise ValueError("must have a name after '*.', not an address")
    return host


def _network(host: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return None if "%" in host else ipaddress.ip_network(host)
    except ValueError:
        return None
