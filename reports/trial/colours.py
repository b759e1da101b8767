"""Text with terminal escapes as HTML: colours become classes, whatever else a terminal obeys is left out."""

from __future__ import annotations

import re
from collections.abc import Iterable

from markupsafe import Markup, escape

from reports.look import visible_text

_ESCAPE = re.compile(
    r"\x1b\[(?P<sgr>[0-9;:]*)m"
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # other control sequences
    r"|\x1b[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\|\Z)"  # titles, links, device strings
    r"|\x1b[ -/]*[0-~]|\x1b"
)
_OVERWRITTEN = re.compile(r"^.*\r(?!\n|\Z)", re.MULTILINE)
_MOST_SPANS = 4000
"""Changes of colour that are followed; what comes behind them has no colour."""


def plain_of(text: str) -> str:
    """The text without escapes; of a line that was drawn over, what was drawn last."""
    return _OVERWRITTEN.sub("", _ESCAPE.sub("", text.replace("\r\n", "\n"))).replace("\r", "")


def coloured(text: str) -> Markup:
    """The text as HTML, with a span of classes wherever it has colours or is bold, dim, italic or underlined."""
    text = _OVERWRITTEN.sub("", text.replace("\r\n", "\n")).replace("\r", "")
    pieces: list[str] = []
    style: tuple[str, ...] = ()
    at = spans = 0
    for found in _ESCAPE.finditer(text):
        pieces.append(_piece(text[at : found.start()], style))
        at = found.end()
        if found["sgr"] is not None and spans < _MOST_SPANS:
            style = _after(style, found["sgr"])
            spans += 1
        elif spans >= _MOST_SPANS:
            style = ()
    pieces.append(_piece(text[at:], style))
    return Markup("".join(pieces))


def _piece(text: str, style: tuple[str, ...]) -> str:
    if not text:
        return ""
    words = escape(visible_text(text))
    return f'<span class="{" ".join(style)}">{words}</span>' if style else str(words)


def _after(style: tuple[str, ...], parameters: str) -> tuple[str, ...]:
    """The classes that hold after an SGR sequence: `ink-3` and `back-3` for the sixteen colours, and its manners."""
    numbers = [int(part) if part.isdecimal() and len(part) < 4 else 0 for part in re.split("[;:]", parameters)]
    now = set(style)
    while numbers:
        number = numbers.pop(0)
        if number in (38, 48):
            _extended(now, number, numbers)
        else:
            _change(now, number)
    return tuple(sorted(now))


def _change(now: set[str], number: int) -> None:
    if number == 0:
        now.clear()
    elif number in _MANNERS:
        now.add(_MANNERS[number])
    elif number in _ENDS:
        now.difference_update(_ENDS[number])
    elif 30 <= number <= 37 or 90 <= number <= 97:
        _replace(now, "ink-", number - 30 if number < 90 else number - 82)
    elif 40 <= number <= 47 or 100 <= number <= 107:
        _replace(now, "back-", number - 40 if number < 100 else number - 92)
    elif number in (39, 49):
        _drop(now, "ink-" if number == 39 else "back-")


def _extended(now: set[str], number: int, rest: list[int]) -> None:
    """One of 256 colours, of which the first sixteen are known here, or one of all: these keep the text's own."""
    kind = rest.pop(0) if rest else 0
    given = [rest.pop(0) for _ in range(min(len(rest), 1 if kind == 5 else 3 if kind == 2 else 0))]
    prefix = "ink-" if number == 38 else "back-"
    _drop(now, prefix)
    if kind == 5 and given and given[0] < 16:
        now.add(f"{prefix}{given[0]}")


def _replace(now: set[str], prefix: str, colour: int) -> None:
    _drop(now, prefix)
    now.add(f"{prefix}{colour}")


def _drop(now: set[str], prefix: str) -> None:
    now.difference_update([each for each in now if each.startswith(prefix)])


_MANNERS = {1: "bold", 2: "dim", 3: "italic", 4: "underlined"}
_ENDS: dict[int, Iterable[str]] = {22: ("bold", "dim"), 23: ("italic",), 24: ("underlined",)}
