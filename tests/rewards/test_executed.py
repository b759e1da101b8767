"""The executed reward: completions and agents in trials, over fake containers, and in two tests over real ones."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_tmux import FakeTmux
from step_tasks import step_task

from tbench.agents.trial_agent import NopAgent, OracleAgent
from tbench.errors import TaskInvalid, TrialError, UsageError
from tbench.rewards.executed import Live, RewardUnavailable, agent_reward, executed_reward, make_executed_reward
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.fake import FakeBackend, FakeSandbox
from tbench.sandbox.owner import LABEL_RUN
from tbench.tasks.task import Task

MakeTask = Any


def reply(command: str) -> str:
    return f"<thinking>a</thinking>\n```bash\n{command}\n```"


def rewarded(reward: bytes) -> FakeSandbox:
    return FakeSandbox({"verifier/reward.txt": reward}, connect=FakeTmux().connect)


def live(make: Callable[[Task], FakeSandbox] = lambda _: rewarded(b"1\n"), **more: Any) -> tuple[Live, FakeBackend]:
    backend = FakeBackend(make)
    return Live(backend=lambda _: backend, **more), backend


async def test_each_completion_gets_the_verifier_s_number_of_its_own_task(make_task: MakeTask, tmp_path: Path) -> None:
    by_name = {"alpha": b"1\n", "beta": b"0.25\n"}
    paths = {name: make_task(name) for name in by_name}
    where, sandboxes = live(lambda task: rewarded(by_name[task.name]), output=tmp_path / "kept")
    tasks = [paths["beta"], Task.read(paths["alpha"]), str(paths["beta"])]
    commands = ["echo one", "echo two", "echo three"]
    assert await executed_reward([reply(each) for each in commands], task=tasks, live=where) == [0.25, 1.0, 0.25]
    assert len(sandboxes.made) == 3 and sandboxes.left == []
    steps = {
        (path.parts[-3], path.parts[-2]): json.loads(path.read_text())["steps"]
        for path in (tmp_path / "kept").glob("*/trials/*/seed-*/trajectory.json")
    }
    assert {key: [step["actions"] for step in value] for key, value in steps.items()} == {
        ("beta", "seed-0"): [["echo one"]],
        ("alpha", "seed-0"): [["echo two"]],
        ("beta", "seed-1"): [["echo three"]],
    }


async def test_a_task_gets_a_variable_of_the_trainer_only_where_it_is_allowed(
    make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "the trainer's")
    task = Task.read(make_task(toml='[verifier]\nenv = { KEY = "${OPENAI_API_KEY:-none}" }\n'))
    for allowed, given in ((("OPENAI_API_KEY",), "the trainer's"), ((), "none")):
        where, sandboxes = live(allow_env=allowed)
        assert await executed_reward([reply("ls")], task=task, live=where) == [1.0]
        (sandbox,) = sandboxes.made.values()
        assert {call.environment["KEY"] for call in sandbox.calls if "KEY" in call.environment} == {given}


async def test_a_completion_without_a_command_gets_0_without_a_container(make_task: MakeTask) -> None:
    where, sandboxes = live()
    completions = [None, "", "ls", "```python\n1\n```", [{"role": "assistant", "content": reply("ls")}], "\ud800", 3]
    got = await executed_reward(completions, ["p"] * 7, task=make_task(), live=where, completion_ids=[[1]] * 7)
    assert got == [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    assert len(sandboxes.made) == 1
    assert await executed_reward([], task=make_task(), live=where) == []


async def test_a_trial_without_a_verdict_is_raised_after_the_others_are_done(make_task: MakeTask) -> None:
    paths = [make_task(name) for name in ("alpha", "beta")]

    def make(task: Task) -> FakeSandbox:
        if task.name == "alpha":
            raise TrialError("sandbox_failed", "no room on the engine")
        return rewarded(b"1\n")

    where, sandboxes = live(make)
    with pytest.raises(RewardUnavailable, match=r"1 of 3 .* alpha: sandbox_failed: no room") as caught:
        await executed_reward([reply("ls"), reply("ls"), "no command"], task=[*paths, paths[0]], live=where)
    assert caught.value.rewards == [None, 1.0, 0.0]
    assert [result and result.task for result in caught.value.results] == ["alpha", "beta", None]
    assert sandboxes.left == []

    marked, _ = live(make, on_error=-1.0)
    assert await executed_reward([reply("ls")] * 2, task=paths, live=marked) == [-1.0, 1.0]
    unknown, _ = live(make, on_error=math.nan)
    assert math.isnan((await executed_reward([reply("ls")], task=paths[0], live=unknown))[0])


async def test_an_error_that_another_attempt_heals_costs_nothing(make_task: MakeTask) -> None:
    failures = [TrialError("sandbox_failed", "not now")]

    def make(_: Task) -> FakeSandbox:
        if failures:
            raise failures.pop()
        return rewarded(b"1\n")

    where, _ = live(make)
    assert await executed_reward([reply("ls")], task=make_task(), live=where) == [1.0]
    failures.append(TrialError("sandbox_failed", "not now"))
    once, _ = live(make, retries=0)
    with pytest.raises(RewardUnavailable, match="not now"):
        await executed_reward([reply("ls")], task=make_task(), live=once)


async def test_no_more_trials_at_once_than_allowed(make_task: MakeTask) -> None:
    running = most = 0

    class Counting(NopAgent):
        async def work(self, place: Any) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            return await super().work(place)

    where, _ = live(concurrency=3)
    assert await agent_reward([make_task()] * 9, Counting, live=where) == [1.0] * 9
    assert most == 3


async def test_cancelling_removes_the_containers_and_is_passed_on(make_task: MakeTask) -> None:
    class Stuck(NopAgent):
        async def work(self, place: Any) -> Any:
            await asyncio.sleep(60)

    where, sandboxes = live()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await agent_reward(make_task(), Stuck, live=where)
    assert len(sandboxes.made) == 1 and sandboxes.left == []


async def test_a_trainer_s_column_names_the_tasks(make_task: MakeTask) -> None:
    folder = make_task("alpha").parent
    where, _ = live()
    reward = make_executed_reward(folder, live=where, column="where")
    assert inspect.iscoroutinefunction(reward) and reward.__name__ == "executed"
    got = await reward(
        prompts=["p", "q"], completions=[reply("ls"), "no"], where=["alpha", "alpha"], trainer_state=None
    )
    assert got == [1.0, 0.0]
    with pytest.raises(UsageError, match="no column 'where'"):
        await reward(prompts=["p"], completions=[reply("ls")], task=["alpha"])
    with pytest.raises(TaskInvalid, match="nowhere"):
        await reward(["x"], where=["nowhere"])
    with pytest.raises(UsageError, match="no such directory"):
        make_executed_reward("/nowhere")


async def test_unusable_tasks_are_refused_before_anything_starts(make_task: MakeTask, tmp_path: Path) -> None:
    where, sandboxes = live()
    with pytest.raises(ValueError, match="2 completions, but 1 tasks"):
        await executed_reward([reply("ls")] * 2, task=[make_task()], live=where)
    morse, _ = live(protocol="morse")
    with pytest.raises(UsageError, match="unknown protocol 'morse'"):
        await executed_reward([reply("ls")], task=make_task(), live=morse)
    with pytest.raises(ValueError, match="on_error"):
        Live(on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_flagged"):
        Live(on_flagged="drop")  # type: ignore[arg-type]
    steps = step_task(make_task, "one", "two", name="of-steps")
    with pytest.raises(UsageError, match="of-steps: has several steps, but a completion is one reply"):
        await executed_reward([reply("ls")], task=steps, live=where)
    first = Task.read(make_task())
    moved = first.path.rename(tmp_path / first.name)
    with pytest.raises(UsageError, match="same name in different directories"):
        await executed_reward([reply("ls")] * 2, task=[Task.read(moved), Task.read(make_task())], live=where)
    assert sandboxes.made == {}


@pytest.mark.engine
async def test_commands_are_executed_and_judged_in_containers(
    make_task: MakeTask, engine: Engine, tools_volume: str, tmp_path: Path
) -> None:
    output = tmp_path / "kept"
    got = await executed_reward(
        [reply("touch done"), reply("ls"), reply("touch undone")], task=make_task(), live=Live(output=output)
    )
    assert got == [1.0, 0.0, 0.0]
    (run,) = output.iterdir()
    assert engine.api.containers(all=True, filters={"label": f"{LABEL_RUN}={run.name}"}) == []


@pytest.mark.engine
async def test_a_whole_agent_is_rewarded_by_tests_in_a_container_of_their_own(
    make_task: MakeTask, tools_volume: str, tmp_path: Path
) -> None:
    where = Live(verify="isolated", network="none", block_host=True, output=tmp_path / "kept")
    assert await agent_reward(make_task(), OracleAgent, live=where) == [1.0]
    (result,) = (tmp_path / "kept").glob("*/trials/*/*/result.json")
    assert json.loads(result.read_text())["integrity"]["verify"] == "isolated"


@pytest.mark.engine
async def test_a_verdict_with_signs_of_tampering_can_be_worth_another_number(
    make_task: MakeTask, tools_volume: str
) -> None:
    cheat = reply("mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt")
    assert await executed_reward([cheat], task=make_task(), live=Live()) == [0.0]
    assert await executed_reward([cheat], task=make_task(), live=Live(on_flagged=-1.0)) == [-1.0]


async def test_calls_that_overlap_leave_the_trainer_s_collector_alone(make_task: MakeTask) -> None:
    gc.freeze()
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    thresholds, counts = set[object](), [frozen]

    def look() -> None:
        thresholds.add(gc.get_threshold())
        counts.append(gc.get_freeze_count())

    def made(_: Task) -> FakeSandbox:
        look()
        return rewarded(b"1\n")

    try:
        calls = (executed_reward([reply("echo hi")] * 3, task=make_task(), live=live(made)[0]) for _ in range(3))
        assert await asyncio.gather(*calls) == [[1.0] * 3] * 3
        look()
    finally:
        gc.unfreeze()
    assert thresholds == {before}
    # Some of what the trainer has frozen may die; nothing of ours is added, and nothing is thawed.
    assert 0.9 * frozen < min(counts)
    assert max(counts) == frozen
