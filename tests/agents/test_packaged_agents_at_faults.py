"""The agents that come along, in containers without a network, at an endpoint that fails, cuts, and is full."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTask
from packaged_trials import TOOL_CALLERS, Pull, run, run_killed_once, trajectory
from tool_calling_server import ToolCallingServer, called

import tbench
from tbench.config.settings import RunConfig
from tbench.serving import JsonHandler

pytestmark = [pytest.mark.engine, pytest.mark.slow]
TOML = "[agent]\ntimeout_sec = {seconds}\n[environment]\nmemory_mb = 1024\nallow_internet = false\n"
OUTAGE_SEC = 130.0
OUTAGE_TASK_SEC = 120.0
"""Time of the task during an outage that is longer; agents start within a fraction of it, also on a busy machine."""

Try = Callable[..., dict[str, Any]]


@pytest.fixture
def try_agent(tmp_path: Path, make_task: MakeTask, tools_volume: str, pulled: Pull) -> Try:
    """Runs one trial of a task that wants the file /app/done."""

    def trial(agent: str, server: ToolCallingServer, *more: str, seconds: float = 1500) -> dict[str, Any]:
        pulled(agent)
        tasks = make_task(toml=TOML.format(seconds=seconds)).parent
        with server:
            return run(tmp_path, tasks, agent, server.base_url, *more, seconds=1800)

    return trial


class AwayServer(ToolCallingServer):
    """Hangs up on every request for a while, from the second turn on."""

    began: float | None = None
    refused = 0

    def fault(self, turn: int, handler: JsonHandler) -> bool:
        if turn == 0:
            return False
        self.began = self.began or time.monotonic()
        if time.monotonic() > self.began + OUTAGE_SEC:
            return False
        self.refused += 1
        handler.close_connection = True
        return True


@pytest.mark.parametrize("agent", TOOL_CALLERS)
def test_an_outage_longer_than_the_tasks_time_is_sat_out_and_costs_the_agent_no_time(
    agent: str, try_agent: Try
) -> None:
    server = AwayServer(["ls /app", "touch /app/done"])
    result = try_agent(agent, server, seconds=OUTAGE_TASK_SEC)
    assert (result["error"], result["reward"]) == (None, 1.0)
    assert result["timings"]["waited_sec"] >= OUTAGE_SEC - 1
    assert server.refused > 3
    # The agent itself has asked once for each reply: it has noticed nothing.
    assert result["steps"] == 3


class HoldingServer(ToolCallingServer):
    """Does not answer the first request of the second turn."""

    is_asked: threading.Event

    def fault(self, turn: int, handler: JsonHandler) -> bool:
        if turn != 1 or self.is_asked.is_set():
            return False
        self.is_asked.set()
        handler.close_connection = True
        time.sleep(5)  # the run is killed meanwhile
        return True


@pytest.mark.parametrize("agent", TOOL_CALLERS)
def test_a_killed_run_goes_on_with_a_new_agent_that_gets_the_recorded_replies(
    agent: str, tmp_path: Path, make_task: MakeTask, tools_volume: str, pulled: Pull
) -> None:
    pulled(agent)
    server = HoldingServer(["ls /app", "touch /app/done"])
    server.is_asked = threading.Event()
    tasks = make_task(toml=TOML.format(seconds=1500)).parent
    with server:
        result = run_killed_once(tmp_path, tasks, agent, server.base_url, server.is_asked)
    assert (result.error, result.reward, result.steps) == (None, 1.0, 3)
    assert [each.how for each in result.went_on] == ["replayed"]
    # The first reply was not asked for again.
    turns = [sum(message["role"] == "assistant" for message in body["messages"]) for body in asked(server)]
    assert turns.count(0) == 1


class BusyServer(ToolCallingServer):
    """Wants two requests of the second turn to come later."""

    asked_at: list[float]

    def fault(self, turn: int, handler: JsonHandler) -> bool:
        if turn != 1 or len(self.asked_at) == 2:
            return False
        self.asked_at.append(time.monotonic())
        handler.send_answer(429, b'{"error": {"message": "slow down"}}', {"Retry-After": "3"})
        return True


@pytest.mark.parametrize("agent", TOOL_CALLERS)
def test_a_busy_endpoint_is_asked_again_when_it_says(agent: str, try_agent: Try) -> None:
    server = BusyServer(["ls /app", "touch /app/done"])
    server.asked_at = []
    result = try_agent(agent, server)
    assert (result["error"], result["reward"], result["steps"]) == (None, 1.0, 3)
    assert result["timings"]["waited_sec"] >= 6
    first, second = server.asked_at
    assert second - first >= 3


class CuttingServer(ToolCallingServer):
    """Cuts its second reply, and all that follow it directly."""

    def fault(self, turn: int, handler: JsonHandler) -> bool:
        if turn == 0:
            return False
        usage = {"prompt_tokens": 100, "completion_tokens": 16384, "total_tokens": 16484}
        choice = {"index": 0, "message": {"role": "assistant", "content": "I begin"}, "finish_reason": "length"}
        handler.send_json(200, {"id": "c", "model": "tiny", "choices": [choice], "usage": usage})
        return True


@pytest.mark.parametrize("agent", TOOL_CALLERS)
def test_an_agent_that_gives_up_on_cut_replies_is_judged(agent: str, try_agent: Try, tmp_path: Path) -> None:
    result = try_agent(agent, CuttingServer(["touch /app/done"]))
    assert (result["error"], result["reward"]) == (None, 1.0)
    # The others end with exit code 0, as if the work was done.
    assert result["outcome"] == ("format_limit" if agent in ("claude-code", "codex") else "finished")
    assert [step["reply"]["cut"] for step in trajectory(tmp_path)["steps"]] == [False] + [True] * (result["steps"] - 1)


@pytest.mark.parametrize("agent", TOOL_CALLERS)
def test_a_command_that_no_rule_allows_never_reaches_an_agent(agent: str, try_agent: Try, tmp_path: Path) -> None:
    rules = tmp_path / "rules.txt"
    rules.write_text("touch .*\necho COMPLETE.*\n")
    server = ToolCallingServer(["rm -r /app; echo gone", "touch /app/done"])
    result = try_agent(agent, server, "--approve", f"allowlist={rules}")
    assert (result["error"], result["reward"]) == (None, 1.0)
    found = trajectory(tmp_path)
    assert [each["kind"] for each in found["interventions"]][:2] == ["refused", "approved"]
    assert "not allowed here" in found["steps"][0]["observation"]
    assert "gone" not in str(found["messages"][-1])


@pytest.mark.parametrize("agent", TOOL_CALLERS)
def test_a_trial_is_forked_by_replaying_its_first_replies_to_a_new_agent(
    agent: str, try_agent: Try, tmp_path: Path
) -> None:
    server = ToolCallingServer(["ls /app", "touch /app/wrong"])
    assert try_agent(agent, server)["reward"] == 0.0
    with ToolCallingServer(["ls /app", "touch /app/done"]) as better:
        command = [sys.executable, "-m", "tbench", "fork", str(tmp_path / "run" / "small-task" / "0"), "--at-step", "2"]
        command += ["--base-url", better.base_url, "--output", str(tmp_path / "fork")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 forks at step 2" in done.stdout
    # The first reply came from the trial.
    assert all(any(message["role"] == "assistant" for message in body["messages"]) for body in asked(better))


async def test_a_packaged_agent_is_debugged_reply_by_reply(
    make_task: MakeTask, tools_volume: str, pulled: Pull
) -> None:
    pulled("codex")
    task = make_task(toml=TOML.format(seconds=1500))
    with ToolCallingServer(["ls /app", "rm -r /app", "touch /app/done"]) as server:
        found = {"agent": {"name": "codex"}, "model": {"base_url": server.base_url}, "verify": {"mode": "shared"}}
        async with tbench.debug(task, config=RunConfig.model_validate(found)) as session:
            assert (await session.waits()).actions == ("ls /app",)
            await session.step()
            assert (await session.waits()).actions == ("rm -r /app",)
            await session.drop("not this")
            assert (await session.waits()).actions == ("touch /app/done",)
            await session.run()
    assert session.result is not None
    assert (session.result.error, session.result.reward, session.result.steps) == (None, 1.0, 5)


def asked(server: ToolCallingServer) -> list[dict[str, Any]]:
    """The requests of agents; others, with a few tokens, are tbench's own look at the endpoint."""
    return [body for body in server.bodies if len(body["messages"]) > 1]


