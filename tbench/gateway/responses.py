"""The dialect of `/v1/responses`: Codex."""

from __future__ import annotations

import base64
import binascii
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
    event,
    field_of,
    free_text_of,
    function,
    max_tokens_of,
    objects_of,
    offered_tools,
    refuse,
    text_of,
)

_FREE_TEXT = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input of the tool, as plain text."}},
    "required": ["input"],
}
_PARTS = {
    "message": ("content", "content_part", "output_text"),
    "reasoning": ("summary", "reasoning_summary_part", "reasoning_summary_text"),
}
"""By type of an item: the field with its part, and the names of the events about this part and about its text."""
_CODES: Mapping[RefusalKind, str] = {
    "overflow": "context_length_exceeded",
    "unauthorized": "invalid_api_key",
    "unavailable": "server_error",
}


class ResponsesDialect:
    """Translates items: messages, reasoning, calls and their outputs. Stores nothing between requests."""

    def read(self, body: Mapping[str, Any]) -> ModelRequest:
        whole = "no responses are stored; send the whole conversation"
        refuse(body, previous_response_id=whole, conversation=whole, background=whole, prompt=whole)
        if field_of(field_of(body, "text", dict, {}), "format", dict, {}).get("type", "text") != "text":
            raise BadRequest("text.format: only text is supported")
        conversation = Conversation()
        if text := field_of(body, "instructions", str, ""):
            conversation.add_instruction(text)
        given = body.get("input")
        if isinstance(given, str):
            conversation.add_user(given)
        else:
            for number, item in enumerate(objects_of(body, "input")):
                _add(conversation, item, f"input[{number}]")
        tools, left_out = offered_tools(body, lambda each: each.get("type") in ("function", "custom"))
        free_text = frozenset(str(each.get("name")) for each in tools if each.get("type") == "custom")
        return ModelRequest(
            messages=conversation.finish(),
            tools=tuple(map(_tool, tools)),
            max_tokens=max_tokens_of(body, "max_output_tokens"),
            is_streamed=field_of(body, "stream", bool, False),
            model=field_of(body, "model", str, ""),
            free_text_tools=free_text,
            left_out=left_out,
        )

    def answer(self, answer: Answer) -> dict[str, Any]:
        return _response(answer, list(_items(answer)))

    def events(self, answer: Answer) -> Iterator[bytes]:
        number = 0

        def send(kind: str, **data: Any) -> bytes:
            nonlocal number
            number += 1
            return event({"type": kind, "sequence_number": number - 1, **data}, kind)

        started = {**_response(answer, []), "status": "in_progress", "usage": None, "incomplete_details": None}
        yield send("response.created", response=started)
        yield send("response.in_progress", response=started)
        items = list(_items(answer))
        for index, item in enumerate(items):
            at = {"output_index": index}
            unfinished: dict[str, Any] = {} if item["type"] == "reasoning" else {"status": "in_progress"}
            yield send("response.output_item.added", **at, item=item | unfinished | _emptied(item))
            for kind, data in _pieces(item):
                yield send(kind, item_id=item["id"], **at, **data)
            yield send("response.output_item.done", **at, item=item)
        kind = "response.incomplete" if answer.reply.cut else "response.completed"
        yield send(kind, response=_response(answer, items))

    def refusal(self, kind: RefusalKind, words: str) -> dict[str, Any]:
        error_type = "server_error" if kind == "unavailable" else "invalid_request_error"
        return {"error": {"message": words, "type": error_type, "param": None, "code": _CODES.get(kind)}}

    def late_refusal(self, kind: RefusalKind, words: str, model: str) -> Iterator[bytes]:
        error = {"code": _CODES.get(kind, "invalid_prompt"), "message": words}
        response = {"id": "resp_failed", "object": "response", "status": "failed", "model": model, "error": error}
        yield event({"type": "response.failed", "sequence_number": 0, "response": response}, "response.failed")


