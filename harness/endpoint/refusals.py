"""Classifies servers' refusals: the reason for an answer other than 2xx, and the limits that it states.

Every server words the refusal of a long prompt differently. The classification uses what they have in common: the
quantity that is too large, the numbers, and whether these match the request.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from harness.endpoint.answers import quote, server_message
from harness.endpoint.quantities import (
    ADVICE,
    BREAK,
    CLEARLY_SIZE,
    CONTEXT,
    IN,
    LATER,
    NAMES_LENGTH,
    NO_NUMBER,
    OUT,
    RATE,
    TEMPORARY,
    TOKENS,
    UNPAID,
    Quantity,
    clauses,
    leaves_no_tokens,
    mentions_bytes,
    mentions_others,
    mentions_reply,
    mentions_tokens,
    read_numbers,
    read_values,
)

LARGE_BODY_BYTES = 100_000
"""Size above which a body was probably refused for its size, unless the server says otherwise."""
BODY_REMEDY = (
    "something on the way to the model limits the size of requests: raise the limit there (nginx: "
    "client_max_body_size; others: their limit of the request body), or keep histories shorter with --on-overflow"
)


class Reason(Enum):
    """Reason for a refusal."""

    PROMPT = "the prompt is too long for the model's context"
    REPLY = "max_tokens is larger than a reply may be"
    BOTH = "prompt and max_tokens together are too long for the model's context"
    BODY = "the request is larger than something on the way accepts"
    RATE = "a limit of requests or tokens per time is reached"
    TROUBLE = "the server cannot answer now"
    OTHER = "something else"


@dataclass(frozen=True)
class Refusal:
    """A classified refusal. Numbers that it does not state are None."""

    reason: Reason
    words: str
    """The server's message, on one line."""
    context_tokens: int | None = None
    """Maximum number of tokens of prompt and reply together."""
    prompt_tokens: int | None = None
    """The prompt's length."""
    most_tokens: int | None = None
    """Largest max_tokens that is accepted."""
    is_sure: bool = True
    """Whether the answer states the reason; otherwise its numbers, or the size of the request, suggest it."""

    @property
    def is_proven(self) -> bool:
        """Whether the refusal's numbers show that the prompt is too long."""
        prompt, context = self.prompt_tokens, self.context_tokens
        return self.is_sure and prompt is not None and context is not None and prompt >= context


_NO_REFUSAL_OF_SIZE = {401, 402, 403, 404, 405, 406, 407, 410, 414, 415, 431, 451}
"""Statuses that are never about a prompt's size, but about the client's identity, the address or the headers."""
_BYTES_PER_TOKEN = 16
"""Maximum number of bytes per token of a whole request, on average; the least is one."""
LEAST_LENGTH = 256
"""Minimum number of tokens of a context."""
_RUN = 4
"""Number of consecutive words that two texts do not share by chance."""
_WORD = re.compile(r"\w+")
_NAME = re.compile(r"[\w.:/-]{1,80}")
"""A field's value that is a name, such as a code, rather than text."""
_ESCAPE = re.compile(r"\\[nrt\"'\\]")
_LONGEST = 8000
"""Maximum number of characters read of a text: some servers append the whole prompt to their message."""
_LENGTH = re.compile(r"\b(?:input|prompt|context|sequence)[ _]length\b")
_TROUBLE = {408, 409, 425, 429}
_RATE = {400, 413, 422, 503, 529}
"""Statuses other than 429 that report a limit of requests or tokens per time."""


def classify_refusal(
    status: int,
    body: object,
    *,
    sent: bytes = b"",
    sent_bytes: int | None = None,
    max_tokens: int | None = None,
) -> Refusal:
    """Classify an answer other than 2xx, or a 200 with an error in its body.

    `body` is decoded JSON, or text. Quotes from the body that was `sent` are not the server's own statement.
    `sent_bytes` is for a request of which only the size is known.
    """
    sent_bytes = len(sent) if sent_bytes is None else sent_bytes
    words = _message_of(body)
    text = re.sub(rf"\b{status}\b(?! (?:tok|input|output))", " ", NO_NUMBER.sub(" ", _all_text(body, words)))
    refusal = Refusal(Reason.OTHER, words)
    found = _size(text, max_tokens)
    # Comparing with the request is slow, so it is skipped for temporary trouble, which may be frequent.
    is_rate = status == 429 and (found is None or _is_about_usage(text, status))
    is_passing = is_rate or (status >= 500 and found is None and not mentions_bytes(text))
    own = text if is_passing else _without_quotes(text, sent.decode())
    if own != text and not (found is not None and _contains_number(own, found)):
        text, found = own, _size(own, max_tokens)
    about_size = status not in _NO_REFUSAL_OF_SIZE and not _is_about_usage(text, status)
    found = found if about_size else None
    if found is not None and (status < 500 or _is_clear(found, text)):
        return _include_reply(replace(found, words=words), text, sent_bytes, max_tokens)
    if status == 429 or (RATE.search(text) and status in _RATE):
        return replace(refusal, reason=Reason.RATE)
    if status == 413 or (about_size and not (status >= 500 and TEMPORARY.search(text)) and mentions_bytes(text)):
        return replace(refusal, reason=Reason.BODY)
    if status in _TROUBLE or status >= 500 or status == 200:
        return replace(refusal, reason=Reason.TROUBLE)
    if about_size and (hint := _guess(text, sent_bytes, max_tokens)) is not None:
        return replace(hint, words=words)
    return replace(refusal, is_sure=not (about_size and sent_bytes > LARGE_BODY_BYTES))