class LongServer(ToolCallingServer):
    """Prints much in each of eight turns; asked without tools, or for a summary, it summarises."""

    turns = 0

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        last = body["messages"][-1]
        # tbench's own look at the endpoint has one message and offers no shell.
        if (
            not body.get("tools")
            or len(body["messages"]) == 1
            or (last["role"] == "user" and "TEXT ONLY" in last["content"])
        ):
            return {"role": "assistant", "content": "<summary>Numbers were printed.</summary>"}
        self.turns += 1
        if self.turns > 9:
            return {"role": "assistant", "content": "Done."}
        command = f"seq {self.turns}0000 {self.turns}2000" if self.turns < 9 else "touch /app/done"
        return called(body, self.turns, command)


@pytest.mark.parametrize(
    ("agent", "longest"), [("claude-code", 32_000), ("codex", 16_000), ("opencode", 32_000), ("qwen-code", 32_000)]
)
def test_an_agent_whose_context_is_full_compacts_its_conversation_and_goes_on(
    agent: str, longest: int, tmp_path: Path, try_agent: Try
) -> None:
    server = LongServer([])
    server.longest = longest
    result = try_agent(agent, server)
    assert (result["error"], result["outcome"], result["reward"]) == (None, "finished", 1.0)
    found = trajectory(tmp_path)
    assert "Numbers were printed." in str(found["messages"])
    # The last conversation is the one after the summary, and not the whole work.
    calls = [call for message in found["messages"] for call in message["tool_calls"]]
    assert 0 < len(calls) < 9


