"""The dialect of `/v1/messages`: Claude Code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from harness.trajectory import ToolCall
from tbench.gateway.dialect import (
    Answer,
    BadRequest,
    Conversation,
    ModelRequest,
    RefusalKind,
    arguments_of,
    event,
    field_of,
    function,
    max_tokens_of,
    objects_of,
    offered_tools,
    refuse,
    text_of,
)

_TYPES: Mapping[RefusalKind, str] = {
    "unauthorized": "authentication_error",
    "not_found": "not_found_error",
    "too_large": "request_too_large",
    "unavailable": "overloaded_error",
}
_SIGNATURE = "tbench"
"""Replaces the provider's signature of a thinking block; when a block comes back, only its text is used."""


class MessagesDialect:
    """Translates messages of content blocks: text, thinking, tool_use, tool_result."""

    def read(self, body: Mapping[str, Any]) -> ModelRequest:
        refuse(body, stop_sequences="is not supported", mcp_servers="is not supported", container="is not supported")
        conversation = Conversation()
        if text := text_of(body.get("system"), "system"):
            conversation.add_instruction(text)
        for number, message in enumerate(objects_of(body, "messages")):
            _add(conversation, message, f"messages[{number}]")
        # Tools of the provider's servers have a type instead of a schema.
        tools, left_out = offered_tools(body, lambda each: isinstance(each.get("input_schema"), dict))
        return ModelRequest(
            messages=conversation.finish(),
            tools=tuple(function(each.get("name"), each.get("description"), each["input_schema"]) for each in tools),
            max_tokens=max_tokens_of(body, "max_tokens"),
            is_streamed=field_of(body, "stream", bool, False),
            model=field_of(body, "model", str, ""),
            left_out=left_out,
        )

    def answer(self, answer: Answer) -> dict[str, Any]:
        return {
            **_head(answer),
            "content": [start | rest for start, rest in _blocks(answer)],
            "stop_reason": _stop_reason(answer),
            "usage": _usage(answer),
        }

    def events(self, answer: Answer) -> Iterator[bytes]:
        def send(kind: str, **data: Any) -> bytes:
            return event({"type": kind, **data}, kind)

        usage = _usage(answer)
        yield send("message_start", message={**_head(answer), "usage": {**usage, "output_tokens": 1}})
        for index, (start, rest) in enumerate(_blocks(answer)):
            empty = {name: {} if name == "input" else "" for name in rest}
            yield send("content_block_start", index=index, content_block=start | empty)
            for name, value in rest.items():
                yield send("content_block_delta", index=index, delta=_delta(name, value))
            yield send("content_block_stop", index=index)
        yield send("message_delta", delta={"stop_reason": _stop_reason(answer), "stop_sequence": None}, usage=usage)
        yield send("message_stop")

    def refusal(self, kind: RefusalKind, words: str) -> dict[str, Any]:
        # The agent compacts its conversation after this message.
        words = f"prompt is too long: {words}" if kind == "overflow" else words
        return {"type": "error", "error": {"type": _TYPES.get(kind, "invalid_request_error"), "message": words}}

    def late_refusal(self, kind: RefusalKind, words: str, model: str) -> Iterator[bytes]:
        yield event(self.refusal(kind, words), "error")


def _add(conversation: Conversation, message: Mapping[str, Any], where: str) -> None:
    role, content = message.get("role"), message.get("content")
    if role == "system":
        conversation.add_instruction(text_of(content, f"{where}.content"))
        return
    if role not in ("user", "assistant"):
        raise BadRequest(f"{where}.role: {role!r:.40} is unknown")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else objects_of(message, "content")
    if role == "assistant" and not blocks:
        conversation.add_reply()
    # Results first, because the results of tool calls have to follow the calls directly.
    for block in sorted(blocks, key=lambda block: block.get("type") != "tool_result") if role == "user" else blocks:
        _add_block(conversation, role, block, where)


def _add_block(conversation: Conversation, role: str, block: Mapping[str, Any], where: str) -> None:
    kind = block.get("type")
    if kind == "tool_result":
        text = text_of(block.get("content"), f"{where}.content")
        conversation.add_output(field_of(block, "tool_use_id", str, ""), text)
    elif kind == "tool_use":
        name = field_of(block, "name", str, "")
        arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
        conversation.add_reply(calls=[ToolCall(id=field_of(block, "id", str, ""), name=name, arguments=arguments)])
    elif kind == "redacted_thinking":
        raise BadRequest(f"{where}.content: {kind} was not made here")
    elif kind == "thinking":
        conversation.add_reply(reasoning=field_of(block, "thinking", str, ""))
    elif role == "assistant":
        conversation.add_reply(text_of([block], where))
    else:
        conversation.add_user(text_of([block], where))


def _head(answer: Answer) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": answer.request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _blocks(answer: Answer) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the blocks of a reply, each as its fixed fields and those that a stream sends as deltas."""
    reply = answer.reply
    if reply.reasoning:
        yield {"type": "thinking"}, {"thinking": reply.reasoning, "signature": _SIGNATURE}
    if reply.content or not reply.tool_calls:
        yield {"type": "text"}, {"text": reply.content}
    for call in reply.tool_calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name}, {"input": arguments_of(call)}


def _delta(name: str, value: Any) -> dict[str, Any]:
    if name == "input":
        return {"type": "input_json_delta", "partial_json": json.dumps(value)}
    return {"type": f"{name}_delta", name: value}


def _stop_reason(answer: Answer) -> str:
    if answer.reply.cut:
        return "max_tokens"
    return "tool_use" if answer.reply.tool_calls else "end_turn"


def _usage(answer: Answer) -> dict[str, int]:
    usage = answer.reply.usage
    cached = min(usage.cached_tokens or 0, usage.prompt_tokens)
    return {
        "input_tokens": usage.prompt_tokens - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }
