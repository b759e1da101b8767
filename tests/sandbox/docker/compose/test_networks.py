"""Services behind a router: who is, whom they reach while the network changes, and that nothing is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from filled_copies import filled_copy
from internet import HERE, THERE, Internet, internet
from run_plans import sandboxes_of

from tbench.compose.project import MAIN, Project, Service, TrialNetwork
from tbench.sandbox.backend import Compares, Sandbox, SandboxSettings, open_backend
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.compose.networks import (
    EngineNetwork,
    addresses,
    behind_router,
    holder_options,
    hosts_of,
    needed_networks,
    offline_namespace,
)
from tbench.sandbox.docker.compose.service_starter import ComposeContainer
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN
from tbench.tasks.environment import agent_environment
from tbench.tasks.network import NetworkPolicy
from tbench.tasks.task import Task

PUBLIC, CLOSED = NetworkPolicy(), NetworkPolicy("no-network")
ALLOWLIST = NetworkPolicy("allowlist", ("allowed.example",))
TOML = """[environment]
memory_mb = 256
docker_image = "debian:bookworm-slim"
[agent]
network_mode = "no-network"
"""
SERVE = """$server = IO::Socket::INET->new(LocalPort => {port}, Listen => 9, ReuseAddr => 1) or die;
while ($client = $server->accept) {{ print $client "{word}\n"; close $client }}"""
ASK = "timeout 5 bash -c 'exec 3<>/dev/tcp/{name}/{port}; cat <&3' 2>/dev/null || echo no"
LOOK = """timeout 5 bash -c 'exec 3<>/dev/tcp/{host}/80
printf "GET / HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n\\r\\n" >&3
grep -o " at .*" <&3' 2>/dev/null || echo no"""
Start = Callable[..., Any]


# -- who is behind it ------------------------------------------------------------------------------


def a_project(services: Mapping[str, str | None], **internal: bool) -> Project:
    """A project of services by the networks that they name, or by their mode; None for the default network alone."""
    made = {}
    for name, said in services.items():
        networks = dict.fromkeys((said or "default").split(), ("alias-of-" + name,))
        is_mode = said in ("none", "bridge", "host") or (said or "").startswith("service:")
        made[name] = Service(name, network_mode=said) if is_mode else Service(name, networks=networks)
    used = {each for service in made.values() for each in service.networks}
    return Project(made, {each: TrialNetwork(each, internal.get(each, False)) for each in sorted(used)}, {})


@pytest.mark.parametrize(
    ("services", "behind", "needed"),
    [
        ({MAIN: None, "one": None, "two": None}, {MAIN, "one", "two"}, []),
        ({MAIN: None, "one": "default back", "two": "back", "three": None}, {MAIN, "three"}, ["back", "default"]),
        ({MAIN: None, "one": "service:main", "two": "none"}, {MAIN}, []),
        ({MAIN: "front", "one": None, "two": "front"}, {MAIN}, ["default", "front"]),
        ({MAIN: "bridge", "one": None}, {MAIN}, ["default"]),
        ({MAIN: "none", "one": None}, set(), ["default"]),
        ({MAIN: "service:one", "one": None, "two": None}, {"one", "two"}, []),
        ({MAIN: "service:one", "one": "service:two", "two": "front", "three": None}, {"two"}, ["default"]),
    ],
)
def test_main_and_services_that_name_no_network_of_their_own_are_behind_the_router(
    services: dict[str, str | None], behind: set[str], needed: list[str]
) -> None:
    project = a_project(services)
    assert behind_router(project) == behind
    assert list(needed_networks(project, behind)) == needed


def test_a_network_that_leads_nowhere_has_no_router() -> None:
    assert behind_router(a_project({MAIN: None, "one": None}, default=True)) == frozenset()


def test_whoever_has_no_way_out_shares_a_namespace_with_others_or_has_none() -> None:
    assert offline_namespace(a_project({MAIN: None, "one": None, "two": "back"})) == {MAIN, "one"}
    assert offline_namespace(a_project({MAIN: None, "one": "default back", "two": "back"})) == frozenset()
    assert offline_namespace(a_project({MAIN: "none", "one": None, "two": None})) == frozenset()


def test_names_without_a_router_are_those_of_the_machine_itself() -> None:
    project = a_project({MAIN: None, "one": None})
    options = holder_options(project, offline_namespace(project), {}, {}, "desk", has_router=False)
    assert set(options.host["extra_hosts"].values()) == {"127.0.0.1"}
    assert (options.network_mode, options.endpoints) == ("none", ())


