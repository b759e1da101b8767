"""Judges the refusals of servers: what an answer that is no 2xx is about, and the limits that it tells.

Every server has words of its own for a prompt that is too long. What is judged here is what they have in common: which
quantity is said to be too large, the numbers, and whether these fit what was sent.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from harness.endpoint.answers import quote, server_words
from harness.endpoint.quantities import (
    ADVICE,
    BREAK,
    CONTEXT,
    IN,
    LATER,
    NO_NUMBER,
    OUT,
    PASSING,
    PLAIN,
    PLAINLY,
    RATE,
    TOKENS,
    UNPAID,
    Measured,
    clauses,
    leaves_nothing,
    numbers_of,
    speaks_of_bytes,
    speaks_of_others,
    speaks_of_reply,
    speaks_of_tokens,
    values_of,
)

LARGE_BODY_BYTES = 100_000
"""A refused body above this is probably refused for its size, where the server's words say nothing else."""
BODY_REMEDY = (
    "something on the way to the model limits the size of requests: raise it there (nginx: client_max_body_size; "
    "others: their limit of the request body), or keep histories shorter with --on-overflow"
)


class Reason(Enum):
    """What a refusal is about."""

    PROMPT = "the prompt is too long for the model's context"
    REPLY = "max_tokens is larger than a reply may be"
    BOTH = "prompt and max_tokens together are too long for the model's context"
    BODY = "the request is larger than what something on the way takes"
    RATE = "a limit of requests or tokens per time is reached"
    TROUBLE = "the server cannot answer now"
    OTHER = "something else"


@dataclass(frozen=True)
class Refusal:
    """A refusal, judged. Numbers are None where it does not tell them."""

    reason: Reason
    words: str
    """The server's own, on one line."""
    context_tokens: int | None = None
    """Most tokens of prompt and reply together."""
    prompt_tokens: int | None = None
    """The prompt's length."""
    most_tokens: int | None = None
    """Largest max_tokens that is taken."""
    is_sure: bool = True
    """Whether the answer says so; else it is what its numbers, or the size of the request, suggest."""

    @property
    def is_proven(self) -> bool:
        """Whether its own numbers show that the prompt is too long."""
        prompt, context = self.prompt_tokens, self.context_tokens
        return self.is_sure and prompt is not None and context is not None and prompt >= context


_NO_REFUSAL_OF_SIZE = {401, 402, 403, 404, 405, 406, 407, 410, 414, 415, 431, 451}
"""Statuses that are about who asks and where."""
_BYTES_PER_TOKEN = 16
"""Most bytes that a token of a whole request has on the average; at least it has one."""
LEAST_LENGTH = 256
"""Tokens below which nothing is a context."""
_RUN = 4
"""Words in a row that two texts do not share by chance."""
_WORD = re.compile(r"\w+")
_NAME = re.compile(r"[\w.:/-]{1,80}")
"""A field's value that is a name, such as a code, and no text."""
_ESCAPE = re.compile(r"\\[nrt\"'\\]")
_LONGEST = 8000
"""Characters of a text that are read: some servers quote the whole prompt behind their words."""
_LENGTH = re.compile(r"\b(?:input|prompt|context|sequence)[ _]length\b")
_TROUBLE = {408, 409, 425, 429}
_RATE = {400, 413, 422, 503, 529}
"""Statuses with which a limit of requests or tokens per time is told beside 429."""


def judge(
    status: int,
    body: object,
    *,
    sent: bytes = b"",
    sent_bytes: int | None = None,
    max_tokens: int | None = None,
) -> Refusal:
    """What an answer that is no 2xx is about; a 200 with an error in its body is judged by that.

    `body` is decoded JSON, or text. What it quotes of the body that was `sent` is not the server's own
    statement. `sent_bytes` is for a request of which only the size is known.
    """
    sent_bytes = len(sent) if sent_bytes is None else sent_bytes
    words = _plain(body)
    text = re.sub(rf"\b{status}\b(?! (?:tok|input|output))", " ", NO_NUMBER.sub(" ", _flat(body, words)))
    refusal = Refusal(Reason.OTHER, words)
    found = _size(text, max_tokens)
    # Looking through the request takes long: not for trouble that passes, of which there may be much.
    is_rate = status == 429 and (found is None or _is_about_use(text, status))
    is_passing = is_rate or (status >= 500 and found is None and not speaks_of_bytes(text))
    own = text if is_passing else _without_quotes(text, sent.decode())
    if own != text and not (found is not None and _tells(own, found)):
        text, found = own, _size(own, max_tokens)
    about_size = status not in _NO_REFUSAL_OF_SIZE and not _is_about_use(text, status)
    found = found if about_size else None
    if found is not None and (status < 500 or _is_plain(found, text)):
        return _doubted(replace(found, words=words), text, sent_bytes, max_tokens)
    if status == 429 or (RATE.search(text) and status in _RATE):
        return replace(refusal, reason=Reason.RATE)
    if status == 413 or (about_size and not (status >= 500 and PASSING.search(text)) and speaks_of_bytes(text)):
        return replace(refusal, reason=Reason.BODY)
    if status in _TROUBLE or status >= 500 or status == 200:
        return replace(refusal, reason=Reason.TROUBLE)
    if about_size and (hint := _hinted(text, sent_bytes, max_tokens)) is not None:
        return replace(hint, words=words)
    return replace(refusal, is_sure=not (about_size and sent_bytes > LARGE_BODY_BYTES))


