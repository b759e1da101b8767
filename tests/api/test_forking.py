"""forking: stored trials replayed up to a step and continued differently; blame."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer, Seen, answer, completion
from lost_trials import CLAIM, MISTAKE, lost_trial
from step_tasks import step_task

import tbench
from tbench.api.forking import blame, find_lost_step, fork
from tbench.config.settings import RunConfig
from tbench.demo.server import DemoEndpoint
from tbench.sandbox.docker.engine import Engine
from tbench.storage.read_run import read_run
from tbench.storage.stored_trial import find_trial
from tbench.storage.summaries import make_summary
from tbench.tasks.sources import read_tasks

MakeTask = Any
KILLED = Path(__file__).parents[1] / "data" / "killed-run"


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with closing(FaultServer()) as server:
        yield server


@pytest.fixture
def failed(
    server: FaultServer, make_task: MakeTask, engine: Engine, tools_volume: str, tmp_path: Path
) -> Callable[[], Any]:
    """Runs a trial that fails by its third step, and returns its name."""

    async def run(*, varies: bool = False) -> str:
        return await lost_trial(server, make_task, tmp_path / f"failed-{uuid.uuid4().hex[:8]}", varies=varies)

    return run


@pytest.mark.engine
async def test_a_fork_does_what_was_done_before_and_asks_for_the_rest(
    failed: Callable[[], Any], server: FaultServer, tmp_path: Path
) -> None:
    trial = await failed()
    asked = len(server.seen)
    done = await fork(trial, MISTAKE, samples=3, directory=tmp_path / "fork-early")
    assert [(each.result.seed, each.result.reward, each.differs) for each in done.trials] == [
        (0, 1.0, ""), (1, 1.0, ""), (2, 1.0, "")
    ]  # fmt: skip
    assert (done.passed, len(done.judged), done.differs) == (3, 3, "")
    assert len(server.seen) - asked == 3 * (7 - MISTAKE + 1)
    late = await fork(trial, MISTAKE + 1, directory=tmp_path / "fork-late")
    assert (late.passed, len(late.judged)) == (0, 1)
    # No fork counts in any score, and a fork can be forked.
    assert make_summary(read_run(tmp_path / "fork-early")).score is None
    again = await fork(f"{tmp_path}/fork-late/small-task/0", MISTAKE, directory=tmp_path / "fork-again")
    assert again.passed == 1


@pytest.mark.engine
async def test_a_task_step_is_forked_after_a_replay_of_those_before_it(
    server: FaultServer, make_task: MakeTask, engine: Engine, tools_volume: str, tmp_path: Path
) -> None:
    mistakes = ["touch /app/nothing"]
    asked: list[str] = []

    def reply(seen: Seen) -> bytes:
        said = seen.json["messages"]
        name = "one" if "Make /app/one" in str(said) else "two"
        asked.append(name)
        command = mistakes.pop() if name == "two" and mistakes else f"touch /app/{name}"
        is_first = not any(message["role"] == "assistant" for message in said)
        typed = json.dumps({"analysis": "", "plan": "", "commands": [{"keystrokes": f"{command}\n"}]})
        return answer(200, completion(typed if is_first else CLAIM))

    task = step_task(make_task, "one", "two")
    server.always_list({"id": "m", "max_model_len": 32768})
    server.answer_by(reply)
    source = {"base_url": server.base_url}
    config = RunConfig().with_values(model=source, tasks={"source": str(task.parent)}, verify={"mode": "shared"})
    async with tbench.Runner(config, directory=tmp_path / "run") as runner:
        record = await runner.trial(task)
    assert (record.reward, asked) == (0.5, ["one"] * 3 + ["two"] * 3)
    asked.clear()
    done = await fork(f"{tmp_path}/run/small-task/0/two", 1, directory=tmp_path / "fork")
    assert (done.of, done.passed, done.differs, asked) == (f"{tmp_path}/run/small-task/0/two", 1, "", ["two"] * 3)
    assert [step.steps for step in done.trials[0].result.task_steps] == [3, 3]
    late = await fork(f"{tmp_path}/run/small-task/0/two", 2, directory=tmp_path / "late")
    assert (late.passed, late.trials[0].result.reward) == (0, 0.5)
    found = await blame(f"{tmp_path}/run/small-task/0/two", samples=1, directory=tmp_path / "blame")
    assert (found.step, found.steps) == (1, 3)
    with pytest.raises(tbench.UsageError, match=r"its task has several steps; name one of them, such as .*/0/one$"):
        await fork(f"{tmp_path}/run/small-task/0", 1)
    with pytest.raises(tbench.TbenchError, match="has no task step tow; did you mean two"):
        find_trial(f"{tmp_path}/run/small-task/0/tow")
    assert find_trial(f"{tmp_path}/run/trials/small-task/seed-0/steps/one").task_step == "one"


@pytest.mark.engine
async def test_a_trial_of_a_killed_run_is_forked(
    engine: Engine, tools_volume: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(KILLED)
    with DemoEndpoint({task.name: task.instruction for task in read_tasks("tasks").tasks}) as demo:
        config = find_trial("run/tidy-notes/0").document.config.with_values(model={"base_url": demo.base_url})
        done = await fork("run/tidy-notes/0", 3, config=config, directory=tmp_path / "fork")
    assert (done.passed, done.differs) == (1, "")


@pytest.mark.engine
async def test_a_difference_is_reported_once_and_the_fork_goes_on(failed: Callable[..., Any], tmp_path: Path) -> None:
    trial = await failed(varies=True)
    messages: list[str] = []
    done = await fork(trial, 5, directory=tmp_path / "fork", say=messages.append)
    assert done.differs.startswith("step 2: ")
    assert [line for line in messages if "differs at" in line] == [
        f"small-task/0: the replay differs at {done.differs}"
    ]
    assert done.trials[0].result.reward == 0.0
    # The same with another instruction: the task has changed, which is said first.
    (tmp_path / "tasks/small-task/instruction.md").write_text("Do something else.\n")
    await fork(trial, 2, directory=tmp_path / "changed", say=messages.append)
    assert f"small-task: has changed since {trial}, so the replay may differ" in messages


@pytest.mark.engine
async def test_the_step_at_which_a_trial_was_lost_is_found(failed: Callable[[], Any], tmp_path: Path) -> None:
    trial = await failed()
    found = await blame(trial, samples=2, directory=tmp_path / "blame")
    assert found.step == MISTAKE
    assert [(each.at_step, each.passed) for each in found.forks] == [(1, 2), (2, 2), (3, 2), (4, 0)]


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 30])
async def test_halving_finds_every_step(steps: int) -> None:
    for lost in range(1, steps + 1):
        tried: list[int] = []

        async def share(step: int, lost: int = lost, tried: list[int] = tried) -> float:
            tried.append(step)
            return 0.8 if step <= lost else 0.0

        assert await find_lost_step(steps, share) == lost
        assert len(tried) <= steps.bit_length() + 1

    async def never(step: int) -> float:
        return 0.0

    assert await find_lost_step(steps, never) is None


@pytest.mark.engine
async def test_impossible_forks_and_blames_are_refused_in_one_line(failed: Callable[[], Any], tmp_path: Path) -> None:
    trial = await failed()
    with pytest.raises(tbench.UsageError, match=r"small-task/0: has 7 steps, so there is no step 8"):
        await fork(trial, 8)
    with pytest.raises(tbench.UsageError, match=r"did you mean .*/small-task/0\?"):
        await fork(trial.replace("small-task", "smal-task"), 1)
    passed = await fork(trial, 1, directory=tmp_path / "passed")
    assert passed.passed == 1
    with pytest.raises(tbench.UsageError, match="passed; blame is for trials that failed"):
        await blame(f"{tmp_path}/passed/small-task/0")
    result = find_trial(trial).directory / "result.json"
    result.write_text(result.read_text().replace('"human_touched": false', '"human_touched": true'))
    with pytest.raises(tbench.UsageError, match="a person intervened in it"):
        await blame(trial)
    (find_trial(trial).directory / "result.json").unlink()
    with pytest.raises(tbench.UsageError, match="has no verdict"):
        await blame(trial)
    (tmp_path / "tasks/small-task/task.toml").unlink()
    with pytest.raises(tbench.UsageError, match="small-task"):
        await fork(trial, 1)
