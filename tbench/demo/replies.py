"""Replies of `scripted-demo`: a script's step in the requested protocol, in bodies like vLLM's."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from tbench.demo.scripts import ChatTurns, ScriptStep

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
BASH_TOOL = "bash"
"""Function that is called if a request offers it."""
TERMINAL_CONTROLLER = "You are a local OS Terminal Controller Agent"
"""Start of a first message that requests `<thinking>` and a bash block."""

_KEY_NAMES = "Enter|Escape|Tab|BTab|BSpace|Space|Up|Down|Left|Right|Home|End|DC|IC|NPage|PPage|PageUp|PageDown|F[0-9]+"
_KEY = rf"(?:[CMS]-)*(?:[CMS]-\S|{_KEY_NAMES})"
_ONLY_KEYS = re.compile(rf"\s*{_KEY}(?:\s+{_KEY})*\s*")
_END = ScriptStep(analysis="The script has come to its end.", plan="Nothing is left to do.")


class ScriptedReply(NamedTuple):
    """A reply: its text, and the command of its tool call, if any."""

    text: str
    command: str | None = None


def reply_for_step(step: ScriptStep | None, messages: ChatTurns, functions: Collection[str] = ()) -> ScriptedReply:
    """Return the reply that executes `step`; None claims that the task is complete."""
    if BASH_TOOL in functions:
        return ScriptedReply(_sentence(step), _shell_commands(step))
    return ScriptedReply(_writer_for(messages)(step))


def _writer_for(messages: ChatTurns) -> Callable[[ScriptStep | None], str]:
    """Return the function that writes a step in the protocol requested by these messages."""
    first = dict(reversed(messages))
    asked = [first.get(role, "") for role in ("system", "user")]
    if any(text.startswith(TERMINAL_CONTROLLER) for text in asked):
        return _as_thinking_and_block
    if any("<keystrokes" in text for text in asked):
        return _as_xml
    return _as_json if any('"keystrokes"' in text for text in asked) else _as_block


def _as_json(step: ScriptStep | None) -> str:
    return json.dumps({**(step or _END).model_dump(), "task_complete": step is None}, indent=2, ensure_ascii=False)


def _as_xml(step: ScriptStep | None) -> str:
    shown = step or _END
    keys = [f'<keystrokes duration="{each.duration}">{each.keystrokes}</keystrokes>' for each in shown.commands]
    parts = [
        f"<analysis>{shown.analysis}</analysis>",
        f"<plan>{shown.plan}</plan>",
        "\n".join(["<commands>", *keys, "</commands>"]),
        *(["<task_complete>true</task_complete>"] if step is None else []),
    ]
    return "\n".join(["<response>", *parts, "</response>"])


def _as_block(step: ScriptStep | None) -> str:
    return f"{_sentence(step)}\n\n```bash\n{_shell_commands(step)}\n```"


def _as_thinking_and_block(step: ScriptStep | None) -> str:
    return f"<thinking>{_sentence(step)}</thinking>\n```bash\n{_shell_commands(step)}\n```"


def _sentence(step: ScriptStep | None) -> str:
    return _END.analysis if step is None else f"{step.analysis} {step.plan}"


def _shell_commands(step: ScriptStep | None) -> str:
    """Return the text typed by the step, without keys and pauses."""
    if step is None:
        return SUBMIT
    typed = [each.keystrokes.rstrip("\n") for each in step.commands if not _ONLY_KEYS.fullmatch(each.keystrokes)]
    return "\n".join(text for text in typed if text.strip()) or "true"


# Bodies of answers, in the format and wording of vLLM's.

MODEL_ID = "scripted-demo"
CONTEXT_TOKENS = 32768

Json = dict[str, Any]


class RefusedError(Exception):
    """Raised for a request that is answered with a status other than 200."""

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


class ServedTokens(NamedTuple):
    """Token ids for a request with `return_token_ids`."""

    prompt: list[int]
    completion: list[int]
    has_logprobs: bool


class ServedReply(NamedTuple):
    """A reply as it is sent: cut to its token limit, and counted."""

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
    if reply.content.command is not None:  # without a call, vLLM omits the key
        message["tool_calls"] = [_call_body(reply.content.command)]
    body = {**_frame("chat.completion"), "choices": [_choice(reply, {"message": message})], "usage": _usage(reply)}
    if (tokens := reply.tokens) is not None:
        body["prompt_token_ids"] = tokens.prompt
        if tokens.has_logprobs:
            # Scripted tokens have probability 1.
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
    """Yield the chunks of a streamed reply, one word each, in vLLM's order."""
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
