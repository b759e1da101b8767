"""The bodies that `scripted-demo` answers with, shaped and worded like vLLM's."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from tbench.demo.replies import BASH_TOOL, ScriptedReply

MODEL_ID = "scripted-demo"
CONTEXT_TOKENS = 32768

Json = dict[str, Any]


class RefusedError(Exception):
    """A request that is answered with another status than 200."""

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


class ServedTokens(NamedTuple):
    """The ids that a request with `return_token_ids` gets."""

    prompt: list[int]
    completion: list[int]
    has_logprobs: bool


class ServedReply(NamedTuple):
    """A reply as it is sent: cut to the tokens that it may have, which are counted."""

    content: ScriptedReply
    finish_reason: str
    usage: dict[str, int]
    tokens: ServedTokens | None = None


def models_body(created: int) -> Json:
    card = {
        "id": MODEL_ID,
        "object": "model",
        "created": created,
        "owned_by": "tbench-demo",
        "root": MODEL_ID,
        "parent": None,
        "max_model_len": CONTEXT_TOKENS,
    }
    return {"object": "list", "data": [card]}


def chat_body(reply: ServedReply) -> Json:
    message: Json = {"role": "assistant", "content": reply.content.text, "refusal": None, "reasoning": None}
    if reply.content.command is not None:  # vLLM has no such key where there is no call
        message["tool_calls"] = [_call_body(reply.content.command)]
    body = {**_frame("chat.completion"), "choices": [_choice(reply, {"message": message})], "usage": _usage(reply)}
    if (tokens := reply.tokens) is not None:
        body["prompt_token_ids"] = tokens.prompt
        if tokens.has_logprobs:
            # What is scripted is certain.
            sampled = [{"token": f"token_id:{each}", "logprob": 0.0, "bytes": None} for each in tokens.completion]
            body["choices"][0]["logprobs"] = {"content": sampled}
    return body


def text_body(reply: ServedReply) -> Json:
    choice = _choice(reply, {"text": reply.content.text})
    if (tokens := reply.tokens) is not None:
        choice["prompt_token_ids"] = tokens.prompt
        if tokens.has_logprobs:
            choice["logprobs"] = {"token_logprobs": [0.0] * len(tokens.completion)}
    return {**_frame("text_completion"), "choices": [choice], "usage": _usage(reply)}


def _choice(reply: ServedReply, content: Json) -> Json:
    ids = {} if reply.tokens is None else {"token_ids": reply.tokens.completion}
    return {
        "index": 0, **content, "logprobs": None, "finish_reason": reply.finish_reason, "stop_reason": None, **ids
    }  # fmt: skip


def _usage(reply: ServedReply) -> Json:
    return {**reply.usage, "prompt_tokens_details": None, "completion_tokens_details": None}


def _call_body(command: str) -> Json:
    arguments = json.dumps({"command": command}, ensure_ascii=False)
    function = {"name": BASH_TOOL, "arguments": arguments}
    return {"id": f"chatcmpl-tool-{uuid.uuid4().hex[:16]}", "type": "function", "function": function}


def chunk_bodies(reply: ServedReply, include_usage: bool) -> Iterator[Json]:
    """The chunks of a streamed reply, one word each, as vLLM orders them."""
    frame = _frame("chat.completion.chunk")

    def chunk(delta: Json, finish_reason: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**frame, "choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    for word in re.findall(r"\s*\S+|\s+$", reply.content.text):
        yield chunk({"content": word})
    if reply.content.command is not None:
        yield chunk({"tool_calls": [{"index": 0, **_call_body(reply.content.command)}]})
    yield chunk({}, reply.finish_reason)
    if include_usage:
        yield {**frame, "choices": [], "usage": reply.usage}


def error_body(status: int, message: str, kind: str, param: str | None = None) -> Json:
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def _frame(kind: str) -> Json:
    return {
        "id": f"{'cmpl' if kind == 'text_completion' else 'chatcmpl'}-{uuid.uuid4().hex[:16]}",
        "object": kind,
        "created": int(time.time()),
        "model": MODEL_ID,
        "system_fingerprint": MODEL_ID,
    }