def _without_quotes(text: str, sent: str) -> str:
    """Remove quotes of the request from a text; unchanged if hardly anything else is left."""
    words = list(_WORD.finditer(text))
    own = list(_runs([each[0] for each in words]))
    quoted = set(own).intersection(_runs(_WORD.findall(_ESCAPE.sub(" ", sent.lower()))))
    dropped = {at + offset for at, run in enumerate(own) if run in quoted for offset in range(_RUN)}
    left = [each for at, each in enumerate(words) if at not in dropped]
    if sum(not each[0].isdecimal() for each in left) < _RUN:
        return text
    pieces, end = list[str](), 0
    for at, word in enumerate(words):
        pieces.append("" if at in dropped else text[end : word.end()])
        end = word.end()
    return "".join(pieces) + text[end:]


def _runs(words: list[str]) -> Iterator[tuple[str, ...]]:
    return zip(*(words[at:] for at in range(_RUN)), strict=False)


def _contains_number(text: str, found: Refusal) -> bool:
    """Whether a text contains a number of the refusal."""
    numbers = {each.value for each in read_numbers(text, None) if each.value >= LEAST_LENGTH}
    return not numbers.isdisjoint({found.context_tokens, found.prompt_tokens, found.most_tokens})


def _is_about_usage(text: str, status: int) -> bool:
    """Whether a refusal is about usage or billing rather than this request."""
    is_busy = status in _TROUBLE | {503, 529} and LATER.search(text)
    return bool(is_busy or RATE.search(text) or UNPAID.search(text))


def _message_of(body: object) -> str:
    """Return the server's message on one line, without a page's markup."""
    words = server_message(body)[:_LONGEST] if body else ""
    if re.match(r"\s*<(?:!doctype|html)", words, re.IGNORECASE):
        words = re.sub(r"<(style|script)\b.*?</\1>|</?[a-z!][^>]*>", " ", words, flags=re.DOTALL | re.IGNORECASE)
    return quote(words)


def _all_text(body: object, words: str) -> str:
    """Return all text of a body in lower case, with separators around the fields next to a message."""
    text = BREAK.join(_texts(body)) if isinstance(body, dict | list) else words
    text = re.sub(r"(?<=\d)[\u00a0\u202f'’](?=\d{3}\b)", ",", text)
    text = re.sub(r"\d{16,}", " ", text)  # no length has so many digits
    return re.sub(r"[`\"'\\*]|</?[a-zA-Z!][^>]{0,200}>", "", re.sub(r"\\[nrt]", " ", text)).lower()


def _texts(body: object) -> Iterator[str]:
    if isinstance(body, list):
        for each in body:
            yield from _texts(each)
    elif isinstance(body, dict):
        body = {key: value for key, value in body.items() if key != "input" or isinstance(value, int)}  # of pydantic
        # The subject of a message goes before it, as in a sentence.
        about = " ".join(
            each
            for each in _scalars(body.get("param"), body.get("loc"), body.get("path"))
            if not each.isdecimal() and each != "body"
        )
        first = " ".join(_scalars(body.get("message"), body.get("msg"), body.get("detail"), body.get("error")))
        # A text next to the message may have been generated by the model.
        rest = (
            each
            for key, value in body.items()
            if not (first and isinstance(value, str)) or _NAME.fullmatch(value)
            for each in _field_text(key, value)
        )
        yield BREAK.join(filter(None, (f"{about} {first}".strip(), *rest)))
        for key, value in body.items():
            if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(each, dict) for each in value)):
                yield from _texts(value)
            elif isinstance(value, list) and key not in {"loc", "path"}:
                yield from (f"{key} {each}" for each in _scalars(value))
    elif isinstance(body, str):
        yield _decoded(body)


def _scalars(*values: Any) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield _decoded(value)
        elif isinstance(value, list):
            yield from (str(each) for each in value if isinstance(each, str))


