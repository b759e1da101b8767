"""Who has a network, who may be reached over it, and that nobody inside can undo what is closed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from own_engine import own_engine
from run_plans import a_plan, sandboxes_of

from tbench.errors import UsageError
from tbench.runs.plan import semantic as semantic_of
from tbench.sandbox.backend import BUSYBOX, Sandbox, open_backend
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine, EngineInfo
from tbench.sandbox.docker.networks import endpoint_addresses, ensure_network
from tbench.sandbox.owner import LABEL_RUN, LABEL_SHARED, NETWORK
from tbench.sandbox.recipe import choose_networks
from tbench.tasks.environment import agent_environment
from tbench.tasks.network import NetworkPolicy, Networks
from tbench.tasks.task import Task

TOML = '[environment]\nmemory_mb = 256\ndocker_image = "debian:bookworm-slim"\nallow_internet = {}\n'
CAP_NET_RAW, CAP_SYS_PTRACE = 13, 19
Start = Callable[..., Coroutine[Any, Any, Sandbox]]
BOUND = """perl -e 'socket(S, 2, 1, 0); setsockopt(S, 1, 25, "eth0\\0") or die "unbound";
alarm 3; connect(S, pack("Sna4x8", 2, {port}, pack("C4", {bytes}))) or die "$!\\n"; print "connected"' 2>&1"""
# An ARP answer in the gateway's name, with the sender's own hardware address.
FORGE = """perl -e 'sub hardware {{ pack("H12", shift =~ s/://gr) }}
open(F, "/sys/class/net/eth0/address"); $own = hardware(<F>); open(F, "/sys/class/net/eth0/ifindex"); $index = <F>;
($victim, $gateway, $address) = (hardware("{hardware}"), pack("C4", {gateway}), pack("C4", {address}));
socket(S, 17, 3, 0) or die "$!\n";
$frame = "$victim$own\x08\x06" . pack("nnCCn", 1, 0x0800, 6, 4, 2) . "$own$gateway$victim$address";
for (1 .. 30) {{
    send(S, $frame, 0, pack("SnISCCa8", 17, 0x0806, $index, 1, 0, 6, $victim)) or die "$!\n";
    select(undef, undef, undef, 0.1);
}}' 2>&1"""
# setxattr(2) by its number, as setcap is not in the image: version 2, effective, NET_RAW permitted.
CARRYING = """cp /bin/echo /tmp/ping && perl -e '($machine = `uname -m`) =~ s/\\s//g;
($file, $name, $value) = ("/tmp/ping", "security.capability", pack("V5", 0x02000001, 1 << 13, 0, 0, 0));
print syscall({x86_64 => 188, aarch64 => 5}->{$machine}, $file, $name, $value, 20, 0)'"""
ECHOES = 'perl -e \'socket(S, 2, 2, 1) or die "$!\\n"; print "open"\' 2>&1'
REFUSED = "Operation not permitted\n"
FRAMES = 'perl -e \'socket(S, 17, 3, 0) or die "$!\\n"; print "open"\' 2>&1'


