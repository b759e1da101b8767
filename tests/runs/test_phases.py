"""Networks of phases over whole trials: tasks that check which hosts each phase reaches."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from internet import THERE, Internet, internet
from run_plans import a_plan

from tbench.agents.trial_agent import NopAgent, OracleAgent, TrialAgent
from tbench.errors import TrialError
from tbench.events import Events
from tbench.runs.plan import sandbox_settings
from tbench.runs.regrade import regrade
from tbench.runs.run import execute_run
from tbench.sandbox.backend import Sandbox, SandboxSettings, use_network
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.fake import FakeBackend, FakeSandbox
from tbench.sandbox.owner import LABEL_RUN
from tbench.tasks.environment import agent_environment
from tbench.tasks.network import NetworkPolicy
from tbench.tasks.sources import TaskSet
from tbench.tasks.task import Task

LOOKS = f"""looks() {{
    timeout 5 bash -c "exec 3<>/dev/tcp/$1/80
    printf 'GET / HTTP/1.1\\\\r\\\\nHost: $1\\\\r\\\\nConnection: close\\\\r\\\\n\\\\r\\\\n' >&3
    grep -q ' at ' <&3" 2>/dev/null && echo $1 || echo no
}}
all_look() {{ echo $(looks allowed.example) $(looks other.example) $(looks {THERE}); }}
ask() {{ timeout 5 bash -c 'exec 3<>/dev/tcp/$0/9000; cat <&3' $1 2>/dev/null || echo no; }}
"""
SERVE = """use IO::Socket::INET; $server = IO::Socket::INET->new(LocalPort => 9000, Listen => 9, ReuseAddr => 1) or die;
while ($client = $server->accept) { print $client "pear\\n"; close $client }
"""
SERVICES = """services:
  main: {depends_on: [server]}
  server: {image: "${MAIN_IMAGE_NAME}", command: [perl, serve.pl]}
  apart: {image: "${MAIN_IMAGE_NAME}", command: [perl, serve.pl], networks: [default, back]}
networks: {back: }
"""
EVERYBODY, NOBODY, ONE = f"allowed.example other.example {THERE}", "no no no", "allowed.example no no"
ALLOWLIST = 'network_mode = "allowlist"\nallowed_hosts = ["allowed.example"]\n'
NETWORKS = {EVERYBODY: 'network_mode = "public"\n', NOBODY: 'network_mode = "no-network"\n', ONE: ALLOWLIST}
PHASES = [
    ("agent-closed", EVERYBODY, NOBODY, EVERYBODY),
    ("agent-opened", NOBODY, EVERYBODY, NOBODY),
    ("verifier-opened", NOBODY, NOBODY, EVERYBODY),
    ("agent-allowlist", EVERYBODY, ONE, NOBODY),
    ("allowlist", ONE, ONE, ONE),
]
"""Hosts reached at the start, by the agent and by the verifier."""
PHASES_OF_SERVICES = [
    ("services-agent-closed", EVERYBODY, NOBODY, EVERYBODY),
    ("services-agent-allowlist", NOBODY, ONE, EVERYBODY),
]
"""Networks for tasks with services, which reach each other in all phases."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    with internet(tmp_path_factory.mktemp("internet")) as made:
        yield made


def a_task(make_task: Any, name: str, start: str, agent: str, verifier: str) -> Task:
    """A task whose healthcheck and oracle record the hosts they reach; reward 1 if these are the right ones."""
    has_services = name.startswith("services")
    # As in Harbor a service on the network of main answers on localhost as well.
    look = "all_look" + ("; ask server; ask localhost; ask apart" if has_services else "")
    expected = "/".join(each + (" pear pear pear" if has_services else "") for each in (start, agent, verifier))
    toml = f"[environment]\nmemory_mb = 256\n{NETWORKS[start]}"
    toml += f"[environment.healthcheck]\ncommand = \"bash -c '. /app/looks; echo $({look}) >/app/start'\"\n"
    toml += "" if agent == start else f"[agent]\n{NETWORKS[agent]}"
    toml += "" if verifier == start else f"[verifier]\n{NETWORKS[verifier]}"
    test = f'. /app/looks; found="$(cat /app/start)/$(cat /app/agent)/$(echo $({look}))"; echo "$found"\n'
    test += f'if [ "$found" = "{expected}" ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt\n'
    path = make_task(
        name,
        toml=toml,
        dockerfile="FROM debian:bookworm-slim\nWORKDIR /app\nCOPY . .\n",
        solve=f". /app/looks; echo $({look}) >/app/agent\n",
        test=test,
    )
    files = {"looks": LOOKS} | ({"serve.pl": SERVE, "docker-compose.yaml": SERVICES} if has_services else {})
    for file, text in files.items():
        (path / "environment" / file).write_text(text)
    return Task.read(path)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("agent", "reward", "phases"),
    [
        pytest.param(OracleAgent, 1.0, [*PHASES[3:4], *PHASES_OF_SERVICES[1:]], id="oracle"),
        pytest.param(OracleAgent, 1.0, [*PHASES, *PHASES_OF_SERVICES], id="oracle-of-all", marks=pytest.mark.slow),
        pytest.param(NopAgent, 0.0, [*PHASES, *PHASES_OF_SERVICES], id="nop", marks=pytest.mark.slow),
    ],
)
async def test_each_phase_reaches_the_right_hosts(
    engine: Engine,
    tools_volume: str,
    make_task: Any,
    tmp_path: Path,
    world: Internet,
    agent: Callable[[], TrialAgent],
    reward: float,
    phases: list[tuple[str, str, str, str]],
) -> None:
    tasks = TaskSet(tuple(a_task(make_task, *each) for each in phases), {})
    plan = a_plan("phases", concurrency=2)
    backend = DockerBackend(engine, sandbox_settings(plan), name_servers=(world.name_server,))
    outcome = await execute_run(plan, tasks, tmp_path / "run", agent, Events(), backend=backend)
    assert {result.task: (result.reward, result.error) for result in outcome.results} == {
        name: (reward, None) for name, *_ in phases
    }
    # Names of services, and the router as the name server, do not count.
    assert {result.task: result.integrity.tamper for result in outcome.results if result.integrity.tamper} == {}


