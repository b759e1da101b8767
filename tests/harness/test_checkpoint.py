"""checkpoint: another process goes on with a conversation as if it had never been cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.agent import Agent, Limits
from harness.checkpoint import (
    Checkpoint,
    CheckpointLine,
    Conversation,
    Followed,
    FollowedAgain,
    OfStep,
    checkpoint_line,
)
from harness.fakes import FakeTerminal, ScriptedModel
from harness.protocols.keystrokes_json import KeystrokesJson
from harness.trajectory import Message, Outcome, Reply, Step, ToolCall, Trajectory, Usage

LS = '{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "ls\\n", "duration": 0.1}]}'
LOOK = '{"analysis": "a", "plan": "p", "commands": []}'
CLAIM = '{"analysis": "a", "plan": "p", "commands": [], "task_complete": true}'
BAD = "I will have a look."
SCREEN = "\n".join(f"line {number} of a long screen" for number in range(30))
SCRIPT = [LS, BAD, LOOK, CLAIM, LS, BAD, CLAIM, CLAIM]


def reply(content: str, prompt: int, completion: int) -> Reply:
    return Reply(content=content, usage=Usage(prompt_tokens=prompt, completion_tokens=completion))


def agent(model: ScriptedModel, terminal: FakeTerminal, **options: Any) -> Agent:
    return Agent(model, terminal, KeystrokesJson(), options.pop("limits", Limits()), **options)


class Recorded:
    """A conversation from its beginning to its end, with everything that was on disk meanwhile."""

    def __init__(self, limits: Limits, script: list[str], context_tokens: int | None) -> None:
        self.checkpoints: list[Checkpoint | Followed] = []
        self.steps: list[Step] = []
        self._limits, self._context = limits, context_tokens
        self.replies = [reply(text, prompt=1300 + 250 * n, completion=7) for n, text in enumerate(script)]

    async def run(self) -> Trajectory:
        self.model = ScriptedModel(self.replies, context_tokens=self._context)
        made = self._agent(self.model, on_step_done=self.steps.append, on_checkpoint=self.checkpoints.append)
        return await made.run("Do it.")

    def _agent(self, model: ScriptedModel, **options: Any) -> Agent:
        return agent(model, FakeTerminal([SCREEN] * 40), limits=self._limits, **options)

    async def go_on(self, number: int) -> tuple[Trajectory, ScriptedModel, int]:
        """Go on from the first `number` checkpoints, as they are read from disk, after so many replies."""
        lines = map(checkpoint_line, self.checkpoints[:number])
        before = Conversation.restore((CheckpointLine.model_validate_json(line).root for line in lines), self.steps)
        model = ScriptedModel(self.replies[before.last.counts.replies :], context_tokens=self._context)
        return await self._agent(model, before=before).run(""), model, before.last.counts.replies


def timeless(trajectory: Trajectory) -> Trajectory:
    """A trajectory without its times."""
    steps = tuple(step.model_copy(update={"model_sec": 0.0, "command_sec": 0.0}) for step in trajectory.steps)
    compactions = tuple(each.model_copy(update={"model_sec": 0.0}) for each in trajectory.compactions)
    none = {"waited_sec": 0.0, "model_sec": 0.0, "command_sec": 0.0}
    return trajectory.model_copy(update={"steps": steps, "compactions": compactions, **none})


@pytest.mark.parametrize(
    ("limits", "context_tokens"),
    [
        (Limits(), None),
        (Limits(steps=6), None),
        (Limits(format_errors=2), None),
        (Limits(completion_tokens=40), None),
        (Limits(on_overflow="drop-oldest-outputs"), 2400),
    ],
)
async def test_from_every_checkpoint_the_conversation_ends_as_without_a_cut(
    limits: Limits, context_tokens: int | None
) -> None:
    whole = Recorded(limits, SCRIPT, context_tokens)
    expected = await whole.run()
    assert len(whole.checkpoints) > len(expected.steps)
    assert bool(expected.compactions) is (context_tokens is not None)
    for number in range(1, len(whole.checkpoints) + 1):
        found, model, asked = await whole.go_on(number)
        assert timeless(found) == timeless(expected), number
        assert model.requests == whole.model.requests[asked:], "no reply is asked for twice, and all see the same"


async def test_time_and_limits_go_on() -> None:
    whole = Recorded(Limits(timeout_sec=60), [LS, CLAIM, CLAIM], None)
    await whole.run()
    last = whole.checkpoints[3]
    assert isinstance(last, Checkpoint)
    spent = replace(last, counts=last.counts._replace(spent_sec=59.0))
    before = Conversation.restore([*whole.checkpoints[:3], spent], whole.steps, cut_at=spent.at + 2)
    assert before.spent_sec == pytest.approx(61)
    model = ScriptedModel([None])
    found = await agent(model, FakeTerminal([SCREEN] * 9), limits=Limits(timeout_sec=60), before=before).run("")
    assert found.outcome is Outcome.AGENT_TIMEOUT


async def test_steps_that_are_followed_again_cost_no_time() -> None:
    model = ScriptedModel([LS, CLAIM, CLAIM])
    again = FollowedAgain(steps=2, spent_sec=5.0)
    saved: list[Checkpoint | Followed] = []
    steps: list[Step] = []
    terminal = FakeTerminal([SCREEN] * 9)
    await agent(model, terminal, again=again, on_checkpoint=saved.append, on_step_done=steps.append).run("Do it.")
    assert Conversation.restore(saved, steps).last.counts.spent_sec == pytest.approx(5.0, abs=0.5)


def test_without_a_checkpoint_or_a_step_there_is_nothing_to_go_on_with() -> None:
    with pytest.raises(ValueError, match="had not been asked"):
        Conversation.restore([], [])


async def test_a_lost_step_is_noticed() -> None:
    whole = Recorded(Limits(), [LS, CLAIM, CLAIM], None)
    await whole.run()
    with pytest.raises(ValueError, match="missing"):
        Conversation.restore(whole.checkpoints, whole.steps[1:])


def test_messages_of_a_step_are_taken_from_it_also_with_tool_calls() -> None:
    calls = (ToolCall(id="a", name="bash", arguments="{}"), ToolCall(id="b", name="bash", arguments="{}"))
    step = Step(index=1, reply=Reply(content="c", reasoning="r", tool_calls=calls), observation="o")
    said = Message(role="assistant", content="c", reasoning="r", tool_calls=calls[:1])
    answer = Message(role="tool", content="o", tool_call_id="a")
    other = Message(role="user", content="o, and more")
    found = [OfStep.of(each, step) for each in (said, answer, other)]
    assert found == [OfStep("reply", 1), OfStep("observation", 0, "a"), other]
    assert [each.message(step) if isinstance(each, OfStep) else each for each in found] == [said, answer, other]
