"""Aider in containers without a network. It calls no tools: a reply names a file, and has its content in a block."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTask
from packaged_trials import Pull, run, run_killed_once, trajectory
from tool_calling_server import ToolCallingServer

from tbench.cassettes.cassette import Cassette
from tbench.cassettes.endpoints import CassettePlayer, CassetteRecorder
from tbench.serving import JsonHandler

pytestmark = [pytest.mark.engine, pytest.mark.slow]
TIDY = Path(__file__).parents[2] / "tasks"
TASK_SEC, OUTAGE_SEC = 120.0, 130.0
"""The outage is longer than the task's time, of which a start of aider takes a fraction, also on a busy machine."""
TOML = "[agent]\ntimeout_sec = {seconds}\n[environment]\nmemory_mb = 1024\nallow_internet = false\n"
EDIT = """Here it is.

{path}
```
{content}```
"""
NAMELESS = "```\nA block without the name of a file, so aider asks again.\n```\n"


def was_nameless(body: dict[str, Any]) -> int:
    """How many replies in a conversation name no file."""
    return sum(message["content"].strip() == NAMELESS.strip() for message in body["messages"])


class EditingServer(ToolCallingServer):
    """Forgets the name of the file in its first replies to a conversation; then it writes /app/done."""

    def __init__(self, nameless: int = 1) -> None:
        super().__init__([])
        self.nameless = nameless

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        text = NAMELESS if was_nameless(body) < self.nameless else EDIT.format(path="done", content="done\n")
        return {"role": "assistant", "content": text}


