"""Judges the refusals of servers: what an answer that is no 2xx is about, and the limits that it tells.

Every server has words of its own for a prompt that is too long. What is judged here is what they have in common: which
quantity is said to be too large, the numbers, and whether these fit what was sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from harness.endpoint.answers import quote, server_words

LARGE_BODY_BYTES = 100_000
"""A refused body above this is probably refused for its size, where the server's words say nothing else."""
BODY_REMEDY = (
    "something on the way to the model limits the size of requests: raise it there "
    "(nginx: client_max_body_size; others: their limit of the request body), or keep histories shorter with --on-overflow"
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
    """Whether the answer says so; else it is what the size of the request suggests."""


class _Number(NamedTuple):
    value: int
    role: str
    """What it measures by the words around it: limit, context, in, out, total, least (a lower bound), or nothing."""


_NO_REFUSAL_OF_SIZE = {401, 402, 403, 404, 405, 406, 407, 410, 414, 415, 431, 451}
"""Statuses that are about who asks and where."""
_TROUBLE = {408, 409, 425, 429}
_BREAK = "\n"
"""What stands between the texts of a body."""
_TOKENS = r"tok(?:en)?s?"
_OUT = re.compile(
    rf"(?:\b|_)max(?:imum)?[_ -]?(?:completion|new|output|gen\w*|response)?[_ -]?{_TOKENS}(?![a-z_])|\bn(?:um)?_predict\b"
    rf"|\b(?:output|completion|new|generated|response)(?: length|_?{_TOKENS}| {_TOKENS})\b"
    r"|\bmax_(?:gen|output)_len\w*|\bin the (?:completion|output)\b|\bfor the completion\b|\bcompletion\b"
)
_IN = re.compile(
    r"\b(?:prompts?|inputs?(?! (?:validation|should|tag|data))|messages?|conversation|history|sequence|n_keep)\b"
    r"|(?:\b|_)(?:prompt|input)_\w+"
    r"|输入|提示"
)
_CONTEXT = re.compile(
    r"\bcontext\b(?! deadline| cancel)|(?:\b|_)context_?(?:length|window|size|len)\w*|\bn_ctx\w*|\bnum_ctx\b"
    r"|\bmax_(?:model|seq|sequence|total|input|num|position)\w*|\bsequence length\b|\bkv[ _-]?cache\b"
    r"|\btotal_?(?:length|tokens)\b|上下文"
)
_TOO_MUCH = re.compile(
    r"\btoo[ ._](?:long|large|big|many|high)\b|_too_(?:long|large)|\bexceed\w*|_exceed\w*|exceeded|\b(?:longer|larger|greater|more|bigger|higher) "
    r"than\b|\boverflow\w*|\boversize\w*|\bsurpass\w*|\bbeyond\b|\babove\b|\bover the\b|[>≤]|<=|\bat most\b|\bup to\b"
    r"|\bless than\b|\bfewer than\b|\bsmaller than\b|\blower than\b|\bno more than\b|\blimit\w*|\bmaximum\b|\bmax\b"
    r"|\brange\b|\bbetween\b|\bmost\b|\bcapped\b|\bnot enough\b|\binsufficient\b|\b(?:not|n't|cannot) (?:fit|hold)\b|\boutside\b"
    r"|\bless_than\w*|\bran? out of\b|\bout of\b|\bfull\b|\bmax_?length\b|\bonly \d"
    r"|超|过长|过大|最大"
)
_TOO_LONG = re.compile(r"\btoo (?:long|large|big)\b|\b(?:max)?length\b|\bsize\b|\bexceed\w*|超长|过长")
_INVALID = re.compile(r"\binvalid\b|\billegal\b|\bnot valid\b|非法")
_ADVICE = re.compile(r"\b(?:reduce|shorten|decrease|lower|fewer|shorter) ")
_PLAIN = re.compile(
    r"exceed|\btoo \w+|\b(?:longer|larger|greater|more) than\b|overflow|>|\bless than\b|\bat least 1\b|超"
)
_PASSING = re.compile(
    r"\bmemory\b|\boom\b|\bcuda\b|\bqueue|\bbusy\b|overload|\btimed? ?out\b|\bdeadline\b|\bunavailable\b"
)
_RATE = re.compile(
    r"\brate[ _-]?limit|\bper (?:minute|min|second|sec|hour|day|month)\b|\bminute\b|\b(?:hour|dai|month)ly\b|\b[tr]p[mdhs]\b|\bquotas?\b|\bthrottl"
    r"|\btoo many (?:requests|concurrent|connections)|\bcredits?\b|\bbilling\b|\bconcurren|\brate_limit\w*"
    r"|\binsufficient_quota|\bratelimit|\bresource_exhausted\b|\btoo_many_requests\b|\bthrottling\w*"
)
_BYTES = re.compile(r"\b(?:\d+ ?[kmg]i?b|bytes|body|entity|payload)\b")
_LATER = re.compile(r"\b(?:wait|later|again|retry|busy|overloaded)\b")
_BODY = re.compile(
    r"\b(?:request|content|message|entity|payload|body)(?:[._ ](?:entity|body|size|length))*[._ ](?:\w+ ){0,2}"
    r"(?:too[._ ](?:large|long|big)|exceed)|\b(?:bytes|body|payload)\b.*\b(?:exceed\w*|limit|max\w*|too large)"
    r"|\b(?:exceed\w*|limit|max\w*|too large)\b.*\b(?:bytes|body|payload|\d+ ?[kmg]i?b)\b"
)
_NOT_OURS = re.compile(
    r"\bvocab|\blogit_bias\b|\btoken[ _]ids?\b|\bspecial tokens?\b|\bstop\b|\bimages?\b|\bbudget\w*|\bbudget_tokens\b"
    r"|\btools?\b|\btool_\w+|\bfunctions?\b|\bids?\b|\bnames?\b|\bdescription\b|\bschema\b|\btemperature\b|\btop_[kp]\b|\btop_?logprobs\b|\blogprobs?\b|\bmin_tokens\b|\bbest_of\b"
    r"|\bpenalty\b|\bseed\b|\bfile\b|\bmetadata\b|\bbase64\b|\bheaders?\b|\bcookies?\b|\bpdf\b|\bpages?\b"
)
"""Words of other quantities that can be too large."""
_TOO_LITTLE = re.compile(
    r"(?:must|should|has to) be (?:at least|greater than|>=?|positive|larger than|above|more than)"
)
_NUMBER = re.compile(r"(?<![\w.\-#])(\d{1,3}(?:[,_ ]\d{3})+|\d+)(?:\.0+(?!\d))?(k\b)?(?![\w%]|\.\d|-\w)", re.IGNORECASE)
_NO_NUMBER = re.compile(
    r"context_window_fallback\w*(?:=\w+)?"  # of LiteLLM, in any refusal
    r"|\b(?:error |status |http )?\"?'?(?:code|status\w*)\"?'?\s*[:=]?\s*\"?'?\d{3}\b|\b(?:http|error) \(?\d{3}\b"
    r"|https?://\S+"
)
_RANGE = re.compile(r"(?:\bfrom|\bbetween|[\[(])\s*[01]\b\D{0,20}?(?:,|\bto|\band|-)\s*(\d+)\s*([)\]]|\(?exclusive)?")
_SUM = re.compile(r"(\d+)[^\d+>]{0,30}\+\s*(?:\w+ )?(\d+)[^\d>=]{0,30}(?:=\s*\d+\s*)?>=?\s*(\d+)")
_NO_TOKENS = re.compile(
    r"\s*(?:pages?|blocks?|characters?|chars?|bytes|[kmg]i?b|items?|messages|requests|seconds|s\b|ms\b)"
)


def judge(
    status: int,
    body: object,
    *,
    sent_bytes: int = 0,
    max_tokens: int | None = None,
) -> Refusal:
    """What an answer that is no 2xx is about; a 200 with an error in its body is judged by that.

    `body` is decoded JSON, or text. `sent_bytes` and `max_tokens` are those of the request.
    """
    words = _plain(body)
    text = re.sub(rf"\b{status}\b(?! (?:tok|input|output))", " ", _NO_NUMBER.sub(" ", _flat(body, words)))
    refusal = Refusal(Reason.OTHER, words)
    about_size = status not in _NO_REFUSAL_OF_SIZE
    is_rate = _RATE.search(text) or (status in _TROUBLE | {503, 529} and _LATER.search(text))
    found = _size(text, max_tokens) if about_size and not is_rate else None
    if found is not None and (status < 500 or _is_plain(found, text)):
        return _doubted(replace(found, words=words), sent_bytes, max_tokens)
    if status == 429 or (_RATE.search(text) and status in {400, 413, 422, 503, 529}):
        return replace(refusal, reason=Reason.RATE)
    passes = is_rate or (status >= 500 and _PASSING.search(text))
    if status == 413 or (about_size and not passes and _says_body(text)):
        return replace(refusal, reason=Reason.BODY)
    if status in _TROUBLE or status >= 500 or status == 200:
        return replace(refusal, reason=Reason.TROUBLE)
    if about_size and sent_bytes > LARGE_BODY_BYTES:
        return replace(refusal, is_sure=False)
    return refusal


def _plain(body: object) -> str:
    """The server's words on one line, those of a page without its markup."""
    words = server_words(body) if body else ""
    if re.match(r"\s*<(?:!doctype|html)", words, re.IGNORECASE):
        words = re.sub(r"<(style|script)\b.*?</\1>|</?[a-z!][^>]*>", " ", words, flags=re.DOTALL | re.IGNORECASE)
    return quote(words)


def _flat(body: object, words: str) -> str:
    """All that a body says, in lower case; what stands beside a message is split off by semicolons."""
    text = _BREAK.join(_said(body)) if isinstance(body, dict | list) else words
    return re.sub(r"[`\"'\\*]|</?[a-zA-Z!][^>]{0,200}>", "", re.sub(r"\\[nrt]", " ", text)).lower()


def _said(body: object) -> Iterator[str]:
    if isinstance(body, list):
        for each in body:
            yield from _said(each)
    elif isinstance(body, dict):
        # What a message is about stands before it, as in a sentence.
        about = " ".join(
            each for each in _scalars(body.get("param"), body.get("loc")) if not each.isdecimal() and each != "body"
        )
        first = " ".join(_scalars(body.get("message"), body.get("msg"), body.get("detail"), body.get("error")))
        rest = (each for key, value in body.items() for each in _beside(key, value))
        yield _BREAK.join(filter(None, (f"{about} {first}".strip(), *rest)))
        for value in body.values():
            if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(each, dict) for each in value)):
                yield from _said(value)
    elif isinstance(body, str):
        yield _decoded(body)


