"""Finds out from a refusal's text which quantity is too large, and what its numbers measure.

It recognises the vocabulary of quantities (prompt, reply, context, bytes, rates) and comparisons, in any sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Quantity(NamedTuple):
    """A number of tokens in a refusal."""

    value: int
    role: str
    """The quantity measured: limit, context, in (prompt), out (reply), total, least (lower bound of a prompt), bound
    (lower bound of a total); empty if unknown."""


def _any_of(*words: str) -> re.Pattern[str]:
    return re.compile("|".join(words))


BREAK = "\n"
"""Separator between the texts of a body."""
TOKENS = re.compile(r"\btok(?:en)?s?\b")
OUT = _any_of(
    r"(?:\b|_)max(?:imum)?[_ -]?(?:completion|new|output|gen\w*|response)?[_ -]?tok(?:en)?s?(?![a-z_])",
    r"\bn(?:um)?_predict\b",
    r"\b(?:output|completion|new|generated|generation|response|reply|answer)(?: length|_?tok(?:en)?s?| tok(?:en)?s?)\b",
    r"\bmax_(?:gen|output)_len\w*",
    r"\bin the output\b",
    r"\bcompletion\b",
)
IN = _any_of(
    r"\b(?:prompts?|inputs?(?! (?:validation|should|tag|data))|messages?|conversation|history|sequence|n_keep)\b",
    r"(?:\b|_)(?:prompt|input)_\w+|_prompt\b",
    "输入|提示",
)
CONTEXT = _any_of(
    r"\bcontext\b(?! deadline| cancel)|\bwindow\b",  # not a request's context in Go
    r"(?:\b|_)context_?(?:length|window|size|len)\w*",
    r"\bn_ctx\w*|\bnum_ctx\b",
    r"\bmax_(?:model|seq|sequence|total|input|num|position)\w*",
    r"\bsequence length\b|\bkv[ _-]?cache\b|\btotal_?(?:length|tokens)\b",
    "上下文",
)
TOO_MUCH = _any_of(
    r"exceed",
    r"\btoo[ ._](?:long|large|big|many|high)\b|_too_(?:long|large)",
    r"\b(?:longer|larger|greater|bigger|higher|more|less|fewer|smaller|lower) than\b|\bless_than\w*",
    r"overflow|\boversize|\bsurpass",
    r"\b(?:beyond|above|over the|at most|up to|limit\w*|maximum|max|max_?length|most)\b",
    r"\b(?:range|between|outside|cap|capped|full)\b",
    r"[>≤]|<=|\bonly \d",
    r"\bnot enough\b|\binsufficient\b|\b(?:not|n't|cannot) (?:fit|hold)\b|\bout of\b",
    "超|过长|过大|最大",
)
TOO_LONG = _any_of(r"\btoo (?:long|large|big)\b|\b(?:max)?length\b|\bsize\b|\bexceed", "超长|过长")
INVALID = _any_of(r"\binvalid\b|\billegal\b|\bnot valid\b", "非法")
ADVICE = _any_of(r"\b(?:reduce|shorten|decrease|lower|fewer|shorter) ")
ADVISES = _any_of(r"\s*(?:please |or )?(?:consider|try|use|split|switch|upgrade|choose)\b")
"""Beginning of a sentence with advice, whose numbers mean something else."""
CLEARLY_SIZE = _any_of(
    r"exceed|surpass|\bis above\b|\b(?:not|n't|cannot) fit\b",
    r"\btoo \w+|\b(?:longer|larger|greater|more|less) than\b|overflow|>|\bat least 1\b",
    "超",
)
"""Words that are clearly about a size."""
TEMPORARY = _any_of(
    r"\bmemory\b|\boom\b|\bcuda\b|\bqueue|\bbusy\b|overload|\btimed? ?out\b|\bdeadline\b|\bunavailable\b|\blater\b",
)
"""Words about temporary trouble."""
RATE = _any_of(
    r"\brate[ _-]?limit|(?:\b|_)per[ _](?:minute|min|second|sec|hour|day|month)\b|\bminute\b|\b(?:hour|dai|month)ly\b",
    r"\b[tr]p[mdhs]\b|\bthrottl|\bconcurren",
    r"\bplease wait\b|\bretry[- ]after\b|\btry(?:ing)? again (?:later|in|after)\b",
    r"\btoo[ _]many[ _](?:requests|concurrent|connections)|\bresource_exhausted\b",
)
UNPAID = _any_of(r"\bquotas?\b|insufficient_quota|\bcredits?\b|\bbilling\b")
LATER = _any_of(r"\b(?:wait|later|again|retry|busy|overloaded)\b")
_BYTES = _any_of(r"\b(?:\d+ ?[kmg]i?b|bytes|body|entity|payload|characters?|chars?|string)\b")
_BODY = _any_of(
    r"\b(?:request|content|message|entity|payload|body)(?:[._ ](?:entity|body|size|length))*[._: ]+(?:\w+ ){0,2}"
    r"(?:too[._ ](?:large|long|big)|exceed|larger than)",
    r"\b(?:inputs?|prompts?|contents?|messages?)\b.*\b(?:exceed\w*|limit|max\w*|at most|long\w*|than)\b.*"
    r"\b(?:characters|chars)\b",
    r"\b(?:bytes|body|payload)\b.*\b(?:exceed\w*|limit|max\w*|too large)",
    r"\b(?:exceed\w*|limit|max\w*|too large)\b.*\b(?:bytes|body|payload|\d+ ?[kmg]i?b)\b",
)
_OTHERS = _any_of(
    r"\b(?:vocab|logit_bias|token[ _]ids?|special tokens?|stop|images?|budget\w*|tools?|tool_\w+|functions?|ids?)\b",
    r"\b(?:names?|description|schema|temperature|top_[kp]|top_?logprobs|logprobs?|min_tokens|best_of|penalty|seed)\b",
    r"\b(?:file|metadata|base64|headers?|cookies?|pdf|pages?|arrays?)\b",
    r"\b(?:number|count|amount) of (?!\d|(?:\w+ ){0,3}?(?:tok(?:en)?s?|bytes|characters)\b)|\b(?!tok)\w{4,} count\b",
)
"""Other quantities that can be too large."""
_TOO_LITTLE = _any_of(r"(?:must|should|has to) be (?:at least|greater than|>=?|positive|larger than|above|more than)")
NAMES_LENGTH = _any_of(
    r"\bcontext[ _]?(?:length|window|size|limit)|\bn_ctx|\bmax_(?:model|seq|context)\w*|\bsequence length|上下文",
    r"\btoo many (?:\w+ )?tok(?:en)?s",
    r"(?:\b|_)(?:prompts?|inputs?|messages?|conversation|history|sequence|context)\b[^:;\n]*"
    r"(?:\btoo (?:long|large|many|big)\b|exceed|(?:longer|larger|greater|more) than|\btok(?:en)?s?\b|\blength\b"
    r"|\bfit\b)",
    r"过长|超长|too_long|length_exceeded",
)
"""Words that name the quantity that is too long, so that no test request is needed."""
_LIMIT = _any_of(
    r"\b(?:maximum|max|limit\w*|allowed|at most|up to|no more than|bound|capacity|supports?|range|exceeds?|only)\b",
    r"\b(?:most|cap|capped)\b|[<≤>]=?|\bl[et]:",
    r"\b(?:longer|greater|larger|more|less|lower|fewer|smaller|bigger|higher) than\b|\bless_than\w*",
    "超过|最大",
)
_GIVEN = _any_of(
    r"\b(?:request(?:ed|s)?|provided|supplied|given|got|contains?|has|received|your|resulted|used|value|was|keep)\b",
    r"\b(?:actual|count|total of)\b",
)
_NUMBER = re.compile(
    r"(?<![\w.\-#])(\d{1,3}(?:[,_ ]\d{3}){1,4}|\d+)(?:\.0+(?!\d))?(k\b)?(?![\w%]|\.\d|-\w)", re.IGNORECASE
)
NO_NUMBER = _any_of(
    r"(?<=\w)\[\d+\]|\bbody/",  # an index, as in messages[9]; a path
    r"context_window_fallback\w*(?:=\w+)?",  # in every refusal of LiteLLM
    r"\b(?:error |status |http )?\"?'?(?:code|status\w*)\"?'?\s*[:=]?\s*\"?'?\d{3}\b|\b(?:http|error) \(?\d{3}\b",
    r"https?://\S+",
)
"""Parts with numbers or words that are not about the request."""
_NO_TOKENS = re.compile(
    r"\s*(?:input |prompt )?"
    r"(?:pages?|blocks?|characters?|chars?|bytes|[kmg]i?b|items?|messages|requests|seconds|s\b|ms\b)"
)
_RANGE = re.compile(r"(?:\bfrom|\bbetween|[\[(])\s*[01]\b\D{0,20}?(?:,|\bto|\band|-)\s*(\d+)(\s*\(?exclusive)?")
_SUM = re.compile(
    r"\b(\d+)[^\d+>]{0,30}\+\s*(?:[a-z_]+ ){0,4}(\d+)\b"
    r"[^\d>=]{0,30}?(?:=\s*\d+\s*)?(?:>=?|\bexceed\w*)[^\d]{0,60}?(\d+)\b"
)
_SIDE = re.compile(r"\b(?:when|while|unless)\b[^,;:\n]*")
"""A condition, which is not the problem that a sentence reports."""
_NAME = re.compile(r"(?:(\w+)\s*[:=(]\s*|([\u4e00-\u9fff]+) ?)$")
"""Name of a number, as in n_ctx: 4096."""
_MEASURED = re.compile(
    r"\W*(?:tokens\W*)?(?:must|should|cannot|exceed|(?:is|are) (?:too|greater|larger|longer|more|above)|>)"
)
"""Text after a number that is too large, rather than a limit."""
_ROLES = (("out", OUT), ("in", IN), ("context", CONTEXT))
_ANY_NUMBER = re.compile(r"(?<![\w.,])(\d{1,3}(?:[., \u00a0\u202f'’]\d{3}){1,4}|\d+)(?![\w%]|[.,]\d)")
"""A number in any language."""
_SMALLEST, _LARGEST = 8, 100_000_000


def clauses(text: str) -> list[str]:
    """Split a text into sentences at full stops and line breaks."""
    return re.split(r"[.!?](?:\s|$)|\n", text)


def mentions_bytes(text: str) -> bool:
    """Whether a text says that a request's size is too large."""
    return any(_BODY.search(each) and not _OTHERS.search(each) for each in clauses(text))


