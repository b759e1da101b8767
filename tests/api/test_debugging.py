"""debugging: a real trial, step by step, from Python."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fault_server import FaultServer

import tbench
from tbench.cassettes.cassette import Cassette
from tbench.cassettes.endpoints import CassettePlayer
from tbench.demo.server import DemoEndpoint
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.owner import LABEL_RUN
from tbench.storage.read_run import read_run, read_trajectory
from tbench.storage.run_files import trial_directory

pytestmark = pytest.mark.engine
TASK = "web-log-digest"
SHARED = tbench.RunConfig().with_values(verify={"mode": "shared"})
"""One container for each trial, where it is not the verdict that is tested."""


@pytest.fixture
def endpoint(bundled: dict[str, tbench.Task]) -> Iterator[str]:
    with DemoEndpoint({name: task.instruction for name, task in bundled.items()}) as demo:
        yield demo.base_url


@pytest.fixture
def bundled() -> dict[str, tbench.Task]:
    return {task.name: task for task in tbench.read_tasks("bundled").tasks}


async def test_a_trial_is_debugged_step_by_step(
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
        async with tbench.debug(bundled[TASK], endpoint, config=SHARED, directory=run) as session:
            await session.run(to_step=2)
            raise ZeroDivisionError
    assert session.result is not None
    assert session.result.error is not None
    assert session.result.error.type == "aborted"
    assert engine.api.containers(all=True, filters={"label": f"{LABEL_RUN}={run.name}"}) == []


async def test_impossible_debugging_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(tbench.UsageError, match=r"task\.toml"):
        async with tbench.debug(tmp_path):
            pass


async def test_a_trial_is_rewound_to_a_step_and_its_replies_are_replayed(
    bundled: dict[str, tbench.Task], endpoint: str, engine: Engine, tools_volume: str, tmp_path: Path
) -> None:
    run = tmp_path / f"rewound-{uuid.uuid4().hex[:8]}"
    async with tbench.debug(bundled[TASK], endpoint, config=SHARED, directory=run) as session:
        await session.run(to_step=2)
        first = await session.edit('{"analysis": "", "plan": "", "commands": [{"keystrokes": "echo edited\\n"}]}')
        assert first is not None
        await session.say("Mind the dates.")
        await session.step()
        assert "edited" in session.screen
        await session.run(to_step=4)
        before = [step.observation for step in session.steps]
        waits = session.draft
        again = await session.rewind(3)
        assert again is not None
        assert (again.step, again.actions) == (3, session.samples[0].actions)
        assert [step.observation for step in session.steps] == before[:2]
        assert session.steps[1].actions == ("echo edited\n",)
        assert session.differs == ""
        with pytest.raises(tbench.UsageError, match="is at step 3; choose that step or an earlier one"):
            await session.rewind(4)
        await session.step()
        assert session.draft == waits
        file = await session.save_cassette()
        await session.run()
    assert session.result is not None
    assert (session.result.attempt, session.result.human_touched) == (2, True)
    assert engine.api.containers(all=True, filters={"label": f"{LABEL_RUN}={run.name}"}) == []
    trajectory = read_trajectory(trial_directory(run, TASK, 0, 2))
    assert trajectory is not None
    assert [(each.step, each.kind) for each in trajectory.interventions] == [(2, "changed"), (3, "message")]
    (left, final) = read_run(run).results
    assert (left.error and left.error.type, left.final, final.attempt) == ("rewound", False, 2)
    with CassettePlayer(Cassette.read(file)) as player:
        async with tbench.debug(bundled[TASK], player.base_url, config=SHARED, directory=tmp_path / "played") as played:
            await played.step(2)
    assert [step.actions for step in played.steps][1] == ("echo edited\n",)
    # This model got no hint about the dates.
    assert played.result is not None
    assert played.result.error is not None
    assert "message 5 differs" in played.result.error.message


async def test_a_rewind_reports_where_the_terminal_differs(
    bundled: dict[str, tbench.Task], engine: Engine, tools_volume: str, tmp_path: Path
) -> None:
    shown = ("date; echo same", "head -c 9 /dev/urandom | base64 | tr a-z A-Z | sed s/^/word-/", "ls")
    with closing(FaultServer()) as server:
        server.always_list({"id": "m", "max_model_len": 32768})
        for line in shown:
            keys = json.dumps([{"keystrokes": f"{line}\n"}])
            server.will_reply(f'{{"analysis": "", "plan": "", "commands": {keys}}}')
        run = tmp_path / f"varying-{uuid.uuid4().hex[:8]}"
        async with tbench.debug(bundled[TASK], server.base_url, config=SHARED, directory=run) as session:
            await session.run(to_step=3)
            await session.rewind(2)
            assert session.differs == ""
            await session.run(to_step=3)
            await session.rewind(3)
            assert session.differs.startswith("step 2: 'word-")
            assert len([each for each in server.seen if each.path.endswith("/completions")]) == 4


def typing(*lines: str) -> str:
    commands = [{"keystrokes": f"{line}\n", "duration": 1} for line in lines]
    return json.dumps({"analysis": "So it is.", "plan": "Type.", "commands": commands})


async def test_a_trial_goes_on_to_a_changed_path_a_failing_command_a_flipped_test_or_its_end(
    bundled: dict[str, tbench.Task], endpoint: str, engine: Engine, tools_volume: str
) -> None:
    async with tbench.debug(bundled["lab-permissions"], endpoint, config=SHARED) as session:
        await session.edit(typing("mkdir -p /srv/x/y; echo a >/srv/x/y/f; ln -s /srv/x /srv/l; export HERE=1"))
        step = await session.run(until_changed="/srv/l/y")
        assert step is not None and session.stopped.startswith("changed: /srv/l added, /srv/x added")
        assert step.thoughts == ("analysis: So it is.", "plan: Type.")
        assert step.files == {"/srv/l": "added", "/srv/x": "added", "/srv/x/y": "added", "/srv/x/y/f": "added"}
        await session.edit(typing("sleep 99"))
        await session.step()
        assert (await session.verify()).failed[0].error  # the program goes on, and the shell waits for it
        await session.edit(json.dumps({"analysis": "", "plan": "", "commands": [{"keystrokes": "C-c", "duration": 1}]}))
        await session.step()
        assert session.screen.count("Stopped") == 0
        await session.edit(typing("rm -r /srv/x/y"))
        await session.run(until_changed="/srv/l/y/f")
        assert session.stopped == "changed: /srv/x/y removed"
        await session.edit(typing("[ $HERE = 1 ] && (exit 3)"))
        await session.run(until_exit=True)
        assert session.stopped.startswith("exit code 3 at step")
        await session.run(until_test="no such test")
        assert session.draft is not None and session.stopped.startswith("no such test: no test has this")
        await session.edit(typing("groupadd lab; usermod -aG lab anna; usermod -aG lab boris"))
        await session.run(until_test="two_members")
        assert session.stopped.endswith("test_the_group_has_the_two_members: failed, now passed")
        assert session.verdicts[-1].failures < session.verdicts[0].failures
        await session.run(until_changed="/proc/nothing")
        assert session.is_over and session.stopped == "the trial has ended"
    assert session.result is not None and session.result.human_touched
