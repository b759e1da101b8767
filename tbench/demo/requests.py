"""Parses requests to `scripted-demo`, validates them like vLLM, and cuts replies to the room that is left."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from typing import Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from tbench.demo.replies import (
    BASH_TOOL,
    DEFAULT_SERVING,
    RefusedError,
    ScriptedReply,
    ServedReply,
    ServedTokens,
    Serving,
    error_body,
)
from tbench.demo.scripts import ChatTurns

_ROLES = {"model": "assistant", "System": "system", "Instruction": "user", "Output": "assistant"}
_TEMPLATES = [
    re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", re.DOTALL),
    re.compile(r"<start_of_turn>(\w+)\n(.*?)<end_of_turn>\n", re.DOTALL),
    re.compile(r"<\|turn>(\w+)\n(.*?)<turn\|>\n", re.DOTALL),
    re.compile(
        r"^### (System|Instruction|Output):[ \n](.*?)\n(?=### (?:System|Instruction|Output):)", re.DOTALL | re.M
    ),
]


def read_prompt(prompt: str) -> ChatTurns:
    """Parse a prompt of harness.rendering into turns, without the open last one; other prompts are one user message."""
    for template in _TEMPLATES:
        if turns := template.findall(prompt):
            return [(_ROLES.get(role, role), text) for role, text in turns]
    return [("user", prompt)]


CHARACTERS_PER_TOKEN = 4
"""Estimate for counting tokens without a tokenizer."""

Kind = TypeVar("Kind", bound="CompletionRequest")


class TextPart(BaseModel):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class Function(BaseModel):
    """An offered or called function."""

    name: str
    arguments: str = ""


class EarlierCall(BaseModel):
    """A tool call of an earlier reply."""

    id: str
    function: Function


class Tool(BaseModel):
    """A function that the reply may call."""

    function: Function


class ChatMessage(BaseModel):
    """A message of the conversation so far."""

    role: str
    content: str | list[TextPart] | None = None
    tool_calls: list[EarlierCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(BaseModel):
    """Contents of a stream besides the reply."""

    include_usage: bool = False


class CompletionRequest(BaseModel):
    """The relevant fields of a request. Others are ignored, as by vLLM."""

    model: str | None = None
    seed: int | None = Field(default=None, lt=2**63)
    max_tokens: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    logprobs: bool | int | None = None


class ChatRequest(CompletionRequest):
    """A request to /v1/chat/completions."""

    messages: list[ChatMessage]
    tools: list[Tool] | None = None

    @property
    def conversation(self) -> ChatTurns:
        return [(message.role, message.text) for message in self.messages]

    @property
    def thoughts(self) -> Sequence[str]:
        """Thinking of earlier replies that came back with the request."""
        return [message.reasoning for message in self.messages if message.reasoning]

    @property
    def functions(self) -> Sequence[str]:
        return [tool.function.name for tool in self.tools or ()]


class TextRequest(CompletionRequest):
    """A request to /v1/completions."""

    prompt: str
    max_tokens: int | None = 16

    @property
    def conversation(self) -> ChatTurns:
        return read_prompt(self.prompt)

    @property
    def thoughts(self) -> Sequence[str]:
        return ()

    @property
    def functions(self) -> Sequence[str]:
        return ()


AnyRequest = ChatRequest | TextRequest


def read_chat_request(body: bytes) -> ChatRequest:
    """Read a request to /v1/chat/completions. Raises RefusedError."""
    request = _read(ChatRequest, body)
    if not request.messages:
        raise _bad_request("Cannot apply chat template to an empty conversation. Provide at least one message.")
    if request.tools == []:
        raise _bad_request("tools must not be an empty array. Either provide at least one tool or leave the field out.")
    _check_tool_answers(request.messages)
    return request


def read_text_request(body: bytes) -> TextRequest:
    """Read a request to /v1/completions. Raises RefusedError."""
    request = _read(TextRequest, body)
    if request.stream:
        raise _bad_request("This endpoint streams chat completions only.", "stream")
    return request


def _read(kind: type[Kind], body: bytes) -> Kind:
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        raise _validation_error(error) from None
    if request.stream_options and not request.stream:
        raise _bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
    return request


def _check_tool_answers(messages: Sequence[ChatMessage]) -> None:
    """Raise RefusedError for unanswered tool calls, like OpenAI; vLLM leaves that to the template."""
    unanswered: list[str] = []
    for message in [*messages, ChatMessage(role="end")]:
        if message.role == "tool":
            if message.tool_call_id not in unanswered:
                raise _bad_request(
                    f"No tool call with the id {message.tool_call_id} precedes the message that answers it."
                )
            unanswered.remove(message.tool_call_id)
        elif unanswered:
            raise _bad_request(f"Tool calls without a message that answers them: {', '.join(unanswered)}.")
        unanswered += [call.id for call in message.tool_calls or ()]


def reply_limit(request: AnyRequest, serving: Serving = DEFAULT_SERVING) -> int:
    """Return the maximum number of tokens of the reply. Raises RefusedError if there is no room or no such model."""
    if request.model not in {None, serving.model}:
        message = f"The model `{request.model}` does not exist. Valid aliases: {serving.model}."
        raise RefusedError(404, error_body(404, message, "NotFoundError", "model"))
    prompt, context = prompt_tokens(request, serving), serving.context_tokens
    if prompt > context:
        raise _bad_request(
            f"This model's maximum context length is {context} tokens. However, your prompt contains "
            f"at least {context + 1} input tokens, which exceeds this limit even without any output "
            "tokens. Please reduce the length of the input prompt. "
            f"(parameter=input_tokens, value={context + 1})",
            "input_tokens",
        )
    left = context - prompt
    asked = left if request.max_tokens is None else request.max_tokens
    if asked > context:
        raise _bad_request(
            f"max_tokens={asked} cannot be greater than max_model_len={context}. "
            f"Please request fewer output tokens. (parameter=max_tokens, value={asked})",
            "max_tokens",
        )
    if min(asked, left) < 1:
        lowest = min(asked, left)
        raise _bad_request(
            f"max_tokens must be at least 1, got {lowest}. (parameter=max_tokens, value={lowest})",
            "max_tokens",
        )
    return min(asked, left)


def cut_to_limit(request: AnyRequest, reply: ScriptedReply, serving: Serving = DEFAULT_SERVING) -> ServedReply:
    """Cut the reply to the room available; a tool call that does not fit becomes truncated text."""
    limit = reply_limit(request, serving)
    written = reply.text if reply.command is None else f"{reply.text}\n<tool_call>\n{_written_call(reply.command)}"
    thought = count_tokens(reply.thinking or "")
    prompt, needed = prompt_tokens(request, serving), thought + count_tokens(written)
    completion = min(needed, limit)
    usage = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
    }
    tokens = None
    if request.return_token_ids:
        before = [each for _, text in request.conversation for each in token_ids(text)]
        tokens = ServedTokens(before, token_ids(written)[:limit], request.logprobs not in (None, False))
    if needed > limit:
        thinking = reply.thinking and reply.thinking[: limit * CHARACTERS_PER_TOKEN]
        rest = written[: max(0, limit - thought) * CHARACTERS_PER_TOKEN]
        return ServedReply(ScriptedReply(rest, thinking=thinking), "length", usage, tokens, serving.model)
    return ServedReply(reply, "stop" if reply.command is None else "tool_calls", usage, tokens, serving.model)


def _written_call(command: str) -> str:
    call = {"name": BASH_TOOL, "arguments": {"command": command}}
    return f"{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def prompt_tokens(request: AnyRequest, serving: Serving = DEFAULT_SERVING) -> int:
    """Return the tokens of a request's prompt; thinking of earlier replies counts only if the template keeps it."""
    thoughts = request.thoughts if serving.thinking == "kept" else ()
    return sum(count_tokens(text) for text in (*(text for _, text in request.conversation), *thoughts))


def count_tokens(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def token_ids(text: str) -> list[int]:
    """Return an id below 2^15 for each token, equal for equal characters."""
    pieces = (text[at : at + CHARACTERS_PER_TOKEN] for at in range(0, len(text), CHARACTERS_PER_TOKEN))
    return [zlib.crc32(piece.encode("utf-8", "replace")) >> 17 for piece in pieces]


def _bad_request(message: str, param: str | None = None) -> RefusedError:
    return RefusedError(400, error_body(400, message, "BadRequestError", param))


def _validation_error(error: ValidationError) -> RefusedError:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"  {dict(each)}" for each in found]
    message = "\n".join([f"{len(found)} validation error{'s' * (len(found) > 1)}:", *lines])
    where = ".".join(["body", *map(str, found[0]["loc"])])
    return RefusedError(400, error_body(400, message, "Bad Request", where))
