"""keystrokes-xml: tags instead of JSON around the same fields; keystrokes are raw text up to their closing tag.

The format of Terminus-2's XML form. Missing closing tags are forgiven except for keystrokes: the end of a command must
not be guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

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
from harness.protocols.reply_text import unknown_fields

_TAG = re.compile(r"<(?P<close>/?)(?P<name>[A-Za-z_][\w.-]*+)(?P<rest>(?:[\s/][^<>]*+)?)>")
_RESPONSE = re.compile(r"<response\s*+>")
_STARTS_WITH_RESPONSE = re.compile(r"\s*+(?:```\w*+\s*+)?<response\s*+>")
_STARTS_WITH_SECTION = re.compile(rf"\s*+(?:```\w*+\s*+)?(?=<(?:{'|'.join(REQUIRED)})[\s/>])")
_BOUNDARY = re.compile(rf"</?response\s*+>|</?(?:{'|'.join(KNOWN)})[\s/>]")

_KEYSTROKES = re.compile(r"<keystrokes(?P<rest>(?:[\s/][^<>]*+)?)>")
_ITEM = re.compile(rf"\s*+(?:{_KEYSTROKES.pattern}|(?P<end></commands>))")
# A word is only matched from its start: otherwise a long one without `=` would be scanned again from each letter.
_ATTRIBUTE = re.compile(r"(?<![\w:.-])(?P<name>[\w:.-]++)\s*+=\s*+(?P<value>\"[^\"]*+\"|'[^']*+'|[^\s\"'/]++)")
_ENTITY = re.compile("&(?:lt|gt|amp|quot|apos);")


@dataclass(frozen=True)
class _Element:
    """One `<keystrokes>` element: its attributes and its text."""

    attributes: str
    text: str


@dataclass
class _ResponseParts:
    """The parts found of one response."""

    start: int
    end: int = 0
    names: list[str] = field(default_factory=list)
    """Names of all top-level tags, in order."""
    elements: list[_Element] | None = None
    """The keystrokes; None without a `<commands>` section."""
    task_complete: str | None = None
    stray_text: bool = False
    unclosed: list[str] = field(default_factory=list)


class _TagFinder:
    """Finds the next occurrence of tags without searching any part of the text twice for the same tag."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: dict[str, int] = {}

    def find(self, tag: str, start: int) -> int:
        """Return the index of the next `tag` from `start` on, or of the text's end. `start` must not decrease."""
        if self._found.get(tag, -1) < start:
            found = self._text.find(tag, start)
            self._found[tag] = found if found >= 0 else len(self._text)
        return self._found[tag]


class KeystrokesXml(KeystrokeProtocol):
    """Protocol keystrokes-xml: the keys are in the reply's first `<response>`."""

    name = "keystrokes-xml"
    mark = "<keystrokes"

    def _read(self, content: str, warnings: list[str]) -> tuple[tuple[Keys, ...], bool]:
        text = after_thinking(content, _response_in_front)
        response = _find_response(text)
        warnings += _oddities(response, text)
        complete = _is_complete(response, warnings)
        warnings += _missing_sections(response)
        if response.elements is None and not complete:
            raise FormatError("missing_field", "Missing <commands> section; it may be empty.")
        return tuple(_keys(response.elements or [], warnings)), complete

    def _write(self, analysis: str, plan: str, typed: Sequence[tuple[str, float]], complete: bool) -> str:
        keys = "".join(f'<keystrokes duration="{seconds}">{text}</keystrokes>\n' for text, seconds in typed)
        parts = {"analysis": analysis, "plan": plan, "commands": f"\n{keys}"}
        parts |= {"task_complete": "true"} if complete else {}
        return "\n".join(["<response>", *(f"<{tag}>{text}</{tag}>" for tag, text in parts.items()), "</response>"])


# -- from text to the parts of a response --------------------------------------------------------


def _response_in_front(content: str, start: int) -> Span | None:
    opening = _STARTS_WITH_RESPONSE.match(content, start)
    if opening is None:
        return None
    try:
        response = _scan(content, _ResponseParts(opening.start(), opening.end()))
    except FormatError:
        return None
    is_whole = not response.unclosed and not response.stray_text
    return (response.start, response.end) if is_whole else None


def _find_response(text: str) -> _ResponseParts:
    if opening := _RESPONSE.search(text):
        return _scan(text, _ResponseParts(opening.start(), opening.end()))
    if front := _STARTS_WITH_SECTION.match(text):
        return _scan(text, _ResponseParts(front.end(), front.end(), unclosed=["<response>"]))
    if not text.strip():
        raise FormatError("no_response", "No <response> found: there is no text after the thinking.")
    raise FormatError("no_response", "No <response> tag found.")


def _scan(text: str, response: _ResponseParts) -> _ResponseParts:
    """Fill in the parts from `response.end` on, never going back. Raises FormatError."""
    finder = _TagFinder(text)
    position = response.end
    while tag := _TAG.search(text, position):
        response.stray_text |= not _is_blank(text, position, tag.start())
        name, position = tag["name"], tag.end()
        if name == "response" and (tag["close"] or response.names):
            response.end = position if tag["close"] else tag.start()
            response.unclosed += [] if tag["close"] else ["</response>"]
            return response
        if tag["close"] or name == "response":
            response.stray_text = True  # a closing tag without its opening tag, or a repeated opening tag
            continue
        response.names.append(name)
        if name == "keystrokes":
            raise FormatError("misplaced_keystrokes", "<keystrokes> must stand inside of <commands>.")
        if name in KNOWN and not tag["rest"].endswith("/"):
            position = _section(tag, finder, response)
        elif name in KNOWN:
            _take(response, name, "")
    response.stray_text |= not _is_blank(text, position, len(text))
    response.unclosed.append("</response>")
    response.end = len(text)
    return response