@pytest.fixture
def beyond() -> Iterator[tuple[str, str]]:
    """Two addresses of a machine beyond the host, as the internet is: a network namespace with a server on port 80."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("making a network beyond the host takes root and iproute2")
    name, near, far = "tb" + uuid.uuid4().hex[:8], "198.18.77.1", ("198.18.77.6", "198.18.77.7")
    inside = f"ip netns exec {name}"
    server = None
    try:
        for command in (
            f"ip netns add {name}",
            f"ip link add {name} type veth peer name eth0 netns {name}",
            f"ip addr add {near}/24 dev {name}",
            f"ip link set {name} up",
            *(f"{inside} ip addr add {address}/24 dev eth0" for address in far),
            f"{inside} ip link set eth0 up",
            f"{inside} ip route add default via {near}",
        ):
            subprocess.run(command.split(), check=True, capture_output=True)
        server = subprocess.Popen(
            [*inside.split(), "python3", "-m", "http.server", "80", "--directory", "/proc/self/fdinfo"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _wait_for(far[0])
        yield far
    finally:
        if server is not None:
            server.kill()
            server.wait()
        subprocess.run(["ip", "link", "del", name], capture_output=True)
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _wait_for(address: str) -> None:
    ends_at = time.monotonic() + 60
    while time.monotonic() < ends_at:
        with contextlib.suppress(OSError), socket.create_connection((address, 80), timeout=5):
            return
        threading.Event().wait(0.05)
    pytest.fail(f"nobody answers at {address}")


@pytest.fixture
async def start(engine: Engine, tools_volume: str, make_task: Any) -> AsyncIterator[Start]:
    started: list[Sandbox] = []
    async with contextlib.AsyncExitStack() as stack:

        async def one(allow_internet: bool = True, **options: Any) -> Sandbox:
            settings = sandboxes_of(f"test-{uuid.uuid4().hex[:12]}", **options)
            backend = await stack.enter_async_context(open_backend(DockerBackend(engine, settings)))
            task = Task.read(make_task(toml=TOML.format(str(allow_internet).lower())))
            started.append(await backend.sandbox(agent_environment(task), "t.s0.x"))
            return started[-1]

        yield one
        for sandbox in started:
            await sandbox.remove()


async def said(sandbox: Sandbox, script: str) -> str:
    return (await sandbox.shell(script, timeout_sec=60)).output.decode()


def fetch(address: str, port: int) -> str:
    return f"{BUSYBOX} timeout 5 {BUSYBOX} wget -q -O - http://{address}:{port}/ 2>&1"


@pytest.mark.parametrize(
    ("choice", "modes"),
    [
        ("task", ["allowlist", "no-network", "public"]),
        ("none", ["no-network"] * 3),
        ("bridge", ["public"] * 3),
    ],
)
def test_the_choice_overrules_the_task_in_all_phases(choice: Any, modes: list[str]) -> None:
    asked = Networks(NetworkPolicy("allowlist", ("h",)), NetworkPolicy("no-network"), NetworkPolicy("public"))
    found = choose_networks(choice, asked)
    assert [found.start.mode, found.agent.mode, found.verifier.mode] == modes
    assert found.is_plain is (choice != "task")


@pytest.mark.parametrize("change", [{"network": "none"}, {"network": "bridge"}, {"block_host": True}])
def test_another_network_is_another_trial(change: dict[str, Any]) -> None:
    def semantic(**more: Any) -> dict[str, Any]:
        return semantic_of(a_plan(agent="nop", **more))

    assert semantic(**change) != semantic()


async def test_an_endpoint_is_resolved_but_loopback_needs_no_closing() -> None:
    assert await endpoint_addresses("http://192.0.2.7:8000/v1") == ("192.0.2.7",)
    assert await endpoint_addresses("http://localhost:8000/v1") == await endpoint_addresses(None) == ()
    with pytest.raises(UsageError, match=r"surely\.invalid"):
        await endpoint_addresses("http://surely.invalid/v1")


@pytest.mark.engine
@pytest.mark.parametrize(("choice", "devices"), [("none", ["lo"]), ("bridge", ["eth0", "lo"])])
async def test_a_run_decides_who_has_a_network(start: Start, choice: str, devices: list[str]) -> None:
    sandbox = await start(choice == "none", network=choice)
    assert (await said(sandbox, "ls /sys/class/net")).split() == devices


def host_address() -> str:
    """The address by which this host is known beyond it, if it has a way out; else that of Docker's bridge."""
    shown = subprocess.run(["ip", "-o", "-4", "addr"], capture_output=True, text=True, check=True).stdout
    found = [line.split()[3].partition("/")[0] for line in shown.splitlines() if " lo " not in line]
    return found[0]


