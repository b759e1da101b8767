"""Agents that people ship, in real containers without a network: scripts that misbehave, and the real ones."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTask
from own_podman import own_podman
from packaged_trials import TOOL_CALLERS, Pull, run, trajectory
from ray_cluster import ray_nodes, require_ray
from results_on_disk import results_in
from shell_agents import write_recipe
from tool_calling_server import SUBMIT, ToolCallingServer

from tbench.agents.recipe import load_recipe
from tbench.sandbox.backend import BUSYBOX
from tbench.sandbox.own_images import recipe_hash
from tbench.sandbox.owner import LABEL_DIRECTORY
from tbench.storage.run_files import CHECKPOINTS_NAME
from tbench.tasks.sources import images_dir

pytestmark = pytest.mark.engine
TIDY = Path(__file__).parents[2] / "tasks"

SERVICES = """
services:
  main:
    build: {context: .}
    depends_on: {store: {condition: service_healthy}}
  store:
    image: debian:bookworm-slim
    command:
      - perl
      - -MIO::Socket::INET
      - -e
      - |
        $$server = IO::Socket::INET->new(LocalPort => 7000, Listen => 5, ReuseAddr => 1) or die;
        while ($$client = $$server->accept) { close $$client }
    healthcheck:
      test: [CMD, perl, -MIO::Socket::INET, -e, "exit !IO::Socket::INET->new('localhost:7000')"]
      interval: 1s
      retries: 30
