"""checkpoint: another process goes on with a conversation as if it had never been cut."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from harness.agent import Agent, Limits
from harness.checkpoint import (
    CheckpointLine,
    Conversation,
    OfStep,
    ReplayedSteps,
    Replied,
    Saved,
    Worked,
    checkpoint_line,
    shared_length,
)
from harness.errors import ContextLimitReached
from harness.fakes import FakeTerminal, ScriptedModel
from harness.model import Sampling
from harness.oversight import Decision, Draft, Query
from harness.protocols.base import Keys
from harness.protocols.keystrokes_json import KeystrokesJson
from harness.terminal import Settled
from harness.trajectory import Message, OnOverflow, Outcome, Reply, Step, ToolCall, Trajectory, Usage

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
        self.checkpoints: list[Saved] = []
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
    assert isinstance(last, Replied), "in brief, since the reply itself says all that has changed"
    worked = Worked(last.at + 100, spent_sec=61.0, waited_sec=30.0)
    before = Conversation.restore([*whole.checkpoints[:4], worked], whole.steps)
    assert (before.cut_at, before.lines) == (worked.worked_at, 5)
    found = await agent(
        ScriptedModel([None]), FakeTerminal([SCREEN] * 9), limits=Limits(timeout_sec=60), before=before
    ).run("")
    assert found.outcome is Outcome.AGENT_TIMEOUT
    assert found.waited_sec == pytest.approx(30, abs=2)
    assert before.again.spent_sec < 1, "the reply is replayed"


async def test_the_clock_is_on_disk_also_while_a_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(FakeTerminal):
        async def send(self, keys: Keys) -> Settled:
            await asyncio.sleep(60)
            return await super().send(keys)

    monkeypatch.setattr("harness.agent._CLOCK_SAVED_SEC", 0.1)
    saved: list[Saved] = []
    working = asyncio.create_task(
        agent(ScriptedModel([LS]), Slow([SCREEN] * 9), on_checkpoint=saved.append).run("Do it.")
    )
    await asyncio.sleep(0.55)
    *_, last = whole = Conversation.restore(saved, ()), saved[-1]
    assert whole[0].clock is last and isinstance(last, Worked) and 0.3 < last.spent_sec < 1
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    assert saved[-1] is not last, "also at the end"
    await asyncio.sleep(0.25)
    assert len([each for each in saved if isinstance(each, Worked)]) <= 6


class Replies:
    """An oversight that has the first replies, as another process has received them."""

    def __init__(self, replies: list[Reply]) -> None:
        self._replies = replies

    async def before_query(self, step: int) -> Sequence[str]:
        return ()

    async def reply(self, query: Query) -> Reply:
        return self._replies.pop(0) if self._replies else await query.ask()

    async def review(self, draft: Draft) -> Decision:
        return draft.reply


class Counting:
    """A model with a small context that counts its prompts, and answers its script."""

    context_tokens, patience_sec = 2400, 0.0

    def __init__(self, script: Sequence[Reply]) -> None:
        self.sampling = Sampling(max_tokens=300)
        self._script = list(script)
        self.asked: list[tuple[Message, ...]] = []
        self.given: list[Reply] = []

    async def query(self, messages: Sequence[Message], *, max_tokens: int, **_: Any) -> Reply:
        tokens = sum(len(message.content) for message in messages) // 4
        if tokens + 40 > self.context_tokens:
            raise ContextLimitReached("too long", tokens)
        self.asked.append(tuple(messages))
        is_summary = "about to be shortened" in messages[-1].content
        made = Reply(content=f"notes {len(self.given)}") if is_summary else self._script.pop(0)
        usage = Usage(prompt_tokens=tokens, completion_tokens=len(made.content) // 4)
        if made.content == CUT:
            usage = Usage(prompt_tokens=tokens, completion_tokens=self.context_tokens - tokens)
        self.given.append(made.model_copy(update={"usage": usage}))
        return self.given[-1]


CUT = "Thinking for ever"
LONG = [LS, LS, BAD, LS, LS, CUT, *[LS] * 12, CLAIM, CLAIM]


@pytest.mark.parametrize("policy", ["drop-oldest-outputs", "summarize"])
async def test_a_compacted_conversation_is_the_same_when_its_replies_are_replayed_steps(policy: OnOverflow) -> None:
    limits = Limits(on_overflow=policy)
    script = [Reply(content=text, cut=text == CUT) for text in LONG]
    saved: list[Saved] = []
    steps: list[Step] = []
    whole = Counting(script)

    def made(model: Counting, **options: Any) -> Agent:
        return Agent(model, FakeTerminal([SCREEN] * 40), KeystrokesJson(), limits, **options)

    expected = await made(whole, on_checkpoint=saved.append, on_step_done=steps.append).run("Do it.")
    assert len(expected.compactions) >= 2 and "format_error:context_full" in expected.warnings
    for number in range(1, len(saved) + 1):
        before = Conversation.restore(saved[:number], steps)
        pending = [before.last.pending] if before.last.pending is not None else []
        known = [step.reply for step in (*before.steps, *pending)]
        model, asked = Counting(script[len(known) :]), before.last.counts.replies
        model.given = whole.given[:asked]
        found = await made(model, again=before.again, oversight=Replies(list(known))).run("Do it.")
        assert without_estimates(found) == without_estimates(expected), number
        assert model.asked == whole.asked[asked:], number
        model = Counting(script[len(known) :])
        model.given = whole.given[:asked]
        assert timeless(await made(model, before=before).run("")) == timeless(expected), number
        assert model.asked == whole.asked[asked:], number


def without_estimates(trajectory: Trajectory) -> Trajectory:
    """A trajectory without its times, and the lengths that its compactions were estimated to have."""
    same = {"tokens_before": 0, "tokens_after": 0}
    compactions = tuple(each.model_copy(update=same) for each in trajectory.compactions)
    return timeless(trajectory.model_copy(update={"compactions": compactions}))


async def test_steps_that_are_followed_again_cost_no_time() -> None:
    model = ScriptedModel([LS, CLAIM, CLAIM])
    again = ReplayedSteps(steps=2, spent_sec=5.0)
    saved: list[Saved] = []
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


async def test_a_conversation_ends_before_the_first_step_that_a_full_disk_has_lost() -> None:
    whole = Recorded(Limits(), SCRIPT, None)
    await whole.run()
    for number in range(1, len(whole.steps)):
        found = Conversation.restore(whole.checkpoints, whole.steps[:number])
        assert (len(found.steps), found.step) == (number, number + 1)
        assert found.last.pending is not None and found.last.pending.reply == whole.steps[number].reply


def test_messages_of_a_step_are_taken_from_it_also_with_tool_calls() -> None:
    calls = (ToolCall(id="a", name="bash", arguments="{}"), ToolCall(id="b", name="bash", arguments="{}"))
    step = Step(index=1, reply=Reply(content="c", reasoning="r", tool_calls=calls), observation="o")
    said = Message(role="assistant", content="c", reasoning="r", tool_calls=calls[:1])
    answer = Message(role="tool", content="o", tool_call_id="a")
    other = Message(role="user", content="o, and more")
    found = [OfStep.of(each, step) for each in (said, answer, other)]
    assert found == [OfStep("reply", 1), OfStep("observation", 0, "a"), other]
    assert [each.message(step) if isinstance(each, OfStep) else each for each in found] == [said, answer, other]


def test_equal_messages_are_shared_whatever_holds_them() -> None:
    said = [Message(role="user", content="a"), Message(role="assistant", content="b")]
    assert shared_length(said, tuple(said)) == 2
    assert shared_length(said, (*said, said[0])) == 2