def _field_text(key: str, value: Any) -> Iterator[str]:
    """Yield the text of a field next to the message."""
    if key in {"message", "msg", "detail", "error", "param", "loc", "url", "code", "status", "created"}:
        if key in {"code", "status"} and isinstance(value, str) and not value.isdecimal():
            yield value
    elif isinstance(value, int) and not isinstance(value, bool):
        yield f"{'got' if key == 'input' else key}: {value}"
    elif isinstance(value, str):
        yield f"{'' if key == 'type' else key} {_decoded(value)}"
    elif isinstance(value, dict) and key == "ctx":  # of pydantic
        yield from (f"{name}: {each}" for name, each in value.items() if isinstance(each, int))


def _decoded(text: str) -> str:
    """Return a text, with the texts of a JSON document in it, as gateways embed errors."""
    text = text[:_LONGEST]
    start = text.find("{")
    try:
        inner, _ = json.JSONDecoder().raw_decode(text, start) if start >= 0 else (None, 0)
    except (ValueError, RecursionError):
        inner = None
    if isinstance(inner, dict):
        return f"{text[:start]}{BREAK}{BREAK.join(_texts(inner))}"
    return re.sub(r"[\"'](?:message|msg|error|detail|type|param|code)[\"']\s*:", BREAK, text)


def _is_clear(found: Refusal, text: str) -> bool:
    """Whether the text of a 5xx, which usually is temporary trouble, clearly says that something is too long."""
    is_counted = found.most_tokens is not None or (found.context_tokens is not None and found.prompt_tokens is not None)
    return (is_counted or CLEARLY_SIZE.search(text) is not None) and TEMPORARY.search(text) is None


def _size(text: str, max_tokens: int | None) -> Refusal | None:
    """Return which length is too large for the model, according to a refusal's text; None if none is."""
    numbers = read_numbers(text, max_tokens)
    about_length = [each for each in clauses(text) if mentions_tokens(each, max_tokens)]
    if not about_length:
        prompt, context = _first(numbers, "in"), _first(numbers, "context")
        is_longer = prompt is not None and context is not None and prompt > context and TOKENS.search(text)
        return Refusal(Reason.PROMPT, "", context, prompt) if is_longer else None
    complaint = BREAK.join([each for each in about_length if not ADVICE.search(each)] or about_length)
    if any(leaves_no_tokens(each, max_tokens) for each in about_length):
        return Refusal(Reason.PROMPT, "", _first(numbers, "context"), _first(numbers, "in"))
    found = _by_numbers(complaint, numbers, max_tokens)
    if found is not None:
        return found
    # Advice to shorten either of them means both.
    advice = [each for each in clauses(text) if ADVICE.search(each)]
    out = any(mentions_reply(each, max_tokens) for each in (*clauses(complaint), *advice))
    if out and not (IN.search(complaint) or CONTEXT.search(complaint)):
        return Refusal(Reason.REPLY, "")
    in_tokens = TOKENS.search(complaint) is not None or _LENGTH.search(complaint) is not None
    context = _first([each for each in numbers if each.value != max_tokens], "context") if in_tokens else None
    is_sure = NAMES_LENGTH.search(complaint) is not None
    return Refusal(Reason.BOTH if out else Reason.PROMPT, "", context_tokens=context, is_sure=is_sure)


def _guess(text: str, sent_bytes: int, max_tokens: int | None) -> Refusal | None:
    """Guess the reason from the numbers of an answer in any language; it has to be confirmed by a test."""
    if max_tokens is None or mentions_others(text):
        return None
    if (found := _explain_by_sum(read_numbers(text, max_tokens), max_tokens)) is not None:
        return replace(found, is_sure=False)
    values = read_values(text)
    is_asked = max_tokens in values or OUT.search(text) is not None
    others = [each for each in values if each != max_tokens]
    may_be_prompt = [each for each in others if sent_bytes / _BYTES_PER_TOKEN <= each <= sent_bytes]
    together = [(most, each) for each in may_be_prompt for most in others if each < most < each + max_tokens]
    if is_asked and together:
        context, prompt = max(together)
        return Refusal(Reason.BOTH, "", context, prompt, is_sure=False)
    alone = [(most, each) for each in may_be_prompt for most in others if LEAST_LENGTH <= most < each]
    alone += [(each, each) for each in may_be_prompt if values.count(each) > 1]
    if alone:
        context, prompt = min(alone)
        return Refusal(Reason.PROMPT, "", context, prompt, is_sure=False)
    smaller = [each for each in values if 16 <= each < max_tokens]
    return Refusal(Reason.REPLY, "", most_tokens=max(smaller), is_sure=False) if is_asked and smaller else None