@pytest.mark.slow
@pytest.mark.engine
async def test_the_host_and_the_endpoint_are_closed_and_nothing_else_is(
    engine: Engine, start: Start, host_port: int, beyond: tuple[str, str]
) -> None:
    endpoint, internet = beyond
    (network,) = await engine.call(engine.api.networks, names=[f"^{NETWORK}$"])
    gateway = network["IPAM"]["Config"][0]["Gateway"]
    host = host_address()
    before = await start()
    for address, port in ((gateway, host_port), (host, host_port), (endpoint, 80), (internet, 80)):
        assert await said(before, f"{fetch(address, port)} >/dev/null && echo yes") == "yes\n", address
    assert await said(before, BOUND.format(port=host_port, bytes=gateway.replace(".", ","))) == "connected"

    closed = await start(block_host=True, endpoints=(f"http://{endpoint}:80/v1",))
    for address, port in ((gateway, host_port), (host, host_port), (endpoint, 80), ("169.254.169.254", 80)):
        assert "can't connect" in await said(closed, fetch(address, port)), address
    past_routes = (
        said(closed, BOUND.format(port=port, bytes=address.replace(".", ",")))
        for address, port in ((gateway, host_port), (host, host_port), (endpoint, 80))
    )
    assert "connected" not in "".join(await asyncio.gather(*past_routes))
    assert await said(closed, f"{fetch(internet, 80)} >/dev/null && echo yes") == "yes\n"


@pytest.mark.slow
@pytest.mark.engine
async def test_names_are_resolved_as_before(start: Start) -> None:
    lookup = f"{BUSYBOX} timeout 20 {BUSYBOX} nslookup deb.debian.org"
    if "Name:" not in await said(await start(), lookup):
        pytest.skip("no name server can be reached here")
    assert "Name:" in await said(await start(block_host=True), lookup)


@pytest.mark.engine
async def test_no_one_inside_can_open_it_again(start: Start) -> None:
    closed = await start(block_host=True)
    routes = await said(closed, f"{BUSYBOX} ip route")
    assert "prohibit" in routes
    for attack in ("ip route flush", "ip route del prohibit 169.254.169.254", "arp -i eth0 -d 169.254.169.254"):
        assert (await closed.shell(f"{BUSYBOX} {attack} 2>&1", timeout_sec=20)).exit_code != 0, attack
    assert await said(closed, f"{BUSYBOX} ip route") == routes
    assert await said(closed, FRAMES) == REFUSED


# -- the bridge that all share --------------------------------------------------------------------


@pytest.mark.engine
async def test_raw_sockets_take_a_capability_that_a_run_has_to_ask_for(start: Start) -> None:
    arping = f"{BUSYBOX} arping -c 1 -w 1 -I eth0 192.0.2.1 2>&1"
    usual, asked = await start(), await start(cap_add=("NET_RAW", "SYS_PTRACE"))
    assert await said(usual, FRAMES) == REFUSED
    assert "not permitted" in await said(usual, arping)
    assert await said(asked, FRAMES) == "open"
    assert "not permitted" not in await said(asked, arping)
    effective = int((await said(asked, "grep ^CapEff /proc/self/status")).split()[1], 16)
    assert effective & 1 << CAP_SYS_PTRACE and effective & 1 << CAP_NET_RAW


@pytest.mark.engine
async def test_a_program_whose_file_carries_the_capability_does_not_start_without_it(start: Start) -> None:
    """As Debian's ping: cap_net_raw=ep. Programs that send their echoes over datagrams need none."""
    usual, asked = await start(), await start(cap_add=("NET_RAW",))
    for sandbox in (usual, asked):
        assert await said(sandbox, CARRYING) == "0"
        assert await said(sandbox, ECHOES) == "open"
    assert "Operation not permitted" in await said(usual, "/tmp/ping started 2>&1")
    assert await said(asked, "/tmp/ping started 2>&1") == "started\n"