def mentions_reply(clause: str, max_tokens: int | None) -> bool:
    """Whether a clause is about the reply's length: by name, or only by the requested number."""
    main = _SIDE.sub(" ", clause)
    if OUT.search(main):
        return True
    is_asked = any(_value(each) == max_tokens for each in _NUMBER.finditer(main))
    return is_asked and not any(each.search(main) for each in (IN, CONTEXT, _OTHERS, _BYTES))


def mentions_tokens(clause: str, max_tokens: int | None = None) -> bool:
    """Whether a clause says that a length exceeds what the model can handle."""
    if _TOO_LITTLE.search(clause):
        return leaves_no_tokens(clause, None)
    context, prompt = (bool(each.search(clause)) for each in (CONTEXT, IN))
    out = mentions_reply(clause, max_tokens)
    if out and INVALID.search(clause):
        return True
    in_tokens = TOKENS.search(clause) is not None
    others = _OTHERS.search(clause, _end_of_label(clause))
    is_ours = context or (prompt and in_tokens) or not (others or _BYTES.search(clause))
    if not (TOO_MUCH.search(clause) and is_ours):
        return False
    return out or context or in_tokens or (prompt and TOO_LONG.search(clause) is not None)


def _end_of_label(clause: str) -> int:
    """Return the index after the label of a statement about the prompt: "error in function f: prompt too long"."""
    prompt = IN.search(clause)
    return 0 if prompt is None else clause.rfind(": ", 0, prompt.start()) + 1


