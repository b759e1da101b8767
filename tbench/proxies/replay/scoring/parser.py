"""Parses replies to replayed steps: the published evaluation's parser in its three revisions, and a tolerant one.

`parse` gives the same results as the upstream tools (TB2-lite's replay_metrics.py), including quirks; a reply on which
they crash is invalid. `parse_tolerant` is tbench's own and reported separately. Both take linear time.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from harness.model_text import Span, after_thinking, without_lone_surrogates
from tbench.proxies.datasets.records import WAIT, stripped_lines

Revision = Literal["v0", "v1", "v2"]
"""A revision of the published evaluation: v0, before the correction of May 2026; v1, the correction; v2, seen in
results since June 2026."""
REVISIONS: tuple[Revision, ...] = get_args(Revision)
DEFAULT_REVISION: Revision = "v2"

Oddity = Literal["mojibake", "lone_surrogate", "not_an_object"]
"""A feature of a reply that upstream mishandles. mojibake: its fallback mangles non-ASCII text, and scores that;
lone_surrogate: replaced by U+FFFD (upstream cannot write such a result); not_an_object: JSON other than an object, on
which upstream crashes."""

_FENCE_START = re.compile(r"```(?:json)?\s*(?=\{)")
_FENCE_END = re.compile(r"\}(?=\s*```)")
_COMMAND_KEYS = ("keystrokes", "command", "cmd")


def _string_after(key: str) -> str:
    # Possessive, as backtracking never helps: neither branch matches a quote. Finds the same as upstream's pattern.
    return rf'"{key}"\s*:\s*"((?:[^"\\]++|\\.)*)'


_CLOSED_KEYSTROKES = (re.compile(_string_after("keystrokes") + '"'),)
_OPEN_COMMANDS = tuple(re.compile(_string_after(key)) for key in _COMMAND_KEYS)

_OBJECT_PREFIX = re.compile(r"\s*+(?:```\w*+\s*+)?(?=\{)")
_MAYBE_ANSWER = re.compile(r'\{\s*+"(?:analysis|plan|commands|task_complete)"')
_MAX_TRIES = 20
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A parsed reply. `valid_json` requires no fields: `{}` is valid."""

    valid_json: bool = False
    has_analysis: bool = False
    has_plan: bool = False
    task_complete: bool | None = None
    """The reply's claim; None if it is absent or not a boolean."""
    units: tuple[str, ...] = ()
    """Stripped lines of keystrokes, and WAIT; not yet normalised, but without lone surrogates."""
    oddities: frozenset[Oddity] = frozenset()


def parse(text: str | None, revision: Revision = DEFAULT_REVISION) -> ParsedReply:
    """Parse a reply like the upstream tools of that revision. None (no reply) is an empty text."""
    text = text or ""
    value = _json_value(_braces_part(text))
    payload = value if isinstance(value, dict) else None
    units = _payload_units(payload, revision)
    odd: set[Oddity] = {"not_an_object"} if value is not None and payload is None else set()
    if not units:
        with warnings.catch_warnings():  # about JSON escapes that Python does not have
            warnings.simplefilter("ignore")
            units = list(_fallback(text, revision, _unicode_escape, odd))
    return _answer(payload, units, odd)


def parse_tolerant(text: str | None, revision: Revision = DEFAULT_REVISION) -> ParsedReply:
    """Parse the first JSON object after the thinking (`<think>`, `</think>`), with any text around it.

    If the first brace does not open a JSON object, objects that begin with a field of the format are tried. Units
    follow the rules of the revision; the fallback uses only the text after the thinking, and decodes strings as JSON.
    """
    text = after_thinking(text or "", _object_at)
    payload = _first_object(text)
    units = _payload_units(payload, revision)
    odd: set[Oddity] = set()
    if not units:
        units = list(_fallback(text, revision, _json_string, odd))
    return _answer(payload, units, odd)


