"""Parses one completion: the message, whether the reply is complete, and the server's token counts."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from harness.history import IMPOSSIBLE_USAGE
from harness.trajectory import Reply

# Parses the `message` of a choice leniently, as servers and gateways use many formats.
#
# Text is a string or a list of parts; thinking has several field names, or is among the parts, or still in the text
# within the channels of gpt-oss.

_THINKING = re.compile(r"(?:reasoning|thinking|thoughts?)(?:_(?:content|text|details|blocks|summary))?")
"""Names of fields, and types of parts, that hold thinking."""
_TEXT_OF_PART = ("text", "content", "thinking", "reasoning", "summary")
_ACCEPTED_BACK = ("reasoning", "reasoning_content", "thinking")
"""Fields of a message that a server also accepts back."""
_CHANNEL_TOKEN = re.compile(r"<\|(?:channel|message|start|constrain|call|return)\|>")
_SEGMENT = re.compile(
    r"(?:<\|start\|>assistant)?(?P<to_first>(?:\s*to=[^<\s]+)?\s*)<\|channel\|>(?P<channel>\w+)(?P<header>.*?)<\|message\|>(?P<body>.*?)"
    r"(?:<\|end\|>|<\|return\|>|<\|call\|>|(?=<\|start\|>)|\Z)",
    re.DOTALL,
)
_BARE_SEGMENT = re.compile(
    r"(?:\A\s*|assistant)(?P<channel>analysis|final|commentary)(?P<header>(?:\s+to=[\w.]+[ \t]*(?:json|code)?)?)"
)
"""Head of a segment whose control tokens the server has dropped."""
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.-]+)")


class ParsedMessage(NamedTuple):
    """A parsed message."""

    content: str
    reasoning: str | None = None
    reasoning_field: str | None = None
    """Field in which a server accepts the reasoning back; `content` for parts of the content."""
    tool_calls: tuple[Any, ...] = ()
    """Unparsed tool calls."""
    signs: tuple[str, ...] = ()


def parse_message(message: Mapping[str, Any]) -> ParsedMessage | None:
    """Parse a message; None if its content has an unknown format."""
    content = message.get("content")
    if not isinstance(content, str | list | None):
        return None
    calls = message.get("tool_calls")
    calls = tuple(calls) if isinstance(calls, list) else ()
    field, reasoning = next(_separate_thinking(message), (None, ""))
    if isinstance(content, list):
        parts = [part if isinstance(part, dict) else {"text": part} for part in content]
        if not reasoning and (reasoning := "".join(_text(part) for part in parts if _is_thinking(part))):
            field = "content"
        calls += tuple(_as_openai_call(part) for part in parts if part.get("type") in ("tool_use", "tool_call"))
        content = "".join(_text(part) for part in parts if _is_answer(part))
    return ParsedMessage(content or "", reasoning or None, field, calls)


def split_channels(parsed: ParsedMessage) -> ParsedMessage:
    """Split the channels of gpt-oss, if the server has left them in the text.

    Without its control tokens, a text is only split if it begins with analysis and continues in another channel.
    """
    segments = list(_segments(parsed.content) or _bare_segments(parsed.content))
    if not segments:
        marked = _CHANNEL_TOKEN.search(parsed.content) is not None
        return parsed._replace(signs=("channel_tokens",)) if marked else parsed
    found, by_channel = list[Any](), defaultdict[str, list[str]](list)
    for channel, header, body in segments:
        if (recipient := _RECIPIENT.search(header)) is not None:
            found.append({"function": {"name": recipient[1], "arguments": body.strip()}})
        else:
            by_channel[channel].append(body)
    # Commentary without a recipient is a preamble, unless there is nothing else besides the thinking.
    answer = by_channel.pop("final", []) or ([] if found else by_channel.pop("commentary", []))
    thinking = [parsed.reasoning or "", *(body for bodies in by_channel.values() for body in bodies)]
    reasoning = "\n".join(filter(None, thinking)) or None
    calls = parsed.tool_calls or tuple(found)
    return ParsedMessage("".join(answer), reasoning, parsed.reasoning_field, calls, ("channel_tokens",))


def _separate_thinking(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the thinking in fields other than the content, each with the field in which it is sent back."""
    for name in _ACCEPTED_BACK:
        if isinstance(text := message.get(name), str) and text:
            yield name, text
    own = message.get("provider_specific_fields")
    for place in (message, own if isinstance(own, Mapping) else {}):
        for name, value in place.items():
            if _THINKING.fullmatch(name) and (text := _text(value)):
                yield "reasoning_content", text