@pytest.mark.slow
@pytest.mark.engine
async def test_a_fresh_container_has_the_network_of_the_verifier(
    engine: Engine, tools_volume: str, make_task: Any, tmp_path: Path, world: Internet
) -> None:
    tasks = TaskSet(tuple(a_task(make_task, *phases) for phases in PHASES), {})
    plan = a_plan("phases", concurrency=2, verify="isolated")
    backend = DockerBackend(engine, sandbox_settings(plan), name_servers=(world.name_server,))
    outcome = await execute_run(plan, tasks, tmp_path / "run", OracleAgent, Events(), backend=backend)
    assert [(result.reward, result.error) for result in outcome.results] == [(1.0, None)] * len(PHASES)


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("kept", [{"keep": "all"}, {"snapshot": True}], ids=["kept", "snapshot"])
async def test_a_kept_container_is_verified_again_on_the_verifiers_network(
    engine: Engine, tools_volume: str, make_task: Any, tmp_path: Path, world: Internet, kept: dict[str, Any]
) -> None:
    task = a_task(make_task, *PHASES[0])
    plan = a_plan(f"phases-{uuid.uuid4().hex[:8]}", source=str(task.path), **kept)

    def backend(settings: SandboxSettings) -> DockerBackend:
        return DockerBackend(engine, settings, name_servers=(world.name_server,))

    run = tmp_path / "run"
    try:
        first = await execute_run(
            plan, TaskSet((task,), {}), run, OracleAgent, Events(), backend=backend(sandbox_settings(plan))
        )
        (change,) = await regrade(lambda _: lambda _: backend, run, (), None, print)
    finally:
        left = {"label": f"{LABEL_RUN}={plan.run}"}
        containers = await engine.call(engine.api.containers, all=True, filters=left)
        for each in containers:
            await engine.call(engine.api.remove_container, each["Id"], force=True)
        for each in await engine.call(engine.api.images, filters=left):
            await engine.call(engine.api.remove_image, each["Id"])
    assert [result.reward for result in first.results] == [1.0]
    assert change.after is not None and change.after.reward == 1.0, change
    assert len(containers) == (2 if "keep" in kept else 0)  # a kept one, and its router


@pytest.mark.engine
@pytest.mark.parametrize(("network", "reached"), [("none", NOBODY), ("bridge", EVERYBODY)])
async def test_the_network_of_the_run_is_that_of_all_phases(
    engine: Engine, tools_volume: str, make_task: Any, tmp_path: Path, world: Internet, network: str, reached: str
) -> None:
    """Uses no names: these would be resolved by the engine's own name server."""
    task = a_task(make_task, *PHASES[3])
    plan = a_plan("phases", network=network, verify="shared")
    backend = DockerBackend(engine, sandbox_settings(plan), name_servers=(world.name_server,))
    await execute_run(plan, TaskSet((task,), {}), tmp_path / "run", OracleAgent, Events(), backend=backend)
    (stdout,) = (tmp_path / "run").rglob("stdout.txt")
    assert {line.split()[-1] for line in stdout.read_text().strip().split("/")} == {reached.split()[-1]}


# -- above the engine ------------------------------------------------------------------------------

AGENT_CLOSED = "[agent]\nnetwork_mode = 'no-network'\n[verifier]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['h']\n"


async def test_a_trial_asks_for_the_network_of_each_phase(make_task: Any, tmp_path: Path) -> None:
    made: list[FakeSandbox] = []

    def make(_: Task) -> FakeSandbox:
        made.append(FakeSandbox())
        return made[-1]

    for name, toml in (("phases", AGENT_CLOSED), ("plain", "[agent]\nnetwork_mode = 'public'\n")):
        tasks = TaskSet((Task.read(make_task(name, toml=toml)),), {})
        await execute_run(a_plan(agent="nop"), tasks, tmp_path / name, NopAgent, Events(), backend=FakeBackend(make))
    assert [each.networks for each in made] == [
        [NetworkPolicy("no-network"), NetworkPolicy("allowlist", ("h",))],
        [],
    ]


async def test_where_a_network_cannot_be_changed_such_a_task_is_unsupported(make_task: Any) -> None:
    environment = agent_environment(Task.read(make_task(toml=AGENT_CLOSED)))
    with pytest.raises(TrialError, match=r"network changes between phases.*cannot change") as caught:
        await use_network(cast("Sandbox", object()), environment, "agent")
    assert caught.value.type == "task_unsupported"
    plain = agent_environment(Task.read(make_task()))
    await use_network(cast("Sandbox", object()), plain, "agent")
