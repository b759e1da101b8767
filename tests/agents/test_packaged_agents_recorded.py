"""What is left of the trials of agents that come along: cassettes, exports, tokens; and many trials at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import MakeTask
from packaged_trials import TOOL_CALLERS, Pull, run, trajectory
from results_on_disk import results_in
from tool_calling_server import ToolCallingServer

import tbench
from tbench.cassettes.cassette import Cassette
from tbench.cassettes.endpoints import CassettePlayer, CassetteRecorder
from tbench.config.settings import RunConfig
from tbench.demo.scripts import SCRIPTS

pytestmark = [pytest.mark.engine, pytest.mark.slow]
TOML = "[agent]\ntimeout_sec = 1500\n[environment]\nmemory_mb = 1024\nallow_internet = false\n"
COMMANDS = ("ls /etc | head -3", "date; touch /app/done")


@pytest.mark.parametrize("agent", TOOL_CALLERS)
def test_a_cassette_of_an_agent_plays_without_its_endpoint(
    agent: str, tmp_path: Path, make_task: MakeTask, tools_volume: str, pulled: Pull
) -> None:
    pulled(agent)
    tasks, file = make_task(toml=TOML).parent, tmp_path / "cassette.jsonl"
    for name in ("recorded", "played"):
        (tmp_path / name).mkdir()
    with (
        ToolCallingServer(COMMANDS) as server,
        CassetteRecorder(file, server.base_url, ("127.0.0.1", 0)) as recorder,
    ):
        recorded = run(tmp_path / "recorded", tasks, agent, recorder.base_url, seconds=1500)
    with CassettePlayer(Cassette.read(file)) as player:
        played = run(tmp_path / "played", tasks, agent, player.base_url, seconds=1500)
    assert player.refused == 0
    assert (played["error"], played["reward"], played["steps"]) == (None, 1.0, recorded["steps"])
    first, second = (trajectory(tmp_path / name)["steps"] for name in ("recorded", "played"))
    assert [step["reply"]["tool_calls"] for step in first] == [step["reply"]["tool_calls"] for step in second]


async def test_a_rollout_of_an_agent_is_one_sequence_of_the_servers_tokens(
    make_task: MakeTask, tools_volume: str, pulled: Pull
) -> None:
    pulled("codex")
    with ToolCallingServer(COMMANDS) as server:
        found = {"agent": {"name": "codex"}, "model": {"base_url": server.base_url, "temperature": 1.0, "top_p": 1.0}}
        async with tbench.Runner(RunConfig.model_validate(found | {"verify": {"mode": "shared"}})) as runner:
            rollout = await runner.rollout(tbench.Task.read(make_task(toml=TOML)))
    assert rollout.reward == 1.0
    (sequence,) = rollout.sequences()
    assert sequence.turns == 3
    # Each message has two tokens; between two replies is the output of a command.
    assert sequence.loss_mask == [1, 1, 0, 0, 1, 1, 0, 0, 1, 1]
    assert len(sequence.logprobs) == 10


def test_eight_trials_of_an_agent_run_at_once(tmp_path: Path, tools_volume: str, pulled: Pull) -> None:
    pulled("mini-swe-agent")
    script = (Path(__file__).parents[2] / "tasks" / "tidy-notes" / "solution" / "solve.sh").read_text()
    with ToolCallingServer([script.split("set -e\n", 1)[1]]) as server:
        command = [sys.executable, "-m", "tbench", "run", "-t", "tidy-notes", "--agent", "mini-swe-agent"]
        command += ["--base-url", server.base_url, "-k", "8", "-n", "8", "--cpu-overcommit", "8"]
        command += ["--timeout-multiplier", "5", "--retries", "0", "--output", str(tmp_path / "run")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = results_in(tmp_path / "run")
    assert [(each.error, each.reward, each.steps) for each in results] == [(None, 1.0, 2)] * 8
    assert sorted(each.seed for each in results) == list(range(8))
    # Each request has a seed of its own: no trial's requests were answered for another.
    asked = [body["seed"] for body in server.bodies if len(body["messages"]) > 1]
    assert len(asked) == len(set(asked)) == 16


def test_the_demo_shows_an_agent_with_a_scripted_model(tmp_path: Path, tools_volume: str, pulled: Pull) -> None:
    pulled("mini-swe-agent")
    command = [sys.executable, "-m", "tbench", "demo", "--agent", "mini-swe-agent", "-n", "2"]
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "run")], capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = results_in(tmp_path / "run")
    assert {each.task for each in results} == {path.stem for path in SCRIPTS.glob("*.toml")}
    assert {each.agent for each in results} == {"mini-swe-agent@2.4.6"}
    assert [each.error for each in results] == [None] * len(results)
    assert (tmp_path / "run" / "report.html").stat().st_size > 0
