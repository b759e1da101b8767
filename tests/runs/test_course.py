"""course: what is kept of a trial so that it can be done again up to a step."""

from __future__ import annotations

import pytest

from harness.errors import ContextLimitReached
from harness.fakes import ScriptedModel
from harness.oversight import Approved, Declined, Query
from harness.trajectory import Message, Reply, Step
from tbench.runs.course import Course


def said(text: str) -> Message:
    return Message(role="user", content=text)


def asks(model: ScriptedModel, *messages: Message) -> Query:
    return Query(model, list(messages), None, 100)


def a_step(index: int, observation: str) -> Step:
    return Step(index=index, reply=Reply(content=""), observation=observation)


async def followed(course: Course, model: ScriptedModel, step: int, *messages: Message) -> Reply:
    """One step whose reply is followed as it came."""
    now = course.begin(step)
    reply = await course.reply(asks(model, *messages))
    now.drafted, now.decided = len(now.asked), reply
    return reply


async def test_what_was_answered_is_not_asked_again() -> None:
    model, first = ScriptedModel(["one", "two", "three"]), Course()
    a, b, c = said("a"), said("b"), said("c")
    replies = [
        await followed(first, model, number, *messages) for number, messages in enumerate(([a], [a, b], [a, b, c]), 1)
    ]
    again = Course(first.until(2, [a_step(1, "x")]))
    assert await followed(again, model, 1, said("a")) is replies[0]
    now = again.begin(2)
    assert again.known is not None
    assert (again.known.decided, again.known.observation) == (None, None)
    assert await again.reply(asks(model, a, b)) is replies[1]
    assert len(model.requests) == 3
    now.drafted = 1
    with pytest.raises(AssertionError, match="has no reply in the script"):
        await again.reply(asks(model, a, b, c))


async def test_a_context_that_was_full_is_full_again() -> None:
    model, first = ScriptedModel([ContextLimitReached("full", 7), "shorter"]), Course()
    first.begin(1)
    with pytest.raises(ContextLimitReached):
        await first.reply(asks(model, said("a")))
    await first.reply(asks(model, said("a")))
    again = Course(first.until(1, ()))
    again.begin(1)
    with pytest.raises(ContextLimitReached) as refusal:
        await again.reply(asks(model, said("a")))
    assert refusal.value.prompt_tokens == 7
    assert (await again.reply(asks(model, said("a")))).content == "shorter"
    assert len(model.requests) == 2


async def test_the_step_that_waits_is_known_up_to_its_reply_only() -> None:
    model, course = ScriptedModel(["one", "a summary"]), Course()
    now = course.begin(1)
    await course.reply(asks(model, said("a")))
    now.drafted, now.decided, now.typed = 1, Declined("no"), [b"before", b"after"]
    await course.reply(asks(model, said("summarise")))
    ((step,),) = course.until(1, ())
    assert (step.decided, step.typed, len(step.asked)) == (None, [b"before", b""], 1)
    assert (now.decided, len(now.asked)) == (Declined("no"), 2)


async def test_a_terminal_that_shows_something_else_is_told() -> None:
    model, first = ScriptedModel(["one", "two"]), Course()
    await followed(first, model, 1, said("a"))
    await followed(first, model, 2, said("b"))
    again = Course(first.until(2, [a_step(1, "12 files"), a_step(2, "")]))
    await followed(again, model, 1, said("a"))
    again.begin(2)
    assert again.difference([a_step(1, "12 files")]) == ""
    assert again.difference([a_step(1, "11 files")]) == "step 1: '11 files' where '12 files' was before"


async def test_parts_of_a_trial_are_kept_apart() -> None:
    model, first = ScriptedModel(["one", "other"]), Course()
    assert not first.has_begun
    await followed(first, model, 1, said("a"))
    await followed(first, model, 1, said("b"))
    known = first.until(1, ())
    assert [len(part) for part in known] == [1, 1]
    again = Course(known)
    await followed(again, model, 1, said("a"))
    again.begin(1)
    assert again.known is not None
    assert again.known.asked[0].added == (said("b"),)
    again.begin(2)
    assert again.known is None


async def test_exchanges_have_whole_conversations_and_the_replies_that_were_followed() -> None:
    model, course = ScriptedModel(["one", "two", "three"]), Course()
    a, b, other = said("a"), said("b"), said("a and more")
    await followed(course, model, 1, a)
    now = course.begin(2)
    await course.reply(asks(model, a, b))
    now.drafted, now.decided = 1, Approved(Reply(content="edited"), "by a person")
    now = course.begin(3)
    await course.reply(asks(model, other, b))
    now.drafted, now.decided = 1, Declined("no")
    found = [(messages, reply.content) for _, messages, reply in course.exchanges() if isinstance(reply, Reply)]
    assert found == [([a], "one"), ([a, b], "edited"), ([other, b], "three")]


async def test_a_long_conversation_is_kept_once() -> None:
    model, course = ScriptedModel(["x"] * 300), Course()
    messages: list[Message] = []
    for step in range(1, 301):
        messages += [said(f"{step}"), said("more")]
        await followed(course, model, step, *messages)
    assert sum(len(each.added) for each, _, _ in course.exchanges()) == 600
