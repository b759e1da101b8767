"""Conversations told apart by their requests, as real agents have sent them (tests/data/agents, texts shortened)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.conversations import Conversations
from harness.trajectory import Message

RECORDED = Path(__file__).parents[1] / "data" / "agents"
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]


def recorded(agent: str) -> list[tuple[list[Message], list[dict[str, Any]]]]:
    requests = json.loads((RECORDED / f"{agent}-compaction.json").read_text(encoding="utf-8"))
    return [
        ([Message.model_validate(each) for each in request["messages"]], TOOLS if request["has_tools"] else [])
        for request in requests
    ]


def told_apart(requests: list[tuple[list[Message], list[dict[str, Any]]]]) -> Conversations:
    found = Conversations()
    for number, (messages, tools) in enumerate(requests, start=1):
        found.add(messages, tools, Message(role="assistant", content=f"reply {number}"), number)
    return found


@pytest.mark.parametrize(
    ("agent", "beside"),
    [
        # One request was refused because the context was full, and is left out here as in a trial.
        ("claude-code", [((1, 2, 3, 4), True), ((5,), True), ((6, 7, 8, 9), True), ((10,), True)]),
        ("codex", [((1, 2, 3), True), ((4,), False)]),
    ],
)
def test_what_was_before_a_compaction_and_the_request_for_the_summary_are_other_conversations(
    agent: str, beside: list[tuple[tuple[int, ...], bool]]
) -> None:
    requests = [each for number, each in enumerate(recorded(agent)) if (agent, number) != ("claude-code", 4)]
    found = told_apart(requests)
    assert [(branch.replies, branch.has_tools) for branch in found.branches] == beside
    assert found.messages[:-1] == tuple(requests[-1][0])
    assert found.messages[-1].content == f"reply {len(requests)}"
    assert found.tools == tuple(TOOLS)


@pytest.mark.parametrize("agent", ["claude-code", "codex"])
def test_every_request_can_be_put_together_again_and_shared_messages_are_kept_once(agent: str) -> None:
    requests = recorded(agent)
    found, whole = told_apart(requests), ()
    for branch in found.branches:
        whole = (*whole[: branch.kept], *branch.messages)
        assert whole[:-1] == tuple(requests[branch.replies[-1] - 1][0])
    summary = found.branches[1]
    assert summary.kept >= 6
    assert len(summary.messages) <= 4  # the replies here are not the recorded ones


def test_a_request_beside_the_work_does_not_take_its_place() -> None:
    ask, title = [Message(role="user", content="Do it.")], [Message(role="user", content="A title for: Do it.")]
    reply = Message(role="assistant", content="reply 1", reasoning=None)
    more = [*ask, reply, Message(role="tool", content="done", tool_call_id="1")]
    found = told_apart([(ask, TOOLS), (title, []), (more, TOOLS), (title, [])])
    assert [branch.replies for branch in found.branches] == [(2,), (4,)]
    assert [message.content for message in found.messages] == ["Do it.", "reply 1", "done", "reply 3"]


def test_thinking_that_an_agent_leaves_out_makes_no_new_conversation() -> None:
    ask = [Message(role="user", content="Do it.")]
    first = [*ask, Message(role="assistant", content="a", reasoning="hm"), Message(role="user", content="on")]
    second = [*ask, Message(role="assistant", content="a"), Message(role="user", content="on")]
    second += [Message(role="assistant", content="b"), Message(role="user", content="on")]
    assert told_apart([(ask, []), (first, []), (second, [])]).branches == ()


def test_the_same_request_once_more_is_another_conversation() -> None:
    ask = [Message(role="user", content="Do it.")]
    found = told_apart([(ask, TOOLS), (ask, TOOLS)])
    assert [branch.replies for branch in found.branches] == [(1,)]
    assert found.messages[-1].content == "reply 2"
