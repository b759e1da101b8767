"""Builds under --block-host: what their steps can reach, by whatever means, and what is not built at all."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from run_plans import sandboxes_of

from tbench.errors import TrialError
from tbench.sandbox.backend import SandboxSettings, open_backend
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN
from tbench.tasks.environment import agent_environment
from tbench.tasks.task import Task

pytestmark = pytest.mark.engine
Fresh = Callable[..., Task]
Build = Callable[..., Coroutine[Any, Any, str]]
FRAMES = r"""
my ($port, $address) = @ARGV;
sub address { pack("C4", split /\./, shift) }
sub hardware { pack("C6", map { hex } split /:/, shift) }
sub read_of { open(my $file, "<", shift); my $line = <$file>; chomp $line; $line }
socket(S, 17, 3, 0x0300) or die "no raw socket: $!\n";
my $own = hardware(read_of("/sys/class/net/eth0/address"));
my $index = read_of("/sys/class/net/eth0/ifindex");
my $data = "frame to $address";
my $udp = pack("nnnn", 40000, $port, 8 + length $data, 0) . $data;
my $ends = address($ENV{OWN}) . address($address);
my $header = pack("CCnnnCCn", 0x45, 0, 20 + length $udp, 1, 0, 64, 17, 0) . $ends;
my $sum = 0; $sum += $_ for unpack("n10", $header);
$sum = ($sum >> 16) + ($sum & 0xffff) while $sum >> 16;
substr($header, 10, 2) = pack("n", ~$sum & 0xffff);
for my $to ("ff:ff:ff:ff:ff:ff", split " ", $ENV{NEIGHBOURS}) {
    my $link = pack("SnlSCCa8", 17, 0x0800, $index, 1, 0, 6, hardware($to));
    send(S, hardware($to) . "$own\x08\x00$header$udp", 0, $link) or die "not sent: $!\n";
}
print "sent to $address\n";
"""
"""Sends a datagram within frames of its own making: to everybody on the link, and to every neighbour."""


def host_addresses(engine: Engine) -> list[str]:
    """All addresses of this host but loopback, among them the gateways of Docker's bridges that stay."""
    shown = subprocess.run(["ip", "-o", "-4", "addr"], capture_output=True, text=True, check=True).stdout
    # Those of runs may go at any time: other workers have some.
    stay = {f"br-{each['Id'][:12]}" for each in engine.api.networks() if LABEL_RUN not in (each["Labels"] or {})}
    found = re.findall(r"^\d+: (\S+) +inet ([\d.]+)", shown, re.MULTILINE)
    return [address for link, address in found if link != "lo" and (link in stay or not link.startswith("br-"))]


@pytest.fixture
async def build(engine: Engine, tools_volume: str, tmp_path: Path) -> AsyncIterator[Build]:
    """Builds a task's image, closed or not, and returns what its steps said."""

    async def one(task: Task, *, block_host: bool) -> str:
        run = f"test-{uuid.uuid4().hex[:12]}"
        logs = tmp_path / "logs" / run
        settings = sandboxes_of(run, build=True, block_host=block_host, image_logs=logs)
        async with open_backend(DockerBackend(engine, settings)) as backend:
            sandbox = await backend.sandbox(agent_environment(task), "t.s0.x")
            await sandbox.remove()
        left = await engine.call(engine.api.containers, all=True, filters={"label": f"{LABEL_RUN}={run}"})
        assert left == []
        return (logs / f"{task.name}.log").read_text()

    yield one


async def refusal(build: Build, task: Task) -> str:
    with pytest.raises(TrialError) as caught:
        await build(task, block_host=True)
    assert caught.value.type == "image_build_failed"
    assert str(caught.value).startswith(f"{task.dockerfile}: cannot be built with --block-host: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_the_steps_of_a_build_reach_no_address_of_the_host(
    engine: Engine, fresh: Fresh, build: Build, host_port: int
) -> None:
    addresses = host_addresses(engine)
    assert len(addresses) >= 2
    look = (
        f"RUN for a in {' '.join(addresses)}; do "
        f'if timeout 5 bash -c "exec 3<>/dev/tcp/$a/{host_port}" 2>/dev/null; then echo $a is open; '
        "else echo $a is closed; fi & done; wait\n"
    )
    said = await build(fresh(look), block_host=False)
    assert [address for address in addresses if f"\n{address} is open\n" in said] == addresses
    said = await build(fresh(look), block_host=True)
    assert [address for address in addresses if f"\n{address} is closed\n" in said] == addresses


