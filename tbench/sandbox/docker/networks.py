"""Networks of trials and builds: the shared bridge, networks that cannot reach the host, and names in a container."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from tbench.errors import UsageError
from tbench.results import Stage
from tbench.sandbox.backend import BUSYBOX, TOOLS, BackendFacts
from tbench.sandbox.docker.create import engine_errors, run_helper, start_init
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.removing import force_remove
from tbench.sandbox.owner import LABEL_BEGAN, LABEL_SHARED, NETWORK

# `--network` overrides the tasks' networks; `--block-host` makes the engine's host and the model endpoint unreachable
# for trials with a network. Both change what is measured.

_ICC = "com.docker.network.bridge.enable_icc"
_CLOUD_METADATA = "169.254.169.254"
_INET = re.compile(r"\binet ([\d.]+)")
_RESOLVE_SEC = 20.0


async def ensure_network(engine: Engine) -> None:
    """Make the bridge that all trials share; containers on it cannot reach each other.

    Raises UsageError for another network of that name, and EngineError.
    """
    for network in await engine.call(engine.api.networks, names=[f"^{NETWORK}$"]):
        if (why := _why_foreign(network, shows_options=not engine.info.is_podman)) is not None:
            raise UsageError(
                f"the engine's network '{NETWORK}' was not made by tbench: it {why}; "
                f"remove it with: docker network rm {NETWORK}"
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
            f"the engine cannot create the network '{NETWORK}': {error}; remove unused networks (docker network prune)"
        ) from error


def _why_foreign(network: Mapping[str, Any], *, shows_options: bool) -> str | None:
    """Return why trials must not use this network; None for tbench's own."""
    if LABEL_SHARED not in (network.get("Labels") or {}):
        return f"lacks the label {LABEL_SHARED}"
    if shows_options and (network.get("Options") or {}).get(_ICC, "true") != "false":
        return "lets containers reach each other"
    return None