def _without_quotes(text: str, sent: str) -> str:
    """A text without what it quotes of the request; the whole where next to nothing else is left of it."""
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


def _tells(text: str, found: Refusal) -> bool:
    """Whether a number of the refusal stands in a text."""
    numbers = {each.value for each in numbers_of(text, None) if each.value >= LEAST_LENGTH}
    return not numbers.isdisjoint({found.context_tokens, found.prompt_tokens, found.most_tokens})


def _is_about_use(text: str, status: int) -> bool:
    """Whether a refusal is about how much is used, or paid, rather than about this request."""
    is_busy = status in _TROUBLE | {503, 529} and LATER.search(text)
    return bool(is_busy or RATE.search(text) or UNPAID.search(text))


def _plain(body: object) -> str:
    """The server's words on one line, those of a page without its markup."""
    words = server_words(body)[:_LONGEST] if body else ""
    if re.match(r"\s*<(?:!doctype|html)", words, re.IGNORECASE):
        words = re.sub(r"<(style|script)\b.*?</\1>|</?[a-z!][^>]*>", " ", words, flags=re.DOTALL | re.IGNORECASE)
    return quote(words)


def _flat(body: object, words: str) -> str:
    """All that a body says, in lower case; what stands beside a message is split off by semicolons."""
    text = BREAK.join(_said(body)) if isinstance(body, dict | list) else words
    text = re.sub(r"(?<=\d)[\u00a0\u202f'’](?=\d{3}\b)", ",", text)
    text = re.sub(r"\d{16,}", " ", text)  # no length has so many digits
    return re.sub(r"[`\"'\\*]|</?[a-zA-Z!][^>]{0,200}>", "", re.sub(r"\\[nrt]", " ", text)).lower()


def _said(body: object) -> Iterator[str]:
    if isinstance(body, list):
        for each in body:
            yield from _said(each)
    elif isinstance(body, dict):
        body = {key: value for key, value in body.items() if key != "input" or isinstance(value, int)}  # of pydantic
        # What a message is about stands before it, as in a sentence.
        about = " ".join(
            each
            for each in _scalars(body.get("param"), body.get("loc"), body.get("path"))
            if not each.isdecimal() and each != "body"
        )
        first = " ".join(_scalars(body.get("message"), body.get("msg"), body.get("detail"), body.get("error")))
        # A text beside the message may be what the model has generated.
        rest = (
            each
            for key, value in body.items()
            if not (first and isinstance(value, str)) or _NAME.fullmatch(value)
            for each in _beside(key, value)
        )
        yield BREAK.join(filter(None, (f"{about} {first}".strip(), *rest)))
        for key, value in body.items():
            if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(each, dict) for each in value)):
                yield from _said(value)
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


def _beside(key: str, value: Any) -> Iterator[str]:
    """What a field beside the message says."""
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
    """A text, and that of a whole JSON document in it, as gateways pass errors on."""
    text = text[:_LONGEST]
    start = text.find("{")
    try:
        inner, _ = json.JSONDecoder().raw_decode(text, start) if start >= 0 else (None, 0)
    except (ValueError, RecursionError):
        inner = None
    if isinstance(inner, dict):
        return f"{text[:start]}{BREAK}{BREAK.join(_said(inner))}"
    return re.sub(r"[\"'](?:message|msg|error|detail|type|param|code)[\"']\s*:", BREAK, text)


def _is_plain(found: Refusal, text: str) -> bool:
    """Whether the words of a 5xx, which mostly is trouble that passes, say without doubt that something is too long."""
    is_counted = found.most_tokens is not None or (found.context_tokens is not None and found.prompt_tokens is not None)
    return (is_counted or PLAIN.search(text) is not None) and PASSING.search(text) is None


def _size(text: str, max_tokens: int | None) -> Refusal | None:
    """What is too long for the model in the words of a refusal; None where it speaks of something else."""
    numbers = numbers_of(text, max_tokens)
    said = [each for each in clauses(text) if speaks_of_tokens(each, max_tokens)]
    if not said:
        prompt, context = _first(numbers, "in"), _first(numbers, "context")
        is_longer = prompt is not None and context is not None and prompt > context and TOKENS.search(text)
        return Refusal(Reason.PROMPT, "", context, prompt) if is_longer else None
    complaint = BREAK.join([each for each in said if not ADVICE.search(each)] or said)
    if any(leaves_nothing(each, max_tokens) for each in said):
        return Refusal(Reason.PROMPT, "", _first(numbers, "context"), _first(numbers, "in"))
    found = _by_numbers(complaint, numbers, max_tokens)
    if found is not None:
        return found
    # Advice to shorten either means both.
    advice = [each for each in clauses(text) if ADVICE.search(each)]
    out = any(speaks_of_reply(each, max_tokens) for each in (*clauses(complaint), *advice))
    if out and not (IN.search(complaint) or CONTEXT.search(complaint)):
        return Refusal(Reason.REPLY, "")
    in_tokens = TOKENS.search(complaint) is not None or _LENGTH.search(complaint) is not None
    context = _first([each for each in numbers if each.value != max_tokens], "context") if in_tokens else None
    is_sure = PLAINLY.search(complaint) is not None
    return Refusal(Reason.BOTH if out else Reason.PROMPT, "", context_tokens=context, is_sure=is_sure)


