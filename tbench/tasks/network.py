"""What a task says of networks: which hosts its container may reach at the start, and while agent and verifier work."""

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
    """Who may be reached: everybody, nobody, or only some hosts."""

    mode: NetworkMode = "public"
    hosts: tuple[str, ...] = ()
    """Names, `*.name` for all below a name, and networks of addresses; empty but for "allowlist"."""

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts that are given by name."""
        return tuple(host for host in self.hosts if _network(host) is None)

    @property
    def networks(self) -> tuple[ipaddress.IPv4Network, ...]:
        """The hosts that are given by IPv4 address, without overlap."""
        found = map(_network, self.hosts)
        of_version_4 = [network for network in found if isinstance(network, ipaddress.IPv4Network)]
        return tuple(ipaddress.collapse_addresses(of_version_4))


@dataclass(frozen=True)
class Networks:
    """The networks of one container over its life."""

    start: NetworkPolicy
    agent: NetworkPolicy
    verifier: NetworkPolicy
    of_steps: frozenset[NetworkPolicy] = frozenset()
    """Those that the steps of a task ask for."""

    @property
    def is_plain(self) -> bool:
        """Whether the container has one network for life, or none."""
        return {self.agent, self.verifier, *self.of_steps} == {self.start} and self.start.mode != "allowlist"


def allowed_host(text: str) -> str:
    """A host of `allowed_hosts` as it is compared: in small letters, without a dot at its end. Raises ValueError."""
    host = text.strip().lower().removesuffix(".")
    if (network := _network(host)) is not None:
        return str(network) if "/" in host else str(network.network_address)
    name = host.removeprefix("*.")
    if not name or len(name) > _LONGEST_NAME or not all(map(_LABEL.fullmatch, name.split("."))):
        raise ValueError(
            "is a host such as example.com, *.example.com, 192.0.2.7 or 192.0.2.0/24; no URL, path or port"
        )
    if host != name and _network(name) is not None:
        raise ValueError("has a name after '*.', not an address")
    return host


def _network(host: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return None if "%" in host else ipaddress.ip_network(host)
    except ValueError:
        return None