def _text(value: object, depth: int = 4) -> str:
    """Return the text of a string, of a part, or of a list of both; parts may be nested."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and depth:
        return "".join(_text(each, depth - 1) for each in value)
    if isinstance(value, dict) and depth:
        return next((text for name in _TEXT_OF_PART if (text := _text(value.get(name), depth - 1))), "")
    return ""


def _is_thinking(part: Mapping[str, Any]) -> bool:
    kind = part.get("type")
    return bool(_THINKING.fullmatch(kind)) if isinstance(kind, str) else "text" not in part


def _is_answer(part: Mapping[str, Any]) -> bool:
    return not _is_thinking(part) and isinstance(part.get("text"), str)


def _as_openai_call(part: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a tool call among the parts (Anthropic's format) to OpenAI's format."""
    arguments = part.get("input", part.get("arguments"))
    return {"id": part.get("id"), "function": {"name": part.get("name"), "arguments": arguments}}


def _segments(text: str) -> list[tuple[str, str, str]]:
    """Return channel, header and body of each segment of a text with control tokens; empty for other texts."""
    found, at = list[tuple[str, str, str]](), len(text) - len(text.lstrip())
    while at < len(text):
        segment = _SEGMENT.match(text, at)
        if segment is None:
            return [] if text[at:].strip() else found
        found.append((segment["channel"], segment["to_first"] + segment["header"], segment["body"]))
        at = segment.end()
    return found


def _bare_segments(text: str) -> list[tuple[str, str, str]]:
    """Return the segments of a text whose control tokens were dropped; empty for other texts."""
    heads = list(_BARE_SEGMENT.finditer(text))
    if len(heads) < 2 or heads[0].start() > 0 or heads[0]["channel"] != "analysis":
        return []
    last = next((at for at, head in enumerate(heads) if head["channel"] == "final"), len(heads) - 1)
    heads = heads[: last + 1]  # everything after the final channel's head is its text
    ends = [*(head.start() for head in heads[1:]), len(text)]
    found = [(head["channel"], head["header"], text[head.end() : end]) for head, end in zip(heads, ends, strict=True)]
    calls = [body for _, header, body in found if header.strip()]
    return found if all(map(_is_object, calls)) else []


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


# Classifies finish reasons: whether a reply is complete, cut short, or neither.
#
# Servers use their own terms (`stop`, `STOP`, `FinishReason.MAX_TOKENS`, `maxPredictedTokensReached`), and gateways add
# the server's reason to their own. So a reason is classified by its words, not its spelling: it is understood if all of
# its words are known here and agree, and a reply with any other reason is requested again.

