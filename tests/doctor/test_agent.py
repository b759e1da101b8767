"""What a model lacks for an agent, as one trial shows it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from shell_agents import write_recipe
from tool_calling_server import ToolCallingServer

from harness.trajectory import Outcome, Reply, Step, ToolCall, Usage
from tbench.doctor import Finding
from tbench.doctor.agent import Tried, judge, write_tiny_task
from tbench.tasks.task import Task

CALL = ToolCall(id="1", name="bash", arguments='{"command": "ls"}')


def a_step(index: int = 1, **reply: Any) -> Step:
    given = {"content": "", "tool_calls": (CALL,), "reasoning": "so", "usage": Usage(prompt_tokens=900)} | reply
    return Step(index=index, reply=Reply(**given))


def tried(*steps: Step, **values: Any) -> Tried:
    given = {"outcome": Outcome.FINISHED, "is_solved": True, "error": "", "context_tokens": 8192, "calls_tools": True}
    return Tried(steps=steps, **(given | values))


def finding(name: str, *steps: Step, **values: Any) -> Finding:
    (found,) = [each for each in judge("codex@1", tried(*steps, **values)) if each.name == name]
    return found


def test_a_model_that_has_everything_is_fit() -> None:
    found = judge("codex@1", tried(a_step(), a_step(2)))
    assert [each.status for each in found] == ["ok"] * 5
    assert found[0].seen == "solved a tiny task with 2 requests"


@pytest.mark.parametrize(
    ("name", "step", "values", "status", "words"),
    [
        ("tool calls", {"tool_calls": ()}, {}, "fail", "no reply has one"),
        ("tool calls", {"tool_calls": ()}, {"calls_tools": False}, "skipped", "works without"),
        ("tool calls", {"tool_calls": (CALL.model_copy(update={"arguments": "ls"}),)}, {}, "warn", "1 of 1"),
        ("context", {"usage": Usage(prompt_tokens=5000)}, {}, "warn", "5,000 tokens, the context 8,192"),
        ("context", {}, {"outcome": Outcome.CONTEXT_LIMIT}, "fail", "full"),
        ("context", {}, {"context_tokens": None}, "ok", "900 tokens"),
        ("reasoning", {"reasoning": None}, {}, "skipped", "no reply has any"),
        ("reasoning", {"reasoning": None, "content": "so</think>ok"}, {}, "warn", "in the text"),
        ("replies", {"cut": True}, {}, "warn", "1 of 1 were cut"),
        ("codex@1", {}, {"is_solved": False}, "warn", "did not solve a tiny task (finished after 1 request)"),
        ("codex@1", {}, {"error": "it crashed"}, "fail", "no verdict after 1 request: it crashed"),
    ],
)
def test_what_a_model_lacks_is_one_line(
    name: str, step: dict[str, Any], values: dict[str, Any], status: str, words: str
) -> None:
    found = finding(name, a_step(**step), **values)
    assert found.status == status
    assert words in found.seen
    assert bool(found.advice) == (status in ("fail", "warn"))


def test_an_agent_that_asked_nothing_has_one_line(tmp_path: Path) -> None:
    (found,) = judge("codex@1", tried(error="crashed", is_solved=False))
    assert (found.status, found.seen) == ("fail", "no verdict after 0 requests: crashed")


def test_the_tiny_task_is_a_task(tmp_path: Path) -> None:
    task = Task.read(write_tiny_task(tmp_path))
    assert not task.unsupported
    assert not task.file.environment.allow_internet


@pytest.mark.slow
@pytest.mark.engine
def test_doctor_tries_an_agent_and_says_what_it_saw(tmp_path: Path, tools_volume: str) -> None:
    recipe = tmp_path / "shell.toml"
    write_recipe(recipe, ": {instruction}\n\"$ASK\" one && echo 'Hello, world!' >/app/hello.txt")
    with ToolCallingServer([]) as server:
        command = [sys.executable, "-m", "tbench", "doctor", "--base-url", server.base_url, "--agent", str(recipe)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=os.environ, check=False)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "ok shell-agent@1.0 solved a tiny task with 1 request" in lines
    assert "skipped tool calls the agent works without them" in lines


@pytest.mark.slow
@pytest.mark.engine
def test_doctor_leaves_nothing_when_it_is_stopped(tmp_path: Path, tools_volume: str) -> None:
    recipe, temporary = tmp_path / "shell.toml", tmp_path / "temporary"
    temporary.mkdir()
    write_recipe(recipe, ': {instruction}\n"$ASK" one && sleep 1000')
    with ToolCallingServer([]) as server:
        command = [sys.executable, "-m", "tbench", "doctor", "--base-url", server.base_url, "--agent", str(recipe)]
        environment = os.environ | {"TMPDIR": str(temporary)}
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as running:
            ends = time.monotonic() + 240
            while not any(body["messages"][-1]["content"] == "one" for body in server.bodies):
                assert time.monotonic() < ends and running.poll() is None
                time.sleep(0.05)
            assert list(temporary.glob("tbench-doctor-*"))
            running.terminate()
            said = running.communicate(timeout=240)[1]
    assert (running.returncode, b"interrupted" in said) == (130, True)
    assert list(temporary.glob("tbench-doctor-*")) == []
    containers = ["docker", "ps", "--all", "--quiet", "--filter", "label=tbench.directory"]
    labels = [*containers, "--format", "{{.Labels}}"]
    assert str(temporary) not in subprocess.run(labels, capture_output=True, text=True, check=True).stdout
