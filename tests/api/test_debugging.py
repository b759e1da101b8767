"""debugging: a real trial, step by step, from Python."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import tbench
from tbench.demo.server import DemoEndpoint
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.labels import LABEL_RUN
from tbench.storage.read_run import read_run, read_trajectory
from tbench.storage.run_files import trial_directory

pytestmark = pytest.mark.engine
TASK = "web-log-digest"


@pytest.fixture
def endpoint(bundled: dict[str, tbench.Task]) -> Iterator[str]:
    with DemoEndpoint({name: task.instruction for name, task in bundled.items()}) as demo:
        yield demo.base_url


@pytest.fixture
def bundled() -> dict[str, tbench.Task]:
    return {task.name: task for task in tbench.read_tasks("bundled").tasks}


async def test_a_trial_is_decided_about_step_by_step(
    bundled: dict[str, tbench.Task], endpoint: str, engine: Engine, tools_volume: str, tmp_path: Path
) -> None:
    run = tmp_path / f"debugged-{uuid.uuid4().hex[:8]}"
    async with tbench.debug(bundled[TASK], endpoint, directory=run) as session:
        assert session.result is None
        draft = await session.waits()
        assert draft is not None
        assert draft.actions[0].startswith("ls -l logs")
        step = await session.step()
        assert step is not None
        assert (step.index, step.actions, step.exit_code) == (1, draft.actions, 0)
        assert "929 total" in session.screen
        samples = await session.sample(seed=3, temperature=1.1)
        assert [(each.seed, each.temperature, each.chosen) for each in samples] == [(None, None, False), (3, 1.1, True)]
        assert (await session.verify()).reward == 0.0
        dropped = await session.drop("Not that.")
        assert dropped is not None
        assert dropped.observation == "Not that."
        edited = await session.edit("nonsense")
        assert edited is not None
        assert edited.error is not None
        await session.step()
        assert session.steps[-1].format_error is not None
        await session.type("echo was here\n")
        await session.run()
        assert session.is_over
    assert session.result is not None
    assert session.result.human_touched
    assert len(session.steps) == session.result.steps
    assert engine.api.containers(all=True, filters={"label": f"{LABEL_RUN}={run.name}"}) == []
    trajectory = read_trajectory(trial_directory(run, TASK, 0))
    assert trajectory is not None
    assert [each.kind for each in trajectory.interventions] == ["refused", "changed", "typed"]
    assert read_run(run).notes == ()
    with pytest.raises(tbench.UsageError, match="has ended"):
        await session.say("Too late.")


async def test_leaving_ends_the_trial_and_removes_its_container(
    bundled: dict[str, tbench.Task], endpoint: str, engine: Engine, tools_volume: str, tmp_path: Path
) -> None:
    run = tmp_path / f"left-{uuid.uuid4().hex[:8]}"
    with pytest.raises(ZeroDivisionError):
        async with tbench.debug(bundled[TASK], endpoint, directory=run) as session:
            await session.run(to_step=2)
            raise ZeroDivisionError
    assert session.result is not None
    assert session.result.error is not None
    assert session.result.error.type == "aborted"
    assert engine.api.containers(all=True, filters={"label": f"{LABEL_RUN}={run.name}"}) == []


async def test_what_cannot_be_debugged_is_told_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(tbench.UsageError, match=r"task\.toml"):
        async with tbench.debug(tmp_path):
            pass