Ending = Literal["whole", "cut", "failed"]
"""`failed` includes unknown reasons: half a command must not be run."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W_]+?")
_WHOLE = re.compile(r"stop(s|ped)?|eo[smtg]|end(ed)?|endoftext|completed?|done|finish(ed)?|tools?|calls?")
"""Words for a reply that the model has ended itself."""
_CUT = re.compile(r"lengths?|max(imum)?|limit(ed)?|truncated|truncation|window|repetitions?|repeat(ed)?")
"""Words for a valid reply that the server has cut short."""
_FILLER = re.compile(
    r"finish|reason|of|by|the|at|on|was|is|hit|found|reached|exceeded|matched|sequences?|strings?|words?|tokens?|text"
    r"|turns?|message|function|use|used|uses|output|input|completion|predicted|generated|generation|new|model|context"
    r"|response|reply|id|im|str|normal|detected"
)
"""Words without a meaning of their own."""
_NATIVE = re.compile(r"(native|original|raw|upstream|provider)_?(finish|stop)_?reason|finish_?reason", re.IGNORECASE)


def classify_finish_reason(reason: object) -> Ending:
    """Classify one finish reason."""
    if isinstance(reason, Mapping):  # SGLang's own form: {"type": "length", "length": 64}
        reason = reason.get("type")
    if not isinstance(reason, str):
        return "failed"
    words = [word.lower() for word in _WORD.findall(reason.rpartition(".")[2])]
    meant = [word for word in words if not _FILLER.fullmatch(word)] or words
    if any(_CUT.fullmatch(word) for word in meant):
        return "cut" if all(map(_CUT.fullmatch, meant)) else "failed"
    return "whole" if meant and all(map(_WHOLE.fullmatch, meant)) else "failed"


def finish_reasons(choice: Mapping[str, object]) -> Iterator[object]:
    """Yield all finish reasons of a choice: its own, then those of the server behind a gateway."""
    yield choice.get("finish_reason")
    message = choice.get("message")
    places = [choice, message if isinstance(message, Mapping) else {}]
    places += [inner for each in places if isinstance(inner := each.get("provider_specific_fields"), Mapping)]
    for place in places:
        for name, reason in place.items():
            is_own = place is choice and name == "finish_reason"
            if _NATIVE.fullmatch(name) and reason not in (None, "") and not is_own:
                yield reason


_SLACK = 16
"""Tokens by which counts may differ from the limit that ended a reply, because of templates and end tokens."""


def check_usage(reply: Reply, data: object, *, max_tokens: int, context_tokens: int | None) -> Reply:
    """Replace implausible counts of a reply by 0, and mark it as cut if the counts show that.

    `data` is the decoded answer. With a parsed tool call, vLLM's finish_reason does not show that max_tokens or the
    context was used up, but the counts do. A text that ends with `stop` may have exactly max_tokens tokens.
    """
    wire = data.get("usage") if isinstance(data, dict) else None
    counts: dict[str, Any] = wire if isinstance(wire, dict) else {}
    prompt, completion, cached = reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.cached_tokens
    numbers = [each for each in counts.values() if isinstance(each, int | float)]
    total = counts.get("total_tokens")
    total = total if isinstance(total, int) and not isinstance(total, bool) else None
    is_wrong = any(each < 0 for each in numbers) or (total is not None and 0 <= total < prompt + completion)
    prompt, completion = max(0, prompt), max(0, completion)
    if cached is not None and not 0 <= cached <= prompt:
        is_wrong, prompt, cached = True, 0, None  # counted without the cached tokens, or nonsense
    if completion > max_tokens:
        is_wrong = True
        completion = completion if completion <= _bytes(reply) else 0
    if context_tokens is not None and prompt + completion > context_tokens + _SLACK:
        is_wrong, prompt = True, 0
    is_dropped = prompt < reply.usage.prompt_tokens or completion < reply.usage.completion_tokens
    filled = prompt + completion if prompt and completion else total or 0
    is_full = context_tokens is not None and context_tokens <= filled <= context_tokens + _SLACK
    return reply.model_copy(
        update={
            "cut": reply.cut or is_full or (completion == max_tokens and not _is_ended_text(reply)),
            "usage": reply.usage.model_copy(
                update={
                    "prompt_tokens": prompt,
                    "completion_tokens": completion,
                    "cached_tokens": cached,
                    "uncounted": 1 if is_dropped else reply.usage.uncounted,
                }
            ),
            "signs": (*reply.signs, IMPOSSIBLE_USAGE) if is_wrong else reply.signs,
        }
    )


def is_empty(reply: Reply) -> bool:
    """Whether a reply was cut before its first token, because the prompt alone fills the context."""
    speaks = reply.content.strip() or reply.reasoning or reply.tool_calls
    return reply.cut and not speaks and reply.usage.completion_tokens == 0


def _is_ended_text(reply: Reply) -> bool:
    """Whether the model ended its text itself, and there is no tool call that could hide another reason."""
    names_a_call = re.search("tool|call|function", reply.finish_reason or "", re.IGNORECASE)
    return bool(reply.content.strip()) and not reply.tool_calls and not names_a_call


def _bytes(reply: Reply) -> int:
    parsed = (reply.content, reply.reasoning or "", *(f"{call.name}{call.arguments}" for call in reply.tool_calls))
    return sum(len(each.encode("utf-8", "replace")) for each in parsed)
