"""features: what an endpoint can do, as its answers to real requests tell it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from fault_server import FaultServer, Seen, answer, completion
from small_context import SmallContext

from tbench.demo.server import DemoEndpoint
from tbench.doctor.endpoint import Feature, probe_features, usable_protocols

Answers = Callable[[dict[str, Any]], bytes]
CALL = [{"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}]
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\ndata: {}\n\ndata: [DONE]\n\n"


def vllm(asked: dict[str, Any]) -> bytes:
    """A server that can do all of it."""
    if asked.get("stream"):
        return STREAM
    if asked.get("max_tokens", 0) > 1_000_000:
        return answer(400, {"error": {"message": "max_tokens cannot be greater than max_model_len=9", "code": 400}})
    if "prompt" in asked:
        return answer(200, {"choices": [{"text": "l", "finish_reason": "length"}]})
    body = completion(
        f"text of {asked.get('seed')}", reasoning="because", tool_calls=CALL if "tools" in asked else None
    )
    if asked.get("chat_template_kwargs"):
        body = completion("text")
    if asked.get("logprobs"):
        body["choices"][0]["logprobs"] = {"content": [{"token": "a", "logprob": -0.1}]}
    if asked.get("return_token_ids"):
        body["choices"][0]["token_ids"] = [1]
        body["prompt_token_ids"] = [1, 2]
    body["usage"] = {
        "prompt_tokens": 5 if len(asked["messages"]) == 1 else len(json.dumps(asked["messages"])),
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    return answer(200, body)


def plain(asked: dict[str, Any]) -> bytes:
    """One that knows nothing but chats, and ignores the rest."""
    if "prompt" in asked:
        return answer(404, {"detail": "Not Found"})
    if "tools" in asked:
        return answer(400, {"error": {"message": "tools are not supported", "code": 400}})
    plain.count += 1  # type: ignore[attr-defined]
    body = completion(f"<think>so</think> text {plain.count}")  # type: ignore[attr-defined]
    del body["usage"]
    return answer(200, body)


plain.count = 0  # type: ignore[attr-defined]


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with closing(FaultServer()) as server:
        yield server


async def found(server: FaultServer, answers: Answers) -> dict[str, Feature]:
    def choose(seen: Seen) -> bytes:
        assert seen.headers.get("authorization") == "Bearer k"
        return answers(json.loads(seen.body))

    server.answer_by(choose)
    return {each.name: each for each in await probe_features(server.base_url, "m", "k")}


async def test_a_server_that_can_do_everything_is_seen_to(server: FaultServer) -> None:
    features = await found(server, vllm)
    assert {name for name, each in features.items() if each.can != "yes"} == set()
    assert features["reasoning"].seen == "separate from the reply, as message.reasoning"
    assert features["usage"].seen == "5 + 2 tokens"
    assert features["token ids"].seen == "of the reply and of the prompt"
    assert set(usable_protocols(list(features.values())).values()) == {""}


async def test_a_server_that_ignores_or_refuses_what_it_does_not_know_is_distinguished(server: FaultServer) -> None:
    features = await found(server, plain)
    assert {name: each.can for name, each in features.items()} == {
        "seed": "no",
        "tools": "no",
        "reasoning": "unclear",
        "earlier thinking": "unclear",
        "usage": "no",
        "logprobs": "no",
        "token ids": "no",
        "context error": "no",
        "streaming": "no",
        "chat_template_kwargs": "unclear",
        "completions": "no",
        "replies": "unclear",
    }
    assert features["tools"].seen == "HTTP 400: tools are not supported"
    fits = usable_protocols(list(features.values()))
    assert [name for name, why in fits.items() if why] == ["bash-tool"]


@pytest.mark.parametrize(
    ("template", "can", "words"),
    [
        ("keeps", "yes", "as reasoning_content"),
        ("keeps between calls", "unclear", "text protocols lose it"),
        ("drops", "no", "processed again from the newest reply on"),
        ("knows the other name", "yes", "as reasoning"),
        ("refuses the field", "yes", "<think> in the content"),
    ],
)
async def test_a_template_that_drops_earlier_thinking_is_found_by_the_length_of_prompts(server, template, can, words):
    def answers(asked: dict[str, Any]) -> bytes:
        said = next((each for each in asked.get("messages", []) if each["role"] == "assistant"), {})
        if template == "refuses the field" and {"reasoning", "reasoning_content"} & said.keys():
            return answer(400, {"error": {"message": "extra fields not permitted"}})
        field = "reasoning" if template == "knows the other name" else "reasoning_content"
        thought = said.get("content", "") if template == "refuses the field" else said.get(field, "")
        kept = thought if template != "drops" and ("tools" in asked or template != "keeps between calls") else ""
        usage = {"prompt_tokens": 30 + len(kept.split()), "completion_tokens": 1}
        return answer(200, {**completion("text"), "usage": usage})

    feature = (await found(server, answers))["earlier thinking"]
    assert feature.can == can
    assert words in feature.seen


async def test_replies_that_do_not_differ_from_seed_to_seed_are_odd(server: FaultServer) -> None:
    features = await found(server, lambda _: answer(200, completion("Once upon a time, " * 20)))
    assert features["replies"].can == "unclear"
    assert "the server does not sample" in features["replies"].seen


async def test_a_server_that_is_gone_can_do_nothing(server: FaultServer) -> None:
    server.go_away()
    features = await probe_features(server.base_url, "m", None)
    assert {each.can for each in features} == {"no"}
    assert "HTTP 0: " in features[0].seen


async def test_a_context_in_which_the_default_does_not_fit_is_reported(server: FaultServer) -> None:
    server.answer_by(SmallContext("vllm", "text"))
    (feature,) = [each for each in await probe_features(server.base_url, "tiny", None) if each.name == "context error"]
    assert feature.can == "yes"
    assert feature.seen.endswith("; the default --max-tokens 16,384 does not fit 8,192")


async def test_the_demo_endpoint_takes_tools_and_refuses_what_is_too_long() -> None:
    with DemoEndpoint({}) as demo:
        features = {each.name: each.can for each in await probe_features(demo.base_url, "scripted-demo", None)}
    assert (features["tools"], features["context error"], features["streaming"]) == ("yes", "yes", "yes")
    assert features["seed"] == "unclear"
