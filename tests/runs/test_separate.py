"""Trials with a separate verifier over fake sandboxes: the order of events, and failures."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_plans import a_config, a_document

from harness.trajectory import Outcome, Trajectory
from tbench.agents.trial_agent import AgentReport, NopAgent, TrialAgent, Workplace
from tbench.config.settings import SandboxConfig
from tbench.errors import TrialError
from tbench.events import Events
from tbench.results import TrialResult
from tbench.runs.admission import Demand
from tbench.runs.plan import as_configured
from tbench.runs.run import task_demand
from tbench.runs.trial import Trial
from tbench.runs.trial_progress import TrialPlan
from tbench.sandbox.backend import ExecResult, Sandbox
from tbench.sandbox.fake import FakeBackend, FakeSandbox
from tbench.storage.run_store import RunStore
from tbench.tasks.environment import Environment, verifier_environment
from tbench.tasks.task import Task

MakeTask = Any
SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'


class Agent:
    """An agent that waits, or fails."""

    name = "waits"

    def __init__(self, error: TrialError | None = None) -> None:
        self._error = error
        self.has_begun = asyncio.Event()
        self.was_cut = False

    async def work(self, place: Workplace) -> AgentReport:
        if self._error is not None:
            raise self._error
        self.has_begun.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            self.was_cut = True
            raise
        return AgentReport(Outcome.FINISHED)

    def partial(self) -> Trajectory | None:
        return None


class WithServices(FakeSandbox):
    """A fake of two containers that records calls in order."""

    def __init__(self) -> None:
        super().__init__()
        self.did: list[str] = []
        self.api = FakeSandbox()

    async def shell(self, script: str, **options: Any) -> ExecResult:
        self.did.append("hook" if "main-hook" in script else "files")
        return await super().shell(script, **options)

    def service(self, name: str) -> Sandbox:
        if name != "api":
            raise TrialError("sandbox_failed", f"there is no service {name!r}")
        return self.api

    async def stop_main(self) -> None:
        self.did.append("stop")

    async def remove(self) -> None:
        self.did.append(f"remove after {len(self.api.calls)} calls of api")
        await super().remove()


async def run(
    tmp_path: Path,
    task: Task,
    backend: FakeBackend,
    agent: TrialAgent | None = None,
    asked: SandboxConfig | None = None,
) -> TrialResult:
    store = RunStore.create(tmp_path / "run", a_document())
    plan = TrialPlan("t.s0.x", task.name, 0, task)
    trial = Trial(
        plan,
        run="r",
        make_agent=lambda: agent or NopAgent(),
        model=None,
        backend=backend,
        store=store,
        events=Events(),
        sandbox=asked,
    )
    async with asyncio.timeout(20):
        result = await (await trial.run(queue_sec=0))()
    store.close()
    assert backend.left == []
    return result


def in_turn(*sandboxes: FakeSandbox) -> Callable[[Task], FakeSandbox]:
    turns = iter(sandboxes)
    return lambda _: next(turns)


def stored(tmp_path: Path, name: str) -> Path:
    return tmp_path / "run" / "trials" / "small-task" / "seed-0" / name


async def test_the_agents_sandbox_is_gone_before_the_verifiers_begins(tmp_path: Path, make_task: MakeTask) -> None:
    seen = []

    def make(_: Task) -> FakeSandbox:
        seen.append([each.removed for each in backend.made.values()])
        return FakeSandbox()

    backend = FakeBackend(make)
    result = await run(tmp_path, Task.read(make_task(toml=SEPARATE)), backend)
    assert (result.reward, result.integrity.verify) == (1.0, "separate")
    assert seen == [[], [True]]
    assert (result.image_id, result.verifier_image_id) == ("fake", "fake")


async def test_services_are_asked_when_the_agents_container_has_stopped(tmp_path: Path, make_task: MakeTask) -> None:
    toml = """artifacts = ["/app/out", { source = "/log", service = "api" }, { source = "/log", service = "no" }]
