"""Reads the answers of OpenAI-compatible servers: replies, model lists, refusals, Retry-After.

Pure functions over decoded JSON. Shapes and texts as recorded from vLLM 0.32 and read in 0.19.1.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, NamedTuple

from pydantic import (
    AliasChoices,
    BaseModel,
    Field,
    NonNegativeInt,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from harness.endpoint.completion import (
    ParsedMessage,
    check_usage,
    classify_finish_reason,
    finish_reasons,
    parse_message,
    split_channels,
)
from harness.endpoint.retry import TransientError
from harness.model_text import without_lone_surrogates
from harness.protocols.reply_text import holds_raw_call
from harness.trajectory import Frozen, Reply, ReplyTokens, ToolCall, Usage

LONGEST_QUOTE = 500
"""Maximum number of characters of a server's text in our messages: some servers quote the whole prompt."""


def _none_if_invalid(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Turn an invalid token count into None, as the reply is still usable."""
    try:
        return None if isinstance(value, bool) else check(value)
    except ValidationError:
        return None


Count = Annotated[NonNegativeInt | None, WrapValidator(_none_if_invalid)]


_CONTEXT_NAME = re.compile(r"context(?!.*(output|completion|train))|n_ctx(?!.*train)|max_(model|seq|sequence)_?len")
"""Field of a listed model with the length of its context; other fields refer to its training or to replies."""
_LONGEST_IDENTITY = 120
"""Maximum number of characters kept of a fingerprint, which usually has 20."""


class _PromptDetails(BaseModel):
    cached_tokens: Count = None


class _WireUsage(BaseModel):
    prompt_tokens: Count = Field(default=None, validation_alias=AliasChoices("prompt_tokens", "input_tokens"))
    completion_tokens: Count = Field(default=None, validation_alias=AliasChoices("completion_tokens", "output_tokens"))
    total_tokens: Count = None
    prompt_tokens_details: Annotated[_PromptDetails | None, WrapValidator(_none_if_invalid)] = None


class _Choice(BaseModel, extra="allow"):
    index: Any = None
    message: dict[str, Any]
    """Parsed leniently (harness.endpoint.completion), so that a model's mistake does not invalidate the answer."""
    finish_reason: Any = None
    stop_reason: Any = None
    error: Any = None
    """Error that some gateways add to the partial text of a failed reply."""
    logprobs: Any = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    """Prompt tokens in `/v1/completions`; chat answers have them next to the choices."""

    @model_validator(mode="before")
    @classmethod
    def _use_completion_text(cls, choice: Any) -> Any:
        """Use the `text` of a choice from `/v1/completions` as its message."""
        if isinstance(choice, dict) and isinstance(choice.get("text"), str):
            return {"message": {"content": choice["text"]}, **choice}
        return choice

    @property
    def all_fields(self) -> dict[str, Any]:
        """All fields, including unknown ones."""
        return {**self.__dict__, **(self.model_extra or {})}


class _Completion(BaseModel):
    model: str | None = None
    system_fingerprint: Any = None
    choices: list[_Choice] | None = None
    usage: Annotated[_WireUsage | None, WrapValidator(_none_if_invalid)] = None
    prompt_token_ids: list[int] | None = None


class ModelCard(BaseModel):
    """One entry of `GET /v1/models`."""

    id: str
    root: str | None = None
    parent: str | None = None
    """The base model of a LoRA adapter."""
    max_model_len: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_other_length_fields(cls, card: Any) -> Any:
        """Read the context's length from other servers' fields as well."""
        if not isinstance(card, dict) or card.get("max_model_len") is not None:
            return card
        found, most = list(_lengths(card)), card.get("max_input_tokens")
        # The loaded length, which may be less than the model's; else the largest, as the server refuses longer prompts.
        lengths = [length for name, length in found if "loaded" in name] or [length for _, length in found]
        # LiteLLM reports its server's context in both fields; if they differ, they are from its price list.
        if not lengths and type(most) is int and most > 0 and most == card.get("max_output_tokens"):
            lengths = [most]
        return {**card, "max_model_len": max(lengths)} if lengths else card


def _lengths(card: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the fields of a listed model, also one level down, that are named like a context length."""
    for name, value in card.items():
        if isinstance(value, dict):
            yield from _lengths({key: each for key, each in value.items() if not isinstance(each, dict)})
        elif _CONTEXT_NAME.search(name.lower()) and type(value) is int and value > 0:
            yield name.lower(), value


class _ModelList(BaseModel):
    data: list[ModelCard]


class RawReply(Frozen):
    """One uninterpreted reply of the endpoint."""

    content: str
    """The verbatim text, except for U+FFFD instead of lone surrogates, which no file can hold; empty for null."""
    reasoning: str | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """The stop string or token that ended the reply, as reported by vLLM."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    latency_sec: float = 0.0
    """Wall seconds of the successful request."""
    waited_sec: float = 0.0
    """Wall seconds of failed requests and pauses before it."""
    attempts: int = 1


class TokenCount(BaseModel):
    """The answer of vLLM's `/tokenize` for a prompt of any length."""

    count: int
    max_model_len: int | None = None


def read_completion(data: object, *, max_tokens: int, context_tokens: int | None, takes_calls: bool = False) -> Reply:
    """Read the reply in the body of an HTTP 200; `takes_calls` if the request had tools.

    Raises TransientError if there is no complete reply.
    """
    whole = _complete_reply(data)
    reply = check_usage(_reply(whole), data, max_tokens=max_tokens, context_tokens=context_tokens)
    return reply.model_copy(update={"signs": (*reply.signs, *_signs(reply, takes_calls=takes_calls))})


def read_reasoning_field(data: object) -> str | None:
    """Return the field in which the server accepts this reply's reasoning back; None without reasoning."""
    return _complete_reply(data).message.reasoning_field


def read_raw_reply(data: object) -> RawReply:
    """Read the uninterpreted reply in the body of an HTTP 200. Raises TransientError if it is not complete."""
    completion, choice, message, _ = _complete_reply(data)
    usage, stop = completion.usage or _WireUsage(), choice.stop_reason
    return RawReply(
        content=without_lone_surrogates(message.content),
        reasoning=without_lone_surrogates(message.reasoning) if message.reasoning else None,
        finish_reason=_finish_reason(choice),
        stop_reason=without_lone_surrogates(stop) if isinstance(stop, str) else stop if type(stop) is int else None,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
    )


def read_token_count(data: object) -> TokenCount | None:
    """Read the count in an answer of `/tokenize`; None for other servers, which take no chat messages there."""
    try:
        return TokenCount.model_validate(data)
    except ValidationError:
        return None


class _CompleteReply(NamedTuple):
    """A completion with the chosen choice, its message, and whether it was cut."""

    completion: _Completion
    choice: _Choice
    message: ParsedMessage
    cut: bool


def _complete_reply(data: object) -> _CompleteReply:
    try:
        completion = _Completion.model_validate(data)
    except ValidationError:
        raise TransientError(f"HTTP 200, but not a completion: {quote(data)}") from None
    if not completion.choices:
        raise TransientError(f"HTTP 200 without choices{_error_within(data)}")
    choice = next((each for each in completion.choices if each.index == 0), completion.choices[0])
    failed = _error_within(data) or _error_within({"error": choice.error})
    named = list(finish_reasons(choice.all_fields))
    unfit = [reason for reason in named if classify_finish_reason(reason) == "failed"]
    if failed or unfit:
        # abort, error, content_filter, missing or unknown: half a command must not be run.
        reason = shorten(quote((unfit or named)[0]))
        raise TransientError(f"the server ended the reply with finish_reason {reason}, so it may not be whole{failed}")
    message = parse_message(choice.message)
    if message is None:
        raise TransientError(f"HTTP 200, but the reply's content is not text: {shorten(quote(choice.message))}")
    return _CompleteReply(completion, choice, message, any(classify_finish_reason(reason) == "cut" for reason in named))


def _reply(whole: _CompleteReply) -> Reply:
    completion, choice, message = whole.completion, whole.choice, split_channels(whole.message)
    return Reply(
        content=without_lone_surrogates(message.content),
        reasoning=without_lone_surrogates(message.reasoning) if message.reasoning else None,
        tool_calls=tuple(_tool_call(call) for call in message.tool_calls),
        finish_reason=_finish_reason(choice),
        cut=whole.cut,
        usage=_usage(completion.usage or _WireUsage(), message),
        model=completion.model and _short_text(completion.model),
        fingerprint=_short_text(completion.system_fingerprint),
        weights=_short_text(", ".join(dict.fromkeys(_versions(_weights(choice.all_fields))))),
        signs=message.signs,
        tokens=_tokens(completion, choice),
    )


def _short_text(value: object) -> str | None:
    """Return the shortened text of an identifying value; None if it is empty."""
    if value is None or value == "" or value == [] or value == {}:
        return None
    return quote(value if isinstance(value, str) else json.dumps(value, sort_keys=True))[:_LONGEST_IDENTITY]


def _weights(named: Mapping[str, Any]) -> object:
    """Return vLLM's version of the weights, which LiteLLM passes on in a field of its own."""
    frame = named.get("provider_specific_fields")
    return named.get("weight_versions") or (frame.get("weight_versions") if isinstance(frame, dict) else None)


def _versions(weights: object) -> Iterator[str]:
    """Yield the versions in order: vLLM reports for each which tokens of the reply it generated."""
    if isinstance(weights, dict):
        named = {key: each for key, each in weights.items() if "version" in key} or {
            key: each for key, each in weights.items() if isinstance(each, str | dict | list)
        }
        weights = list(named.values())
    if isinstance(weights, list):
        for each in weights:
            yield from _versions(each)
    elif weights is not None and weights != "":
        yield str(weights)


def _signs(reply: Reply, *, takes_calls: bool) -> Iterator[str]:
    """Yield the signs of a reply whose counts have been checked."""
    if reply.usage.uncounted:
        yield "no_usage"
    if not reply.content.strip() and not reply.tool_calls and reply.reasoning and not reply.cut:
        yield "reasoning_only"
    if takes_calls and not reply.tool_calls and holds_raw_call(reply.content.strip() or reply.reasoning or ""):
        yield "raw_tool_call"


def _usage(wire: _WireUsage, message: ParsedMessage) -> Usage:
    """Return a reply's counts. A count of 0 for a reply with text is ignored: gateways use it for missing values."""
    prompt, completion = wire.prompt_tokens or 0, wire.completion_tokens
    speaks = bool(message.content or message.reasoning or message.tool_calls)
    is_counted = prompt > 0 and (completion is not None and (completion > 0 or not speaks))
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion or 0,
        cached_tokens=wire.prompt_tokens_details.cached_tokens if wire.prompt_tokens_details else None,
        uncounted=0 if is_counted else 1,
    )


def _finish_reason(choice: _Choice) -> str | None:
    reason = choice.finish_reason
    return without_lone_surrogates(reason if isinstance(reason, str) else json.dumps(reason)) if reason else None


def _tokens(completion: _Completion, choice: _Choice) -> ReplyTokens | None:
    """Return vLLM's token ids, with logprobs from either of OpenAI's two formats; None if there are no ids."""
    prompt = completion.prompt_token_ids or choice.prompt_token_ids
    if prompt is None or choice.token_ids is None:
        return None
    wire = choice.logprobs if isinstance(choice.logprobs, dict) else {}
    content = wire.get("content") or ()
    found = [each.get("logprob") for each in content if isinstance(each, dict)] or wire.get("token_logprobs") or ()
    logprobs = [each for each in found if isinstance(each, int | float)]
    return ReplyTokens(prompt=tuple(prompt), completion=tuple(choice.token_ids), logprobs=tuple(logprobs))


def _tool_call(call: object) -> ToolCall:
    """Read a tool call. A malformed one is kept: the protocol reports the mistake to the model."""
    entry = call if isinstance(call, dict) else {}
    function = entry.get("function")
    function = function if isinstance(function, dict) else {"arguments": call}
    arguments = function.get("arguments")  # some servers send them decoded
    arguments = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(
        id=_text(entry.get("id")) or f"call_{uuid.uuid4().hex}",
        name=_text(function.get("name")),
        arguments=without_lone_surrogates(arguments),
    )


def _text(value: object) -> str:
    return without_lone_surrogates(value) if isinstance(value, str) else ""


def _error_within(data: object) -> str:
    """Return the message of an error in the body of a 200, as sent by some proxies; empty without one."""
    return f": {server_message(data)}" if isinstance(data, dict) and data.get("error") else ""


def read_models(data: object) -> list[ModelCard]:
    """Read the models in the body of `GET /v1/models`. Raises TransientError for anything else."""
    try:
        return _ModelList.model_validate(data).data
    except ValidationError:
        raise TransientError(f"HTTP 200, but not a list of models: {quote(data)}") from None


def server_message(body: object) -> str:
    """Return the server's message in an error body.

    The formats are `{"error": {"message"}}`, `{"error": "…"}`, `{"detail": "…"}` and plain text; a client library may
    have removed the outer `error`.
    """
    words = body
    for key in ("error", "message", "detail"):
        if isinstance(words, dict) and words.get(key):
            words = words[key]
    return quote(words)


def retry_after_sec(value: str | None) -> float | None:
    """Return the seconds in a Retry-After header (seconds or HTTP date, RFC 9110 §10.2.3); None if unreadable."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        until = parsedate_to_datetime(value)
    except ValueError:
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


def quote(text: object) -> str:
    """Put foreign text on one line, for use in our messages."""
    return without_lone_surrogates(" ".join(str(text).split()))


def shorten(text: str) -> str:
    """Cut long foreign text with an ellipsis."""
    return text if len(text) <= LONGEST_QUOTE else text[:LONGEST_QUOTE] + " …"
