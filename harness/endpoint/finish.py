"""Says by which words a server ends a reply: whether it is whole, cut short, or neither.

Servers have their own words for it (`stop`, `STOP`, `FinishReason.MAX_TOKENS`, `maxPredictedTokensReached`), and
gateways put the server's beside the one that they make of it. So the words are judged, not the spelling: a reason is
understood where every word of it is known here, and a reply that ended for any other one is asked for again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

Ending = Literal["whole", "cut", "failed"]
"""`failed` is also what nobody knows: half a command must not be run."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W_]+?")
_WHOLE = re.compile(r"stop(s|ped)?|eo[smtg]|end(ed)?|endoftext|completed?|done|finish(ed)?|tools?|calls?")
"""The model has ended its reply itself."""
_CUT = re.compile(r"lengths?|max(imum)?|limit(ed)?|truncated|truncation|window|repetitions?|repeat(ed)?")
"""The server has cut a reply short that is good so far."""
_BESIDE = re.compile(
    r"finish|reason|of|by|the|at|on|was|is|hit|found|reached|exceeded|matched|sequences?|strings?|words?|tokens?|text"
    r"|turns?|message|function|use|used|uses|output|input|completion|predicted|generated|generation|new|model|context"
    r"|response|reply|id|im|str|normal|detected"
)
"""Words that say nothing by themselves."""
_NATIVE = re.compile(r"(native|original|raw|upstream|provider)_?(finish|stop)_?reason|finish_?reason", re.IGNORECASE)


def ending(reason: object) -> Ending:
    """How a reply ended, by one reason."""
    if isinstance(reason, Mapping):  # SGLang's own form: {"type": "length", "length": 64}
        reason = reason.get("type")
    if not isinstance(reason, str):
        return "failed"
    words = [word.lower() for word in _WORD.findall(reason.rpartition(".")[2])]
    meant = [word for word in words if not _BESIDE.fullmatch(word)] or words
    if any(_CUT.fullmatch(word) for word in meant):
        return "cut" if all(map(_CUT.fullmatch, meant)) else "failed"
    return "whole" if meant and all(map(_WHOLE.fullmatch, meant)) else "failed"


def reasons(choice: Mapping[str, object]) -> Iterator[object]:
    """Every reason that a choice names: its own, then those of the server behind a gateway."""
    yield choice.get("finish_reason")
    message = choice.get("message")
    places = [choice, message if isinstance(message, Mapping) else {}]
    places += [inner for each in places if isinstance(inner := each.get("provider_specific_fields"), Mapping)]
    for place in places:
        for name, reason in place.items():
            is_own = place is choice and name == "finish_reason"
            if _NATIVE.fullmatch(name) and reason not in (None, "") and not is_own:
                yield reason
