"""Measuring over fake sandboxes: records, and that stored trials are not repeated."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fake_backends import Fakes
from step_tasks import step_task

from tbench.calibration import CalibratedTask, CalibrationRun
from tbench.config.settings import RunConfig
from tbench.errors import TrialError
from tbench.sandbox.fake import FakeSandbox
from tbench.tasks.environment import Environment
from tbench.tasks.task import Task
from tbench.verify.calibration import MeasuredTrial

MakeTask = Any
CONFIG = RunConfig.model_validate({"schedule": {"retries": 0, "concurrency": 2}})
CTRF = json.dumps({"results": {"tests": [{"name": "test_outputs.py::test_done", "status": "passed"}]}}).encode()
PASS = {"verifier/reward.txt": b"1", "verifier/ctrf.json": CTRF, "verifier/stdout.txt": b"fine\n1 passed in 0.1s\n"}
FAILURE = {"verifier/reward.txt": b"0", "verifier/stdout.txt": b"1 failed in 0.1s\n"}


class Hangs(FakeSandbox):
    """Answers to nothing."""

    async def shell(self, *_: Any, **__: Any) -> Any:
        await asyncio.Future()


class Measured:
    """A calibration of tasks, each time with other backends; passes where the solution is there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.said: list[str] = []
        self.fakes = Fakes()
        self.fakes.make = lambda: FakeSandbox(PASS)

    async def __call__(self, *paths: Path, repetitions: int = 2, **more: Any) -> list[CalibratedTask]:
        self.fakes.backends.clear()
        tasks = [Task.read(path) for path in paths]
        trying = CalibrationRun.from_config(
            CONFIG, repetitions, say=self.said.append, backend=self.fakes, root=self.root / "kept", **more
        )
        return await trying.tasks(tasks)

    @property
    def trials(self) -> int:
        return sum(len(backend.made) for backend in self.fakes.backends)


@pytest.fixture
def measured(tmp_path: Path) -> Measured:
    return Measured(tmp_path)


def of(each: CalibratedTask, agent: Any) -> list[MeasuredTrial]:
    assert each.calibration is not None
    return each.calibration.of(agent)


async def test_a_record_has_rewards_tests_and_shares_of_each_trial(measured: Measured, make_task: MakeTask) -> None:
    path = make_task(toml="[agent]\ntimeout_sec = 1000\n")
    (each,) = await measured(path)
    assert each.calibration is not None and each.error is None
    assert (each.calibration.image, each.calibration.architecture) == ("fake", "")
    for agent in ("oracle", "nop"):
        trials = of(each, agent)
        assert [trial.repetition for trial in trials] == [0, 1]
        for trial in trials:
            assert (trial.reward, trial.error, trial.last_words) == (1.0, None, "1 passed in 0.1s")
            assert trial.rewards == {"isolated": 1.0}
            assert trial.tests == {"": {"test_outputs::test_done": "passed", "unnamed passed 1": "passed"}}
            shares = {"solution": trial.solution_sec / 1000, "tests": trial.tests_sec / 600}
            assert trial.shares == pytest.approx(shares, abs=1e-4)
    assert each.calibration.passes_fresh is True


async def test_stored_trials_are_not_run_again_and_missing_ones_are_added(
    measured: Measured, make_task: MakeTask
) -> None:
    path = make_task()
    await measured(path, repetitions=1)
    (again,) = await measured(path, repetitions=1)
    assert measured.trials == 0 and len(of(again, "oracle")) == 1
    (more,) = await measured(path, repetitions=3)
    assert measured.trials == 4 and [trial.repetition for trial in of(more, "nop")] == [0, 1, 2]
    await measured(path, repetitions=1, again=True)
    assert measured.trials == 2


async def test_an_interrupted_calibration_continues(measured: Measured, make_task: MakeTask) -> None:
    path = make_task()
    left: list[FakeSandbox] = [Hangs(), FakeSandbox(PASS)]
    measured.fakes.make = left.pop
    running = asyncio.ensure_future(measured(path))
    for _ in range(1000):
        if list(measured.root.glob("kept/*.json")):
            break
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    measured.fakes.make = lambda: FakeSandbox(PASS)
    (each,) = await measured(path)
    assert measured.trials == 3 and len(of(each, "oracle")) == len(of(each, "nop")) == 2


async def test_an_error_of_the_machine_is_reported_and_not_stored(measured: Measured, make_task: MakeTask) -> None:
    path = make_task()
    measured.fakes.make = lambda: FakeSandbox(answers=[TrialError("sandbox_lost", "gone")])
    (each,) = await measured(path, repetitions=1)
    assert [trial.error.type for trial in of(each, "oracle") if trial.error] == ["sandbox_lost"]
    measured.fakes.make = lambda: FakeSandbox(FAILURE)
    (each,) = await measured(path, repetitions=1)
    assert [trial.reward for trial in of(each, "oracle")] == [0.0]


async def test_an_unavailable_image_and_a_task_without_an_oracle(
    measured: Measured, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, alone = make_task("bad"), make_task("alone", solve=None)
    make = measured.fakes.__call__

    def broken(settings: Any) -> Any:
        backend = make(settings)
        prepare = backend.prepare

        async def only_some(environment: Environment) -> None:
            if environment.task.name == "bad":
                raise TrialError("image_build_failed", "line 3")
            await prepare(environment)

        backend.prepare = only_some  # type: ignore[method-assign]
        return backend

    trying = CalibrationRun.from_config(CONFIG, 1, backend=broken, root=measured.root)
    first, second = await trying.tasks([Task.read(bad), Task.read(alone)])
    assert first.calibration is None and first.error is not None and first.error.type == "image_build_failed"
    assert (of(second, "oracle"), len(of(second, "nop"))) == ([], 1)


async def test_an_oracle_that_passes_is_tried_without_a_network_once(measured: Measured, make_task: MakeTask) -> None:
    closed, public = make_task("closed"), make_task("public", toml="")
    first, second = await measured(closed, public, repetitions=1, offline=True)
    assert first.calibration is not None and first.calibration.offline is None
    assert second.calibration is not None and second.calibration.offline is not None
    assert second.calibration.offline.is_pass and measured.trials == 5
    await measured(closed, public, repetitions=1, offline=True)
    assert measured.trials == 0


async def test_steps_have_tests_and_limits_of_their_own(measured: Measured, make_task: MakeTask) -> None:
    path = step_task(
        make_task, "one", "two", top="[agent]\ntimeout_sec = 1e6\n", two="[steps.verifier]\ntimeout_sec = 0.5\n"
    )
    (each,) = await measured(path, repetitions=1)
    (trial,) = of(each, "nop")
    assert trial.tests.keys() == {"one", "two"} and trial.rewards["two/isolated"] == 1.0
    # The least limit of all steps decides.
    assert trial.shares["tests"] > trial.tests_sec / 600