def _scalars(*values: Any) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield _decoded(value)
        elif isinstance(value, list):
            yield from (str(each) for each in value if isinstance(each, str))


def _beside(key: str, value: Any) -> Iterator[str]:
    """What a field beside the message says; of those that repeat the request only numbers."""
    if key in {"message", "msg", "detail", "error", "param", "loc", "url", "code", "status", "created"}:
        if key in {"code", "status"} and isinstance(value, str) and not value.isdecimal():
            yield value
    elif isinstance(value, int) and not isinstance(value, bool):
        yield f"{'got' if key == 'input' else key}: {value}"
    elif isinstance(value, str) and key != "input":
        yield f"{'' if key == 'type' else key} {_decoded(value)}"
    elif isinstance(value, dict) and key == "ctx":  # of pydantic
        yield from (f"{name}: {each}" for name, each in value.items() if isinstance(each, int))


def _decoded(text: str) -> str:
    """A text, and that of a whole JSON document in it, as gateways pass errors on."""
    text = text[:8000]
    start = text.find("{")
    try:
        inner, _ = json.JSONDecoder().raw_decode(text, start) if start >= 0 else (None, 0)
    except (ValueError, RecursionError):
        inner = None
    if isinstance(inner, dict):
        return f"{text[:start]}{_BREAK}{_BREAK.join(_said(inner))}"
    return re.sub(r"[\"'](?:message|msg|error|detail|type|param|code)[\"']\s*:", _BREAK, text)


