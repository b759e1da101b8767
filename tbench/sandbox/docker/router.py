"""The router of a trial whose network changes between phases or allows only some hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbench.errors import TrialError
from tbench.sandbox.backend import BUSYBOX
from tbench.sandbox.docker.create import ROUTER, TRIAL, container_errors, run_helper, start_init
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.networks import closing_script
from tbench.sandbox.docker.removing import force_remove
from tbench.sandbox.owner import LABEL_ROUTER, NETWORK
from tbench.tasks.network import NetworkPolicy

_PREFIX = "29"
_PORT = "12345"
_MEMORY_MB = 256
_PIDS = 512
_CAPABILITIES = ["NET_ADMIN", "NET_BIND_SERVICE", "SETUID", "SETGID", "KILL"]
_ADDRESSES = {"ROUTER": ROUTER, "TRIAL": TRIAL, "PREFIX": _PREFIX, "PORT": _PORT}
_LAST_BYTES = 300
_NO_IPV6 = """table ip6 tbench
delete table ip6 tbench
table ip6 tbench {
    chain through { type filter hook forward priority 0; policy drop; }
    chain here { type filter hook input priority 0; policy accept; iifname "inside" drop; }
}
"""


@dataclass(frozen=True)
class Router:
    """The router container of one trial."""

    engine: Engine
    container_id: str
    tools_volume: str
    labels: Mapping[str, str]

    @classmethod
    async def start(
        cls, engine: Engine, tools_volume: str, labels: Mapping[str, str], name_servers: Iterable[str] = ()
    ) -> Router:
        """Start a router without links. Raises TrialError and EngineError, and then leaves nothing behind."""
        container = await start_init(
            engine,
            tools_volume,
            labels,
            network_mode=NETWORK,
            sysctls={"net.ipv4.ip_forward": "1"},
            cap_add=_CAPABILITIES,
            mem_limit=_MEMORY_MB << 20,
            pids_limit=_PIDS,
            dns=list(name_servers) or None,
        )
        return cls(engine, container, tools_volume, labels)

    @classmethod
    async def find(cls, engine: Engine, tools_volume: str, container_id: str) -> Router | None:
        """Find the router of a container; None if it has none. Raises EngineError."""
        labels = (await engine.call(engine.api.inspect_container, container_id))["Config"]["Labels"] or {}
        if LABEL_ROUTER not in labels:
            return None
        both = await engine.call(engine.api.containers, filters={"label": f"{LABEL_ROUTER}={labels[LABEL_ROUTER]}"})
        others = (each["Id"] for each in both if each["Id"] != container_id)
        return next((cls(engine, other, tools_volume, labels) for other in others), None)

    async def link(self, container_id: str, closed_to: Iterable[str] = ()) -> None:
        """Make this router the only way out of a container, with no way to `closed_to`. Raises EngineError."""
        script = _script("link.sh")
        for name, value in _ADDRESSES.items():
            script = f"{name}={value}\n{script}"
        if closed_to:
            await self._with_net_admin(closing_script(closed_to), network_mode=f"container:{self.container_id}")
        await self._with_net_admin(
            script, network_mode=f"container:{container_id}", pid_mode=f"container:{self.container_id}"
        )

    async def _with_net_admin(self, script: str, **host_config: Any) -> None:
        await run_helper(
            self.engine, self.tools_volume, script, labels=self.labels, cap_add=["NET_ADMIN"], **host_config
        )

    async def use(self, policy: NetworkPolicy) -> None:
        """Apply a network policy and end connections that it forbids. Raises TrialError."""
        # Without a network no host is allowed, and the proxy says so at once instead of a timeout.
        hosts = {"public": ("*",), "allowlist": policy.names, "no-network": ()}[policy.mode]
        argv = [BUSYBOX, "sh", "-c", _script("restrict.sh"), "restrict.sh", *hosts]
        environment = {**_ADDRESSES, "RULES": rules(policy), "RULES_OF_IPV6": _NO_IPV6}
        api = self.engine.api

        def run() -> tuple[int, bytes]:
            exec_id = api.exec_create(self.container_id, argv, user="0:0", environment=environment)["Id"]
            output: bytes = api.exec_start(exec_id)
            return api.exec_inspect(exec_id)["ExitCode"], output

        with container_errors("changing the network of"):
            code, output = await self.engine.call(run, again=True)
        if code != 0:
            last = output[-_LAST_BYTES:].decode("utf-8", "replace").strip()
            needed = "the engine's kernel needs nf_tables with NAT"
            raise TrialError("sandbox_failed", f"cannot apply the network {policy.mode} ({code}): {last}; {needed}")

    async def keep(self, name: str) -> None:
        """Rename the container, so that it is exempt from cleaning. Raises EngineError."""
        await self.engine.call(self.engine.api.rename, self.container_id, name)

    async def remove(self) -> None:
        """Remove the container by force, in bounded time. Never raises."""
        await force_remove(self.engine, self.container_id)


def rules(policy: NetworkPolicy) -> str:
    """Return the router's nftables rules for a policy."""
    is_allowlist = policy.mode == "allowlist"
    out, back = 'iifname "inside"', 'oifname "inside" ct state established'
    networks = f"{{ {', '.join(map(str, policy.networks))} }}" if policy.networks else ""
    # Replies are restricted as well, so that connections of an earlier policy do not continue.
    through = {
        "public": (f"{out} accept", f"{back},related accept"),
        "allowlist": (f"{out} ip daddr {networks} meta l4proto tcp accept", f"{back} ip saddr {networks} accept"),
        "no-network": (),
    }[policy.mode if networks or not is_allowlist else "no-network"]
    names = f'iifname "inside" ip daddr {ROUTER} meta l4proto {{ tcp, udp }} th dport 53 accept'
    to_proxy = f'iifname "inside" tcp dport {_PORT} ct status dnat accept'
    direct = f'iifname "inside" ip daddr {networks} accept' if networks else ""
    redirect = f'iifname "inside" ip daddr != {ROUTER} meta l4proto tcp redirect to :{_PORT}'
    return f"""table ip tbench
delete table ip tbench
table ip tbench {{
    chain refuse {{
        meta l4proto tcp reject with tcp reset
        reject with icmp type admin-prohibited
    }}
    chain through {{
        type filter hook forward priority 0; policy drop;
        {"; ".join(through)}
        iifname "inside" goto refuse
    }}
    chain here {{
        type filter hook input priority 0; policy accept;
        {names}
        {to_proxy if is_allowlist else ""}
        iifname "inside" goto refuse
        iifname "eth0" ct state new drop
    }}
    chain to_the_proxy {{
        type nat hook prerouting priority -100;
        {direct if is_allowlist else ""}
        {redirect if is_allowlist else ""}
    }}
    chain as_the_router {{
        type nat hook postrouting priority 100;
        oifname "eth0" masquerade
    }}
}}
"""


def _script(name: str) -> str:
    return Path(__file__).with_name(name).read_text()
