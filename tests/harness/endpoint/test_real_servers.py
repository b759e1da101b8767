"""What ChatModel makes of answers recorded from real servers, byte for byte (tests/data/real-servers.json)."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from fault_server import answer

from harness.endpoint.chat import ChatModel, RetryPolicy, Sampling

RECORDED = json.loads((Path(__file__).parents[2] / "data/real-servers.json").read_text())
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
