"""The bodies that `scripted-demo` answers with, shaped and worded like vLLM's."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field, ValidationError

MODEL_ID = "scripted-demo"
CONTEXT_TOKENS = 32768
CHARACTERS_PER_TOKEN = 4
"""There is no tokenizer: token counts are estimates."""

Json = dict[str, Any]


class RefusedError(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    role: str
    content: str | list[TextPart] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(BaseModel):
    include_usage: bool = False


class ChatRequest(BaseModel):
    """The fields of a request that matter here. Others are ignored, as vLLM does."""

    model: str | None = None
    messages: list[ChatMessage]
    seed: int | None = Field(default=None, lt=2**63)
    max_tokens: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None


class Answer(NamedTuple):
    """A reply, cut to the tokens that it may have."""

    text: str
    finish_reason: str
    usage: dict[str, int]


def read_request(body: bytes) -> ChatRequest:
    """The request in a body. Raises RefusedError."""
    try:
        request = ChatRequest.model_validate_json(body)
    except ValidationError as error:
        raise _invalid(error) from None
    if request.model not in {None, MODEL_ID}:
        message = f"The model `{request.model}` does not exist. Valid aliases: {MODEL_ID}."
        raise RefusedError(404, error_body(404, message, "NotFoundError", "model"))
    if not request.messages:
        raise _bad("Cannot apply chat template to an empty conversation. Provide at least one message.")
    if request.stream_options and not request.stream:
        raise _bad("Stream options can only be defined when `stream=True`.", "stream_options")
    return request


def room(request: ChatRequest) -> int:
    """How many tokens the reply may have. Raises RefusedError when there is no room for any."""
    prompt = prompt_tokens(request)
    if prompt > CONTEXT_TOKENS:
        raise _bad(
            f"This model's maximum context length is {CONTEXT_TOKENS} tokens. However, your prompt contains "
            f"at least {CONTEXT_TOKENS + 1} input tokens, which exceeds this limit even without any output "
            "tokens. Please reduce the length of the input prompt. "
            f"(parameter=input_tokens, value={CONTEXT_TOKENS + 1})",
            "input_tokens",
        )
    left = CONTEXT_TOKENS - prompt
    asked = left if request.max_tokens is None else request.max_tokens
    if asked > CONTEXT_TOKENS:
        raise _bad(
            f"max_tokens={asked} cannot be greater than max_model_len={CONTEXT_TOKENS}. "
            f"Please request fewer output tokens. (parameter=max_tokens, value={asked})",
            "max_tokens",
        )
    if min(asked, left) < 1:
        lowest = min(asked, left)
        raise _bad(
            f"max_tokens must be at least 1, got {lowest}. (parameter=max_tokens, value={lowest})",
            "max_tokens",
        )
    return min(asked, left)


def answer(request: ChatRequest, text: str) -> Answer:
    """The reply's text as far as there is room for it."""
    limit = room(request)
    prompt, wanted = prompt_tokens(request), count_tokens(text)
    completion = min(wanted, limit)
    usage = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
    }
    kept = text[: limit * CHARACTERS_PER_TOKEN]
    return Answer(kept, "stop" if wanted <= limit else "length", usage)


def prompt_tokens(request: ChatRequest) -> int:
    return sum(count_tokens(message.text) for message in request.messages)


def count_tokens(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)


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


def completion_body(reply: Answer) -> Json:
    message = {"role": "assistant", "content": reply.text, "refusal": None, "reasoning": None}
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": reply.finish_reason,
        "stop_reason": None,
    }
    usage = {**reply.usage, "prompt_tokens_details": None, "completion_tokens_details": None}
    return {**_frame("chat.completion"), "choices": [choice], "usage": usage}


def chunk_bodies(reply: Answer, include_usage: bool) -> Iterator[Json]:
    """The chunks of a streamed reply, one word each, as vLLM orders them."""
    frame = _frame("chat.completion.chunk")

    def chunk(delta: Json, finish_reason: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**frame, "choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    for word in re.findall(r"\s*\S+|\s+$", reply.text):
        yield chunk({"content": word})
    yield chunk({}, reply.finish_reason)
    if include_usage:
        yield {**frame, "choices": [], "usage": reply.usage}


def error_body(status: int, message: str, kind: str, param: str | None = None) -> Json:
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def _frame(kind: str) -> Json:
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex[:16]}",
        "object": kind,
        "created": int(time.time()),
        "model": MODEL_ID,
        "system_fingerprint": MODEL_ID,
    }


def _bad(message: str, param: str | None = None) -> RefusedError:
    return RefusedError(400, error_body(400, message, "BadRequestError", param))


def _invalid(error: ValidationError) -> RefusedError:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"  {dict(each)}" for each in found]
    message = "\n".join([f"{len(found)} validation error{'s' * (len(found) > 1)}:", *lines])
    where = ".".join(["body", *map(str, found[0]["loc"])])
    return RefusedError(400, error_body(400, message, "Bad Request", where))
