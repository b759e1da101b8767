"""The context, the thinking and the limits of the scripted model, as it is served."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tbench.demo.replies import RefusedError, ScriptedReply, Serving, chat_body, models_body
from tbench.demo.requests import ChatRequest, count_tokens, cut_to_limit, prompt_tokens, read_chat_request, reply_limit

MESSAGES = [
    {"role": "user", "content": "u" * 400},
    {"role": "assistant", "content": "a" * 40, "reasoning": "r" * 4000},
    {"role": "user", "content": "o" * 40},
]


def a_request(**known: Any) -> ChatRequest:
    return read_chat_request(json.dumps({"messages": MESSAGES, **known}).encode())


def test_thinking_of_earlier_replies_counts_where_the_template_keeps_it() -> None:
    assert prompt_tokens(a_request(), Serving(thinking="kept")) == 120 + 1000
    assert prompt_tokens(a_request(), Serving(thinking="dropped")) == prompt_tokens(a_request()) == 120


def test_a_shorter_context_leaves_less_room_and_is_listed() -> None:
    assert reply_limit(a_request(), Serving(context_tokens=256)) == 136
    with pytest.raises(RefusedError):
        reply_limit(a_request(), Serving(context_tokens=100))
    assert models_body(0, Serving(256))["data"][0]["max_model_len"] == 256


def test_the_model_answers_by_its_name_only() -> None:
    serving = Serving(model="step-100")
    assert models_body(0, serving)["data"][0]["id"] == "step-100"
    reply = cut_to_limit(a_request(model="step-100"), ScriptedReply("text"), serving)
    assert chat_body(reply)["model"] == "step-100"
    with pytest.raises(RefusedError):
        reply_limit(a_request(model="scripted-demo"), serving)


def test_thinking_is_sent_and_counted_before_the_text() -> None:
    reply = cut_to_limit(a_request(), ScriptedReply("text", thinking="t" * 400))
    assert chat_body(reply)["choices"][0]["message"]["reasoning"] == "t" * 400
    assert reply.usage["completion_tokens"] == count_tokens("text") + 100
    cut = cut_to_limit(a_request(max_tokens=10), ScriptedReply("text", thinking="t" * 400))
    assert (cut.finish_reason, cut.content.text, cut.content.thinking) == ("length", "", "t" * 40)
