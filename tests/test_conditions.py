"""Conditions of a task by its measurements: each one, and which leave it healthy."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tbench.calibration import CalibratedTask, health_conditions, is_healthy
from tbench.errors import TrialError
from tbench.results import ErrorInfo
from tbench.tasks.task import Task
from tbench.verify.calibration import Calibration, MeasuredTrial

MakeTask = Any
NO_REWARD = ErrorInfo.of(TrialError("verifier_no_reward", "nothing there"))
LOST = ErrorInfo.of(TrialError("sandbox_lost", "gone"))
FRESH = {"shared": 1.0, "isolated": 1.0}


def oracle(reward: float | None = 1.0, **more: Any) -> MeasuredTrial:
    return MeasuredTrial.model_validate({"agent": "oracle", "repetition": 0, "reward": reward, **more})


def nop(reward: float | None = 0.0, **more: Any) -> MeasuredTrial:
    return MeasuredTrial.model_validate({"agent": "nop", "repetition": 0, "reward": reward, **more})


def said(path: Any, *trials: MeasuredTrial, offline: MeasuredTrial | None = None) -> dict[str, str]:
    task = Task.read(path)
    found = Calibration(
        task=task.name,
        task_hash=task.hash,
        image="i",
        architecture="amd64",
        measured_at=datetime(2026, 1, 1, tzinfo=UTC),
        trials=trials,
        offline=offline,
    )
    return dict(health_conditions(CalibratedTask(task, found)))


@pytest.mark.parametrize(
    ("trials", "expected", "healthy"),
    [
        ([oracle(rewards=FRESH), nop()], {"healthy": ""}, True),
        (
            [oracle(0.5, last_words="no"), nop()],
            {"oracle fails": "scores 0.50; the verifier's last words: 'no'"},
            False,
        ),
        ([oracle(None, error=NO_REWARD), nop()], {"oracle fails": "verifier_no_reward: nothing there"}, False),
        ([oracle(), nop(1.0)], {"nop passes": "doing nothing scores 1"}, False),
        ([oracle(), nop(None, error=NO_REWARD)], {"no verdict": "nop: verifier_no_reward: nothing there"}, False),
        ([oracle(None, error=LOST), nop()], {"no verdict": "oracle: sandbox_lost: gone"}, False),
        ([oracle(), oracle(0.0), nop()], {"flaky verifier": "oracle: 1, 0"}, False),
        ([oracle(), oracle(None, error=NO_REWARD)], {"flaky verifier": "oracle: 1, verifier_no_reward"}, False),
        ([oracle(), nop(), nop(0.1)], {"flaky verifier": "nop: 0, 0.10"}, False),
        ([oracle(0.1 + 0.2 + 0.7), oracle(1.0), nop()], {"healthy": ""}, True),
        ([oracle(shares={"solution": 0.79, "tests": 0.1, "memory": 1.0}), nop()], {"healthy": ""}, True),
        (
            [oracle(shares={"solution": 0.2, "tests": 0.8}), nop()],
            {"limits too tight here": "tests of oracle: 80% of the time limit"},
            False,
        ),
        (
            [oracle(), nop(shares={"solution": 1.0, "tests": 0.9})],
            {"limits too tight here": "tests of nop: 90% of the time limit"},
            False,
        ),
        ([oracle(out_of_memory=True)], {"limits too tight here": "the oracle ran out of memory"}, False),
        (
            [oracle(rewards={"shared": 1.0, "isolated": 0.0}), nop()],
            {"isolation impossible": "the oracle's work passes only in its own container"},
            True,
        ),
        # What failed once by the machine is measured again, and says nothing of the verifier.
        ([oracle(), oracle(None, error=LOST)], {"no verdict": "oracle: sandbox_lost: gone"}, False),
    ],
)
def test_the_verdict(make_task: MakeTask, trials: list[MeasuredTrial], expected: Any, healthy: bool) -> None:
    found = said(make_task(), *trials)
    assert (found, is_healthy(found)) == (expected, healthy)


def test_a_task_that_needs_a_network(make_task: MakeTask) -> None:
    failed = oracle(0.0, last_words="no route")
    expected = {"needs network": "without one, scores 0; the verifier's last words: 'no route'"}
    assert said(make_task("a"), oracle(), nop(), offline=failed) == expected
    assert is_healthy(expected)
    assert said(make_task("a"), oracle(), nop(), offline=oracle()) == {"healthy": ""}
    lost = oracle(None, error=LOST)
    assert said(make_task("a"), oracle(), nop(), offline=lost) == {"healthy": ""}
    hosts = '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["example.org"]\n'
    assert said(make_task("b", toml=hosts), oracle(), nop()) == {"needs network": "task.toml names example.org"}


def test_tasks_that_cannot_be_measured(make_task: MakeTask) -> None:
    assert said(make_task("a", solve=None), nop()) == {"no oracle": "it has no solution/solve.sh"}
    windows = CalibratedTask(Task.read(make_task("b", toml='[environment]\nos = "windows"\n')))
    assert health_conditions(windows) == {"cannot be run": "needs environment.os = windows, which tbench does not have"}
    unbuilt = CalibratedTask(Task.read(make_task("c")), error=ErrorInfo.of(TrialError("image_build_failed", "line 3")))
    assert health_conditions(unbuilt) == {"cannot be built": "image_build_failed: line 3"}
    assert not is_healthy(health_conditions(windows)) and not is_healthy(health_conditions(unbuilt))
