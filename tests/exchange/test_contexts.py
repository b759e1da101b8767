"""contexts: what is made again of a trajectory is what the model was sent, message by message."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.agent import Agent
from harness.errors import ContextLimitReached
from harness.fakes import FakeTerminal, Request, ScriptedModel
from harness.history import size_bytes
from harness.limits import Limits
from harness.model import Sampling
from harness.protocols import load_protocol
from harness.protocols.base import CommandResult
from harness.trajectory import Message, OnOverflow, Reply, ToolCall, Trajectory, Usage
from tbench.exchange.contexts import Contexts, RunProtocol, make_contexts, opening_messages

LOOK = '{"analysis": "a", "plan": "p", "commands": []}'
CONTEXT = 8000
BIG = "output " * 1000
WAYS = ("look", "look", "bad", "ramble", "notes")


class CountingModel(ScriptedModel):
    """Counts as a server does: four bytes are a token, a prompt that is too long is refused, a reply is cut."""

    async def query(
        self, messages: Sequence[Message], *, seed: int | None, max_tokens: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Reply:
        prompt = sum(map(size_bytes, messages)) // 4
        if prompt >= CONTEXT:
            raise ContextLimitReached("too long", prompt)
        reply = await super().query(messages, seed=seed, max_tokens=max_tokens, tools=tools)
        made = min(max(1, len(reply.content) // 4), max_tokens, CONTEXT - prompt)
        usage = Usage(prompt_tokens=prompt, completion_tokens=made)
        cut = made < len(reply.content) // 4
        return reply.model_copy(update={"usage": usage, "cut": cut, "content": reply.content[: made * 4 + 3]})


def reply_of(way: str, protocol: str, number: int) -> Reply:
    if way in ("bad", "ramble", "notes"):
        return Reply(content={"bad": "I will see.", "ramble": "hm " * 9000, "notes": "<think>so</think>Notes."}[way])
    if protocol == "keystrokes-json":
        return Reply(content=LOOK, reasoning="why not")
    if protocol == "bash-block":
        return Reply(content="```bash\nls\n```")
    arguments = json.dumps({"cmd" if number % 3 == 0 else "command": f"ls {number}"})
    calls = [ToolCall(id=f"c{number}-{n}", name="bash", arguments=arguments) for n in range(1 + number % 2)]
    return Reply(content="", tool_calls=tuple(calls))


async def converse(protocol: str, ways: Sequence[str], policy: OnOverflow) -> tuple[Trajectory, list[Request]]:
    script = [reply_of(way, protocol, number) for number, way in enumerate(ways)]
    model = CountingModel([*script, *script, *script], context_tokens=CONTEXT, sampling=Sampling(max_tokens=3000))
    shown: Any = BIG if protocol == "keystrokes-json" else CommandResult(output=BIG, exit_code=0)
    terminal = FakeTerminal(["$ ", *[shown] * 40])
    agent = Agent(model, terminal, load_protocol(protocol), Limits(steps=12, format_errors=6, on_overflow=policy))
    trajectory = await agent.run("Make the tests pass.")
    asked = [each for each in model.requests if "about to be shortened" not in each.messages[-1].content]
    return trajectory, asked


def known(name: str) -> RunProtocol:
    return RunProtocol(load_protocol(name), same_prompts=True)


def assert_sent(contexts: Contexts, trajectory: Trajectory, asked: Sequence[Request]) -> None:
    """Each reply that stayed in the history stands once behind exactly what it answered."""
    said = []
    for turns in contexts.turns:
        for n, turn in enumerate(turns):
            if turn.step is not None and not turn.is_copied:
                said.append(turn.step.index)
                assert tuple(each.message for each in turns[:n]) == asked[turn.step.index - 1].messages
                assert turn.message.content == turn.step.reply.content
    assert said == [step.index for step in trajectory.steps if step.format_error != "context_full"]


@given(
    protocol=st.sampled_from(["keystrokes-json", "bash-block", "bash-tool"]),
    ways=st.lists(st.sampled_from(WAYS), min_size=6, max_size=12),
    policy=st.sampled_from(["stop", "drop-oldest-outputs", "summarize"]),
)
@example("keystrokes-json", ["look", "look", "ramble", "look", "look", "ramble", "ramble"], "summarize")
@settings(max_examples=60)
async def test_every_context_is_what_was_sent(protocol: str, ways: list[str], policy: OnOverflow) -> None:
    trajectory, asked = await converse(protocol, ways, policy)
    stored = Trajectory.model_validate_json(trajectory.model_dump_json())
    contexts = make_contexts(stored, known(protocol))
    assert contexts.is_whole
    assert_sent(contexts, stored, asked)
    assert opening_messages(stored) == asked[0].messages


@pytest.mark.parametrize("policy", ["drop-oldest-outputs", "summarize"])
async def test_each_time_that_the_history_is_shortened_another_context_begins(policy: OnOverflow) -> None:
    trajectory, asked = await converse("keystrokes-json", ["look"] * 4 + ["notes"] + ["look"] * 7, policy)
    contexts = make_contexts(trajectory, known("keystrokes-json"))
    assert len(contexts.turns) == 1 + len({c.step for c in trajectory.compactions}) > 2
    assert_sent(contexts, trajectory, asked)
    copied = [turn for turn in contexts.turns[-1] if turn.is_copied and turn.step is not None]
    assert bool(copied) == (policy == "drop-oldest-outputs")


async def test_of_an_agent_of_ones_own_the_last_context_is_known_and_what_the_model_said_in_it() -> None:
    trajectory, _ = await converse("keystrokes-json", ["look", "bad", "look"] * 2, "stop")
    example = Message(role="assistant", content="an example")
    messages = (trajectory.messages[0], example, *trajectory.messages[1:])
    own = trajectory.model_copy(update={"protocol": "mine:Agent", "messages": messages})
    contexts = make_contexts(own, RunProtocol(None, same_prompts=False))
    (turns,) = contexts.turns
    assert turns[1].step is None
    assert [turn.step.index for turn in turns if turn.step] == [step.index for step in own.steps]


@pytest.mark.parametrize("policy", ["drop-oldest-outputs", "summarize"])
@pytest.mark.parametrize("protocol", ["keystrokes-json", "bash-tool"])
async def test_an_instruction_that_comes_later_outlives_every_compaction(protocol: str, policy: OnOverflow) -> None:
    earlier: Agent | None = None
    for number in range(3):
        ways = ["look"] * 4 + ["notes"] + ["look"] * 7
        model = CountingModel(
            [reply_of(way, protocol, n) for n, way in enumerate(ways)] * 2,
            context_tokens=CONTEXT,
            sampling=Sampling(max_tokens=3000),
        )
        shown: Any = BIG if protocol == "keystrokes-json" else CommandResult(output=BIG, exit_code=0)
        limits = Limits(steps=12, format_errors=6, on_overflow=policy)
        terminal = FakeTerminal(["$ ", *[shown] * 40])
        agent = Agent(model, terminal, load_protocol(protocol), limits, earlier=earlier)
        trajectory = await agent.run(f"Make part {number} pass.")
        assert trajectory.compactions
        for request in model.requests:
            text = "".join(message.content for message in request.messages if message.role == "user")
            assert [f"Make part {n} pass." in text for n in range(3)] == [n <= number for n in range(3)]
            roles = [message.role for message in request.messages]
            assert "user user" not in " ".join(roles)
        last = make_contexts(trajectory, known(protocol)).turns[-1]
        assert tuple(turn.message for turn in last) == trajectory.messages
        earlier = agent
