"""runner: single trials over fake sandboxes; trials without a verdict raise, and no trial counts twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fake_backends import Fakes
from fault_server import FaultServer, answer

import tbench
from harness.trajectory import Outcome
from tbench.errors import TrialError
from tbench.sandbox.backend import ExecResult
from tbench.sandbox.fake import FakeSandbox

MakeTask = Any


@pytest.fixture
def fakes() -> Fakes:
    return Fakes()


class Stuck(FakeSandbox):
    """A sandbox in which the first command never ends."""

    def __init__(self, begun: asyncio.Event) -> None:
        super().__init__()
        self._begun = begun

    async def shell(self, *args: Any, **kwargs: Any) -> ExecResult:
        self._begun.set()
        await asyncio.Future()
        raise AssertionError


def config(**schedule: Any) -> tbench.RunConfig:
    return tbench.RunConfig.model_validate({"agent": {"name": "nop"}, "schedule": schedule})


@pytest.fixture
async def runner(fakes: Fakes, tmp_path: Path) -> AsyncIterator[tbench.Runner]:
    async with tbench.Runner(config(retries=0), directory=tmp_path / "run", backend=fakes) as runner:
        yield runner
    assert [backend.left for backend in fakes.backends] == [[]]
    assert not fakes.backends[0].is_open


async def test_a_trial_has_a_reward_an_outcome_and_files(runner: tbench.Runner, make_task: MakeTask) -> None:
    record = await runner.trial(make_task("alpha"), seed=3)
    assert (record.reward, record.outcome, record.turns) == (1.0, Outcome.FINISHED, [])
    assert (record.directory / "result.json").is_file()
    assert record.directory.is_relative_to(runner.directory)


async def test_its_directory_is_that_of_a_run(fakes: Fakes, make_task: MakeTask, tmp_path: Path) -> None:
    async with tbench.Runner(config(), directory=tmp_path / "run", backend=fakes) as runner:
        trials = (runner.trial(make_task(name), seed=seed) for name in ("alpha", "beta") for seed in (0, 5))
        await asyncio.gather(*trials)
        assert tbench.read_run(tmp_path / "run").document.status == "running"  # type: ignore[union-attr]
    stored = tbench.read_run(tmp_path / "run")
    assert (stored.planned_tasks, stored.planned_seeds, len(stored.results)) == (["alpha", "beta"], [0, 5], 4)
    assert stored.document is not None and stored.document.status == "finished"
    summary = tbench.summarise(tmp_path / "run")
    assert summary == tbench.summarise(stored)
    assert summary.score is not None and summary.score.mean == 1.0


async def test_the_configuration_says_what_a_task_may_take_from_the_environment(
    fakes: Fakes, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    task = tbench.Task.read(make_task(toml='[verifier]\nenv = { KEY = "${OPENAI_API_KEY:-none}" }\n'))
    allowing = config().with_values(sandbox={"allow_env": ["OPENAI_API_KEY"]})
    given, said = [], list[str]()
    for each in (allowing, config()):
        async with tbench.Runner(each, backend=fakes, say=said.append) as runner:
            for seed in (0, 1):
                await runner.trial(task, seed=seed)
        made = fakes.backends[-1].made.values()
        environments = [call.environment for each in made for copy in each.copies for call in copy.calls]
        given.append({each["KEY"] for each in environments if "KEY" in each})
    assert given == [{"mine"}, {"none"}]
    (line,) = said
    assert "OPENAI_API_KEY" in line and "mine" not in line


async def test_without_a_directory_nothing_is_left(fakes: Fakes, make_task: MakeTask) -> None:
    async with tbench.Runner(config(), backend=fakes) as runner:
        directory = (await runner.trial(make_task("alpha"))).directory
        assert directory.is_dir()
    assert not directory.exists()


async def test_no_verdict_is_raised_and_the_trial_may_be_run_again(
    runner: tbench.Runner, fakes: Fakes, make_task: MakeTask
) -> None:
    fakes.make = lambda: FakeSandbox(logs={})
    with pytest.raises(tbench.TrialFailed, match="alpha seed 0: ") as failed:
        await runner.trial(make_task("alpha"))
    assert failed.value.result.reward is None and failed.value.result.error is not None
    fakes.make = FakeSandbox
    record = await runner.trial(make_task("alpha"))
    assert (record.reward, record.result.attempt) == (1.0, 2)
    assert [(each.attempt, each.final) for each in tbench.read_run(runner.directory).results] == [(1, False), (2, True)]


async def test_an_error_that_may_heal_has_another_attempt(fakes: Fakes, make_task: MakeTask) -> None:
    broken = iter([True, False])
    fakes.make = lambda: FakeSandbox(answers=[TrialError("sandbox_lost", "gone")]) if next(broken) else FakeSandbox()
    async with tbench.Runner(config(retries=1), backend=fakes) as runner:
        record = await runner.trial(make_task("alpha"))
        assert (record.reward, record.result.attempt) == (1.0, 2)


async def test_the_same_task_and_seed_are_counted_once(runner: tbench.Runner, make_task: MakeTask) -> None:
    path = make_task("alpha")
    await runner.trial(path)
    with pytest.raises(tbench.UsageError, match="alpha seed 0: has already been run; give another seed"):
        await runner.trial(path)
    (path / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    with pytest.raises(tbench.UsageError, match="alpha: differs from the earlier task of that name"):
        await runner.trial(path, seed=1)


async def test_the_configured_number_of_trials_runs_at_once(fakes: Fakes, make_task: MakeTask) -> None:
    under_way, most = 0, 0

    class Slow(FakeSandbox):
        async def shell(self, *args: Any, **kwargs: Any) -> ExecResult:
            nonlocal under_way, most
            # A look at a pass asks the sandbox and its image at once.
            under_way += "/tests/test.sh" in args[0]
            most = max(most, under_way)
            await asyncio.sleep(0.01)
            under_way -= "/tests/test.sh" in args[0]
            return await super().shell(*args, **kwargs)

    fakes.make = Slow
    async with tbench.Runner(config(concurrency=2).with_values(verify={"mode": "shared"}), backend=fakes) as runner:
        await asyncio.gather(*(runner.trial(make_task("alpha"), seed=seed) for seed in range(8)))
    assert most == 2


async def test_a_cancelled_trial_leaves_no_sandbox_and_may_be_run_again(
    runner: tbench.Runner, fakes: Fakes, make_task: MakeTask
) -> None:
    begun = asyncio.Event()
    fakes.make = lambda: Stuck(begun)
    running = asyncio.create_task(runner.trial(make_task("alpha")))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert fakes.backends[0].left == []
    fakes.make = FakeSandbox
    assert (await runner.trial(make_task("alpha"))).reward == 1.0


async def test_running_trials_are_cancelled_at_the_end_of_the_block(fakes: Fakes, make_task: MakeTask) -> None:
    begun = asyncio.Event()
    fakes.make = lambda: Stuck(begun)
    async with tbench.Runner(config(), backend=fakes) as runner:
        running = asyncio.create_task(runner.trial(make_task("alpha")))
        await begun.wait()
    assert running.cancelled()
    assert fakes.backends[0].left == []


async def test_errors_of_the_caller_are_one_line(fakes: Fakes, make_task: MakeTask, tmp_path: Path) -> None:
    async with tbench.Runner(backend=fakes) as runner:
        with pytest.raises(tbench.UsageError, match="no endpoint"):
            await runner.trial(make_task("alpha"))
        with pytest.raises(tbench.UsageError, match="no trial has been run yet"):
            _ = runner.directory
    asks = config().with_values(agent={"name": "model", "approve": "ask"})
    async with tbench.Runner(asks, backend=fakes) as runner:
        with pytest.raises(tbench.UsageError, match=r"^agent.approve: .*; use allowlist=FILE, or tbench.debug"):
            await runner.trial(make_task("alpha"))
    (tmp_path / "mine").write_text("")
    async with tbench.Runner(config(), directory=tmp_path, backend=fakes) as runner:
        with pytest.raises(tbench.UsageError, match="not empty"):
            await runner.trial(make_task("alpha"))


async def test_another_model_needs_another_runner(endpoint: FaultServer, fakes: Fakes, make_task: MakeTask) -> None:
    names = iter(["tiny", "large"])
    endpoint.answer_by(lambda seen: answer(200, {"object": "list", "data": [{"id": next(names), "object": "model"}]}))
    fakes.make = lambda: FakeSandbox(logs={})
    async with tbench.Runner(tbench.RunConfig.model_validate({"schedule": {"retries": 0}}), backend=fakes) as runner:
        with pytest.raises(tbench.TrialFailed):
            await runner.trial(make_task("alpha"), endpoint=endpoint.base_url)
        with pytest.raises(tbench.UsageError, match="serves large, not tiny; a Runner is for one model"):
            await runner.trial(make_task("alpha"), endpoint=f"{endpoint.base_url}/")
