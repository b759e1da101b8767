"""Runs over two engines of this machine, of which one is the test's own, and is reached over its socket or over ssh."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import certifi
import pytest
from fleet_machines import until
from in_process import tbench
from own_engine import OwnEngine, own_engine
from own_sshd import OwnSshd, own_sshd
from own_tls import make_certificate, reached_over_tls, tls_options
from run_plans import a_plan
from shell_agents import write_recipe
from tool_calling_server import ToolCallingServer

import tbench as api
from harness.fakes import ScriptedModel
from harness.limits import Limits
from harness.protocols import load_protocol
from tbench.agents.model_agent import ModelAgent
from tbench.agents.trial_agent import AgentReport, NopAgent, TrialAgent, Workplace
from tbench.config.settings import RunConfig, SandboxConfig
from tbench.errors import UsageError
from tbench.events import Event, Events, Note
from tbench.fleet.engines import MachineConnector, connect
from tbench.fleet.fleet import Fleet
from tbench.fleet.machine import EngineAddress
from tbench.rewards.executed import Live, agent_reward
from tbench.runs.plan import sandbox_settings
from tbench.runs.run import execute_run
from tbench.sandbox.backend import SandboxSettings, open_backend
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.own_images import recipe_hash
from tbench.sandbox.owner import LABEL_OWNER, LABEL_RUN
from tbench.tasks.sources import TaskSet, images_dir, read_tasks

pytestmark = [
    pytest.mark.engine,
    pytest.mark.usefixtures("left_by_the_sdk"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("dockerd") is None, reason="starting an engine takes root and dockerd"
    ),
]
TBENCH = str(Path(sys.executable).with_name("tbench"))
SHARED = "unix:///var/run/docker.sock"
IMAGES = ["debian:bookworm-slim", f"tbench/tools:{recipe_hash(images_dir() / 'tools')}"]
TOML = """[environment]
memory_mb = 192
allow_internet = false
docker_image = "debian:bookworm-slim"
workdir = "/app"
"""
BOUND_SEC = 240.0
Run = Callable[..., subprocess.CompletedProcess[str]]


@dataclass(frozen=True)
class Second:
    """The second engine, and the ways to it."""

    own: OwnEngine
    engine: Engine
    sshd: OwnSshd
    certificate: Path
    """What it shows over TLS, and wants to be shown."""

    @property
    def over_ssh(self) -> str:
        return self.sshd.address(self.own.host.removeprefix("unix://"))

    @property
    def path(self) -> str:
        """PATH with the ssh that knows the key."""
        return f"{self.sshd.path}:{os.environ['PATH']}"

    async def containers(self, run: str) -> list[str]:
        found = await self.engine.call(self.engine.api.containers, all=True, filters={"label": f"{LABEL_RUN}={run}"})
        return [container["Id"] for container in found]


@pytest.fixture(scope="module")
def second(engine: Engine, tools_volume: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Second]:
    certificate = make_certificate(tmp_path_factory.mktemp("tls"))
    with own_engine(*tls_options(certificate), images=IMAGES) as (own, theirs), own_sshd() as sshd:
        yield Second(own, theirs, sshd, certificate)


@pytest.fixture
def source(make_task: Any) -> Path:
    """A directory with a small task."""
    path: Path = make_task(toml=TOML, dockerfile=None)
    return path.parent


@pytest.fixture
def run_over(second: Second, source: Path, tmp_path: Path) -> Run:
    """The command line, with the ssh that knows the key, in a process of its own."""

    def run(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": second.path}
        command = [TBENCH, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=BOUND_SEC, **more
        )

    return run


def results(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "results.jsonl").read_text().splitlines()]


# -- runs ------------------------------------------------------------------------------------------


def test_a_run_is_on_both_engines_and_says_where_each_trial_was(
    second: Second, source: Path, run_over: Run, tmp_path: Path
) -> None:
    engines = ["--engine", SHARED, "--engine", second.over_ssh]
    done = run_over("run", str(source), "-a", "oracle", "-k", "4", "-o", "run", "--verify", "shared", *engines)
    assert done.returncode == 0, done.stderr
    assert [line["reward"] for line in results(tmp_path / "run")] == [1.0] * 4
    assert {line["machine"] for line in results(tmp_path / "run")} == {SHARED, second.over_ssh}
    machines = json.loads((tmp_path / "run" / "run.json").read_text())["engine"]["machines"]
    assert [machine["name"] for machine in machines] == [SHARED, second.over_ssh]
    assert {machine["backend"] for machine in machines} == {"docker"}
    assert len({machine["architecture"] for machine in machines}) == 1


@pytest.mark.slow
def test_an_agent_with_a_package_works_on_every_engine(
    second: Second, source: Path, run_over: Run, tmp_path: Path
) -> None:
    recipe = tmp_path / "shell.toml"
    write_recipe(recipe, ': {instruction}\n"$ASK" one && touch /app/done')
    words = ["-a", str(recipe), "-k", "4", "-o", "run", "--verify", "shared", "--retries", "0"]
    with ToolCallingServer([]) as server:
        engines = ["--engine", SHARED, "--engine", second.over_ssh]
        done = run_over("run", str(source), *words, "--base-url", server.base_url, *engines)
    assert done.returncode == 0, done.stderr
    assert [line["reward"] for line in results(tmp_path / "run")] == [1.0] * 4
    assert {line["machine"] for line in results(tmp_path / "run")} == {SHARED, second.over_ssh}


@pytest.mark.slow
def test_what_a_run_kept_is_found_again_on_its_machine(
    second: Second, source: Path, run_over: Run, tmp_path: Path
) -> None:
    name = f"test-{uuid.uuid4().hex[:12]}"
    engines = ["--engine", SHARED, "--engine", second.over_ssh]
    try:
        done = run_over("run", str(source), "-a", "oracle", "-k", "4", "-o", name, "--keep", "all", *engines)
        assert done.returncode == 0, done.stderr
        kept = {line["machine"]: line for line in results(tmp_path / name)}
        again = run_over("regrade", name)
        assert again.returncode == 0 and again.stdout.count(": 1 -> 1\n") == 4, again.stderr
        trial = f"{name}/small-task/{kept[second.over_ssh]['seed']}"
        entered = run_over("shell", trial, input="ls /app; exit\n")
        assert (entered.returncode, "done" in entered.stdout) == (0, True), entered.stderr
    finally:
        cleaned = run_over("clean", "--kept", "--run", name, *engines)
    assert (cleaned.returncode, cleaned.stdout.count(f"of run {name}")) == (0, 4), cleaned.stderr
    on = sorted(line.partition(": removed ")[0] for line in cleaned.stdout.splitlines())
    assert on == sorted([SHARED, SHARED, second.over_ssh, second.over_ssh])


async def test_trials_of_the_api_are_on_the_engines_of_the_configuration(
    second: Second, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", second.path)
    config = RunConfig().with_values(
        agent={"name": "oracle"}, sandbox={"engines": (SHARED, second.over_ssh)}, verify={"mode": "shared"}
    )
    async with api.Runner(config) as runner:
        records = await asyncio.gather(*(runner.trial(source / "small-task", seed=seed) for seed in range(4)))
        assert {record.result.machine for record in records} == {SHARED, second.over_ssh}
        assert [record.reward for record in records] == [1.0] * 4


async def test_rewards_are_of_trials_on_the_engines_that_are_named(second: Second, source: Path) -> None:
    live = Live(engines=(second.own.host,), output=source.parent / "kept")
    assert await agent_reward(source / "small-task", NopAgent, live=live) == [0.0]
    (line,) = [json.loads(path.read_text()) for path in (source.parent / "kept").glob("*/results.jsonl")]
    assert line["machine"] == second.own.host
    with pytest.raises(UsageError, match=r"^unix:///nowhere\.sock: no container engine answers"):
        await agent_reward(source / "small-task", NopAgent, live=Live(engines=("unix:///nowhere.sock",)))


async def test_the_engine_that_a_result_names_is_connected_by_its_name_and_let_go(
    second: Second, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", second.path)
    before = children()
    async with open_backend(MachineConnector(SandboxConfig())(second.over_ssh)(SandboxSettings("tests"))) as backend:
        assert backend.describe()["version"] == second.engine.info.version
        assert len(children() - before) == 1
    assert children() == before


def children() -> set[str]:
    """The processes of ssh that this one has."""
    command = ["ps", "--ppid", str(os.getpid()), "-o", "pid=,comm="]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    return {line.split()[0] for line in lines if line.split()[1] == "ssh"}


@pytest.mark.slow
def test_the_doctor_looks_at_the_engine_that_is_named(second: Second, tmp_path: Path) -> None:
    for address in (second.own.host, second.over_ssh):
        done = tbench("doctor", "--json", "--engine", address, directory=tmp_path, PATH=second.path)
        found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
        assert f" at {address}: " in found["engine"]["seen"]
        assert found["containers"]["status"] == "ok"
    assert children() == set()


def test_cleaning_and_setup_are_for_the_engine_that_is_named(second: Second) -> None:
    run = f"test-{uuid.uuid4().hex[:12]}"
    script = "from tbench.sandbox.owner import owner; print(owner())"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    labels = {LABEL_RUN: run, LABEL_OWNER: ended}
    made = second.engine.api.create_container("debian:bookworm-slim", ["true"], labels=labels)["Id"]
    assert tbench("clean", "--run", run).stdout == "nothing to remove\n"
    cleaned = tbench("clean", "--run", run, "--engine", second.over_ssh, PATH=second.path)
    assert cleaned.stdout == f"{second.over_ssh}: removed container {made[:12]} of run {run}\n", cleaned.stderr
    ready = tbench("setup", "--engine", second.over_ssh, PATH=second.path)
    assert (ready.returncode, f"setup: {second.over_ssh}: engine " in ready.stderr) == (0, True), ready.stderr
    assert children() == set()


async def test_trials_with_terminals_are_on_an_engine_that_wants_tls(
    second: Second, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(second.certificate))
    # Which some sites set for all programs; it is for other servers than this one.
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certifi.where())
    with reached_over_tls(second.own) as address:
        over = OverTwo(address, source, tmp_path, seeds=4)
        lines = await over.execute(lambda: Types([], sleep_sec=0.1))
    assert {line["machine"] for line in lines} == {SHARED, address}
    assert [(line["reward"], line["attempt"]) for line in lines] == [(1.0, 1)] * 4
    assert await second.containers(over.name) == []


# -- bad input -------------------------------------------------------------------------------------


def refused(source: Path, tmp_path: Path, *arguments: str, **variables: str) -> str:
    """What a run with these says in its one line, before there is anything of it."""
    done = tbench("run", str(source), "-a", "nop", "-o", "run", *arguments, directory=tmp_path, **variables)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert not (tmp_path / "run").exists()
    dry = tbench("run", str(source), "-a", "nop", "--dry-run", *arguments, directory=tmp_path, **variables)
    assert (dry.returncode, dry.stderr) == (2, done.stderr)
    return done.stderr.removeprefix("tbench: ").rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["unix:///nowhere.sock"], "unix:///nowhere.sock: no container engine answers at unix:///nowhere.sock"),
        (["tcp://127.0.0.1:1"], "tcp://127.0.0.1:1: no container engine answers at tcp://127.0.0.1:1"),
        (["http://gpu-1"], "http://gpu-1: not the address of an engine; use unix:///path/of.sock, ssh://user@host or "),
        (["ssh://me:hunter2@gpu-1"], "ssh://gpu-1: must not contain a password; use an ssh key"),
    ],
)
def test_an_address_at_which_no_engine_is_is_one_line_with_it(
    arguments: list[str], words: str, source: Path, tmp_path: Path
) -> None:
    given = [word for each in (SHARED, *arguments) for word in ("--engine", each)]
    assert refused(source, tmp_path, *given).startswith(words)


def test_an_engine_that_is_named_twice_is_one_line_whatever_leads_to_it(
    second: Second, source: Path, tmp_path: Path
) -> None:
    for one, other in ((SHARED, SHARED), (second.own.host, second.over_ssh)):
        said = refused(source, tmp_path, "--engine", one, "--engine", other, PATH=second.path)
        assert said == f"{other}: is the same engine as {one}; list it only once"


def test_what_is_wrong_with_ssh_is_one_line_with_the_address(second: Second, source: Path, tmp_path: Path) -> None:
    port = second.sshd.port
    by_address = {
        f"ssh://nobody@127.0.0.1:{port}": (
            "nobody@127.0.0.1: Permission denied (publickey).; "
            f"'ssh -p {port} nobody@127.0.0.1 true' must work without asking questions"
        ),
        "ssh://root@no-such-host.invalid": "'ssh root@no-such-host.invalid true' must work without asking questions",
        f"ssh://root@localhost:{port}": (
            f"Host key verification failed.; 'ssh -p {port} root@localhost true' must work without asking questions"
        ),
        second.sshd.address("/run/no-engine.sock"): "no container engine answers at /run/no-engine.sock there",
    }
    for address, words in by_address.items():
        said = refused(source, tmp_path, "--engine", SHARED, "--engine", address, PATH=second.path)
        assert said.startswith(f"{address}: ") and words in said
    assert children() == set()


def test_a_machine_without_ssh_says_what_to_install(source: Path, tmp_path: Path) -> None:
    said = refused(source, tmp_path, "--engine", "ssh://gpu-1", PATH=str(tmp_path))
    assert said == "ssh://gpu-1: ssh is not installed here; install openssh-client"


def test_what_engines_do_not_go_with_is_one_line(source: Path, tmp_path: Path) -> None:
    said = refused(source, tmp_path, "--engine", SHARED, "--max-load", "2")
    assert said == "--max-load: the named machines may be remote, so its load is not visible; leave it out"
    said = refused(source, tmp_path, "--engine", SHARED, "--ray", "auto")
    assert said.startswith("sandbox: engines and ray exclude each other")


# -- machines that go away -------------------------------------------------------------------------


class OverTwo:
    """A run over the shared engine and a second one, in this process."""

    def __init__(self, address: str, source: Path, directory: Path, *, seeds: int, **times: float) -> None:
        self.notes: list[str] = []
        self.name, self.address = f"test-{uuid.uuid4().hex[:12]}", address
        self.directory = directory / self.name
        self._tasks: TaskSet = read_tasks(str(source))
        self._plan = a_plan(self.name, agent="nop", seeds=tuple(range(seeds)), concurrency=8, verify="shared")
        self._named = [connect(EngineAddress.parse(each), 8) for each in (SHARED, address)]
        settings = sandbox_settings(self._plan)
        self._fleet = Fleet([each.machine(settings) for each in self._named], **times)  # type: ignore[arg-type]

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Note):
            self.notes.append(event.text)

    async def execute(self, agent: Callable[[], TrialAgent]) -> list[dict[str, Any]]:
        """All results, those that are not final among them."""
        async with asyncio.timeout(BOUND_SEC):
            await execute_run(
                self._plan, self._tasks, self.directory, agent, Events(self._on_event), backend=self._fleet
            )
        return results(self.directory)

    def says(self, words: str) -> Callable[[], bool]:
        return lambda: any(words in note for note in self.notes)


class Waits(NopAgent):
    """Waits until a test lets it solve the task."""

    def __init__(self, begun: list[int], goes: asyncio.Event, later: asyncio.Event, many: int) -> None:
        self._begun, self._goes, self._later, self._many = begun, goes, later, many

    async def work(self, place: Workplace) -> AgentReport:
        self._begun.append(place.seed)
        await (self._goes if len(self._begun) <= self._many else self._later).wait()
        await place.sandbox.shell("touch /app/done", timeout_sec=60)
        return await super().work(place)


@pytest.mark.slow
async def test_the_trials_of_an_engine_that_is_killed_are_elsewhere_and_its_containers_go_when_it_is_back(
    second: Second, engine: Engine, source: Path, tmp_path: Path
) -> None:
    over = OverTwo(second.own.host, source, tmp_path, seeds=10, check_every_sec=0.3, lost_after_sec=3.0)
    begun, killed, back = list[int](), asyncio.Event(), asyncio.Event()
    slots = 2 * engine.info.cpus
    running = asyncio.create_task(over.execute(lambda: Waits(begun, killed, back, slots)))
    try:
        await until(lambda: len(begun) == slots)
        await asyncio.to_thread(second.own.stop, signal.SIGKILL)
        killed.set()
        await until(over.says("is lost: "))
        await asyncio.to_thread(second.own.start)
        await until(over.says("is back"))
        back.set()
        lines = await running
    finally:
        running.cancel()
        await asyncio.to_thread(second.own.start_again)
    final = [line for line in lines if line["final"]]
    assert [line["reward"] for line in final] == [1.0] * 10
    lost = [line for line in lines if not line["final"]]
    assert len(lost) == engine.info.cpus
    assert {(line["machine"], line["reward"], line["error"]["type"]) for line in lost} == {
        (second.own.host, None, "engine_unreachable")
    }
    assert second.own.host in {line["machine"] for line in final}  # after it was back
    assert over.says(f"{second.own.host}: is back; removed {engine.info.cpus} containers left on it")()
    assert await second.containers(over.name) == []


class Types(NopAgent):
    """Works at a terminal for some seconds, and tells when it does."""

    def __init__(self, begun: list[int], sleep_sec: float = 5) -> None:
        self._begun, self._sleep_sec = begun, sleep_sec

    async def work(self, place: Workplace) -> AgentReport:
        commands = ["x=kept", f"sleep {self._sleep_sec}; echo slept", '[ "$x" = kept ] && touch /app/done']
        model = ScriptedModel([f"```bash\n{command}\n```" for command in commands])
        self._begun.append(place.seed)
        agent = ModelAgent(model, load_protocol("bash-block"), Limits(steps=3, command_sec=60))
        return await agent.work(place)


@pytest.mark.slow
async def test_an_sshd_that_is_killed_under_a_run_costs_no_trial_when_it_is_back(
    second: Second, engine: Engine, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", second.path)
    over, begun = OverTwo(second.over_ssh, source, tmp_path, seeds=4, check_every_sec=0.3), list[int]()
    before = children()
    running = asyncio.create_task(over.execute(lambda: Types(begun)))
    try:
        await until(lambda: len(begun) == 4)
        await asyncio.sleep(3)
        second.sshd.stop()
        await until(lambda: not before & children())
        await asyncio.sleep(1)
        second.sshd.start()
        lines = await running
    finally:
        running.cancel()
        second.sshd.start_again()
    assert {line["machine"] for line in lines} == {SHARED, second.over_ssh}
    assert [(line["reward"], line["attempt"]) for line in lines] == [(1.0, 1)] * 4
    assert await second.containers(over.name) == [] and children() == set()