def leaves_no_tokens(clause: str, max_tokens: int | None) -> bool:
    """Whether the server computed less than one token for the reply, although more were requested."""
    found = re.search(r"(?:at least|greater than(?: or equal to)?|>=?|above|positive)\W*([01])?\b", clause)
    if found is None or not (found[1] or "positive" in found[0]) or not OUT.search(clause):
        return False
    given = re.search(r"(?:got|given|was|is|value)\W*(-?\d+)", clause[found.end() :])
    return given is None or max_tokens is None or int(given[1]) != max_tokens


def read_numbers(text: str, max_tokens: int | None) -> list[Quantity]:
    """Return the numbers of tokens in a text, each with what it measures; `max_tokens` is the request's."""
    if found := _SUM.search(re.sub(r"(?<=\d)[,_](?=\d{3})", "", text)):
        return [
            Quantity(int(value), role) for value, role in zip(found.groups(), ("in", "out", "context"), strict=True)
        ]
    ranges = {int(each[1]): int(each[1]) - bool(each[2]) for each in _RANGE.finditer(text)}
    every = list(_NUMBER.finditer(text))
    # A number stated once as characters is not a number of tokens when it is repeated.
    others = {each[1] for each in every if _NO_TOKENS.match(text, each.end())}
    matches = [each for each in every if each[1] not in others]
    return list(_read(text, matches, ranges, max_tokens))


