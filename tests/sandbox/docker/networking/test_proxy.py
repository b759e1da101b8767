"""The proxy of the user's: containers and builds with a network use it, no other is told of it, nobody its password."""

from __future__ import annotations

import http.server
import json
import textwrap
import threading
import uuid
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from filled_copies import filled_copy
from internet import Internet, internet
from run_plans import a_plan, sandboxes_of

from harness.fakes import ScriptedModel
from harness.limits import Limits
from harness.protocols import load_protocol
from tbench.agents.model_agent import ModelAgent
from tbench.agents.trial_agent import OracleAgent
from tbench.events import Events
from tbench.runs.plan import sandbox_settings
from tbench.runs.run import execute_run
from tbench.sandbox.backend import BUSYBOX, SandboxSettings, open_backend, removed_afterwards, use_network
from tbench.sandbox.build_context import build_tag
from tbench.sandbox.container_proxy import container_proxy
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine
from tbench.tasks.environment import agent_environment
from tbench.tasks.sources import TaskSet
from tbench.tasks.task import Task

pytestmark = pytest.mark.engine
HOST = "172.17.0.1"
"""An address of the engine's host, on its own bridge."""
USER, PASSWORD = "me", "pa@ss-w0rd"
WRITTEN = f"{USER}:pa%40ss-w0rd"
SECRETS = ("pa%40ss-w0rd", PASSWORD, b64encode(f"{USER}:{PASSWORD}".encode()).decode())
NAMES = "env | grep -i -c _proxy= || true"
FETCH = f"{BUSYBOX} wget -q -O - http://nowhere.example/page"
Start = Callable[..., Any]
SHOWS = """env; cat /proc/1/environ; echo; cat /proc/self/environ | tr '\\0' ' '; echo; echo "${HTTP_PROXY#*//}"
for n in $(seq 40); do printf %s "$http_proxy"; done; echo; echo "${HTTP_PROXY#*:*:}"; env >/logs/artifacts/env
echo "$HTTP_PROXY" >&2
"""
DOCKERFILE = """FROM debian:bookworm-slim
RUN : {mark}; env | sort; bash -c '[ -z "$HTTP_PROXY" ] || exec 3<>/dev/tcp/$(echo ${{HTTP_PROXY##*@}} | tr : /)'
RUN env | grep -i -c _proxy= >/told || true
"""


class Passing(http.server.BaseHTTPRequestHandler):
    """Answers what comes for other hosts, as a proxy does, and keeps who asked for what."""

    asked: list[tuple[str, str]]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Proxy-Authorization", "")))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"by the proxy")

    def log_message(self, *_: Any) -> None:
        pass


class TheProxy:
    def __init__(self, port: int, asked: list[tuple[str, str]]) -> None:
        self.url, self.asked = f"http://{WRITTEN}@{HOST}:{port}", asked
        self.shown = f"http://***@{HOST}:{port}"


@pytest.fixture
def proxy() -> Iterator[TheProxy]:
    asked: list[tuple[str, str]] = []
    handler = type("Handler", (Passing,), {"asked": asked})
    server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield TheProxy(server.server_address[1], asked)
    server.shutdown()
    server.server_close()


@pytest.fixture
async def start(engine: Engine, tools_volume: str, make_task: Any, proxy: TheProxy) -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def one(toml: str, compose: str = "", name_servers: tuple[str, ...] = (), **options: Any) -> Any:
            settings = {"container_proxy": container_proxy(proxy.url, {"NO_PROXY": ".corp"}), **options}
            made = DockerBackend(
                engine, sandboxes_of(f"test-{uuid.uuid4().hex[:12]}", **settings), name_servers=name_servers
            )
            backend = await stack.enter_async_context(open_backend(made))
            path = make_task(
                f"told-{uuid.uuid4().hex[:8]}",
                toml=f'[environment]\nmemory_mb = 256\ndocker_image = "debian:bookworm-slim"\n{toml}',
            )
            if compose:
                (path / "environment" / "docker-compose.yaml").write_text(textwrap.dedent(compose))
            environment = agent_environment(Task.read(path))
            sandbox = await backend.sandbox(environment, "told.0")
            stack.push_async_callback(sandbox.remove)
            return (sandbox, environment) if name_servers else sandbox

        yield one