def _add(conversation: Conversation, item: Mapping[str, Any], where: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        role, text = item.get("role"), text_of(item.get("content"), f"{where}.content")
        if role in ("system", "developer"):
            conversation.add_instruction(text)
        elif role == "user":
            conversation.add_user(text)
        elif role == "assistant":
            conversation.add_reply(text)
        else:
            raise BadRequest(f"{where}.role: {role!r:.40} is unknown")
    elif kind == "reasoning":
        conversation.add_reply(reasoning=_reasoning(item, where))
    elif kind in ("function_call", "custom_tool_call"):
        call_id, name = field_of(item, "call_id", str, ""), field_of(item, "name", str, "")
        if kind == "function_call":
            arguments = field_of(item, "arguments", str, "{}")
        else:
            arguments = json.dumps({"input": field_of(item, "input", str, "")}, ensure_ascii=False)
        conversation.add_reply(calls=[ToolCall(id=call_id, name=name, arguments=arguments)])
    elif kind in ("function_call_output", "custom_tool_call_output"):
        conversation.add_output(field_of(item, "call_id", str, ""), _output(item.get("output"), where))
    else:
        raise BadRequest(f"{where}: items of type {kind!r:.40} are not supported")


def _output(output: object, where: str) -> str:
    if isinstance(output, dict):  # an earlier form of the dialect
        output = output.get("content")
    return text_of(output, f"{where}.output")


def _reasoning(item: Mapping[str, Any], where: str) -> str:
    """Return the text of a reasoning item, which agents send back unchanged in `encrypted_content`."""
    if kept := field_of(item, "encrypted_content", str, ""):
        try:
            return base64.b64decode(kept, validate=True).decode()
        except (binascii.Error, ValueError):
            raise BadRequest(f"{where}.encrypted_content: was not made here") from None
    return text_of(item.get("content") or item.get("summary"), where)


def _tool(body: Mapping[str, Any]) -> dict[str, Any]:
    is_free = body["type"] == "custom"
    return function(body.get("name"), body.get("description"), _FREE_TEXT if is_free else body.get("parameters"))


def _items(answer: Answer) -> Iterator[dict[str, Any]]:
    reply, request = answer.reply, answer.request
    status = "incomplete" if reply.cut else "completed"
    if reply.reasoning:
        kept = base64.b64encode(reply.reasoning.encode("utf-8", "replace")).decode()
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        yield {"id": f"rs_{answer.id}", "type": "reasoning", "summary": summary, "encrypted_content": kept}
    if reply.content or not reply.tool_calls:
        content = [{"type": "output_text", "text": reply.content, "annotations": []}]
        yield {
            "id": f"msg_{answer.id}",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }
    for number, call in enumerate(reply.tool_calls):
        common = {"status": status, "call_id": call.id, "name": call.name}
        name = f"{answer.id}_{number}"
        if call.name in request.free_text_tools:
            yield {"id": f"ctc_{name}", "type": "custom_tool_call", **common, "input": free_text_of(call)}
        else:
            yield {"id": f"fc_{name}", "type": "function_call", **common, "arguments": call.arguments}


def _emptied(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an item that its events fill."""
    empty = {"content": [], "summary": [], "arguments": "", "input": ""}
    return {name: value for name, value in empty.items() if name in item}


def _pieces(item: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield kind and fields of the events that fill an item."""
    kind = item["type"]
    if kind in ("message", "reasoning"):
        where, of_part, of_text = _PARTS[kind]
        at, part = {f"{where}_index": 0}, item[where][0]
        yield f"response.{of_part}.added", {**at, "part": {**part, "text": ""}}
        yield f"response.{of_text}.delta", {**at, "delta": part["text"]}
        yield f"response.{of_text}.done", {**at, "text": part["text"]}
        yield f"response.{of_part}.done", {**at, "part": part}
    else:
        name = "arguments" if kind == "function_call" else "input"
        yield f"response.{kind}_{name}.delta", {"delta": item[name]}
        yield f"response.{kind}_{name}.done", {name: item[name]}


def _response(answer: Answer, items: list[dict[str, Any]]) -> dict[str, Any]:
    usage, cut = answer.reply.usage, answer.reply.cut
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": answer.created,
        "status": "incomplete" if cut else "completed",
        "model": answer.request.model,
        "output": items,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        },
    }