class HoldingServer(EditingServer):
    """Does not answer the second request of the agent."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = threading.Event()

    def fault(self, turn: int, handler: JsonHandler) -> bool:
        if self.is_asked.is_set() or was_nameless(self.bodies[-1]) == 0:
            return False
        self.is_asked.set()
        handler.close_connection = True
        time.sleep(5)  # the run is killed meanwhile
        return True


class AwayServer(EditingServer):
    """Is busy when it is asked a second time, then hangs up for a while."""

    began: float | None = None

    def fault(self, turn: int, handler: JsonHandler) -> bool:
        if was_nameless(self.bodies[-1]) == 0:
            return False
        if self.began is None:
            self.began = time.monotonic()
            handler.send_answer(429, b'{"error": {"message": "slow down"}}', {"Retry-After": "3"})
            return True
        handler.close_connection = time.monotonic() < self.began + OUTAGE_SEC
        return handler.close_connection


class CuttingServer(EditingServer):
    """Cuts every reply but the first."""

    def fault(self, turn: int, handler: JsonHandler) -> bool:
        if was_nameless(self.bodies[-1]) == 0:
            return False
        usage = {"prompt_tokens": 100, "completion_tokens": 16384, "total_tokens": 16484}
        choice = {"index": 0, "message": {"role": "assistant", "content": "done\n```\nha"}, "finish_reason": "length"}
        handler.send_json(200, {"id": "c", "model": "tiny", "choices": [choice], "usage": usage})
        return True


def test_aider_edits_files_of_a_bundled_task_without_a_network(tmp_path: Path, tools_volume: str, pulled: Pull) -> None:
    pulled("aider")
    script = (TIDY / "free-slots-bug" / "solution" / "solve.sh").read_text()
    code = script.split("<<'PY'\n", 1)[1].split("PY\n", 1)[0]
    with ToolCallingServer([]) as server:
        server.text = EDIT.format(path="slots.py", content=code)
        patient = ("--timeout-multiplier", "5")
        result = run(tmp_path, TIDY, "aider", server.base_url, "-t", "free-slots-bug", *patient, seconds=1500)
    assert (result["error"], result["reward"], result["outcome"], result["steps"]) == (None, 1.0, "finished", 1)
    directory = tmp_path / "run" / "trials" / "free-slots-bug" / "seed-0"
    assert "slots.py" in (directory / "agent" / "chat.md").read_text()


def test_a_killed_run_goes_on_with_a_new_aider_that_gets_the_recorded_reply(
    tmp_path: Path, make_task: MakeTask, tools_volume: str, pulled: Pull
) -> None:
    pulled("aider")
    with HoldingServer() as server:
        result = run_killed_once(
            tmp_path, make_task(toml=TOML.format(seconds=1500)).parent, "aider", server.base_url, server.is_asked
        )
    assert (result.error, result.reward, result.steps) == (None, 1.0, 2)
    assert [each.how for each in result.went_on] == ["replayed"]
    # The first reply was not asked for again.
    asked = [body for body in server.bodies if len(body["messages"]) > 1]
    assert [was_nameless(body) for body in asked].count(0) == 1


def test_a_cassette_of_aider_plays_without_its_endpoint(
    tmp_path: Path, make_task: MakeTask, tools_volume: str, pulled: Pull
) -> None:
    pulled("aider")
    tasks, file = make_task(toml=TOML.format(seconds=1500)).parent, tmp_path / "cassette.jsonl"
    for name in ("recorded", "played"):
        (tmp_path / name).mkdir()
    with EditingServer() as server, CassetteRecorder(file, server.base_url, ("127.0.0.1", 0)) as recorder:
        recorded = run(tmp_path / "recorded", tasks, "aider", recorder.base_url, seconds=1500)
    with CassettePlayer(Cassette.read(file)) as player:
        played = run(tmp_path / "played", tasks, "aider", player.base_url, seconds=1500)
    assert player.refused == 0
    for result in (recorded, played):
        assert (result["error"], result["reward"], result["steps"]) == (None, 1.0, 2)
    first, second = (trajectory(tmp_path / name)["steps"] for name in ("recorded", "played"))
    assert [step["reply"]["content"] for step in first] == [step["reply"]["content"] for step in second]


def test_aider_sits_out_a_busy_endpoint_and_an_outage_longer_than_the_tasks_time(
    tmp_path: Path, make_task: MakeTask, tools_volume: str, pulled: Pull
) -> None:
    pulled("aider")
    tasks = make_task(toml=TOML.format(seconds=TASK_SEC)).parent
    with AwayServer() as server:
        result = run(tmp_path, tasks, "aider", server.base_url, seconds=1500)
    assert (result["error"], result["reward"], result["steps"]) == (None, 1.0, 2)
    assert result["timings"]["waited_sec"] >= OUTAGE_SEC - 1


def test_aider_that_gives_up_on_cut_replies_is_judged(
    tmp_path: Path, make_task: MakeTask, tools_volume: str, pulled: Pull
) -> None:
    pulled("aider")
    with CuttingServer() as server:
        result = run(tmp_path, make_task(toml=TOML.format(seconds=1500)).parent, "aider", server.base_url, seconds=1500)
    assert (result["error"], result["outcome"], result["reward"]) == (None, "finished", 0.0)
    cut = [step["reply"]["cut"] for step in trajectory(tmp_path)["steps"]]
    assert cut == [False] + [True] * (len(cut) - 1)


def test_a_trial_of_aider_is_forked_by_replaying_its_first_reply(
    tmp_path: Path, make_task: MakeTask, tools_volume: str, pulled: Pull
) -> None:
    pulled("aider")
    tasks = make_task(toml=TOML.format(seconds=1500)).parent
    with EditingServer(nameless=9) as server:
        assert run(tmp_path, tasks, "aider", server.base_url, seconds=1500)["reward"] == 0.0
    with EditingServer() as better:
        command = [sys.executable, "-m", "tbench", "fork", str(tmp_path / "run" / "small-task" / "0"), "--at-step", "2"]
        command += ["--base-url", better.base_url, "--output", str(tmp_path / "fork")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 forks at step 2" in done.stdout
    assert all(was_nameless(body) for body in better.bodies if len(body["messages"]) > 1)


@pytest.mark.parametrize(
    ("limit", "outcome", "steps"),
    # The server counts 20 tokens for each reply.
    [("--steps 2", "step_limit", 2), ("--max-completion-tokens 50", "token_limit", 3)],
)
def test_a_limit_ends_aider(
    limit: str, outcome: str, steps: int, tmp_path: Path, make_task: MakeTask, tools_volume: str, pulled: Pull
) -> None:
    pulled("aider")
    tasks = make_task(toml=TOML.format(seconds=1500)).parent
    with EditingServer(nameless=9) as server:
        result = run(tmp_path, tasks, "aider", server.base_url, *limit.split(), seconds=1500)
    assert (result["error"], result["outcome"], result["steps"]) == (None, outcome, steps)
    if outcome == "token_limit":
        assert server.bodies[-1]["max_tokens"] == 10