def _is_plain(found: Refusal, text: str) -> bool:
    """Whether the words of a 5xx, which mostly is trouble that passes, say without doubt that something is too long."""
    is_counted = (found.context_tokens, found.prompt_tokens, found.most_tokens) != (None, None, None)
    return (is_counted or _PLAIN.search(text) is not None) and _PASSING.search(text) is None


def _says_body(text: str) -> bool:
    return any(_BODY.search(each) and not _NOT_OURS.search(each) for each in _clauses(text))


def _clauses(text: str) -> list[str]:
    return re.split(r"[.!?](?:\s|$)|\n", text)


def _size(text: str, max_tokens: int | None) -> Refusal | None:
    """What is too long for the model in the words of a refusal; None where it speaks of something else."""
    clauses = [each for each in _clauses(text) if _is_of_tokens(each)]
    if not clauses:
        return None
    complaint = _BREAK.join([each for each in clauses if not _ADVICE.search(each)] or clauses)
    numbers = _numbers(text, max_tokens)
    if any(_leaves_nothing(each, max_tokens) for each in clauses):
        return Refusal(Reason.PROMPT, "", _first(numbers, "context"), _first(numbers, "in"))
    found = _by_numbers(complaint, numbers, max_tokens)
    if found is not None:
        return found
    out, prompt = bool(_OUT.search(complaint)), bool(_IN.search(complaint) or _CONTEXT.search(complaint))
    limits = [each.value for each in numbers if each.role in {"limit", "context"}]
    if out and not prompt:
        # A limit above what was asked for is not the one that was met.
        return None if max_tokens is not None and limits and min(limits) >= max_tokens else Refusal(Reason.REPLY, "")
    in_tokens = re.search(rf"\b{_TOKENS}\b", complaint) is not None
    context = _first(numbers, "context", "limit") if in_tokens else None
    return Refusal(Reason.BOTH if out else Reason.PROMPT, "", context_tokens=context)


