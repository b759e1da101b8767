"""Networks of trials and builds: the shared bridge, those that are closed to the host, and names in a container."""

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

from tbench.config.settings import NetworkChoice
from tbench.errors import UsageError
from tbench.results import Stage
from tbench.sandbox.backend import BUSYBOX, TOOLS, GivenNames
from tbench.sandbox.docker.create import create, engine_errors, ensure_nothing, run_helper
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.owner import LABEL_BEGAN, LABEL_SHARED, NETWORK
from tbench.sandbox.docker.removing import force_remove
from tbench.tasks.network import NetworkPolicy, Networks

# Networks of trials, and the addresses that are closed to them.
#
# `--network` overrules the tasks; `--block-host` closes the engine's host and the model endpoint to trials that have a
# network. Both change what is measured.

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


# The network of a build under `--block-host`: the engine's host, cloud metadata and the endpoint are out of its reach.
#
# The engine runs the steps of a build with NET_RAW, and nothing makes it leave that out: frames of their own would go
# past any route of the namespace that they are in. So that one has a single link, into another namespace, where
# nothing but our own init runs: a router that passes on what is not closed, and has no way for the rest.
#
# steps of the build - inside -- eth0 ====== inside - router - outside ====== bridge of the trials
#
# The engine gives `inside` an address on the bridge and its name server there. Then the link to the bridge is moved to
# the router, which answers for the address, and a pair of linked devices takes its place.

_ROUTER, _ROUTER_OUTSIDE = "169.254.77.1", "169.254.77.2"
"""The router's own addresses: of a range that nobody routes, known within these two namespaces only."""
_MOVING = f"""B={BUSYBOX}
set -e
set -- $($B ip route show default)
gateway=$3
own=$($B ip -o addr show dev eth0 | $B awk '$3 == "inet" {{print $4}}')
mtu=$($B cat /sys/class/net/eth0/mtu)
$B ip link set eth0 down
$B ip link set eth0 name outside
# Process 1 of the router: this runs among its processes, and in the other's network.
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
    """A network closed to `addresses`, by the name that the engine has for it. Raises TrialError."""
    made: list[str] = []

    async def start(**host_config: Any) -> str:
        made.append(await create(engine, _container(engine, nothing, tools_volume, labels, host_config)))
        await engine.call(engine.api.start, made[-1])
        return made[-1]

    async def with_net_admin(script: str, **host_config: Any) -> str:
        return await run_helper(
            engine, nothing, tools_volume, script, labels=labels, cap_add=["NET_ADMIN"], **host_config
        )

    try:
        with engine_errors("--block-host: closing the network of a build", stage=Stage.IMAGE):
            nothing = await ensure_nothing(engine)
            router = await start(network_mode="none", sysctls={"net.ipv4.ip_forward": "1"})
            inside = await start(network_mode=NETWORK)
            said = await with_net_admin(_MOVING, network_mode=f"container:{inside}", pid_mode=f"container:{router}")
            gateway, own = said.split()
            await with_net_admin(_routing(gateway, own, addresses), network_mode=f"container:{router}")
        yield f"container:{inside}"
    finally:
        await asyncio.shield(asyncio.gather(*(force_remove(engine, container) for container in made)))


def _container(
    engine: Engine, image: str, tools_volume: str, labels: Mapping[str, str], host_config: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments for a container that does nothing but to hold a network."""
    return {
        "image": image,
        "entrypoint": [f"{TOOLS}/bin/init"],
        "command": [],
        "labels": dict(labels),
        "host_config": engine.api.create_host_config(
            binds=[f"{tools_volume}:{TOOLS}:ro"], cap_drop=["ALL"], **host_config
        ),
    }


def _routing(gateway: str, own: str, addresses: Iterable[str]) -> str:
    """The script that makes the router, of the bridge's gateway and the address with which the build is on it."""
    return f"""B={BUSYBOX}
set -e
[ $($B cat /proc/sys/net/ipv4/ip_forward) = 1 ]
$B ip link set outside up
$B ip addr add {own} dev outside
$B ip route add default via {gateway} dev outside
{closing_script(addresses)}
# The address is the build's: from here on the router answers for it, and needs nobody else on the bridge.
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


# Names of servers that the engine was told to write into a container, when it was made: nobody inside can change that.
#
# They are those of the container whose network it has, which may be another: the engine is asked, as a kept container
# has them, too.

_SHARED = "container:"
_MOST_SHARED = 8
"""Containers that are asked for: a copy has the network of main, and main that of a container which only holds it."""


async def given_names(engine: Engine, container_id: str) -> GivenNames:
    """The names of a container. Raises EngineError."""
    owner, mounts, began_at = container_id, None, 0.0
    for _ in range(_MOST_SHARED):
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
    return GivenNames(servers=frozenset(config.get("Dns") or ()), hosts=hosts, volumes=volumes, began_at=began_at)


def _began_at(inspected: Mapping[str, Any]) -> float:
    """When a container was made, or the first one of which snapshots have led to it."""
    labels = inspected["Config"].get("Labels") or {}
    return datetime.fromisoformat(labels.get(LABEL_BEGAN) or inspected["Created"]).timestamp()