def read_values(text: str) -> list[int]:
    """Return all whole numbers of a text, whatever they measure."""
    return [_value(each) for each in _ANY_NUMBER.finditer(text)]


def _value(number: re.Match[str]) -> int:
    return int(re.sub(r"\D", "", number[1]))


def mentions_others(text: str) -> bool:
    """Whether a text is about a quantity other than the length of prompt and reply."""
    return _OTHERS.search(text) is not None


def _read(
    text: str, matches: list[re.Match[str]], ranges: dict[int, int], max_tokens: int | None
) -> Iterator[Quantity]:
    """Yield each number with its role; `ranges` maps the upper end of a range to its largest value."""
    for index, match in enumerate(matches):
        value = _value(match) * (1000 if match[2] else 1)
        start = matches[index - 1].end() if index else 0
        end = matches[index + 1].start() if index + 1 < len(matches) else len(text)
        if value in ranges:
            yield Quantity(ranges[value], "limit")
        elif _SMALLEST <= value < _LARGEST:
            before = clauses(text[start : match.start()])[-1][-80:]
            if ADVISES.match(before):
                continue
            if before.endswith(" by "):
                continue  # the excess
            after = re.split(r"[.;\n]|\)(?! must| exceed)", text[match.end() : end])[0][:40]
            yield Quantity(value, _role(before, after, is_asked=value == max_tokens, is_first=not index))


def _role(before: str, after: str, *, is_asked: bool, is_first: bool) -> str:
    """Return what a number measures, by the words before and after it."""
    if re.search(r"\bat least\W*$", before):
        return "bound" if re.search(r"\btotal\b[^,]*$", before) else "least"
    before = re.sub(r"\w+(?:error|exception)\b", " ", before)
    if role := _named_role(before, after):
        return role
    if re.fullmatch(r"\s*(?:/|of)\s*", after):
        return ""  # as in 9000/8192
    if _is_limit(before, after):
        return "context" if CONTEXT.search(before) else "limit"
    if is_asked:
        return "out"
    # The words up to a comma or an "and" belong to the previous number.
    own = before if is_first else re.split(r",| and ", before, maxsplit=1)[-1]
    for words in (re.split(r",| and ", after)[0], own):
        if found := [role for role, each in _ROLES[:2] if each.search(words)]:
            return found[0] if len(found) == 1 else "total"
    return "total" if re.search(r"\brequested\b|\btotal\b", before) else ""


def _named_role(before: str, after: str) -> str:
    """Return the role of a number by its name; empty without a name."""
    named = _NAME.search(before)
    name = (named[1] or named[2]) if named else ""
    order = (_ROLES[2], *_ROLES[:2]) if "max_input" in name else _ROLES
    role = next((role for role, each in order if each.search(name)), "")
    return "total" if role == "context" and _MEASURED.match(after) else role


def _is_limit(before: str, after: str) -> bool:
    if re.match(r"\W*(?:tokens? )?(?:maximum|max\b|limit|or less|or fewer)", after):
        return True
    if re.fullmatch(r"\s*(?:/|of)\s*", before):
        return True
    limits = [each.end() for each in (*_LIMIT.finditer(before), *CONTEXT.finditer(before))]
    given = [each.end() for each in _GIVEN.finditer(before)]
    return bool(limits) and max(limits) > max(given, default=0) and not _MEASURED.match(after)
