"""The dialect of `/v1/chat/completions`: mini-swe-agent, aider, qwen-code and most others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from harness.trajectory import Message, ToolCall, Usage
from tbench.gateway.dialect import (
    Answer,
    BadRequest,
    ModelRequest,
    RefusalKind,
    event,
    field_of,
    function,
    max_tokens_of,
    may_use_tools,
    objects_of,
    refuse,
    text_of,
)

DONE = b"data: [DONE]\n\n"
_TYPES: Mapping[RefusalKind, str] = {"unauthorized": "authentication_error", "unavailable": "server_error"}


class ChatDialect:
    """Leaves messages in their form, as the model's endpoint uses the same, and replaces parts that are not text."""

    def read(self, body: Mapping[str, Any]) -> ModelRequest:
        if field_of(body, "n", int, 1) != 1:
            raise BadRequest("n: only one reply for each request")
        refuse(body, functions="is out of date; use tools", stop="is not supported", logprobs="is not supported")
        if field_of(body, "response_format", dict, {}).get("type", "text") != "text":
            raise BadRequest("response_format: only text is supported")
        messages = tuple(_message(each, number) for number, each in enumerate(objects_of(body, "messages")))
        if not messages:
            raise BadRequest("messages: is empty")
        options = field_of(body, "stream_options", dict, {})
        return ModelRequest(
            messages=messages,
            tools=tuple(map(_tool, objects_of(body, "tools"))) if may_use_tools(body.get("tool_choice")) else (),
            max_tokens=max_tokens_of(body, "max_completion_tokens", "max_tokens"),
            is_streamed=field_of(body, "stream", bool, False),
            model=field_of(body, "model", str, ""),
            reports_usage=options.get("include_usage") is True,
        )

    def answer(self, answer: Answer) -> dict[str, Any]:
        reply = answer.reply
        message: dict[str, Any] = {"role": "assistant", "content": reply.content or None}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.tool_calls:
            message["tool_calls"] = [_wire_call(call) for call in reply.tool_calls]
        choice = {"index": 0, "message": message, "finish_reason": _finish_reason(answer), "logprobs": None}
        return {**_head(answer, "chat.completion"), "choices": [choice], "usage": _usage(reply.usage)}

    def events(self, answer: Answer) -> Iterator[bytes]:
        head, reply = _head(answer, "chat.completion.chunk"), answer.reply

        def chunk(delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
            return event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})

        yield chunk({"role": "assistant", "content": ""})
        if reply.reasoning:
            yield chunk({"reasoning_content": reply.reasoning})
        if reply.content:
            yield chunk({"content": reply.content})
        for index, call in enumerate(reply.tool_calls):
            yield chunk({"tool_calls": [{"index": index, **_wire_call(call)}]})
        yield chunk({}, _finish_reason(answer))
        if answer.request.reports_usage:
            yield event({**head, "choices": [], "usage": _usage(reply.usage)})
        yield DONE

    def refusal(self, kind: RefusalKind, words: str) -> dict[str, Any]:
        code = "context_length_exceeded" if kind == "overflow" else None
        error_type = _TYPES.get(kind, "invalid_request_error")
        return {"error": {"message": words, "type": error_type, "param": None, "code": code}}

    def late_refusal(self, kind: RefusalKind, words: str, model: str) -> Iterator[bytes]:
        yield event(self.refusal(kind, words))
        yield DONE


def _message(body: Mapping[str, Any], number: int) -> Message:
    role, where = body.get("role"), f"messages[{number}]"
    text = text_of(body.get("content"), f"{where}.content")
    if role in ("system", "developer"):
        return Message(role="system", content=text)
    if role == "user":
        return Message(role="user", content=text)
    if role == "tool":
        return Message(role="tool", content=text, tool_call_id=field_of(body, "tool_call_id", str, ""))
    if role != "assistant":
        raise BadRequest(f"{where}.role: {role!r:.40} is unknown")
    refuse(body, function_call="is out of date; use tool_calls")
    reasoning = body.get("reasoning_content", body.get("reasoning"))
    return Message(
        role="assistant",
        content=text,
        reasoning=reasoning if isinstance(reasoning, str) and reasoning else None,
        tool_calls=tuple(_call(each, where) for each in objects_of(body, "tool_calls")),
    )


def _call(body: Mapping[str, Any], where: str) -> ToolCall:
    called = body.get("function")
    if not isinstance(called, dict) or not isinstance(called.get("name"), str):
        raise BadRequest(f"{where}.tool_calls: a call without a function's name")
    arguments = called.get("arguments") or {}
    return ToolCall(
        id=field_of(body, "id", str, ""),
        name=called["name"],
        arguments=arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False),
    )


def _tool(body: Mapping[str, Any]) -> dict[str, Any]:
    found = body.get("function")
    if body.get("type") != "function" or not isinstance(found, dict):
        raise BadRequest(f"tools: {body.get('type')!r:.40} is not supported; only functions are")
    return function(found.get("name"), found.get("description"), found.get("parameters"))


def _head(answer: Answer, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": answer.created, "model": answer.request.model}


def _wire_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _finish_reason(answer: Answer) -> str:
    if answer.reply.cut:
        return "length"
    return "tool_calls" if answer.reply.tool_calls else "stop"


def _usage(usage: Usage) -> dict[str, Any]:
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    counts: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if usage.cached_tokens is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    return counts