@pytest.mark.engine
async def test_a_trial_cannot_tell_another_that_it_is_the_gateway(start: Start) -> None:
    victim, usual, asked = await start(), await start(), await start(cap_add=("NET_RAW",))
    gateway = (await said(victim, f"{BUSYBOX} ip route show default")).split()[2]
    address = (await said(victim, f"{BUSYBOX} ip -o -4 addr show dev eth0")).split()[3].partition("/")[0]
    now = f"grep '^{gateway} ' /proc/net/arp"
    before = (await said(victim, f"{BUSYBOX} nc -w 1 {gateway} 9 </dev/null 2>/dev/null; {now}")).split()[3]
    attack = FORGE.format(
        hardware=(await said(victim, "cat /sys/class/net/eth0/address")).strip(),
        gateway=gateway.replace(".", ","),
        address=address.replace(".", ","),
    )
    assert await said(usual, attack) == REFUSED
    assert (await said(victim, now)).split()[3] == before
    # The same attack of one that may: without this, nothing above would have been tried.
    forged = (await said(asked, "cat /sys/class/net/eth0/address")).strip()
    believed = f"for _ in $(seq 300); do {now} | grep {forged} && exit; sleep 0.1; done"
    words, shown = await asyncio.gather(said(asked, attack), said(victim, believed))
    assert (words, shown.split()[3:4]) == ("", [forged]) and forged != before


@pytest.mark.engine
async def test_a_helper_leaves_nothing(engine: Engine, start: Start) -> None:
    closed = await start(block_host=True)
    run = (await engine.call(engine.api.inspect_container, closed.container_id))["Config"]["Labels"][LABEL_RUN]
    there = await engine.call(engine.api.containers, all=True, filters={"label": f"{LABEL_RUN}={run}"})
    assert [container["Id"] for container in there] == [closed.container_id]


class OneNetwork:
    """An engine's API that knows of one network."""

    def __init__(self, network: dict[str, Any]) -> None:
        self._network = network

    def networks(self, names: list[str]) -> list[dict[str, Any]]:
        return [self._network]


@pytest.mark.parametrize(
    ("labels", "options", "why"),
    [
        ({}, {"com.docker.network.bridge.enable_icc": "false"}, LABEL_SHARED),
        ({LABEL_SHARED: "network"}, {}, "reach each other"),
        ({LABEL_SHARED: "network"}, {"com.docker.network.bridge.enable_icc": "true"}, "reach each other"),
    ],
)
async def test_a_network_that_is_not_ours_is_refused(labels: Any, options: Any, why: str) -> None:
    api: Any = OneNetwork({"Name": NETWORK, "Labels": labels, "Options": options})
    with ThreadPoolExecutor(1) as threads:
        engine = Engine(api, threads, EngineInfo("e", "1", 1, 1.0, "overlay2", "2"))
        with pytest.raises(UsageError, match=f"{why}.*docker network rm {NETWORK}"):
            await ensure_network(engine)


@pytest.mark.engine
@pytest.mark.skipif(os.geteuid() != 0, reason="an engine of one's own takes root")
@pytest.mark.slow
async def test_an_engine_without_an_address_for_our_network_gets_one_line(make_task: Any, tmp_path: Path) -> None:
    one_subnet = ("--default-address-pool", "base=10.213.0.0/24,size=24")
    with own_engine(*one_subnet, images=["debian:bookworm-slim"]) as (own, engine):
        await engine.call(engine.api.create_network, "takes-the-only-one", driver="bridge")
        with pytest.raises(UsageError, match=r"cannot create the network 'tbench': .*address pool.*network prune"):
            await ensure_network(engine)
        tbench = Path(sys.executable).with_name("tbench")
        done = await asyncio.to_thread(
            subprocess.run,
            [tbench, "run", make_task(), "--agent", "nop", "-o", tmp_path / "run"],
            env={**os.environ, "DOCKER_HOST": own.host},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    assert "tbench: the engine cannot create the network 'tbench'" in done.stderr.splitlines()[-1]