def _is_blank(text: str, start: int, end: int) -> bool:
    return not text[start:end].strip()


def _section(tag: re.Match[str], finder: _TagFinder, response: _ResponseParts) -> int:
    """Read the section that `tag` opens, and return the index of its end."""
    name, start, text = tag["name"], tag.end(), tag.string
    if name == "commands":
        _take(response, name, "")
        return _commands(text, start, response)
    closing = f"</{name}>"
    end = finder.find(closing, start)
    after = end + len(closing)
    if finder.find("</response>", start) < end < len(text):
        raise FormatError("unclosed_section", f"<{name}> is not closed by {closing} before </response>.")
    if end == len(text):
        response.unclosed.append(closing)
        boundary = _BOUNDARY.search(text, start)
        end = after = boundary.start() if boundary else len(text)
    _take(response, name, text[start:end])
    return after


def _take(response: _ResponseParts, name: str, text: str) -> None:
    if name == "task_complete":
        response.task_complete = text
    if name == "commands":
        if response.elements is not None:
            raise FormatError("several_commands", "Found several <commands> sections; exactly one is needed.")
        response.elements = []


def _commands(text: str, position: int, response: _ResponseParts) -> int:
    """Read the keystrokes from `position` on, and return the index of the section's end."""
    assert response.elements is not None
    while item := _ITEM.match(text, position):
        position = item.end()
        if item["end"]:
            return position
        element, position = _element(text, item, len(response.elements) + 1)
        response.elements.append(element)
    rest = text[position:].lstrip()
    if rest and not _BOUNDARY.match(rest):
        raise FormatError(
            "stray_text", f"Only <keystrokes> elements may stand in <commands>, but there is {rest[:60]!r}."
        )
    if any("</commands>" in element.text for element in response.elements):
        raise FormatError("unclosed_keystrokes", "A <keystrokes> has no </keystrokes> before </commands>.")
    response.unclosed.append("</commands>")
    return position


def _element(text: str, item: re.Match[str], number: int) -> tuple[_Element, int]:
    if item["rest"].endswith("/"):
        return _Element(item["rest"].removesuffix("/"), ""), item.end()
    end = text.find("</keystrokes>", item.end())
    if end < 0:
        raise FormatError("unclosed_keystrokes", f"Command {number}: <keystrokes> is never closed by </keystrokes>.")
    keystrokes = text[item.end() : end]
    if _KEYSTROKES.search(keystrokes):
        raise FormatError(
            "unclosed_keystrokes",
            f"Command {number}: another <keystrokes> starts before </keystrokes>, so its end is unclear.",
        )
    return _Element(item["rest"], keystrokes), end + len("</keystrokes>")


# -- from the parts to keys ----------------------------------------------------------------------


def _oddities(response: _ResponseParts, text: str) -> Iterator[str]:
    if not _is_blank(text, 0, response.start):
        yield "extra_text: There is extra text before <response>."
    if not _is_blank(text, response.end, len(text)):
        yield "extra_text: There is extra text after </response>; only the first response counts."
    if response.stray_text:
        yield "extra_text: There is extra text between the sections of <response>."
    if response.unclosed:
        yield f"auto_corrected: Missing tags were added: {', '.join(dict.fromkeys(response.unclosed))}."
    yield from unknown_fields(response.names, KNOWN)
    if any(response.names.count(name) > 1 for name in KNOWN):
        yield "duplicate_field: A section was given twice; the last one counts."
    yield from wrong_order(response.names)


def _missing_sections(response: _ResponseParts) -> list[str]:
    missing = [f"<{name}>" for name in REQUIRED if name not in response.names]
    return [f"missing_section: There is no {', no '.join(missing)} section."] if missing else []


def _is_complete(response: _ResponseParts, warnings: list[str]) -> bool:
    if response.task_complete is None:
        return False
    value = response.task_complete.strip().lower()
    if value not in ("true", "false"):
        warnings.append("task_complete_type: <task_complete> should hold true or false; it was taken as false.")
    return value == "true"


def _keys(elements: list[_Element], warnings: list[str]) -> Iterator[Keys]:
    for number, element in enumerate(elements, 1):
        where = f"Command {number}: "
        duration = _duration(element.attributes, where, warnings)
        if entity := _ENTITY.search(element.text):
            warnings.append(f"entity: {where}{entity[0]} is typed as it stands; write the character itself.")
        if element.text.endswith("\\n"):
            warnings.append(f"escaped_newline: {where}A backslash and an n are typed as they stand; use a line break.")
        yield as_keys(element.text, duration, where, is_last=number == len(elements), warnings=warnings)


def _duration(attributes: str, where: str, warnings: list[str]) -> float:
    found = {match["name"]: match["value"] for match in _ATTRIBUTE.finditer(attributes)}
    warnings += unknown_fields(found, ["duration"], where)
    if found.get("duration", '"')[0] not in "\"'":
        warnings.append(f"attribute_quotes: {where}The duration's value should stand in double quotes.")
    return read_duration({name: _number(value.strip("\"'")) for name, value in found.items()}, where, warnings)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
