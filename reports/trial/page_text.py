"""Texts for pages: shortened, and with the colours of a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup, escape

from reports.cell_style import PLAIN, CellStyle, apply_codes
from reports.page_frame import visible_text
from tbench.text import ESCAPE, OVERWRITTEN, size_text

MAX_CHARS = 2400
"""Maximum number of characters of one text in the page itself."""
LEAST_CHARS = 200
_ALL_CHARS = 12_000
"""Maximum number of characters of all texts of a trial in the page itself, unless each is at its minimum."""
_MAX_LINES = 50
_FOLDED_CHARS, _FOLDED_LINES = 700, 10


@dataclass(frozen=True, slots=True)
class ShownText:
    """Text as a page shows it: all of it as `head`, or its two ends and the amount between them."""

    head: str
    left_out: str = ""
    tail: str = ""

    @property
    def is_long(self) -> bool:
        """Whether the text is folded at first."""
        return bool(self.left_out) or len(self.head) > _FOLDED_CHARS or self.head.count("\n") > _FOLDED_LINES


def text_budget(
    lengths: Iterable[int], all_chars: int = _ALL_CHARS, least: int = LEAST_CHARS, most: int = MAX_CHARS
) -> int:
    """Return the number of characters that each text may have, so that all fit; short texts leave room for others."""
    ordered = sorted(lengths)
    room, left = all_chars, len(ordered)
    for length in ordered:
        if length * left > room:
            return max(least, min(most, room // left))
        room, left = room - length, left - 1
    return most


def shorten_at_lines(text: str, limit: int = MAX_CHARS) -> ShownText:
    """Shorten a text that is longer than `limit`, at line ends."""
    if len(text) <= limit and text.count("\n") <= _MAX_LINES:
        return ShownText(text)
    head_chars, tail_chars = limit * 5 // 8, limit * 3 // 8
    head = _first_lines(text[:head_chars], cut=len(text) > head_chars)
    tail = _last_lines(text[max(len(head), len(text) - tail_chars) :])
    between = len(text) - len(head) - len(tail)
    return ShownText(head, amount_text(between), tail) if between > 0 else ShownText(text)


def amount_text(chars: int) -> str:
    """Format a number of characters."""
    return f"{chars:,} characters" if chars < 100_000 else f"{size_text(chars)} of text"


def cut(text: str, limit: int) -> str:
    """Return the text, or its two ends around a line with the amount that is missing."""
    if len(text) <= limit:
        return text
    head, tail = 2 * limit // 3, limit // 3
    between = amount_text(len(text) - head - tail)
    return f"{text[:head]}\n[… {between} are left out of this page …]\n{text[len(text) - tail :]}"


def keystrokes(typed: str) -> Markup:
    """Return typed text as HTML: control keys by name, line ends marked; copying it gives what was typed."""
    shown_keys = escape(typed).replace("\n", _LINE_END).replace("\t", _TAB)
    return Markup(visible_text(shown_keys.translate(_KEYS)))


def _first_lines(text: str, *, cut: bool) -> str:
    lines = text.split("\n", _MAX_LINES * 2 // 3)
    if len(lines) > _MAX_LINES * 2 // 3:
        return "\n".join(lines[: _MAX_LINES * 2 // 3])
    whole = text.rpartition("\n")[0] if cut else text
    return whole if 2 * len(whole) > len(text) else text  # the text may be a single line


def _last_lines(text: str) -> str:
    lines = text.rsplit("\n", _MAX_LINES // 3)
    if len(lines) > _MAX_LINES // 3:
        return "\n".join(lines[1:])
    whole = text.partition("\n")[2]
    return whole if 2 * len(whole) > len(text) else text


_LINE_END = Markup('<i class="enter"></i>\n')
_TAB = Markup('<i class="tab"></i>\t')
_NAMES = {0x1B: "Esc", 0x7F: "Backspace", 0x0D: "CR"}
_CONTROLS = {*range(0x20), 0x7F} - {0x09, 0x0A}
_KEYS = {
    code: Markup(f'<kbd class="key">{_NAMES.get(code, f"C-{chr(code + 64).lower()}")}</kbd>') for code in _CONTROLS
}


# Text with terminal escapes as HTML: colours become classes, all other escapes are dropped.

_MAX_SPANS = 4000
"""Number of style changes that are followed; later text is plain."""


def coloured(text: str) -> Markup:
    """Return the text as HTML, with styled parts as spans with classes."""
    text = OVERWRITTEN.sub("", text.replace("\r\n", "\n")).replace("\r", "")
    pieces: list[str] = []
    style = PLAIN
    at = spans = 0
    for found in ESCAPE.finditer(text):
        pieces.append(_piece(text[at : found.start()], style))
        at = found.end()
        if found["sgr"] is not None and spans < _MAX_SPANS:
            style = apply_codes(style, _codes(found["sgr"]))
            spans += 1
        elif spans >= _MAX_SPANS:
            style = PLAIN
    pieces.append(_piece(text[at:], style))
    return Markup("".join(pieces))


def _piece(text: str, style: CellStyle) -> str:
    if not text:
        return ""
    words, classes = escape(visible_text(text)), style.classes
    return f'<span class="{classes}">{words}</span>' if classes else str(words)


def _codes(parameters: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() and len(part) < 4 else 0 for part in re.split("[;:]", parameters))