@pytest.fixture
def datagrams() -> Iterator[socket.socket]:
    """A server of datagrams on all addresses of this host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("0.0.0.0", 0))
        server.settimeout(1)
        yield server


def received(server: socket.socket) -> set[str]:
    heard: set[str] = set()
    try:
        while True:
            heard.add(server.recv(1000).decode())
    except TimeoutError:
        return heard


@pytest.mark.slow
async def test_frames_past_all_routes_do_not_reach_the_host_either(
    engine: Engine, fresh: Fresh, build: Build, datagrams: socket.socket
) -> None:
    """Steps have raw sockets, and nothing can take them away."""
    addresses = [*host_addresses(engine), "255.255.255.255"]
    steps = (
        "COPY frames.pl /\n"
        # The gateway is a neighbour once it was asked for anything.
        "RUN export OWN=$(hostname -I) && (timeout 5 bash -c 'echo > /dev/udp/192.0.2.1/9' || true) && sleep 1 && "
        'export NEIGHBOURS="$(awk \'$1 != "IP" {print $4}\' /proc/net/arp)" && [ "$NEIGHBOURS" ] && '
        f"for a in {' '.join(addresses)}; do perl /frames.pl {datagrams.getsockname()[1]} $a; done\n"
    )

    def task() -> Task:
        made = fresh(steps)
        (made.path / "environment" / "frames.pl").write_text(FRAMES)
        return Task.read(made.path)

    for block_host, heard in ((False, {f"frame to {address}" for address in addresses}), (True, set())):
        said = await build(task(), block_host=block_host)
        assert [address for address in addresses if f"sent to {address}\n" in said] == addresses
        assert await asyncio.to_thread(received, datagrams) == heard


@pytest.mark.slow
async def test_what_lies_beyond_the_host_is_reached_by_name(fresh: Fresh, build: Build) -> None:
    update = "RUN apt-get -o Acquire::Retries=0 update && ls /var/lib/apt/lists | grep -c Packages; echo done\n"
    fetched = re.compile(r"^[1-9]\d*$", re.MULTILINE)
    if not fetched.search(await build(fresh(update), block_host=False)):
        pytest.skip("no mirror of packages can be reached here")
    assert fetched.search(await build(fresh(update), block_host=True))


async def test_a_build_that_is_cancelled_leaves_no_network_behind(
    engine: Engine, tools_volume: str, fresh: Fresh
) -> None:
    run, begun = f"test-{uuid.uuid4().hex[:12]}", asyncio.Event()

    async def of_the_run() -> list[Any]:
        found: list[Any] = await engine.call(engine.api.containers, all=True, filters={"label": f"{LABEL_RUN}={run}"})
        return found

    async with open_backend(
        DockerBackend(engine, sandboxes_of(run, block_host=True)), lambda _: begun.set()
    ) as backend:
        building = asyncio.create_task(backend.sandbox(agent_environment(fresh("RUN sleep 60\n")), "t.s0.x"))
        await begun.wait()
        async with asyncio.timeout(60):
            while len(await of_the_run()) < 2:  # noqa: ASYNC110 - nobody tells when the engine has made them
                await asyncio.sleep(0.05)
        building.cancel()
        await asyncio.gather(building, return_exceptions=True)
        assert building.cancelled()
        assert await of_the_run() == []


async def test_what_only_buildkit_builds_is_refused_in_one_line(fresh: Fresh, build: Build) -> None:
    words = await refusal(build, fresh("RUN <<EOF\necho hidden\nEOF\n"))
    assert "BuildKit" in words and words.endswith("build it once without --block-host")


async def test_what_the_engine_itself_would_fetch_is_refused(fresh: Fresh, build: Build, host_port: int) -> None:
    """The engine asks over its host's network, whatever network the steps are on."""
    url = f"http://127.0.0.1:{host_port}/x"
    said = await build(fresh(f"ADD {url} /x\nRUN cat /x && : {uuid.uuid4()}\n"), block_host=False)
    assert "reached" in said
    assert url in await refusal(build, fresh(f"ADD {url} /x\n"))


async def test_an_image_that_brings_such_an_instruction_along_is_no_base(
    engine: Engine, fresh: Fresh, build: Build, host_port: int
) -> None:
    base = fresh(f"ONBUILD ADD http://127.0.0.1:{host_port}/x /x\n")
    async with open_backend(DockerBackend(engine, SandboxSettings("test-base"))) as backend:
        sandbox = await backend.sandbox(agent_environment(base), "t.s0.x")
        await sandbox.remove()
    name = backend.image_ids[base.name]
    task = fresh()
    task.dockerfile.write_text(f"FROM {name}\n")
    assert f"127.0.0.1:{host_port}" in await refusal(build, Task.read(task.path))


async def test_an_image_that_was_built_before_is_used(engine: Engine, fresh: Fresh, tools_volume: str) -> None:
    task = fresh("RUN echo built without\n")
    for block_host in (False, True):
        settings = sandboxes_of(f"test-{uuid.uuid4().hex[:12]}", block_host=block_host)
        said: list[str] = []
        async with open_backend(DockerBackend(engine, settings), said.append) as backend:
            sandbox = await backend.sandbox(agent_environment(task), "t.s0.x")
            await sandbox.remove()
        assert [line for line in said if "building" in line] == (
            [] if block_host else [f"{task.name}: building its image"]
        )