def _is_of_tokens(clause: str) -> bool:
    """Whether a clause says that a length is too much for the model."""
    if _TOO_LITTLE.search(clause):
        return _leaves_nothing(clause, None)
    context, prompt, out = (bool(each.search(clause)) for each in (_CONTEXT, _IN, _OUT))
    if out and _INVALID.search(clause):
        return True
    in_tokens = re.search(rf"\b{_TOKENS}\b", clause) is not None
    is_ours = context or (prompt and in_tokens) or not (_NOT_OURS.search(clause) or _BYTES.search(clause))
    if not (_TOO_MUCH.search(clause) and is_ours):
        return False
    return out or context or in_tokens or (prompt and _TOO_LONG.search(clause) is not None)


def _leaves_nothing(clause: str, max_tokens: int | None) -> bool:
    """Whether the server counts less than one token for the reply, where more was asked for."""
    found = re.search(r"(?:at least|greater than(?: or equal to)?|>=?|above|positive)\W*([01])?\b", clause)
    given = re.search(r"(?:got|given|was|is|value)\W*(-?\d+)", clause[found.end() :]) if found else None
    asked_so = given is not None and max_tokens is not None and int(given[1]) == max_tokens
    return bool(found and (found[1] or "positive" in found[0]) and _OUT.search(clause) and not asked_so)


_LIMIT = re.compile(
    r"\bmaximum\b|\bmax\b|\blimit\w*|\ballowed\b|\bat most\b|\bup to\b|[<≤>]=?|\bno more than\b|\bbound\b|\bcapacity\b"
    r"|\b(?:longer|greater|larger|more|less|lower|fewer|smaller|bigger|higher) than\b|\bless_than\w*|\bsupports?\b|\bl[et]:"
    r"|\brange\b|\bexceeds?\b|\bonly\b|\bmost\b|\bcapped\b|超过|最大"
)
_GIVEN = re.compile(
    r"\brequest(?:ed|s)?\b|\bprovided\b|\bsupplied\b|\bgiven\b|\bgot\b|\bcontains?\b|\bhas\b|\breceived\b|\byour\b"
    r"|\bresulted\b|\bused\b|\bvalue\b|\bwas\b|\bkeep\b|\bactual\b|\bcount\b|\btotal of\b"
)


_NAME = re.compile(r"(?:(\w+)\s*[:=(]\s*|([\u4e00-\u9fff]+) ?)$")
"""The name that a number has, as in n_ctx: 4096."""
_MEASURED = re.compile(
    r"\W*(?:tokens\W*)?(?:must|should|cannot|exceed|(?:is|are) (?:too|greater|larger|longer|more|above)|>)"
)
"""What follows a number that is too large, rather than a limit."""


def _numbers(text: str, max_tokens: int | None) -> list[_Number]:
    """The numbers of tokens in a text, each with what it measures."""
    if found := _SUM.search(re.sub(r"(?<=\d)[,_](?=\d{3})", "", text)):
        return [_Number(int(value), role) for value, role in zip(found.groups(), ("in", "out", "context"), strict=True)]
    numbers = []
    exclusive = {}
    for each in _RANGE.finditer(text):
        exclusive[int(each[1])] = (
            1 if each[2] and each[2] != "]" and "exclusive" in text[each.start() : each.end() + 14] else 0
        )
    matches = [each for each in _NUMBER.finditer(text) if not _NO_TOKENS.match(text, each.end())]
    for index, match in enumerate(matches):
        value = int(re.sub(r"\D", "", match[1])) * (1000 if match[2] else 1)
        start = matches[index - 1].end() if index else 0
        end = matches[index + 1].start() if index + 1 < len(matches) else len(text)
        if value in exclusive:
            numbers.append(_Number(value - exclusive[value], "limit"))
        elif 16 <= value < 100_000_000:
            before = re.split(r"[.](?:\s|$)|\n", text[start : match.start()])[-1][-80:]
            after = re.split(r"[.;\n]|\)(?! must| exceed)", text[match.end() : end])[0][:40]
            numbers.append(_Number(value, _role(before, after, is_asked=value == max_tokens, is_first=not index)))
    return numbers


