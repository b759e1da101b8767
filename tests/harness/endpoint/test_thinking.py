"""Earlier reasoning is sent back in the form that a server accepts, which is learned from its refusals."""

from __future__ import annotations

from typing import Any

import pytest
from fault_server import answer, completion

from harness.endpoint.chat import ChatModel, Rendering, RetryPolicy, Sampling
from harness.errors import RequestRefused
from harness.trajectory import Message

KIMI = "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2"
WANTS = [
    KIMI,
    "Missing `reasoning_content` field in the assistant message at message index 4.",
    "The `reasoning_content` in the thinking mode must be passed back to the API.",
    f"litellm.BadRequestError: OpenAIException - {KIMI}\n\nLiteLLM: model group 'x' failed. Add a fallbacks entry",
    "messages.1.reasoning_content: Field required",
    "reasoning_content must not be empty",
]
REFUSES = [
    "reasoning_content is not allowed in input messages",
    "messages.1.assistant.reasoning_content: Extra inputs are not permitted",
    "for 'role:assistant' the following must be satisfied: property 'reasoning_content' is unsupported",
    "The reasoning_content field must not be included in the input messages",
]
SAID = [
    Message(role="user", content="hello"),
    Message(role="assistant", content="ls", reasoning="why"),
    Message(role="user", content="x"),
    Message(role="assistant", content="pwd"),
    Message(role="user", content="y"),
]


async def fields_sent(endpoint: Any, refusal: str, wants: bool, **options: Any) -> tuple[list[list[Any]], list[str]]:
    """Return the fields that three queries sent for the two replies of a history, and the messages to the user."""

    def choose(seen: Any) -> bytes | None:
        if "messages" not in (seen.json or {}):
            return None
        has = [message.get("reasoning_content") for message in seen.json["messages"] if message["role"] == "assistant"]
        refused = not all(has) if wants else any(has)
        return answer(400, {"error": {"message": refusal}}) if refused else answer(200, completion("ok"))

    endpoint.answer_by(choose)
    notices: list[str] = []
    chat = ChatModel(
        endpoint.base_url, "tiny", Sampling(), api_key=None, retry=RetryPolicy(total_sec=0), on_outage=notices.append,
        rendering=Rendering(**options),
    )  # fmt: skip
    async with chat:
        for model in (chat, chat, chat.at_temperature(1.0)):
            await model.query(SAID, seed=1, max_tokens=9)
    asked = [seen.json["messages"] for seen in endpoint.seen]
    return [[each[at].get("reasoning_content") for at in (1, 3)] for each in asked], notices


@pytest.mark.parametrize("refusal", WANTS)
async def test_a_server_that_wants_reasoning_in_every_reply_gets_it_from_then_on(endpoint, refusal):
    sent, notices = await fields_sent(endpoint, refusal, wants=True)
    assert sent == [["why", None], *[["why", " "]] * 3]
    assert notices == ["needs the reasoning of earlier replies; it is sent from now on, as reasoning_content"]


@pytest.mark.parametrize("refusal", REFUSES)
async def test_a_server_that_refuses_reasoning_gets_none_from_then_on(endpoint, refusal):
    sent, notices = await fields_sent(endpoint, refusal, wants=False)
    assert sent == [["why", None], *[[None, None]] * 3]
    assert notices == ["refuses the reasoning of earlier replies; it is not sent from now on"]


@pytest.mark.parametrize(
    ("choice", "wants", "refusal", "advice"),
    [("off", True, KIMI, "--send-reasoning"), ("on", False, REFUSES[0], "omit --send-reasoning")],
)
async def test_a_choice_of_the_users_is_not_overruled_but_said(endpoint, choice, wants, refusal, advice):
    with pytest.raises(RequestRefused, match=advice):
        await fields_sent(endpoint, refusal, wants, send_reasoning=choice)
    assert len(endpoint.seen) == 1


@pytest.mark.parametrize(
    "refusal",
    [
        "`max_tokens` must be greater than `thinking.budget_tokens` (20000)",
        "reasoning_effort is not supported",
        "no such field: top_k",
        "too many tools",
    ],
)
async def test_a_refusal_about_something_else_stays_one(endpoint, refusal):
    with pytest.raises(RequestRefused):
        await fields_sent(endpoint, refusal, wants=False)
    assert len(endpoint.seen) == 1


async def test_a_server_that_can_never_be_satisfied_is_asked_no_more_than_twice(endpoint):
    endpoint.answer_by(lambda _: answer(400, {"error": {"message": KIMI}}))
    chat = ChatModel(endpoint.base_url, "tiny", Sampling(), api_key=None)
    async with chat:
        with pytest.raises(RequestRefused, match="missing"):
            await chat.query(SAID, seed=1, max_tokens=9)
    assert len(endpoint.seen) == 2


async def test_reasoning_goes_back_under_the_name_in_which_it_came(endpoint):
    endpoint.will_reply("ls", reasoning="why")
    chat = ChatModel(endpoint.base_url, "tiny", Sampling(), api_key=None)
    async with chat:
        await chat.query(SAID, seed=1, max_tokens=9)
        await chat.query(SAID, seed=1, max_tokens=9)
    assert endpoint.seen[1].json["messages"][1] == {"role": "assistant", "content": "ls", "reasoning": "why"}