def _hinted(text: str, sent_bytes: int, max_tokens: int | None) -> Refusal | None:
    """What the numbers of an answer suggest whose words say nothing, in whatever language: it has to be tried."""
    if max_tokens is None or speaks_of_others(text):
        return None
    if (found := _sums(numbers_of(text, max_tokens), max_tokens)) is not None:
        return replace(found, is_sure=False)
    values = values_of(text)
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


def _first(numbers: list[Measured], *roles: str) -> int | None:
    return next((each.value for role in roles for each in numbers if each.role == role), None)


def _by_numbers(complaint: str, numbers: list[Measured], max_tokens: int | None) -> Refusal | None:
    """What does not fit by the numbers; None where they do not say."""
    if max_tokens is not None and (found := _sums(numbers, max_tokens)) is not None:
        return found
    asked = _first(numbers, "out") or max_tokens
    about_reply = any(speaks_of_reply(each, max_tokens) for each in clauses(complaint))
    about_prompt = bool(IN.search(complaint)) or any(each.role in {"in", "least", "total"} for each in numbers)
    least = {each.value for each in numbers if each.role == "least"}
    told = [each.value for each in numbers if each.role in {"context", "limit"}]
    # What a context leaves beside max_tokens is no context.
    told = [each for each in told if asked is None or (each + asked not in told and each != max_tokens)] or told
    context = min(told, default=None) if about_prompt or not about_reply else _first(numbers, "context")
    prompt = next((each.value for each in numbers if each.role == "in" and each.value not in least), None)
    values = {each.value for each in numbers}
    if context is not None and prompt is not None and context + prompt in values:
        context += prompt  # what is said to be left
    if context is not None and prompt is None and asked in values:
        context = max(told)
    if prompt is None and context is not None and not about_reply and max(told) > context:
        prompt = max(told)  # in "the context: 9000 tokens, limit 8192" both are said of the context
    total = _first(numbers, "total")
    named = {each.value for each in numbers if each.role}
    unknown = next((each.value for each in numbers if not each.role and each.value not in named), None)
    if total is not None and asked is not None and _first(numbers, "out") is not None:
        # A prompt may be told in parts; one that is more than the rest of the total is told whole.
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


def _sums(numbers: list[Measured], asked: int) -> Refusal | None:
    """What does not fit where a number is the sum of another and of max_tokens, whatever the words; else None."""
    for total in sorted(numbers, reverse=True):
        prompt = total.value - asked
        is_bound = total.role == "bound" or Measured(prompt, "least") in numbers
        rest = Counter(each.value for each in numbers)
        rest.subtract([asked, total.value] if is_bound and prompt not in rest else [asked, total.value, prompt])
        if prompt <= 0 or prompt == asked or min(rest.values()) < 0:  # twice as much is mostly chance
            continue
        given = next((each.value for each in numbers if each.role == "in" and each.value != prompt), None)
        if total.role == "context" and given is not None:
            # The context less max_tokens is what is left for a prompt.
            return Refusal(Reason.BOTH if given < total.value else Reason.PROMPT, "", total.value, given)
        others = [each for each in numbers if rest[each.value] and each.value < total.value]
        if (limit := _first(others, "context", "limit", "", "out")) is not None:
            reason = Reason.BOTH if prompt < limit else Reason.PROMPT
            return Refusal(reason, "", limit, None if is_bound else prompt)
    return None


def _doubted(refusal: Refusal, text: str, sent_bytes: int, max_tokens: int | None) -> Refusal:
    """A refusal of a prompt as one of prompt and max_tokens, where it may be that: it is asked for again with less."""
    prompt, asked = refusal.prompt_tokens or 0, max_tokens or 0
    if refusal.reason is not Reason.PROMPT or not asked:
        return refusal
    if prompt > sent_bytes >= prompt - asked > 0:
        # A token has at least a byte: max_tokens is counted, too.
        return replace(refusal, reason=Reason.BOTH, prompt_tokens=prompt - asked)
    knows = refusal.context_tokens is not None or refusal.prompt_tokens is not None
    if (not knows and 0 < sent_bytes < asked) or (not refusal.is_proven and asked in values_of(text)):
        return replace(refusal, reason=Reason.BOTH)
    return refusal
