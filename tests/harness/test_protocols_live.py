"""Every protocol with a real shell: typed commands run, and their output is shown in the protocol's form."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.agent import Agent, Limits
from harness.fakes import ScriptedModel
from harness.protocols import PROTOCOLS, load_protocol
from harness.protocols.base import Command, Keys
from harness.terminal import Terminal, TerminalSpec
from harness.trajectory import Outcome

pytestmark = pytest.mark.engine

COMMAND = "echo $((6 * 7)) '<b> & \"!$' > /tmp/made; cat /tmp/made; cd /tmp"
PRINTED = '42 <b> & "!$'


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_a_command_runs_its_output_comes_back_and_the_task_is_submitted(
    name: str, start_sandbox: Any, make_task: Any
) -> None:
    protocol = load_protocol(name)
    makes = Command if protocol.types_commands else lambda command: Keys(f"{command}\n", 20.0)
    said = [protocol.write("So.", "I try.", [makes(command)]) for command in (COMMAND, "pwd")]
    done = protocol.write("So.", "It is done.", [], complete=True)
    sandbox = await start_sandbox(make_task())
    terminal = Terminal(sandbox.connect, TerminalSpec(attended=not protocol.types_commands))
    await terminal.open()
    model = ScriptedModel([*said, done, done])
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
