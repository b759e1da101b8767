"""The bodies of answers as an OpenAI-compatible server would have sent them, made of replies that were read."""

from __future__ import annotations

import json
from typing import Any

from harness.errors import ContextLimitReached
from harness.trajectory import Reply, ToolCall


def request_in(body: bytes) -> dict[str, Any]:
    """The JSON object in the body of a request. Raises ValueError."""
    request = json.loads(body)
    if not isinstance(request, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 -- as for what is no JSON at all
    return request


def answer_body(path: str, reply: Reply | ContextLimitReached, model: str) -> tuple[int, dict[str, Any]]:
    """Status and body that read as this reply, or as this refusal."""
    if isinstance(reply, ContextLimitReached):
        return 400, {"error": {"message": str(reply), "type": "BadRequestError", "param": None, "code": 400}}
    is_chat = path == "/chat/completions"
    content = {"message": _message(reply)} if is_chat else {"text": reply.content}
    # A reply that a person has edited is no longer cut, whatever ended that of the model.
    reason = reply.finish_reason if reply.cut or reply.finish_reason != "length" else "stop"
    return 200, {
        "id": "cassette",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": 0,
        "model": reply.model or model,
        "choices": [{"index": 0, **content, "finish_reason": reason or "stop"}],
        "usage": _usage(reply),
    }


def _message(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content, "reasoning": reply.reasoning}
    if reply.tool_calls:
        message["tool_calls"] = [_call(call) for call in reply.tool_calls]
    return message


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(reply: Reply) -> dict[str, Any]:
    usage = reply.usage
    cached = None if usage.cached_tokens is None else {"cached_tokens": usage.cached_tokens}
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": cached,
    }
