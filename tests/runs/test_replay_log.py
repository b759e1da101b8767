"""replay_log: the record of a trial, from which it can be replayed up to a step."""

from __future__ import annotations

import pytest

from harness.errors import ContextLimitReached
from harness.fakes import ScriptedModel
from harness.oversight import Approved, Declined, Query
from harness.trajectory import Message, Reply, Step
from tbench.runs.replay_log import ReplayLog


def said(text: str) -> Message:
    return Message(role="user", content=text)


def asks(model: ScriptedModel, *messages: Message) -> Query:
    return Query(model, list(messages), None, 100)


def a_step(index: int, observation: str) -> Step:
    return Step(index=index, reply=Reply(content=""), observation=observation)


async def followed(replay_log: ReplayLog, model: ScriptedModel, step: int, *messages: Message) -> Reply:
    """One step whose reply is followed as it came."""
    now = replay_log.begin(step)
    reply = await replay_log.reply(asks(model, *messages))
    now.reviewed_after, now.decided = len(now.queries), reply
    return reply


async def test_replayed_replies_are_not_requested_again() -> None:
    model, first = ScriptedModel(["one", "two", "three"]), ReplayLog()
    a, b, c = said("a"), said("b"), said("c")
    replies = [
        await followed(first, model, number, *messages) for number, messages in enumerate(([a], [a, b], [a, b, c]), 1)
    ]
    again = ReplayLog(first.steps_before(2, [a_step(1, "x")]))
    assert await followed(again, model, 1, said("a")) is replies[0]
    now = again.begin(2)
    assert again.earlier is not None
    assert (again.earlier.decided, again.earlier.observation) == (None, None)
    assert await again.reply(asks(model, a, b)) is replies[1]
    assert len(model.requests) == 3
    now.reviewed_after = 1
    with pytest.raises(AssertionError, match="has no reply in the script"):
        await again.reply(asks(model, a, b, c))


async def test_a_context_that_was_full_is_full_again() -> None:
    model, first = ScriptedModel([ContextLimitReached("full", 7), "shorter"]), ReplayLog()
    first.begin(1)
    with pytest.raises(ContextLimitReached):
        await first.reply(asks(model, said("a")))
    await first.reply(asks(model, said("a")))
    again = ReplayLog(first.steps_before(1, ()))
    again.begin(1)
    with pytest.raises(ContextLimitReached) as refusal:
        await again.reply(asks(model, said("a")))
    assert refusal.value.prompt_tokens == 7
    assert (await again.reply(asks(model, said("a")))).content == "shorter"
    assert len(model.requests) == 2


async def test_the_step_that_waits_is_known_up_to_its_reply_only() -> None:
    model, replay_log = ScriptedModel(["one", "a summary"]), ReplayLog()
    now = replay_log.begin(1)
    await replay_log.reply(asks(model, said("a")))
    now.reviewed_after, now.decided, now.typed = 1, Declined("no"), [b"before", b"after"]
    await replay_log.reply(asks(model, said("summarise")))
    ((step,),) = replay_log.steps_before(1, ())
    assert (step.decided, step.typed, len(step.queries)) == (None, [b"before", b""], 1)
    assert (now.decided, len(now.queries)) == (Declined("no"), 2)


async def test_a_different_observation_is_reported() -> None:
    model, first = ScriptedModel(["one", "two"]), ReplayLog()
    await followed(first, model, 1, said("a"))
    await followed(first, model, 2, said("b"))
    again = ReplayLog(first.steps_before(2, [a_step(1, "12 files"), a_step(2, "")]))
    await followed(again, model, 1, said("a"))
    again.begin(2)
    assert again.difference([a_step(1, "12 files")]) == ""
    assert again.difference([a_step(1, "11 files")]) == "step 1: '11 files' where '12 files' was before"


async def test_parts_of_a_trial_are_kept_apart() -> None:
    model, first = ScriptedModel(["one", "other"]), ReplayLog()
    assert not first.has_begun
    await followed(first, model, 1, said("a"))
    await followed(first, model, 1, said("b"))
    known = first.steps_before(1, ())
    assert [len(part) for part in known] == [1, 1]
    again = ReplayLog(known)
    await followed(again, model, 1, said("a"))
    again.begin(1)
    assert again.earlier is not None
    assert again.earlier.queries[0].added == (said("b"),)
    again.begin(2)
    assert again.earlier is None


async def test_exchanges_have_whole_conversations_and_the_replies_that_were_followed() -> None:
    model, replay_log = ScriptedModel(["one", "two", "three"]), ReplayLog()
    a, b, other = said("a"), said("b"), said("a and more")
    await followed(replay_log, model, 1, a)
    now = replay_log.begin(2)
    await replay_log.reply(asks(model, a, b))
    now.reviewed_after, now.decided = 1, Approved(Reply(content="edited"), "by a person")
    now = replay_log.begin(3)
    await replay_log.reply(asks(model, other, b))
    now.reviewed_after, now.decided = 1, Declined("no")
    found = [(messages, reply.content) for _, messages, reply in replay_log.exchanges() if isinstance(reply, Reply)]
    assert found == [([a], "one"), ([a, b], "edited"), ([other, b], "three")]


async def test_a_long_conversation_is_kept_once() -> None:
    model, replay_log = ScriptedModel(["x"] * 300), ReplayLog()
    messages: list[Message] = []
    for step in range(1, 301):
        messages += [said(f"{step}"), said("more")]
        await followed(replay_log, model, step, *messages)
    assert sum(len(each.added) for each, _, _ in replay_log.exchanges()) == 600
