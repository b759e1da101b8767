"""keystrokes-json: one JSON object per reply, whose commands are keystrokes for the terminal.

The format of Terminus-2. A reply cut inside a string is never repaired: half a command must not run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from harness.errors import FormatError
from harness.model_text import Span, after_thinking
from harness.protocols.base import Keys
from harness.protocols.keystrokes import (
    KNOWN,
    REQUIRED,
    KeystrokeProtocol,
    as_keys,
    read_duration,
    wrong_order,
)
from harness.protocols.reply_text import JSON_TOKEN, Fields, decode, first_balanced_object, unknown_fields

_KNOWN_IN_COMMAND = ("keystrokes", "duration")

_STARTS_WITH_OBJECT = re.compile(r"\s*+(?:```\w*+\s*+)?\{")
_MAYBE_REPLY = re.compile(rf'\{{\s*+"(?:{"|".join(KNOWN)})"')
_MAX_NESTED_TRIES = 20


class KeystrokesJson(KeystrokeProtocol):
    """Protocol keystrokes-json: the keys are in the reply's first balanced JSON object."""

    name = "keystrokes-json"
    mark = '"keystrokes"'

    def _read(self, content: str, warnings: list[str]) -> tuple[tuple[Keys, ...], bool]:
        reply = _find_reply(after_thinking(content, _object_in_front), warnings)
        _check_fields(reply, warnings)
        commands = reply["commands"]
        keys = (_keys(command, at, at == len(commands), warnings) for at, command in enumerate(commands, 1))
        return tuple(keys), _is_complete(reply, warnings)

    def _write(self, analysis: str, plan: str, typed: Sequence[tuple[str, float]], complete: bool) -> str:
        commands = [{"keystrokes": text, "duration": seconds} for text, seconds in typed]
        reply = {"analysis": analysis, "plan": plan, "commands": commands, "task_complete": complete}
        return json.dumps(reply, indent=2, ensure_ascii=False)


# -- from text to an object ----------------------------------------------------------------------


def _object_in_front(content: str, start: int) -> Span | None:
    found = first_balanced_object(content[start:]) if _STARTS_WITH_OBJECT.match(content, start) else None
    return (found[0] + start, found[1] + start) if found else None


def _find_reply(text: str, warnings: list[str]) -> Fields:
    """Find the reply's object: unchanged, else with missing closers added, else a later or nested one."""
    if "{" not in text:
        raise _without_object(text)
    try:
        return _parse_unrepaired(text, warnings)
    except FormatError:
        repaired = _with_closers(text, warnings) or _find_nested_reply(text, warnings)
        if repaired is None:
            raise
        return repaired


def _without_object(text: str) -> FormatError:
    if not text.strip():
        return FormatError("no_json", "No JSON object found: there is no text after the thinking.")
    if _is_json(text.strip()):
        return FormatError("not_an_object", "The response must be a JSON object, not another JSON value.")
    return FormatError("no_json", "No JSON object found in the response.")


def _is_json(text: str) -> bool:
    try:
        return decode(text)[1] == len(text)
    except FormatError:
        return False


def _parse_unrepaired(text: str, warnings: list[str]) -> Fields:
    span = first_balanced_object(text)
    if span is None:
        raise FormatError("invalid_json", "Invalid JSON: the object is never closed.")
    reply = _decode_reply(text[span[0] : span[1]])
    warnings += _extra_text(text, *span)
    return reply


def _decode_reply(text: str, start: int = 0) -> Fields:
    """Decode the object at `start`, with all required fields. Raises FormatError."""
    reply, _ = decode(text, start)
    missing = [name for name in REQUIRED if name not in reply]
    if missing:
        raise FormatError("missing_field", f"Missing required fields: {', '.join(missing)}.")
    assert isinstance(reply, Fields)
    return reply


def _extra_text(text: str, start: int, end: int) -> list[str]:
    sides = (("before", text[:start]), ("after", text[end:]))
    return [f"extra_text: There is extra text {side} the JSON object." for side, part in sides if part.strip()]


def _with_closers(text: str, warnings: list[str]) -> Fields | None:
    closed = _close(text[text.index("{") :].rstrip().removesuffix("```"))
    if closed is None:
        return None
    try:
        reply = _decode_reply(closed)
    except FormatError:
        return None
    warnings.append("auto_corrected: The JSON was completed by adding missing closing braces or brackets.")
    return reply


def _close(text: str) -> str | None:
    """Add the missing closers of the object at the front; None if none is missing or a string is open."""
    parts: list[str] = []
    open_closers: list[str] = []
    added, copied = False, 0
    for token in JSON_TOKEN.finditer(text):
        char = token[0]
        if char in "{[":
            open_closers.append("}" if char == "{" else "]")
        elif char in "}]":
            before, copied = copied, token.start()
            parts.append(text[before:copied])
            while open_closers and open_closers[-1] != char:
                parts.append(open_closers.pop())
                added = True
            if len(open_closers) <= 1:
                return "".join((*parts, char)) if open_closers and added else None
            open_closers.pop()
        elif token[1] is None:
            return None
    return "".join((*parts, text[copied:], *reversed(open_closers)))


def _find_nested_reply(text: str, warnings: list[str]) -> Fields | None:
    for tries, match in enumerate(_MAYBE_REPLY.finditer(text)):
        if tries == _MAX_NESTED_TRIES:
            break
        try:
            reply = _decode_reply(text, match.start())
        except FormatError:
            continue
        warnings.append("auto_corrected: The JSON object was taken out of text that is not a valid response.")
        return reply
    return None


# -- from an object to actions -------------------------------------------------------------------


def _check_fields(reply: Fields, warnings: list[str]) -> None:
    if not isinstance(reply["commands"], list):
        raise FormatError("wrong_type", "Field 'commands' must be an array.")
    warnings += [
        f"text_type: Field '{name}' should be a string."
        for name in ("analysis", "plan")
        if not isinstance(reply[name], str)
    ]
    warnings += _field_oddities(reply, KNOWN, "")
    warnings += wrong_order(reply)


def _field_oddities(fields: Fields, known: tuple[str, ...], where: str) -> list[str]:
    oddities = unknown_fields(fields, known, where)
    if fields.has_duplicates:
        oddities.append(f"duplicate_field: {where}A field was given twice; the last one counts.")
    return oddities


def _is_complete(reply: Fields, warnings: list[str]) -> bool:
    value = reply.get("task_complete", False)
    if isinstance(value, bool):
        return value
    meant = isinstance(value, str) and value.strip().lower() == "true"
    taken = "true" if meant else "false"
    warnings.append(f"task_complete_type: 'task_complete' should be true or false; it was taken as {taken}.")
    return meant


def _keys(command: Any, number: int, is_last: bool, warnings: list[str]) -> Keys:
    if not isinstance(command, Fields):
        raise FormatError("wrong_type", f"Command {number} must be an object.")
    if not isinstance(command.get("keystrokes"), str):
        raise FormatError("wrong_type", f"Command {number} needs 'keystrokes', a string.")
    where = f"Command {number}: "
    duration = read_duration(command, where, warnings)
    warnings += _field_oddities(command, _KNOWN_IN_COMMAND, where)
    return as_keys(command["keystrokes"], duration, where, is_last=is_last, warnings=warnings)