async def said(sandbox: Any, script: str) -> str:
    return str((await sandbox.shell(script, timeout_sec=20)).output.decode().strip())


async def test_what_has_a_network_uses_the_proxy_and_what_has_none_is_not_told_of_it(
    start: Start, proxy: TheProxy
) -> None:
    open_one = await start("")
    assert await said(open_one, FETCH) == "by the proxy"
    basic = b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    assert proxy.asked in ([("http://nowhere.example/page", f"Basic {basic}")], [("http://nowhere.example/page", "")])
    assert await said(open_one, "echo $NO_PROXY") == f".corp,localhost,127.0.0.1,::1,{await said(open_one, 'hostname')}"
    async with (
        removed_afterwards(await filled_copy(open_one, (), ())) as copy,
        removed_afterwards(await open_one.make_fresh()) as new,
    ):
        assert (await said(copy, NAMES), await said(new, NAMES)) == ("6", "6")
    closed = await start("allow_internet = false\n")
    assert await said(closed, NAMES) == "0"
    async with removed_afterwards(await filled_copy(closed, (), ())) as copy:
        assert await said(copy, NAMES) == "0"
    assert await said(await start("", network="none"), NAMES) == "0"
    assert await said(await start("", container_proxy=container_proxy("none")), NAMES) == "0"
    own = await start('env = { https_proxy = "http://of-the-task:1" }\n')
    assert await said(own, "env | grep -i _proxy=") == "https_proxy=http://of-the-task:1"


