"""Networks of trials, and the addresses that are closed to them.

`--network` overrules the tasks; `--block-host` closes the engine's host and the model endpoint to trials that have a
network. Both change what is measured.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from tbench.config.settings import NetworkChoice
from tbench.errors import UsageError
from tbench.sandbox.backend import BUSYBOX
from tbench.sandbox.docker.create import run_helper
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.labels import LABEL_SHARED, NETWORK
from tbench.tasks.network import NetworkPolicy, Networks

_ICC = "com.docker.network.bridge.enable_icc"
_CLOUD_METADATA = "169.254.169.254"
_INET = re.compile(r"\binet ([\d.]+)")
_RESOLVE_SEC = 20.0


def networks_of(choice: NetworkChoice, networks: Networks) -> Networks:
    """The networks of a container, by the run's choice and the task's."""
    if choice == "task":
        return networks
    chosen = NetworkPolicy("public" if choice == "bridge" else "no-network")
    return Networks(chosen, chosen, chosen)


async def ensure_network(engine: Engine) -> None:
    """Make the one bridge that all trials share; containers on it cannot reach each other.

    Raises UsageError for a network of that name that is not ours, and EngineError.
    """
    for network in await engine.call(engine.api.networks, names=[f"^{NETWORK}$"]):
        if (why := _unfit(network, tells_options=not engine.info.is_podman)) is not None:
            raise UsageError(
                f"the engine's network '{NETWORK}' {why}: it is not ours; remove it: docker network rm {NETWORK}"
            )
        return
    # Another run may have made it in the meantime.
    try:
        await engine.call(
            engine.api.create_network,
            NETWORK,
            driver="bridge",
            check_duplicate=True,
            labels={LABEL_SHARED: "network"},
            options={_ICC: "false"},
        )
    except EngineError as error:
        if error.status == 409:
            return
        raise UsageError(
            f"the engine cannot make the network '{NETWORK}': {error}; remove networks that nobody needs "
            "(docker network prune)"
        ) from error


def _unfit(network: Mapping[str, Any], *, tells_options: bool) -> str | None:
    """Why trials must not be put on this network; None for ours."""
    if LABEL_SHARED not in (network.get("Labels") or {}):
        return f"lacks the label {LABEL_SHARED}"
    if tells_options and (network.get("Options") or {}).get(_ICC, "true") != "false":
        return "lets containers reach each other"
    return None


async def host_addresses(
    engine: Engine, image_id: str, tools_volume: str, labels: Mapping[str, str]
) -> tuple[str, ...]:
    """IPv4 addresses of the engine's host, but for loopback, as a helper sees them there. Raises EngineError."""
    said = await run_helper(engine, image_id, tools_volume, f"{BUSYBOX} ip -o addr", labels=labels, network_mode="host")
    found = [address for address in _INET.findall(said) if not ipaddress.ip_address(address).is_loopback]
    if not found:
        raise EngineError(f"the addresses of the engine's host cannot be told: {said[:200]!r}")
    return tuple(dict.fromkeys(found))


async def endpoint_addresses(base_url: str | None) -> tuple[str, ...]:
    """IPv4 addresses of the endpoint as this machine resolves them; loopback is closed anyway. Raises UsageError."""
    host = urlsplit(base_url or "").hostname
    if host is None:
        return ()
    try:
        async with asyncio.timeout(_RESOLVE_SEC):
            found = await asyncio.get_running_loop().getaddrinfo(host, None, family=socket.AF_UNSPEC)
    except (OSError, TimeoutError) as error:
        raise UsageError(f"--block-host: the endpoint's host {host} cannot be resolved: {error}") from None
    addresses = {str(entry[4][0]) for entry in found if entry[0] is socket.AF_INET}
    return tuple(sorted(address for address in addresses if not ipaddress.ip_address(address).is_loopback))


def closing_script(addresses: Iterable[str]) -> str:
    """A script that keeps a container's network from `addresses`, its gateway and cloud metadata; it needs NET_ADMIN.

    A route that prohibits is not enough: a socket bound to the device goes past it, as to a neighbour. So all of them
    are neighbours at a hardware address that nobody has, and the way out goes through another name of the gateway.
    The script fails where any of it is not in force.
    """
    listed = " ".join(str(ipaddress.IPv4Address(address)) for address in {*addresses, _CLOUD_METADATA})
    return f"""B={BUSYBOX}
set -e
set -- $($B ip route show default)
gateway=$3 device=$5
$B ping -c 1 -W 5 $gateway >/dev/null 2>&1 || true
hardware=$($B awk -v ip=$gateway '$1 == ip && $3 != "0x0" {{print $4}}' /proc/net/arp)
[ -n "$hardware" ]
# The highest address of the subnet: given to containers last.
own=$($B ip -o addr show dev $device | $B awk '$3 == "inet" {{print $4}}')
eval $($B ipcalc -b $own)
way_out=${{BROADCAST%.*}}.$((${{BROADCAST##*.}} - 1))
$B arp -i $device -s $way_out $hardware
$B ip route replace default via $way_out dev $device
for address in $gateway {listed}; do
    [ $address != ${{own%/*}} ] || continue
    $B ip route replace prohibit $address/32
    $B arp -i $device -s $address 02:00:00:00:00:01
done
# Of IPv6 there must be none: nothing of this is about it.
if $B grep -q " $device\\$" /proc/net/if_inet6 2>/dev/null; then exit 1; fi
"""
