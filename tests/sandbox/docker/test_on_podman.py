"""Runs tbench on Podman's Docker-compatible socket: sandbox, terminal, whole trials."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from internet import internet
from own_podman import own_podman
from run_plans import a_plan

from harness.protocols.base import CommandResult, Keys
from harness.terminal import Terminal
from tbench.agents.trial_agent import NopAgent, OracleAgent, TrialAgent
from tbench.errors import TrialError
from tbench.events import Events
from tbench.runs.plan import sandbox_settings
from tbench.runs.run import execute_run
from tbench.sandbox.backend import BUSYBOX, ExecResult, Sandbox, SandboxSettings, open_backend, removed_afterwards
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.cleaning import clean
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.networks import ensure_network
from tbench.sandbox.docker.pulls import pull
from tbench.sandbox.docker.tools import ensure_base_images, ensure_tools
from tbench.sandbox.image import ImageName
from tbench.sandbox.leftovers import Scope
from tbench.sandbox.owner import LABEL_RUN
from tbench.tasks.environment import agent_environment
from tbench.tasks.network import NetworkPolicy
from tbench.tasks.sources import TaskSet
from tbench.tasks.task import Task

pytestmark = [
    pytest.mark.podman,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("podman") is None, reason="podman is not installed"),
]
LONG = 30.0
TBENCH = str(Path(sys.executable).with_name("tbench"))
NO_ROOT = "FROM debian:bookworm-slim\nRUN useradd --create-home dev\nWORKDIR /home/dev\nUSER dev\n"
Start = Callable[[Path], Coroutine[Any, Any, Sandbox]]


@pytest.fixture(scope="module", params=["root", "user"])
def podman(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with own_podman(is_rootless=request.param == "user") as engine:
        yield engine


@pytest.fixture(scope="module")
def tools(podman: Engine) -> str:
    """Base image, network and tools volume, made by the same code as on Docker."""

    async def prepare() -> str:
        await ensure_base_images(podman, print)
        await ensure_network(podman)
        return await ensure_tools(podman, print)

    return asyncio.run(prepare())


@pytest.fixture
async def start(podman: Engine, tools: str) -> AsyncIterator[Start]:
    """Starts containers for task directories; removes them at the end."""
    started: list[Sandbox] = []
    async with open_backend(DockerBackend(podman, SandboxSettings(f"test-{uuid.uuid4().hex[:12]}"))) as backend:

        async def start_one(directory: Path) -> Sandbox:
            started.append(await backend.sandbox(agent_environment(Task.read(directory)), "tests"))
            return started[-1]

        yield start_one
        for sandbox in started:
            await sandbox.remove()


async def test_a_pull_that_fails_within_the_answer_is_an_error(podman: Engine) -> None:
    with pytest.raises(EngineError, match="refused"):
        await pull(podman, ImageName.parse("localhost:1/no/image:latest"), LONG)


@pytest.mark.parametrize("dockerfile", ["FROM debian:bookworm-slim\nWORKDIR /app\n", NO_ROOT], ids=["root", "user"])
async def test_a_sandbox_runs_commands_and_goes(podman: Engine, start: Start, make_task: Any, dockerfile: str) -> None:
    sandbox = await start(make_task(dockerfile=dockerfile))
    ended = await sandbox.shell("cat; pwd; exit 3", timeout_sec=LONG, stdin=b"given\n")
    assert (ended.exit_code, ended.output) == (3, b"given\n/\n")
    assert (await sandbox.shell("sleep 60", timeout_sec=1)).timed_out
    terminal = Terminal(sandbox.connect)  # which makes the directories for logs
    await terminal.open()
    await terminal.close()
    await sandbox.shell("echo kept > /logs/agent/note.txt", timeout_sec=LONG, user="root")
    assert await sandbox.fetch("/logs", 1 << 20) == {"agent/note.txt": b"kept\n"}
    assert await sandbox.fetch("/nowhere", 1 << 20) == {}
    await sandbox.remove()
    with pytest.raises(TrialError, match="no such container"):
        await sandbox.fetch("/logs", 1 << 20)
    assert not await podman.call(podman.api.containers, all=True, filters={"label": LABEL_RUN})


async def test_a_sandbox_that_was_killed_is_lost(podman: Engine, start: Start, make_task: Any) -> None:
    sandbox = await start(make_task())
    await podman.call(podman.api.kill, sandbox.container_id)
    await podman.call(podman.api.wait, sandbox.container_id)
    with pytest.raises(TrialError) as lost:
        await sandbox.shell("true", timeout_sec=LONG)
    assert lost.value.type == "sandbox_lost"


async def test_a_terminal_steps(start: Start, make_task: Any) -> None:
    sandbox = await start(make_task())
    terminal = Terminal(sandbox.connect)
    await terminal.open()
    for number in range(20):
        settled = await terminal.send(Keys(f"echo step-{number}; (exit {number})\n", LONG))
        assert (settled.at_prompt, settled.exit_code) == (True, number)
        assert f"\nstep-{number}\n" in ((await terminal.view()).new_output or "")
    assert await terminal.run("seq 3", LONG) == CommandResult("1\n2\n3\n", 0)
    await sandbox.remove()
    with contextlib.suppress(Exception):
        await terminal.close()


async def test_a_network_is_another_for_each_phase(
    podman: Engine, tools: str, make_task: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    allowlist = NetworkPolicy("allowlist", ("allowed.example",))
    path = make_task(toml='[environment]\nmemory_mb = 256\n[agent]\nnetwork_mode = "no-network"\n')
    with internet(tmp_path_factory.mktemp("internet")) as world:
        settings = SandboxSettings(f"test-{uuid.uuid4().hex[:12]}")
        async with open_backend(DockerBackend(podman, settings, name_servers=(world.name_server,))) as backend:
            sandbox = await backend.sandbox(agent_environment(Task.read(path)), "tests")
            async with removed_afterwards(sandbox):
                for policy, reached in (
                    (NetworkPolicy(), ["allowed.example", "other.example"]),
                    (NetworkPolicy("no-network"), []),
                    (allowlist, ["allowed.example"]),
                ):
                    await sandbox.use_network(policy)
                    hosts = ("allowed.example", "other.example")
                    assert [host for host in hosts if await is_reached(sandbox, host)] == reached
    assert not await podman.call(podman.api.containers, all=True, filters={"label": LABEL_RUN})


async def is_reached(sandbox: Sandbox, host: str) -> bool:
    fetch = f"{BUSYBOX} timeout 5 {BUSYBOX} wget -q -O - http://{host}/"
    return (await sandbox.shell(fetch, timeout_sec=LONG)).output.startswith(host.encode())


@pytest.mark.parametrize(("agent", "reward"), [(OracleAgent, 1.0), (NopAgent, 0.0)], ids=["oracle", "nop"])
async def test_a_trial_gets_its_verdict(
    podman: Engine, tools: str, make_task: Any, tmp_path: Path, agent: Callable[[], TrialAgent], reward: float
) -> None:
    plan = a_plan("podman", seeds=(0, 1), concurrency=2, verify="both")
    tasks = TaskSet((Task.read(make_task(toml="[environment]\nmemory_mb = 256\n")),), {})
    outcome = await execute_run(
        plan, tasks, tmp_path / "run", agent, Events(), backend=DockerBackend(podman, sandbox_settings(plan))
    )
    assert [(result.reward, result.error) for result in outcome.results] == [(reward, None)] * 2


SERVE = "$s = IO::Socket::INET->new(LocalPort => 9000, Listen => 9); while ($c = $s->accept) { print $c q(fig) }"
CHECK = "exit !IO::Socket::INET->new(q(localhost:9000))"
COMPOSE = f"""
services:
  main: {{depends_on: {{server: {{condition: service_healthy}}}}}}
  server:
    image: debian:bookworm-slim
    command: [perl, -MIO::Socket::INET, -e, "{SERVE.replace("$", "$$")}"]
    container_name: fruit-box
    healthcheck: {{test: [CMD, perl, -MIO::Socket::INET, -e, "{CHECK}"]}}
  unchecked: {{image: debian:bookworm-slim, command: sleep 600}}