async def host_addresses(engine: Engine, tools_volume: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """List the IPv4 addresses of the engine's host except loopback, from a helper container. Raises EngineError."""
    script = f"{BUSYBOX} ip -o addr"
    output = await run_helper(engine, tools_volume, script, labels=labels, network_mode="host")
    found = [address for address in _INET.findall(output) if not ipaddress.ip_address(address).is_loopback]
    if not found:
        raise EngineError(f"the addresses of the engine's host cannot be determined: {output[:200]!r}")
    return tuple(dict.fromkeys(found))


async def endpoint_addresses(base_url: str | None) -> tuple[str, ...]:
    """Resolve the endpoint's IPv4 addresses except loopback, which containers cannot reach. Raises UsageError."""
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
    """Return a script that blocks `addresses`, the gateway and cloud metadata in a container; it needs NET_ADMIN.

    Prohibiting routes are not enough, since a socket bound to the device bypasses them and reaches neighbours directly.
    Therefore all blocked addresses become neighbours with an unused hardware address, and the default route uses
    another address of the gateway. The script fails if any step fails.
    """
    listed = " ".join(str(ipaddress.IPv4Address(address)) for address in {*addresses, _CLOUD_METADATA})
    return f"""B={BUSYBOX}
set -e
set -- $($B ip route show default)
gateway=$3 device=$5
$B ping -c 1 -W 5 $gateway >/dev/null 2>&1 || true
hardware=$($B awk -v ip=$gateway '$1 == ip && $3 != "0x0" {{print $4}}' /proc/net/arp)
[ -n "$hardware" ]
# The highest address of the subnet, which containers get last.
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
# There must be no IPv6, which is not blocked here.
if $B grep -q " $device\\$" /proc/net/if_inet6 2>/dev/null; then exit 1; fi
"""


# The network of a build with `--block-host` cannot reach the engine's host, cloud metadata or the endpoint.
#
# The engine always runs build steps with NET_RAW, so that they could send frames past any route of their own
# namespace. Therefore their namespace has a single link, into another namespace where only our init runs: a router
# that does not forward packets to blocked addresses.
#
# steps of the build - inside -- eth0 ====== inside - router - outside ====== bridge of the trials
#
# The engine gives `inside` an address and a name server on the bridge. Then the link to the bridge is moved to the
# router, which answers for the address, and replaced by a pair of linked devices.

_ROUTER, _ROUTER_OUTSIDE = "169.254.77.1", "169.254.77.2"
"""The router's own addresses, from a range that is not routed, only known within these two namespaces."""
_MOVE_LINK = f"""B={BUSYBOX}
set -e
set -- $($B ip route show default)
gateway=$3
own=$($B ip -o addr show dev eth0 | $B awk '$3 == "inet" {{print $4}}')
mtu=$($B cat /sys/class/net/eth0/mtu)
$B ip link set eth0 down
$B ip link set eth0 name outside
# Process 1 is the router's: this script runs in its pid namespace, and in the other container's network.
$B ip link set outside netns 1
$B ip link add name eth0 type veth
other=$($B ls /sys/class/net | $B grep -v -e '^lo$' -e '^eth0$')
$B ip link set $other name inside
$B ip link set inside mtu $mtu
$B ip link set inside netns 1
$B ip link set eth0 mtu $mtu up
$B ip addr add ${{own%/*}}/32 dev eth0
$B ip route add {_ROUTER} dev eth0
$B ip route add default via {_ROUTER} dev eth0
echo $gateway $own
"""


@asynccontextmanager
async def closed_network(
    engine: Engine, tools_volume: str, labels: Mapping[str, str], addresses: Iterable[str]
) -> AsyncIterator[str]:
    """Make a network that cannot reach `addresses`; yields its name on the engine. Raises TrialError."""
    made: list[str] = []

    async def start(**host_config: Any) -> str:
        made.append(await start_init(engine, tools_volume, labels, **host_config))
        return made[-1]

    async def with_net_admin(script: str, **host_config: Any) -> str:
        return await run_helper(engine, tools_volume, script, labels=labels, cap_add=["NET_ADMIN"], **host_config)

    try:
        with engine_errors("--block-host: closing the network of a build", stage=Stage.IMAGE):
            router = await start(network_mode="none", sysctls={"net.ipv4.ip_forward": "1"})
            inside = await start(network_mode=NETWORK)
            moved = await with_net_admin(_MOVE_LINK, network_mode=f"container:{inside}", pid_mode=f"container:{router}")
            gateway, own = moved.split()
            await with_net_admin(_routing(gateway, own, addresses), network_mode=f"container:{router}")
        yield f"container:{inside}"
    finally:
        await asyncio.shield(asyncio.gather(*(force_remove(engine, container) for container in made)))


def _routing(gateway: str, own: str, addresses: Iterable[str]) -> str:
    """Return the script that sets up the router, for the bridge's gateway and the build's address on the bridge."""
    return f"""B={BUSYBOX}
set -e
[ $($B cat /proc/sys/net/ipv4/ip_forward) = 1 ]
$B ip link set outside up
$B ip addr add {own} dev outside
$B ip route add default via {gateway} dev outside
{closing_script(addresses)}
# From here on the router answers for the build's address, and needs no other address on the bridge.
$B ip addr add {_ROUTER}/32 dev inside
$B ip addr add {_ROUTER_OUTSIDE}/32 dev outside
$B ip link set inside up
$B ip route replace default via $way_out dev outside onlink
$B ip addr del {own} dev outside
eval $($B ipcalc -n -p {own})
$B ip route add prohibit $NETWORK/$PREFIX
$B ip route add {own.partition("/")[0]}/32 dev inside
$B arp -i outside -Ds {own.partition("/")[0]} outside pub
"""


_SHARED = "container:"
_MAX_SHARED = 8
"""Limit for following shared networks: a copy shares `main`'s, and `main` may share a holder container's."""


async def backend_facts(engine: Engine, container_id: str) -> BackendFacts:
    """Ask the engine what it adds to a container; processes inside cannot change the answer. Raises EngineError.

    If it shares another container's network, that container's name servers and hosts are read.
    """
    owner, mounts, began_at = container_id, None, 0.0
    for _ in range(_MAX_SHARED):
        found = await engine.call(engine.api.inspect_container, owner, again=True)
        began_at = began_at or _began_at(found)
        config, mounts = found["HostConfig"], found.get("Mounts") if mounts is None else mounts
        mode = config.get("NetworkMode") or ""
        if not mode.startswith(_SHARED):
            break
        owner = mode.removeprefix(_SHARED)
    pairs = (entry.partition(":") for entry in config.get("ExtraHosts") or ())
    hosts = frozenset((address, name) for name, _, address in pairs)
    volumes = frozenset(each["Destination"] for each in mounts or () if not each["Destination"].startswith(TOOLS))
    return BackendFacts(servers=frozenset(config.get("Dns") or ()), hosts=hosts, volumes=volumes, began_at=began_at)


def _began_at(inspected: Mapping[str, Any]) -> float:
    """Return the creation time of a container, or of the first container before its snapshots."""
    labels = inspected["Config"].get("Labels") or {}
    return datetime.fromisoformat(labels.get(LABEL_BEGAN) or inspected["Created"]).timestamp()
