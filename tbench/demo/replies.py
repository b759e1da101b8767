"""Replies of `scripted-demo`: a script's step in the requested protocol, in bodies like vLLM's."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any, Literal, NamedTuple

from harness.protocols import PROTOCOLS, load_protocol
from harness.protocols.base import Action, ActionProtocol, Command, Keys
from tbench.demo.scripts import ChatTurns, ScriptStep

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
CONTEXT_TOKENS = 32768
_THOUGHTS = 20
"""Number of repetitions of a scripted thought."""
BASH_TOOL = "bash"
"""Function that is called if a request offers it."""

_KEY_NAMES = "Enter|Escape|Tab|BTab|BSpace|Space|Up|Down|Left|Right|Home|End|DC|IC|NPage|PPage|PageUp|PageDown|F[0-9]+"
_KEY = rf"(?:[CMS]-)*(?:[CMS]-\S|{_KEY_NAMES})"
_ONLY_KEYS = re.compile(rf"\s*{_KEY}(?:\s+{_KEY})*\s*")
_END = ScriptStep(analysis="The script has come to its end.", plan="Nothing is left to do.")


class ScriptedReply(NamedTuple):
    """A reply: its text, the command of its tool call, and its thinking, if any."""

    text: str
    command: str | None = None
    thinking: str | None = None


MODEL_ID = "scripted-demo"


class Serving(NamedTuple):
    """The ways in which the scripted model can be served."""

    context_tokens: int = CONTEXT_TOKENS
    thinking: Literal["kept", "dropped"] | None = None
    """Whether the template keeps the replies' thinking in later prompts or drops it; None if there is no thinking."""
    tokens_per_sec: float | None = None
    """Pace of replies; None for at once."""
    model: str = MODEL_ID


DEFAULT_SERVING = Serving()


def thinking_for_step(step: ScriptStep | None) -> str:
    """Return long thinking about a step, like that of real models."""
    return " ".join([_sentence(step)] * _THOUGHTS)


def reply_for_step(step: ScriptStep | None, messages: ChatTurns, functions: Collection[str] = ()) -> ScriptedReply:
    """Return the reply that executes `step`; for None, a reply that claims that the task is complete."""
    if BASH_TOOL in functions:
        return ScriptedReply(_sentence(step), _shell_commands(step))
    protocol, shown = _protocol_of(messages), step or _END
    actions: list[Action] = [Keys(each.keystrokes, each.duration) for each in shown.commands]
    if protocol.types_commands:
        actions = [Command(_shell_commands(step))]
    return ScriptedReply(protocol.write(shown.analysis, shown.plan, actions, complete=step is None).content)


def _protocol_of(messages: ChatTurns) -> ActionProtocol:
    """Return the protocol whose mark comes first in these messages; without a mark, bash-block."""
    first = dict(reversed(messages))
    asked = "\n".join(first.get(role, "") for role in ("system", "user"))
    found = [each for each in _protocols() if not each.tools and each.mark in asked]
    return min(found, key=lambda each: asked.index(each.mark), default=load_protocol("bash-block"))


@cache
def _protocols() -> tuple[ActionProtocol, ...]:
    return tuple(map(load_protocol, PROTOCOLS))


def _sentence(step: ScriptStep | None) -> str:
    return _END.analysis if step is None else f"{step.analysis} {step.plan}"


def _shell_commands(step: ScriptStep | None) -> str:
    """Return the text typed by the step, without keys and pauses."""
    if step is None:
        return SUBMIT
    typed = [each.keystrokes.rstrip("\n") for each in step.commands if not _ONLY_KEYS.fullmatch(each.keystrokes)]
    return "\n".join(text for text in typed if text.strip()) or "true"


# Bodies of answers, in the format and wording of vLLM's.

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
    model: str = MODEL_ID


def models_body(created: int, serving: Serving = DEFAULT_SERVING) -> Json:
    card = {
        "id": serving.model,
        "object": "model",
        "created": created,
        "owned_by": "tbench-demo",
        "root": MODEL_ID,
        "parent": None,
        "max_model_len": serving.context_tokens,
    }
    return {"object": "list", "data": [card]}


def chat_body(reply: ServedReply) -> Json:
    message: Json = {"role": "assistant", "content": reply.content.text, "refusal": None}
    message["reasoning"] = reply.content.thinking
    if reply.content.command is not None:  # without a call, vLLM omits the key
        message["tool_calls"] = [_call_body(reply.content.command)]
    body = {
        **_frame("chat.completion", reply.model),
        "choices": [_choice(reply, {"message": message})],
        "usage": _usage(reply),
    }
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
    return {**_frame("text_completion", reply.model), "choices": [choice], "usage": _usage(reply)}


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
    frame = _frame("chat.completion.chunk", reply.model)

    def chunk(delta: Json, finish_reason: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**frame, "choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    if reply.content.thinking is not None:
        yield chunk({"reasoning": reply.content.thinking})
    for word in re.findall(r"\s*\S+|\s+$", reply.content.text):
        yield chunk({"content": word})
    if reply.content.command is not None:
        yield chunk({"tool_calls": [{"index": 0, **_call_body(reply.content.command)}]})
    yield chunk({}, reply.finish_reason)
    if include_usage:
        yield {**frame, "choices": [], "usage": reply.usage}


def error_body(status: int, message: str, kind: str, param: str | None = None) -> Json:
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def _frame(kind: str, model: str) -> Json:
    return {
        "id": f"{'cmpl' if kind == 'text_completion' else 'chatcmpl'}-{uuid.uuid4().hex[:16]}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": MODEL_ID,
    }
