"""The network of a build under `--block-host`: the engine's host, cloud metadata and the endpoint are out of its reach.

The engine runs the steps of a build with NET_RAW, and nothing makes it leave that out: frames of their own would go
past any route of the namespace that they are in. So that one has a single link, into another namespace, where nothing
but our own init runs: a router that passes on what is not closed, and has no way for the rest.

    steps of the build - inside -- eth0 ====== inside - router - outside ====== bridge of the trials

The engine gives `inside` an address on the bridge and its name server there. Then the link to the bridge is moved to
the router, which answers for the address, and a pair of linked devices takes its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tbench.results import Stage
from tbench.sandbox.backend import BUSYBOX, TOOLS
from tbench.sandbox.docker.create import create, engine_errors, run_helper
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.labels import NETWORK
from tbench.sandbox.docker.networking.bridge import closing_script
from tbench.sandbox.docker.nothing import ensure_nothing
from tbench.sandbox.docker.removing import force_remove

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