"""


@pytest.fixture
def server() -> Any:
    with ToolCallingServer(["echo unused"]) as server:
        yield server


async def shell_trial(
    tmp_path: Path, make_task: MakeTask, server: ToolCallingServer, command: str, *more: str, **parts: Any
) -> dict[str, Any]:
    recipe = tmp_path / "shell.toml"
    write_recipe(recipe, f": {{instruction}}\n{command}")
    return run(tmp_path, make_task(**parts).parent, str(recipe), server.base_url, *more)


async def test_an_agent_asks_from_a_container_without_a_network_and_each_request_is_a_step(
    tmp_path: Path, make_task: MakeTask, server: ToolCallingServer, tools_volume: str
) -> None:
    result = await shell_trial(
        tmp_path,
        make_task,
        server,
        'echo "$1"; "$ASK" one && "$ASK" two && touch /app/done && echo log >{logs}/own.txt',
    )
    assert (result["error"], result["reward"], result["outcome"], result["steps"]) == (None, 1.0, "finished", 2)
    assert result["agent"] == "shell-agent@1.0"
    asked = [body["messages"][-1]["content"] for body in server.bodies if "tools" not in body]
    assert [text for text in asked if text in ("one", "two")] == ["one", "two"]
    seeds = [body["seed"] for body in server.bodies if body["messages"][-1]["content"] in ("one", "two")]
    assert len(set(seeds)) == 2
    steps = trajectory(tmp_path)["steps"]
    assert [step["reply"]["content"] for step in steps] == ["Done.", "Done."]
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    assert document["locked"]["agent_contains"] == {"shell-agent": "1.0"}
    assert len(document["locked"]["agent_sha256"]) == 64
    directory = tmp_path / "run" / "trials" / "small-task" / "seed-0"
    assert (directory / "agent" / "own.txt").read_text() == "log\n"
    assert (directory / "session.cast").stat().st_size > 0


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ('"$ASK" one; echo boom; exit 7', "ended with 7 after 1 replies"),
        ("exit 3", "ended with 3 after 0 replies"),
        ("touch /app/done", "ended without a reply of the model"),
        ('"$ASK" one wrong-key && touch /app/done', "ended with 1 after 0 replies"),
    ],
)
async def test_an_agent_that_fails_is_an_error_and_no_score(
    tmp_path: Path, make_task: MakeTask, server: ToolCallingServer, tools_volume: str, command: str, words: str
) -> None:
    result = await shell_trial(tmp_path, make_task, server, command)
    assert result["reward"] is None
    assert result["error"]["type"] == "agent_crashed"
    assert words in result["error"]["message"]


async def test_an_agent_that_hangs_ends_at_the_tasks_time_limit(
    tmp_path: Path, make_task: MakeTask, server: ToolCallingServer, tools_volume: str
) -> None:
    toml = "[agent]\ntimeout_sec = 6\n[environment]\nmemory_mb = 256\nallow_internet = false\n"
    result = await shell_trial(tmp_path, make_task, server, '"$ASK" one; sleep 1000', toml=toml)
    assert (result["error"], result["outcome"], result["reward"]) == (None, "agent_timeout", 0.0)


async def test_an_agent_that_floods_the_endpoint_ends_at_the_limit_of_steps(
    tmp_path: Path, make_task: MakeTask, server: ToolCallingServer, tools_volume: str
) -> None:
    result = await shell_trial(tmp_path, make_task, server, 'while "$ASK" again; do :; done', "--steps", "5")
    assert (result["error"], result["outcome"], result["steps"]) == (None, "step_limit", 5)
    assert sum(body["messages"][-1]["content"] == "again" for body in server.bodies) == 5


async def test_a_failing_endpoint_is_waited_for_and_its_time_is_not_the_agents(
    tmp_path: Path, make_task: MakeTask, server: ToolCallingServer, tools_volume: str
) -> None:
    server.failing = 2
    result = await shell_trial(tmp_path, make_task, server, '"$ASK" one && touch /app/done')
    assert (result["error"], result["reward"], result["steps"]) == (None, 1.0, 1)
    assert result["timings"]["waited_sec"] > 0


async def test_an_agent_that_gives_up_on_a_full_context_is_judged(
    tmp_path: Path, make_task: MakeTask, server: ToolCallingServer, tools_volume: str
) -> None:
    server.longest = 1000
    text = "x" * 4000
    command = f'"$ASK" one && touch /app/done && "$ASK" {text}'
    result = await shell_trial(tmp_path, make_task, server, command)
    assert (result["error"], result["outcome"], result["reward"]) == (None, "context_limit", 1.0)


async def test_an_agent_with_a_user_of_its_own_asks_as_well(
    tmp_path: Path, make_task: MakeTask, server: ToolCallingServer, tools_volume: str
) -> None:
    dockerfile = "FROM debian:bookworm-slim\nRUN useradd -m worker && mkdir /app && chown worker /app\nWORKDIR /app\n"
    toml = "[agent]\nuser = 'worker'\n[environment]\nmemory_mb = 256\nallow_internet = false\n"
    command = '"$ASK" one && id -un >{logs}/me && touch /app/done'
    result = await shell_trial(tmp_path, make_task, server, command, dockerfile=dockerfile, toml=toml)
    assert (result["error"], result["reward"]) == (None, 1.0)


async def test_an_agent_works_beside_the_services_of_its_task(
    tmp_path: Path, make_task: MakeTask, server: ToolCallingServer, tools_volume: str
) -> None:
    command = '"$ASK" one && echo there >/dev/tcp/store/7000 && touch /app/done'
    recipe = tmp_path / "shell.toml"
    write_recipe(recipe, f": {{instruction}}\n{command}")
    task = make_task()
    (task / "environment" / "docker-compose.yaml").write_text(SERVICES)
    result = run(tmp_path, task.parent, str(recipe), server.base_url)
    assert (result["error"], result["reward"], result["steps"]) == (None, 1.0, 1)


@pytest.mark.parametrize(
    ("told", "asked"), [("same", []), ("$(tr 0-9a-f- G-W </proc/sys/kernel/random/uuid)", ["one", "two"])]
)
def test_a_trial_whose_run_was_killed_gets_its_replies_again_unless_its_requests_differ(
    told: str, asked: list[str], tmp_path: Path, make_task: MakeTask, server: ToolCallingServer, tools_volume: str
) -> None:
    recipe = tmp_path / "shell.toml"
    later = """'one"}, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "'"""
    work = f'"$ASK" one && "$ASK" {later}"two {told}" && sleep 3 && "$ASK" three && touch /app/done'
    write_recipe(recipe, ": {instruction}\n" + work.replace('{"', '{{"').replace('"}', '"}}'))
    command = [sys.executable, "-m", "tbench", "run", str(make_task().parent), "--agent", str(recipe)]
    # A replay that is refused leads to another attempt also without retries.
    command += ["--base-url", server.base_url, "--verify", "shared", "--retries", "0"]
    command += ["--output", str(tmp_path / "run")]
    saved = tmp_path / "run" / "trials" / "small-task" / "seed-0" / CHECKPOINTS_NAME
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        ends = time.monotonic() + 120
        while not (saved.exists() and saved.read_bytes().count(b"\n") == 4) and time.monotonic() < ends:
            time.sleep(0.05)
        running.kill()
    assert questions(server) == ["one", "two"]
    resume = [sys.executable, "-m", "tbench", "resume", str(tmp_path / "run")]
    done = subprocess.run(resume, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert questions(server) == ["one", "two", *asked, "three"]
    (result,) = (each for each in results_in(tmp_path / "run") if each.final)
    assert (result.error, result.reward, result.steps) == (None, 1.0, 3)
    assert [each.how for each in result.went_on] == ([] if asked else ["replayed"])
    ids = ["docker", "ps", "--quiet", "--filter", f"label={LABEL_DIRECTORY}={tmp_path / 'run'}"]
    assert subprocess.run(ids, capture_output=True, text=True, check=True).stdout == ""


def questions(server: ToolCallingServer) -> list[str]:
    said = [body["messages"][-1]["content"] for body in server.bodies if body["messages"]]
    return [text.split()[0] for text in said if text.startswith(("one", "two", "three"))]


def test_several_agents_in_one_command_are_compared_by_task_and_seed(
    tmp_path: Path, make_task: MakeTask, server: ToolCallingServer, tools_volume: str
) -> None:
    command = [sys.executable, "-m", "tbench", "run", str(make_task().parent), "--base-url", server.base_url, "--json"]
    for name, work in (("first", "touch /app/done"), ("second", ":")):
        recipe = tmp_path / f"{name}.toml"
        write_recipe(recipe, f': {{instruction}}\n"$ASK" one && {work}', name=name)
        command += ["--agent", str(recipe)]
    command += ["--verify", "shared", "--retries", "0", "--output", str(tmp_path / "both")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert sorted(each.name for each in (tmp_path / "both").iterdir()) == ["first", "second"], done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    assert [each["agent"] for each in document["runs"]] == ["first@1.0", "second@1.0"]
    (comparison,) = document["comparisons"]
    assert (comparison["paired_by"], comparison["seeds"], comparison["difference"]) == ("seed", [0], -1.0)


@pytest.mark.slow
@pytest.mark.podman
@pytest.mark.skipif(shutil.which("podman") is None, reason="podman is not installed")
def test_an_agent_works_on_podman(
    tmp_path: Path, make_task: MakeTask, server: ToolCallingServer, tools_volume: str
) -> None:
    recipe = tmp_path / "shell.toml"
    write_recipe(recipe, ': {instruction}\n"$ASK" one && touch /app/done')
    images = ["debian:bookworm-slim", f"tbench/tools:{recipe_hash(images_dir() / 'tools')}"]
    with own_podman() as engine:
        with subprocess.Popen(["docker", "save", *images], stdout=subprocess.PIPE) as saving:
            assert saving.stdout is not None
            engine.api.load_image(saving.stdout.read())
        address = f"unix://{Path(engine.info.root).parent}/podman.sock"
        result = run(tmp_path, make_task().parent, str(recipe), server.base_url, "--engine", address)
    assert (result["error"], result["reward"], result["steps"]) == (None, 1.0, 1)


@pytest.mark.slow
def test_an_agent_works_on_every_node_of_a_ray_cluster(
    tmp_path: Path, make_task: MakeTask, server: ToolCallingServer, tools_volume: str
) -> None:
    require_ray()
    recipe = tmp_path / "shell.toml"
    write_recipe(recipe, ': {instruction}\n"$ASK" one && sleep 2 && touch /app/done')
    with ray_nodes("one", "two") as nodes:
        command = [sys.executable, "-m", "tbench", "run", str(make_task().parent), "--agent", str(recipe)]
        command += ["--base-url", server.base_url, "--ray", nodes.address, "-k", "4", "-n", "4"]
        command += ["--cpu-overcommit", "2", "--verify", "shared", "--retries", "0", "--output", str(tmp_path / "run")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = results_in(tmp_path / "run")
    assert [(each.error, each.reward, each.steps) for each in results] == [(None, 1.0, 1)] * 4
    assert {each.machine for each in results} == {"one", "two"}


def solution_of(task: str) -> Sequence[str]:
    text = (TIDY / task / "solution" / "solve.sh").read_text()
    return ["ls /app", text.split("set -e\n", 1)[1]]


PATIENT = ("--timeout-multiplier", "5")
"""These agents start for minutes where other tests take the processors."""


@pytest.mark.slow
@pytest.mark.parametrize("task", ["tidy-notes", "ledger-to-jsonl"])
@pytest.mark.parametrize("agent", TOOL_CALLERS)
def test_a_real_agent_solves_bundled_tasks_without_a_network(
    agent: str, task: str, tmp_path: Path, tools_volume: str, pulled: Pull
) -> None:
    pulled(agent)
    commands = solution_of(task)
    with ToolCallingServer(commands) as server:
        result = run(tmp_path, TIDY, agent, server.base_url, "-t", task, *PATIENT, seconds=1500)
    assert (result["error"], result["reward"], result["outcome"], result["steps"]) == (None, 1.0, "finished", 3)
    found = trajectory(tmp_path, task)
    last = [SUBMIT] if agent == "mini-swe-agent" else []
    assert [action for step in found["steps"] for action in step["actions"]] == [*commands, *last]
    assert found["steps"][0]["observation"]
    assert [step["reply"]["reasoning"] for step in found["steps"][:2]] == ["Now comes 1.", "Now comes 2."]
    assert len({body["seed"] for body in server.bodies if "seed" in body}) >= 3
    # The thinking goes back to the model, as in tbench's own loop.
    sent = [message for message in server.bodies[-1]["messages"] if message["role"] == "assistant"]
    assert [message.get("reasoning") or message.get("reasoning_content") for message in sent] == [
        "Now comes 1.",
        "Now comes 2.",
    ]


ONLY_BUSYBOX = """FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
WORKDIR /app
"""


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["claude-code", "codex", "qwen-code"])
async def test_a_real_agent_runs_or_is_refused_in_an_image_that_is_little_more_than_busybox(
    agent: str, tmp_path: Path, make_task: MakeTask, start_sandbox: Any, pulled: Any
) -> None:
    """Like Alpine: no C library, no C++ library, no Python, no Node.js."""
    pulled(agent)
    helper = await start_sandbox(make_task("helper"))
    (busybox,) = (await helper.fetch(BUSYBOX, 16 << 20)).values()
    toml = "[environment]\nmemory_mb = 2048\nallow_internet = false\n"
    task = make_task("only-busybox", dockerfile=ONLY_BUSYBOX, toml=toml)
    (task / "environment" / "busybox").write_bytes(busybox)
    (task / "environment" / "busybox").chmod(0o755)
    with ToolCallingServer(["touch done && echo made"]) as server:
        result = run(tmp_path, task.parent, agent, server.base_url, "-t", "only-busybox", *PATIENT, seconds=1500)
    if needs := load_recipe(agent).needs:
        assert (result["error"]["type"], result["steps"]) == ("task_unsupported", 0)
        assert f"the image has no {needs[0]}" in result["error"]["message"]
        return
    # There is no bash for the verifier.
    assert (result["error"]["type"], result["outcome"]) == ("verifier_no_reward", "finished")
    assert "made" in trajectory(tmp_path, "only-busybox")["steps"][0]["observation"]