_ROLES = (("out", _OUT), ("in", _IN), ("context", _CONTEXT))


def _role(before: str, after: str, *, is_asked: bool, is_first: bool) -> str:
    """What a number measures, by the words before and after it."""
    if re.search(r"\bat least\W*$", before):
        return "least"
    before = re.sub(r"\w+(?:error|exception)\b", " ", before)
    named = _NAME.search(before)
    name = (named[1] or named[2]) if named else ""
    is_measured = _MEASURED.match(after) is not None
    order = (("context", _CONTEXT), ("out", _OUT), ("in", _IN)) if "max_input" in name else _ROLES
    if roles := [role for role, each in order if each.search(name)]:
        return "total" if roles[0] == "context" and is_measured else roles[0]
    limits = [each.end() for each in (*_LIMIT.finditer(before), *_CONTEXT.finditer(before))]
    given = [each.end() for each in _GIVEN.finditer(before)]
    is_limit = bool(limits) and max(limits) > max(given, default=0)
    if re.fullmatch(r"\s*(?:/|of)\s*", after):
        return ""  # as in 9000/8192
    is_limit = (is_limit and not is_measured) or re.fullmatch(r"\s*(?:/|of)\s*", before) is not None
    if re.match(r"\W*(?:tokens? )?(?:maximum|max\b|limit|or less|or fewer)", after) or is_limit:
        return "context" if _CONTEXT.search(before) else "limit"
    if is_asked:
        return "out"
    # The words up to a comma or an "and" are those of the number before.
    own = before if is_first else re.split(r",| and ", before, maxsplit=1)[-1]
    for words in (re.split(r",| and ", after)[0], own):
        found = [role for role, each in _ROLES[:2] if each.search(words)]
        if found:
            return found[0] if len(found) == 1 else "total"
    return "total" if re.search(r"\brequested\b|\btotal\b", before) else ""


def _first(numbers: list[_Number], *roles: str) -> int | None:
    return next((each.value for role in roles for each in numbers if each.role == role), None)


def _by_numbers(complaint: str, numbers: list[_Number], max_tokens: int | None) -> Refusal | None:
    """What does not fit by the numbers; None where they do not say."""
    asked = _first(numbers, "out") or max_tokens
    about_reply = bool(_OUT.search(complaint))
    about_prompt = bool(_IN.search(complaint)) or any(each.role in {"in", "least", "total"} for each in numbers)
    least = {each.value for each in numbers if each.role == "least"}
    told = [each.value for each in numbers if each.role in {"context", "limit"}]
    context = min(told, default=None) if about_prompt or not about_reply else _first(numbers, "context")
    prompt = next((each.value for each in numbers if each.role == "in" and each.value not in least), None)
    if prompt is None and context is not None and not about_reply and max(told) > context:
        prompt = max(told)  # in "the context: 9000 tokens, limit 8192" both are said of the context
    total = _first(numbers, "total")
    unknown = next((each.value for each in numbers if not each.role and each.value not in least), None)
    if total is not None and asked is not None and _first(numbers, "out") is not None:
        # A prompt may be told in parts; one that is more than the rest of the total is told whole.
        prompt = total - asked if total - asked > (prompt or 0) else prompt
    elif (given := total or unknown) is not None and prompt is None and context is not None and given > context:
        with_reply = asked is not None and (about_reply or total is not None) and 0 < given - asked < context
        prompt = given - asked if with_reply and asked is not None else given
    if context is not None and (prompt is not None or least):
        is_prompt = (prompt or max(least)) >= context
        return Refusal(Reason.PROMPT if is_prompt else Reason.BOTH, "", context, prompt)
    limits = [each.value for each in numbers if each.role in {"limit", "context"} and each.value < (asked or 0)]
    if about_reply and limits and (context is None or context < (asked or 0)):
        return Refusal(Reason.REPLY, "", context_tokens=_first(numbers, "context"), most_tokens=min(limits))
    return None


def _doubted(refusal: Refusal, sent_bytes: int, max_tokens: int | None) -> Refusal:
    """A refusal of a prompt that is too short for that: then max_tokens is what does not fit."""
    knows = refusal.context_tokens is not None or refusal.prompt_tokens is not None
    is_short = 0 < sent_bytes < (max_tokens or 0)
    return (
        replace(refusal, reason=Reason.BOTH) if refusal.reason is Reason.PROMPT and is_short and not knows else refusal
    )