def _first(numbers: list[Quantity], *roles: str) -> int | None:
    return next((each.value for role in roles for each in numbers if each.role == role), None)


def _by_numbers(complaint: str, numbers: list[Quantity], max_tokens: int | None) -> Refusal | None:
    """Return which length does not fit, according to the numbers; None if they do not show it."""
    if max_tokens is not None and (found := _explain_by_sum(numbers, max_tokens)) is not None:
        return found
    asked = _first(numbers, "out") or max_tokens
    about_reply = any(mentions_reply(each, max_tokens) for each in clauses(complaint))
    about_prompt = bool(IN.search(complaint)) or any(each.role in {"in", "least", "total"} for each in numbers)
    least = {each.value for each in numbers if each.role == "least"}
    stated = [each.value for each in numbers if each.role in {"context", "limit"}]
    # The rest of a context after max_tokens is not a context.
    stated = [each for each in stated if asked is None or (each + asked not in stated and each != max_tokens)] or stated
    context = min(stated, default=None) if about_prompt or not about_reply else _first(numbers, "context")
    prompt = next((each.value for each in numbers if each.role == "in" and each.value not in least), None)
    values = {each.value for each in numbers}
    if context is not None and prompt is not None and context + prompt in values:
        context += prompt  # it was the room left
    if context is not None and prompt is None and asked in values:
        context = max(stated)
    if prompt is None and context is not None and not about_reply and max(stated) > context:
        prompt = max(stated)  # in "the context: 9000 tokens, limit 8192" both numbers refer to the context
    total = _first(numbers, "total")
    named = {each.value for each in numbers if each.role}
    unknown = next((each.value for each in numbers if not each.role and each.value not in named), None)
    if total is not None and asked is not None and _first(numbers, "out") is not None:
        # A prompt may be stated in parts; if it exceeds the rest of the total, it is complete.
        prompt = total - asked if total - asked > (prompt or 0) else prompt
    elif (given := total or unknown) is not None and prompt is None and context is not None and given > context:
        with_reply = asked is not None and (about_reply or total is not None) and 0 < given - asked < context
        prompt = given - asked if with_reply and asked is not None else given
    if context is not None and (prompt is not None or least):
        is_prompt = (prompt or max(least, default=0)) >= context
        return Refusal(Reason.PROMPT if is_prompt else Reason.BOTH, "", context, prompt)
    limits = [each.value for each in numbers if each.role in {"limit", "context"} and each.value < (asked or 0)]
    if about_reply and limits and (context is None or context < (asked or 0)):
        return Refusal(Reason.REPLY, "", context_tokens=_first(numbers, "context"), most_tokens=min(limits))
    return None


def _explain_by_sum(numbers: list[Quantity], asked: int) -> Refusal | None:
    """Return which length does not fit, if a number is the sum of another one and max_tokens; else None."""
    for total in sorted(numbers, reverse=True):
        prompt = total.value - asked
        is_bound = total.role == "bound" or Quantity(prompt, "least") in numbers
        rest = Counter(each.value for each in numbers)
        rest.subtract([asked, total.value] if is_bound and prompt not in rest else [asked, total.value, prompt])
        if prompt <= 0 or prompt == asked or min(rest.values()) < 0:  # twice as much is usually chance
            continue
        given = next((each.value for each in numbers if each.role == "in" and each.value != prompt), None)
        if total.role == "context" and given is not None:
            # The context less max_tokens is the room for a prompt.
            return Refusal(Reason.BOTH if given < total.value else Reason.PROMPT, "", total.value, given)
        others = [each for each in numbers if rest[each.value] and each.value < total.value]
        if (limit := _first(others, "context", "limit", "", "out")) is not None:
            reason = Reason.BOTH if prompt < limit else Reason.PROMPT
            return Refusal(reason, "", limit, None if is_bound else prompt)
    return None


def _include_reply(refusal: Refusal, text: str, sent_bytes: int, max_tokens: int | None) -> Refusal:
    """Treat the refusal of a prompt as a refusal of prompt and max_tokens, if possible, so that less is requested."""
    prompt, asked = refusal.prompt_tokens or 0, max_tokens or 0
    if refusal.reason is not Reason.PROMPT or not asked:
        return refusal
    if prompt > sent_bytes >= prompt - asked > 0:
        # A token has at least one byte, so the number includes max_tokens.
        return replace(refusal, reason=Reason.BOTH, prompt_tokens=prompt - asked)
    knows = refusal.context_tokens is not None or refusal.prompt_tokens is not None
    if (not knows and 0 < sent_bytes < asked) or (not refusal.is_proven and asked in read_values(text)):
        return replace(refusal, reason=Reason.BOTH)
    return refusal
