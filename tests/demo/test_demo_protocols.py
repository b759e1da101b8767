"""Every protocol, and every way to render its history, plays a script of the demo endpoint to its end."""

from __future__ import annotations

from typing import get_args

import pytest

from harness.agent import Agent, Limits
from harness.endpoint.chat import ChatModel, Rendering, Sampling
from harness.fakes import FakeTerminal
from harness.model import Seeds, Template
from harness.protocols import PROTOCOLS, load_protocol
from harness.protocols.base import CommandResult, View
from harness.trajectory import Outcome
from tbench.demo.replies import SUBMIT
from tbench.demo.server import DemoEndpoint

INSTRUCTION = "Tidy the notes."
PAIRS = [
    (protocol, template)
    for protocol in PROTOCOLS
    for template in get_args(Template)
    if Rendering(template=template).takes_tools or not load_protocol(protocol).tools
]


class Shell(FakeTerminal):
    """Every command succeeds; only the submission prints something."""

    async def run(self, command: str, limit_sec: float) -> View:
        self.typed.append(command)
        return CommandResult(output=SUBMIT.removeprefix("echo ") if command == SUBMIT else "", exit_code=0)


@pytest.mark.parametrize(("protocol", "template"), PAIRS)
async def test_a_script_is_played_to_its_end(protocol: str, template: Template) -> None:
    terminal = Shell()
    rendering = Rendering(template=template)
    with DemoEndpoint({"tidy-notes": INSTRUCTION}) as demo:
        async with ChatModel(demo.base_url, "scripted-demo", Sampling(), api_key=None, rendering=rendering) as model:
            agent = Agent(model, terminal, load_protocol(protocol), Limits(steps=10), seeds=Seeds("tidy-notes", 0))
            trajectory = await agent.run(INSTRUCTION)
    assert trajectory.outcome is Outcome.SUBMITTED
    assert trajectory.warnings == {}
    assert any("tidy.py" in getattr(typed, "keystrokes", str(typed)) for typed in terminal.typed)