[[verifier.collect]]
command = "dump"
service = "api"
[[verifier.collect]]
command = "main-hook"
"""
    path = make_task(toml=toml + SEPARATE)
    (path / "environment" / "docker-compose.yaml").write_text("services: {}\n")
    task = Task.read(path)
    task.__dict__["unsupported"] = []
    made = WithServices()
    result = await run(tmp_path, task, FakeBackend(in_turn(made, FakeSandbox())))
    assert result.reward == 1.0
    assert made.did[0] == "hook" and made.did[-2:] == ["stop", "remove after 2 calls of api"]
    assert set(made.did[1:-2]) == {"files"}
    assert made.api.calls[0].script.endswith("exec sh -c dump 2>&1")
    statuses = [each["status"] for each in json.loads(stored(tmp_path, "artifacts/manifest.json").read_text())]
    assert statuses == ["empty", "failed", "failed", "failed"]
    assert "service: there is no service 'no'" in result.integrity.remarks


async def test_without_services_an_entry_that_names_one_fails(tmp_path: Path, make_task: MakeTask) -> None:
    path = make_task(toml='artifacts = [{ source = "/log", service = "api" }]\n' + SEPARATE)
    (path / "environment" / "docker-compose.yaml").write_text("services: {}\n")
    task = Task.read(path)
    task.__dict__["unsupported"] = []
    result = await run(tmp_path, task, FakeBackend())
    assert result.reward == 1.0
    assert result.integrity.remarks == ("service: there is no service 'api': this sandbox is one container",)


@pytest.mark.parametrize("number", [1, 2])
async def test_memory_that_ran_out_in_any_of_the_verifiers_sandboxes_is_recorded(
    tmp_path: Path, make_task: MakeTask, number: int
) -> None:
    sandboxes = [FakeSandbox(), FakeSandbox(logs={}), FakeSandbox(logs={})]
    sandboxes[number].ran_out_of_memory = True
    result = await run(tmp_path, Task.read(make_task(toml=SEPARATE)), FakeBackend(in_turn(*sandboxes)))
    assert result.error is not None and result.error.type == "verifier_no_reward"
    assert result.out_of_memory and all(each.removed for each in sandboxes)


async def test_without_anything_to_verify_in_the_agent_does_not_go_on(tmp_path: Path, make_task: MakeTask) -> None:
    agent = Agent()

    class NoImage(FakeBackend):
        async def prepare(self, environment: Environment) -> None:
            if environment.role == "verifier":
                await agent.has_begun.wait()
                raise TrialError("image_build_failed", "no")

    result = await run(tmp_path, Task.read(make_task(toml=SEPARATE)), NoImage(), agent)
    assert result.error is not None and result.error.type == "image_build_failed"
    assert agent.was_cut


@pytest.mark.parametrize("toml", ["", SEPARATE])
async def test_artifacts_of_work_that_failed_are_stored_and_not_judged(
    tmp_path: Path, make_task: MakeTask, toml: str
) -> None:
    task = Task.read(make_task(toml='artifacts = ["/app/out"]\n' + toml))
    backend = FakeBackend()
    result = await run(tmp_path, task, backend, Agent(TrialError("endpoint_unavailable", "no")))
    assert result.error is not None and result.error.type == "endpoint_unavailable"
    assert len(backend.made) == 1
    assert stored(tmp_path, "artifacts/manifest.json").is_file()
    assert not stored(tmp_path, "artifacts.tar").exists()


def an_archive(*names: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if name == "." else tarfile.REGTYPE
            archive.addfile(info)
        end = archive.offset
    return buffer.getvalue()[:end] + bytes(1024)


async def test_a_file_that_changes_while_read_is_read_again_and_costs_no_other(
    tmp_path: Path, make_task: MakeTask
) -> None:
    empty = bytes(1024)
    whole = empty + an_archive(".", "./a") + empty
    cut = ExecResult(3, whole + an_archive(".", "./b")[:-1500])
    rest = ExecResult(3, an_archive(".", "./b")[:-1500])
    last = ExecResult(0, an_archive("./c") + empty + empty)
    agents = FakeSandbox(answers=[cut, rest, rest, last])
    task = Task.read(make_task(toml='artifacts = ["/app/a", "/app/b", "/app/c"]\n' + SEPARATE))
    result = await run(tmp_path, task, FakeBackend(in_turn(agents, FakeSandbox())))
    found = json.loads(stored(tmp_path, "artifacts/manifest.json").read_text())
    assert [each["status"] for each in found] == ["empty", "ok", "failed", "ok"]
    assert result.integrity.remarks == ("artifact: /app/b/.: changed while it was read",)
    assert result.reward == 1.0


async def test_a_container_that_is_used_up_is_given_room_to_hand_over(tmp_path: Path, make_task: MakeTask) -> None:
    agents = FakeSandbox(answers=[TrialError("sandbox_failed", "no command can be started")])
    agents.repairs = ("processes: 500 of 500 were running; all were killed",)
    result = await run(tmp_path, Task.read(make_task(toml=SEPARATE)), FakeBackend(in_turn(agents, FakeSandbox())))
    assert (result.reward, result.integrity.remarks) == (1.0, ("processes: 500 of 500 were running; all were killed",))


async def test_a_kept_sandbox_is_the_agents(tmp_path: Path, make_task: MakeTask) -> None:
    agents, verifiers = FakeSandbox(), FakeSandbox()
    backend = FakeBackend(in_turn(agents, verifiers))
    await run(tmp_path, Task.read(make_task(toml=SEPARATE)), backend, asked=SandboxConfig(keep="all"))
    assert (agents.kept, agents.removed, verifiers.kept, verifiers.removed) == (True, False, False, True)


def test_a_trial_needs_the_larger_of_both_containers_as_they_never_run_at_once(make_task: MakeTask) -> None:
    toml = "[environment]\ncpus = 2\nmemory_mb = 100\n[verifier.environment]\ncpus = 1\nmemory_mb = 300\n"
    task = Task.read(make_task(toml=toml))
    assert {task_demand(task, mode) for mode in ("shared", "both", "isolated")} == {Demand(2, 300)}


def test_overrides_apply_to_the_verifiers_container_too(make_task: MakeTask) -> None:
    toml = "[verifier.environment]\ncpus = 8\nmemory_mb = 9\n[verifier.environment.healthcheck]\ncommand = 'true'\n"
    config = a_config(cpus=3, memory_mb=77, timeout_multiplier=2)
    own = verifier_environment(as_configured(Task.read(make_task(toml=toml)), config))
    assert own is not None and own.settings.healthcheck is not None
    assert (own.settings.cpus, own.settings.memory_mb, own.settings.build_timeout_sec) == (3, 77, 1200)
    assert own.settings.healthcheck.timeout_sec == 60