class EndlessServer(LongServer):
    """Solves the task, then prints much in every turn."""

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        if len(body["messages"]) == 1:
            return {"role": "assistant", "content": "Hello."}
        self.turns += 1
        return called(body, self.turns, f"touch /app/done; seq {self.turns}0000 {self.turns}2000")


def test_an_agent_that_cannot_compact_ends_at_a_full_context_and_is_judged(try_agent: Try) -> None:
    server = EndlessServer([])
    server.longest = 16_000
    result = try_agent("mini-swe-agent", server, "--steps", "50")
    assert (result["error"], result["outcome"], result["reward"]) == (None, "context_limit", 1.0)


@pytest.mark.parametrize("agent", TOOL_CALLERS)
def test_the_limit_of_steps_ends_an_agent(agent: str, try_agent: Try) -> None:
    result = try_agent(agent, ToolCallingServer(["ls /app"] * 9), "--steps", "2")
    assert (result["error"], result["outcome"], result["steps"]) == (None, "step_limit", 2)


@pytest.mark.parametrize("agent", TOOL_CALLERS)
def test_the_limit_of_written_tokens_ends_an_agent(agent: str, try_agent: Try) -> None:
    server = ToolCallingServer(["ls /app"] * 9)
    result = try_agent(agent, server, "--max-completion-tokens", "50")  # 20 are counted for each reply
    assert (result["error"], result["outcome"], result["steps"]) == (None, "token_limit", 3)
    assert server.bodies[-1]["max_tokens"] == 10