def test_names_are_known_on_both_sides() -> None:
    project = a_project({MAIN: None, "one": None, "two": "default back"})
    networks = {name: EngineNetwork(f"engine-{name}", "10.0.0.0/28") for name in ("default", "back")}
    behind = behind_router(project)
    found = addresses(project, behind, networks)
    assert found == {("two", "default"): "10.0.0.14"}
    options = holder_options(project, behind, networks, found, "desk", has_router=True)
    hosts = {"two": "10.0.0.14", "alias-of-two": "10.0.0.14"}
    inside = (MAIN, "alias-of-main", "one", "alias-of-one")
    assert options.host["extra_hosts"] == hosts | dict.fromkeys((*inside, "desk"), "192.0.0.2")
    (endpoint,) = options.endpoints
    assert (endpoint.network, set(endpoint.aliases)) == ("engine-default", set(inside))
    assert holder_options(project, behind, {}, {}, None, has_router=True).network_mode == "none"


def test_names_are_written_down_on_both_sides_where_networks_have_no_name_server() -> None:
    project = a_project({MAIN: None, "one": None, "two": "default back", "three": "back"})
    networks = {name: EngineNetwork(f"engine-{name}", f"10.0.{at}.0/28") for at, name in enumerate(("default", "back"))}
    behind = behind_router(project)
    found = addresses(project, behind, networks, has_name_server=False)
    assert set(hosts_of(project, project.services["three"], found)) == {
        "two",
        "alias-of-two",
        "three",
        "alias-of-three",
    }
    seen = hosts_of(project, project.services["two"], found)
    holder = holder_options(project, behind, networks, found, "desk", has_router=True)
    assert {seen["one"], seen["alias-of-main"]} == {holder.endpoints[0].address}
    assert len({seen["one"], seen["two"], seen["three"]}) == 3
    assert holder.host["extra_hosts"]["two"] == found["two", "default"]
    assert "three" not in holder.host["extra_hosts"]


# -- on an engine ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    with internet(tmp_path_factory.mktemp("internet")) as made:
        yield made


def serve(word: str, port: int) -> str:
    program = SERVE.format(word=word, port=port).replace("$", "$$")
    return json.dumps(["perl", "-MIO::Socket::INET", "-e", program])


COMPOSE = f"""services:
  main: {{depends_on: [server, apart], hostname: desk}}
  server: {{image: "debian:bookworm-slim", command: {serve("pear", 9000)}, container_name: fruits}}
  beside: {{image: "debian:bookworm-slim", command: {serve("plum", 9001)}, network_mode: "service:server"}}
  apart: {{image: "debian:bookworm-slim", command: {serve("fig", 9000)}, networks: [default, back]}}
  store: {{image: "debian:bookworm-slim", command: {serve("kiwi", 9000)}, networks: [back]}}
networks: {{back: }}
"""


def left_of(engine: Engine, run: str) -> list[str]:
    """Containers and networks of a run."""
    of_run = {"label": f"{LABEL_RUN}={run}"}
    networks = [each["Name"] for each in engine.api.networks(filters=of_run)]
    return [*(each["Id"] for each in engine.api.containers(all=True, filters=of_run)), *networks]


@pytest.fixture
async def start(engine: Engine, tools_volume: str, make_task: Any, world: Internet) -> AsyncIterator[Start]:
    """Starts the services of a compose file; removes them, and checks that nothing of them is left."""
    run = f"test-{uuid.uuid4().hex[:12]}"
    started: list[ComposeContainer] = []
    path = make_task("routed", toml=TOML)

    async def start_them(compose: str = COMPOSE, **settings: Any) -> ComposeContainer:
        (path / "environment" / "docker-compose.yaml").write_text(compose)
        backend = DockerBackend(engine, sandboxes_of(run, **settings), name_servers=(world.name_server,))
        async with open_backend(backend):
            started.append(await backend.sandbox(agent_environment(Task.read(path)), "routed.0"))
        return started[-1]

    yield start_them
    await asyncio.gather(*(each.remove() for each in started))
    assert left_of(engine, run) == []


async def said(sandbox: Any, script: str) -> str:
    ended = await sandbox.shell(script, timeout_sec=30, user="root")
    return str(ended.output.decode().strip())


async def answers(sandbox: Any, *places: str) -> list[str]:
    """Answers at addresses such as `server:9000`; "no" where nothing answers."""
    asked = (place.split(":") for place in places)
    return await asyncio.gather(*(said(sandbox, ASK.format(name=name, port=port)) for name, port in asked))


async def reached(sandbox: Any) -> list[str]:
    return await asyncio.gather(
        *(said(sandbox, LOOK.format(host=host)) for host in ("allowed.example", "other.example", THERE))
    )


async def given_here(sandbox: Sandbox) -> set[str]:
    """Names that the sandbox says were given; exactly those are in its files."""
    assert isinstance(sandbox, Compares)
    given = await sandbox.backend_facts()
    lines = [line.split() for line in (await said(sandbox, "cat /etc/hosts")).splitlines()]
    written = {(address, name) for address, *names in lines for name in names}
    assert given.hosts <= written
    assert set((await said(sandbox, "sed -n 's/^nameserver //p' /etc/resolv.conf")).split()) <= given.servers
    return {name for _, name in given.hosts}


