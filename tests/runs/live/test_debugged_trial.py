"""debugged_trial: what clients see and do, apart from decisions about replies."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from harness.trajectory import Reply, Step, Trajectory
from tbench.control.wire import SnapshotNow, TrialUnderWay, VerifyNow
from tbench.errors import UsageError
from tbench.runs.control import ActiveAgent, TrialControl
from tbench.runs.live.debugged_trial import DebuggedTrial
from tbench.runs.trial_progress import TrialPlan
from tbench.sandbox.fake import FakeSandbox
from tbench.tasks.task import Task

SEPARATE = '[environment]\nmemory_mb = 256\n[verifier]\nenvironment_mode = "separate"\n'
STEPS = tuple(Step(index=number, reply=Reply(content="x" * 30_000), observation="o" * 3_000) for number in (1, 2, 3))


def state(step: int, *, held: bool = False) -> TrialUnderWay:
    return TrialUnderWay(
        trial="t.s0.x", task="t", seed=0, attempt=1, phase="agent", step=step, line="", age_sec=1.0, phase_sec=1.0,
        paused=False, held=held, touched=False,
    )  # fmt: skip


@pytest.fixture
def trial(make_task: Any, tmp_path: Path) -> TrialControl:
    task, trajectory = Task.read(make_task(toml=SEPARATE)), Trajectory(protocol="bash", messages=(), steps=STEPS)
    trial = TrialControl(TrialPlan("t.s0.x", "t", 0, task))
    trial.agent = ActiveAgent(task, FakeSandbox(), lambda: trajectory, tmp_path)
    return trial


@pytest.fixture
def debugged(trial: TrialControl) -> DebuggedTrial:
    return DebuggedTrial(trial)


def test_steps_that_were_done_are_shown_in_bounded_size(debugged: DebuggedTrial) -> None:
    shown = debugged.make_state(state(3), after=1)
    assert [(step.index, len(step.content), len(step.observation)) for step in shown.steps] == [(2, 20_000, 2_000)]
    assert shown.waits_for is None
    assert debugged.make_state(state(4), after=3).waits_for == "model"
    assert debugged.make_state(state(4, held=True), after=3).waits_for == "person"


async def test_news_come_with_a_change(debugged: DebuggedTrial) -> None:
    version = debugged.make_state(state(3), after=0).version
    waiting = asyncio.create_task(debugged.news(version))
    await asyncio.sleep(0)
    assert not waiting.done()
    debugged.notify_clients()
    begun = time.monotonic()
    await waiting
    assert time.monotonic() - begun < 4
    await debugged.news(version)


async def test_impossible_actions_on_a_debugged_trial_are_refused(debugged: DebuggedTrial, trial: TrialControl) -> None:
    with pytest.raises(UsageError, match="is at work; pause it first"):
        await debugged.decide(VerifyNow(trial="t"))
    with trial.idling():
        with pytest.raises(UsageError, match="its verifier runs in a separate container"):
            await debugged.decide(VerifyNow(trial="t"))
        assert "its files are saved as the image" in await debugged.decide(SnapshotNow(trial="t"))
    assert len(trial.snapshots) == 1
    trial.agent = None
    with pytest.raises(UsageError, match="its agent has not begun, or has ended"):
        await debugged.decide(SnapshotNow(trial="t"))