"""
ASK = "for name in server fruit-box; do bash -c 'head -c 3 </dev/tcp/$0/9000' $name; done; getent hosts main >/dev/null"


@pytest.mark.parametrize("has_internet", ["true", "false"])
async def test_services_are_found_by_their_names_and_nothing_is_left(
    podman: Engine, start: Start, make_task: Any, has_internet: str
) -> None:
    path = make_task(toml=f"[environment]\nmemory_mb = 256\nallow_internet = {has_internet}\n")
    (path / "environment/docker-compose.yaml").write_text(COMPOSE)
    sandbox: Any = await start(path)
    fresh = await sandbox.make_fresh()
    for place in (sandbox, fresh, sandbox.service("unchecked")):
        assert (await place.shell(ASK, timeout_sec=LONG)) == ExecResult(0, b"figfig")
    await fresh.remove()
    await sandbox.remove()
    labelled = {"label": LABEL_RUN}
    assert await podman.call(podman.api.containers, all=True, filters=labelled) == []
    assert await podman.call(podman.api.networks, filters=labelled) == []


def wait_for_a_line(file: Path, process: subprocess.Popen[bytes]) -> None:
    while not (file.is_file() and file.read_text()) and process.poll() is None:
        time.sleep(0.2)


async def test_a_killed_run_goes_on_and_leaves_nothing(
    podman: Engine, tools: str, make_task: Any, tmp_path: Path
) -> None:
    task = make_task(toml="[environment]\nmemory_mb = 256\n", solve="sleep 2; touch /app/done\n")
    socket = podman.api.get_adapter("http+docker://").socket_path
    environment = {**os.environ, "DOCKER_HOST": f"unix://{socket}"}
    out, lines = tmp_path / "run", tmp_path / "run" / "results.jsonl"

    def begin(*arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [TBENCH, *arguments], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    with begin("run", str(task), "--agent", "oracle", "-k", "4", "-n", "2", "-o", str(out)) as running:
        await asyncio.to_thread(wait_for_a_line, lines, running)
        running.kill()
    with begin("resume", str(out)) as resumed:
        errors = await asyncio.to_thread(resumed.communicate, timeout=400)
    assert resumed.returncode == 0, errors
    assert [json.loads(line)["reward"] for line in lines.read_text().splitlines()] == [1.0] * 4
    assert await podman.call(podman.api.containers, all=True, filters={"label": LABEL_RUN}) == []


async def test_what_is_shared_can_be_cleaned_up(podman: Engine, tools: str) -> None:
    removed = (await clean(podman, Scope(everything=True))).removed
    assert f"volume {tools}" in removed
    assert "network tbench" in removed