@pytest.mark.engine
@pytest.mark.slow
async def test_services_reach_each_other_while_their_way_out_changes(start: Start) -> None:
    sandbox = await start()
    server, beside, apart = map(sandbox.service, ("server", "beside", "apart"))
    everybody = [f"at {HERE}:80", f"at {THERE}:80", f"at {THERE}:80"]
    for policy, expected in (
        (PUBLIC, everybody),
        (CLOSED, ["no"] * 3),
        (ALLOWLIST, [f"at {HERE}:80", "no", "no"]),
        (PUBLIC, everybody),
    ):
        await sandbox.use_network(policy)
        for place in (sandbox, server, beside):
            assert await reached(place) == expected
            places = ("server:9000", "fruits:9000", "localhost:9000", "main:9001", "desk:9001", "apart:9000")
            assert await answers(place, *places) == ["pear", "pear", "pear", "plum", "plum", "fig"]
        assert await answers(apart, "server:9000", "main:9001", "store:9000") == ["pear", "plum", "kiwi"]
    # Nobody forges packets, as in trials of one container: capability 13 is NET_RAW.
    for place in (sandbox, server, beside):
        assert not int((await said(place, "grep CapPrm /proc/self/status")).split()[1], 16) >> 13 & 1
    # Those with networks of their own stay on them, and these lead nowhere.
    assert await reached(apart) == ["no"] * 3
    assert await answers(sandbox, "store:9000") == ["no"]
    assert await said(sandbox, "hostname") == "desk"


@pytest.mark.engine
async def test_a_fresh_container_is_behind_the_same_router(start: Start) -> None:
    sandbox = await start()
    await sandbox.use_network(ALLOWLIST)
    copy, other = await asyncio.gather(filled_copy(sandbox, [], []), sandbox.make_fresh())
    try:
        for each in (copy, other):
            assert await reached(each) == [f"at {HERE}:80", "no", "no"]
            assert await answers(each, "server:9000", "apart:9000") == ["pear", "fig"]
            assert await given_here(each) >= {"server", "fruits", "main", "desk", "apart"}
    finally:
        await asyncio.gather(copy.remove(), other.remove())


@pytest.mark.engine
async def test_a_kept_sandbox_is_found_again_with_its_router(start: Start, engine: Engine, tmp_path: Path) -> None:
    sandbox = await start()
    labels = engine.api.inspect_container(sandbox.container_id)["Config"]["Labels"]
    kept = await sandbox.keep()
    of_run = {"label": f"{LABEL_RUN}={labels[LABEL_RUN]}"}
    names = [each["Names"][0] for each in engine.api.containers(filters=of_run)]
    assert len(names) == 7 and all(name.startswith("/tbench-kept-") for name in names)
    task = Task.read(tmp_path / "tasks" / "routed")
    async with open_backend(DockerBackend(engine, SandboxSettings(labels[LABEL_RUN]))) as backend:
        again = await backend.reopen(agent_environment(task), "routed.0", kept)
        await again.use_network(CLOSED)
        assert await reached(again) == ["no"] * 3
        assert await answers(again, "server:9000") == ["pear"]
        assert "apart" in await given_here(again)
        fresh = await again.make_fresh()
        assert await reached(fresh) == ["no"] * 3
        assert await answers(fresh, "server:9000", "apart:9000") == ["pear", "fig"]
        await fresh.remove()
    await again.remove()
    assert left_of(engine, labels[LABEL_RUN]) == []


@pytest.mark.engine
async def test_main_may_share_the_network_of_a_service(start: Start) -> None:
    sandbox = await start(f"""services:
  main: {{network_mode: "service:api"}}
  api: {{image: "debian:bookworm-slim", command: {serve("pear", 9000)}}}
""")
    for policy, expected in ((ALLOWLIST, [f"at {HERE}:80", "no", "no"]), (CLOSED, ["no"] * 3)):
        await sandbox.use_network(policy)
        assert await reached(sandbox) == expected
        assert await answers(sandbox, "localhost:9000", "api:9000") == ["pear", "pear"]


@pytest.mark.slow
@pytest.mark.engine
async def test_the_host_stays_closed_to_services_behind_a_router(start: Start, host_port: int) -> None:
    reach = f"timeout 1 bash -c 'echo >/dev/tcp/172.17.0.1/{host_port}' 2>/dev/null && echo reached; true"
    sandbox, closed = await asyncio.gather(start(), start(block_host=True))
    assert await said(sandbox.service("server"), reach) == "reached"
    for place in (closed, closed.service("server"), closed.service("apart")):
        assert await said(place, reach) == ""
    assert await reached(closed) == [f"at {HERE}:80", f"at {THERE}:80", f"at {THERE}:80"]


@pytest.mark.engine
async def test_a_start_that_is_cancelled_leaves_nothing_of_a_router(start: Start) -> None:
    for after_sec in (0.1, 0.4, 0.8):
        starting = asyncio.create_task(start())
        await asyncio.sleep(after_sec)
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
    # The fixture looks for what is left.
