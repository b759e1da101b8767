"""Every protocol with a real shell: typed commands run, and their output is shown in the protocol's form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from harness.agent import Agent, Limits
from harness.fakes import ScriptedModel
from harness.protocols import PROTOCOLS, load_protocol
from harness.protocols.bash import SUBMIT_COMMAND
from harness.terminal import Terminal, TerminalSpec
from harness.trajectory import Outcome, Reply, ToolCall

pytestmark = pytest.mark.engine

COMMAND = "echo $((6 * 7)) '<b> & \"!$' > /tmp/made; cat /tmp/made; cd /tmp"
PRINTED = '42 <b> & "!$'


def as_json(command: str, done: bool) -> str:
    keys = [{"keystrokes": f"{command}\n", "duration": 20}] if command else []
    return json.dumps({"analysis": "", "plan": "", "commands": keys, "task_complete": done})


def as_xml(command: str, done: bool) -> str:
    keys = f'<keystrokes duration="20">{command}\n</keystrokes>' if command else ""
    complete = f"<task_complete>{'true' if done else 'false'}</task_complete>"
    return f"<response><analysis/><plan/><commands>{keys}</commands>{complete}</response>"


def as_call(command: str, done: bool) -> Reply:
    made = ToolCall(id="1", name="bash", arguments=json.dumps({"command": SUBMIT_COMMAND if done else command}))
    return Reply(content="", tool_calls=(made,))


def as_block(command: str, done: bool) -> str:
    return f"<thinking>So.</thinking>\n```bash\n{SUBMIT_COMMAND if done else command}\n```"


FORMATS: dict[str, Callable[[str, bool], Reply | str]] = {
    "keystrokes-json": as_json,
    "keystrokes-xml": as_xml,
    "bash-block": as_block,
    "bash-tool": as_call,
    "thinking-bash": as_block,
}


def test_every_protocol_is_tried() -> None:
    assert set(FORMATS) == set(PROTOCOLS)


@pytest.mark.parametrize("name", FORMATS)
async def test_a_command_runs_its_output_comes_back_and_the_task_is_submitted(
    name: str, start_sandbox: Any, make_task: Any
) -> None:
    protocol, said = load_protocol(name), FORMATS[name]
    sandbox = await start_sandbox(make_task())
    terminal = Terminal(sandbox.connect, TerminalSpec(attended=not protocol.types_commands))
    await terminal.open()
    model = ScriptedModel([said(COMMAND, False), said("pwd", False), said("", True), said("", True)])
    try:
        async with asyncio.timeout(60):
            trajectory = await Agent(model, terminal, protocol, Limits()).run("Try it.")
    finally:
        await terminal.close()
    assert trajectory.outcome is Outcome.SUBMITTED
    assert trajectory.warnings == {}
    first, second, *_ = trajectory.steps
    assert PRINTED in first.observation.split("\n")
    assert "/tmp" in second.observation.split("\n")
    assert (first.exit_code, second.exit_code) == (0, 0)