def _answer(payload: Mapping[str, Any] | None, units: list[str], odd: set[Oddity]) -> ParsedReply:
    clean = tuple(map(without_lone_surrogates, units))
    if clean != tuple(units):
        odd.add("lone_surrogate")
    if payload is None:
        return ParsedReply(units=clean, oddities=frozenset(odd))
    complete = payload.get("task_complete")
    return ParsedReply(
        valid_json=True,
        has_analysis=bool(payload.get("analysis")),
        has_plan=bool(payload.get("plan")),
        task_complete=complete if isinstance(complete, bool) else None,
        units=clean,
        oddities=frozenset(odd),
    )


# -- from text to an object ----------------------------------------------------------------------


def _braces_part(text: str) -> str:
    """Return the fenced object up to the last fence after a brace; else the text from the first `{` to the last `}`."""
    text = text.strip()
    if (start := _FENCE_START.search(text)) and (ends := [end.end() for end in _FENCE_END.finditer(text, start.end())]):
        return text[start.end() : ends[-1]]
    first, last = text.find("{"), text.rfind("}")
    return text[first : last + 1] if 0 <= first < last else text


def _json_value(text: str) -> object:
    """Parse JSON; None for `null`, invalid JSON, and values nested too deeply or with too many digits."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _first_object(text: str) -> dict[str, Any] | None:
    first = text.find("{")
    if first < 0:
        return None
    if (found := _object(text, first)) is not None:
        return found[0]
    for tries, match in enumerate(_MAYBE_ANSWER.finditer(text, first + 1)):
        if tries == _MAX_TRIES:
            break
        if (found := _object(text, match.start())) is not None:
            return found[0]
    return None


def _object(text: str, start: int) -> tuple[dict[str, Any], int] | None:
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return (value, end) if isinstance(value, dict) else None


def _object_at(content: str, start: int) -> Span | None:
    """Return the span of the object at `start`; thinking tags within it are text. None if there is none."""
    front = _OBJECT_PREFIX.match(content, start)
    found = _object(content, front.end()) if front else None
    return (front.end(), found[1]) if front and found else None


# -- from an object to units ---------------------------------------------------------------------


def _payload_units(payload: Mapping[str, Any] | None, revision: Revision) -> list[str]:
    if payload is None:
        return []
    commands = payload.get("commands")
    units = [
        unit
        for command in (commands if isinstance(commands, list) else ())
        if isinstance(command, dict)
        for unit in stripped_lines(_as_text(command.get("keystrokes", ""))) or [WAIT]
    ]
    if revision == "v2":
        units += _units_of_other_shapes(payload)
    return units


def _units_of_other_shapes(payload: Mapping[str, Any]) -> Iterable[str]:
    """Yield commands at the top level of the object, then in its `arguments` (or `args`); only strings count."""
    arguments = payload.get("arguments")
    if not isinstance(arguments, dict):
        arguments = payload.get("args")
    for fields in (payload, arguments if isinstance(arguments, dict) else {}):
        for key in _COMMAND_KEYS:
            if isinstance(value := fields.get(key), str):
                yield from stripped_lines(value)


def _as_text(keystrokes: object) -> str:
    """Convert with str(), like upstream: `null` becomes `None`, a number its digits."""
    try:
        return str(keystrokes)
    except (RecursionError, ValueError):  # nested almost as deeply as JSON allows
        return ""


# -- fallback without units ----------------------------------------------------------------------


def _fallback(
    text: str, revision: Revision, decode: Callable[[str, set[Oddity]], str], odd: set[Oddity]
) -> Iterable[str]:
    for pattern in _OPEN_COMMANDS if revision == "v2" else _CLOSED_KEYSTROKES:
        for match in pattern.finditer(text):
            yield from stripped_lines(decode(match[1], odd))


def _unicode_escape(value: str, odd: set[Oddity]) -> str:
    """Decode UTF-8 bytes with Python's unicode_escape, like upstream: `é` becomes `Ã©`."""
    try:
        decoded = value.encode().decode("unicode_escape")
    except UnicodeError:
        return value
    if not value.isascii():
        odd.add("mojibake")
    return decoded


def _json_string(value: str, odd: set[Oddity]) -> str:
    known = re.sub(r"\\(.)", lambda escape: escape[0] if escape[1] in '"\\/bfnrtu' else "\\" + escape[0], value)
    try:
        return str(json.loads(f'"{known}"', strict=False))
    except ValueError:
        return value