async def test_what_docker_is_configured_for_comes_into_no_container_by_itself(
    tools_volume: str, make_task: Any, proxy: TheProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"proxies": {"default": {"httpProxy": proxy.url}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    task = Task.read(make_task(toml='[environment]\nmemory_mb = 256\ndocker_image = "debian:bookworm-slim"\n'))
    for choice, told in (("none", "0"), ("inherit", "4")):
        settings = SandboxSettings(f"test-{uuid.uuid4().hex[:12]}", container_proxy=container_proxy(choice))
        connected = Engine.connect(1)
        async with open_backend(DockerBackend(connected, settings, on_close=connected.close)) as backend:
            sandbox = await backend.sandbox(agent_environment(task), "told.0")
            assert await said(sandbox, NAMES) == told
            await sandbox.remove()


async def test_services_are_told_as_far_as_their_networks_lead_out(start: Start) -> None:
    compose = """
        services:
          main: {depends_on: [server], networks: [default, back]}
          server: {image: debian:bookworm-slim, command: [sleep, infinity], networks: {default: {aliases: [fruits]}}}
          inner: {image: debian:bookworm-slim, command: [sleep, infinity], networks: [back]}
          beside: {image: debian:bookworm-slim, command: [sleep, infinity], network_mode: "service:server"}
          none: {image: debian:bookworm-slim, command: [sleep, infinity], network_mode: none}
          own: {image: debian:bookworm-slim, command: [sleep, infinity], environment: [http_proxy=http://server:1]}
        networks: {back: {internal: true}}
        """
    sandbox = await start("", compose)
    names = ("main", "server", "inner", "beside", "none", "own")
    told = {name: await said(sandbox.service(name), NAMES) for name in names}
    assert told == {"main": "6", "server": "6", "inner": "0", "beside": "6", "none": "0", "own": "1"}
    exceptions = (await said(sandbox, "echo $no_proxy")).split(",")
    assert {"server", "fruits", "inner", "beside", "localhost", ".corp"} <= set(exceptions)
    less = "\n".join(line for line in compose.split("\n") if line.split(":")[0].strip() not in names[3:])
    closed = await start("allow_internet = false\n", less)
    assert {await said(closed.service(name), NAMES) for name in names[:3]} == {"0"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    with internet(tmp_path_factory.mktemp("internet")) as made:
        yield made


async def test_behind_a_router_only_a_phase_that_is_open_to_all_is_told(start: Start, world: Internet) -> None:
    toml = 'network_mode = "allowlist"\nallowed_hosts = ["allowed.example"]\n'
    toml += '[agent]\nnetwork_mode = "no-network"\n[verifier]\nnetwork_mode = "public"\n'
    sandbox, environment = await start(toml, name_servers=(world.name_server,))
    told = [await said(sandbox, NAMES)]
    for phase in ("agent", "verifier"):
        await use_network(sandbox, environment, phase)
        told.append(await said(sandbox, NAMES))
    assert told == ["0", "0", "6"]
    fresh = await sandbox.make_fresh()
    assert await said(fresh, NAMES) == "6"
    await fresh.remove()


async def test_a_snapshot_does_not_have_the_password(start: Start, engine: Engine) -> None:
    sandbox = await start("")
    assert await said(sandbox, NAMES) == "6"
    image = await sandbox.snapshot()
    try:
        assert "w0rd" not in json.dumps(engine.api.inspect_image(image))
    finally:
        engine.api.remove_image(image, noprune=True)


async def test_no_run_has_the_password_on_disk(
    engine: Engine, tools_volume: str, make_task: Any, tmp_path: Path, proxy: TheProxy
) -> None:
    dockerfile = DOCKERFILE.format(mark=uuid.uuid4().hex)
    test = f'{SHOWS}cat /told; [ "$(cat /told)" = 6 ] && echo 1 >/logs/verifier/reward.txt\nenv >/logs/verifier/env\n'
    tasks = []
    for name, toml in (("open", ""), ("closed", "allow_internet = false\n")):
        toml = f"[environment]\nmemory_mb = 256\n{toml}"
        path = make_task(name, toml=toml, dockerfile=dockerfile, solve=SHOWS, test=test)
        tasks.append(Task.read(path))
    plan = a_plan("told")
    plan = plan.model_copy(update={"config": plan.config.with_values(sandbox={"container_proxy": proxy.url})})
    reply = "```bash\nenv; cat /proc/1/environ; for n in 1 2 3 4 5 6 7; do printf %s $http_proxy; done\n```"
    keys = {"analysis": "", "plan": "", "commands": [{"keystrokes": f"clear; {SHOWS}", "duration": 3.0}]}
    agents: dict[str, Callable[[], Any]] = {
        "oracle": OracleAgent,
        "bash": lambda: ModelAgent(ScriptedModel([reply]), load_protocol("bash-block"), Limits(steps=1)),
        "keys": lambda: ModelAgent(
            ScriptedModel([json.dumps(keys)] * 2), load_protocol("keystrokes-json"), Limits(steps=2)
        ),
    }
    try:
        for name, agent in agents.items():
            run = tmp_path / name
            settings = sandbox_settings(plan, run / "images")
            # Fresh containers, too, for the one whose tests are the same as the others'.
            modes = {"mode": "both" if name == "oracle" else "shared"}
            judged = plan.model_copy(update={"config": plan.config.with_values(verify=modes)})
            outcome = await execute_run(
                judged, TaskSet(tuple(tasks), {}), run, agent, Events(), backend=DockerBackend(engine, settings)
            )
            assert {each.task: (each.reward, each.error) for each in outcome.results} == {
                "open": (1.0, None), "closed": (1.0, None),
            }  # fmt: skip
            for file in run.rglob("*"):
                content = file.read_bytes() if file.is_file() else b""
                assert [secret for secret in SECRETS if secret.encode() in content] == [], file
            document = json.loads((run / "run.json").read_text())
            assert document["config"]["sandbox"]["container_proxy"] == proxy.shown
            assert document["engine"]["container_proxy"]["HTTP_PROXY"] == proxy.shown
            shown = (run / "trials/open/seed-0/verifier/stdout.txt").read_text()
            assert f"HTTP_PROXY=http://{'*' * len(WRITTEN)}" in shown
            closed = [file.read_bytes() for file in (run / "trials/closed").rglob("*.*") if file.is_file()]
            assert not any(b"_PROXY=http" in content for content in closed)
        tag = build_tag(agent_environment(tasks[0]))
        described = json.dumps([engine.api.inspect_image(tag), engine.api.history(tag)])
        assert "w0rd" not in described
    finally:
        for task in tasks:
            engine.api.remove_image(build_tag(agent_environment(task)), force=True)
