"""ChatModel with answers recorded from real servers, byte for byte (tests/data/real-servers.json)."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from fault_server import answer, completion

from harness.endpoint.chat import ChatModel, RetryPolicy, Sampling
from harness.errors import ContextLimitReached, RequestRefused, RequestTooLarge
from harness.trajectory import Message, Reply

RECORDED = json.loads((Path(__file__).parents[2] / "data/real-servers.json").read_text())
HELLO = [Message(role="user", content="hello")]
QUICK = RetryPolicy(total_sec=20, initial_sec=0.01, max_sec=0.02, reset_sec=0.01)


def recorded(name: str) -> bytes:
    made = RECORDED[name]
    return answer(made["status"], made["body"].encode(), {"content-type": made["content_type"]})


@contextlib.asynccontextmanager
async def model(endpoint: Any, name: str | None = "tiny") -> Any:
    made = ChatModel(endpoint.base_url, name, Sampling(), api_key="sk-x", retry=QUICK, request_timeout_sec=20)
    try:
        yield made
    finally:
        await made.close()


@pytest.mark.parametrize(
    ("name", "served", "context"),
    [
        ("vllm-models", "tiny", 8192),
        ("litellm-models", "tiny", 8192),
        ("litellm-models-without-context", "tiny", None),
        ("llama.cpp-models", "tiny", 8192),
    ],
)
async def test_the_context_is_read_where_each_server_tells_it(endpoint, name, served, context):
    endpoint.will_send(recorded(name))
    async with model(endpoint, served) as chat:
        assert (await chat.connect()).context_tokens == context


async def test_limits_of_a_gateways_price_list_are_not_the_context(endpoint):
    endpoint.will_list({"id": "tiny", "max_input_tokens": 131072, "max_output_tokens": 8192})
    async with model(endpoint) as chat:
        assert (await chat.connect()).context_tokens is None


async def outcome(endpoint: Any, name: str) -> Reply:
    """Return the reply to a request that is answered with a recording, then with a complete reply."""
    endpoint.will_send(recorded(name))
    endpoint.will_send(answer(200, completion("hello")))
    async with model(endpoint) as chat:
        reply: Reply = await chat.query(HELLO, seed=1, max_tokens=16384 if name.endswith("max-tokens") else 64)
        return reply


BECOMES: dict[int | type[Exception], str] = {
    2: """vllm-max-tokens litellm-max-tokens litellm-openai-max-tokens
        nginx-502 nginx-504 litellm-upstream-down litellm-abort""",
    ContextLimitReached: """vllm-prompt vllm-prompt-characters vllm-prompt-fills-context llama.cpp-prompt
        litellm-prompt litellm-openai-prompt litellm-prompt-fills-context""",
    RequestTooLarge: "nginx-413 litellm-nginx-413 litellm-openai-nginx-413",
    RequestRefused: "vllm-tools-without-flags litellm-tools-without-flags transformers-top-k",
    1: """vllm-tool-call litellm-tool-call litellm-think litellm-no-usage litellm-fallback litellm-null
        llama.cpp-other-model transformers-beyond-context vllm-cut-in-thought""",
}


def named(*kinds: int | type[Exception]) -> list[tuple[str, Any]]:
    return [(name, kind) for kind in kinds for name in BECOMES[kind].split()]


@pytest.mark.parametrize(("name", "requests"), named(1, 2))
async def test_a_reply_is_read_and_what_passes_is_asked_again(endpoint, name, requests):
    await outcome(endpoint, name)
    assert len(endpoint.seen) == requests


@pytest.mark.parametrize(("name", "error"), named(ContextLimitReached, RequestTooLarge, RequestRefused))
async def test_a_refusal_is_reported_by_its_reason(endpoint, name, error):
    with pytest.raises(error):
        await outcome(endpoint, name)


async def test_max_tokens_is_lowered_to_what_the_refusal_tells(endpoint):
    await outcome(endpoint, "litellm-max-tokens")
    first, second = (each.json["max_tokens"] for each in endpoint.seen)
    assert (first, 4096 < second < 8192) == (16384, True)


@pytest.mark.parametrize("name", ["vllm-tool-call", "litellm-tool-call"])
async def test_thinking_and_calls_are_read_where_each_server_puts_them(endpoint, name):
    reply = await outcome(endpoint, name)
    assert [call.name for call in reply.tool_calls] == ["bash"]
    assert "one file with a greeting" in (reply.reasoning or "")
