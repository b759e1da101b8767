"""Texts of any length as a page can hold them: their beginning, their end, and how much is between."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup, escape

from reports.look import visible_text
from tbench.text import size_shown

MOST_CHARS = 2400
"""Characters of one text that stand in the page itself."""
LEAST_CHARS = 200
_ALL_CHARS = 12_000
"""Characters of all texts of a trial that stand in the page itself, as long as each may have the least."""
_MOST_LINES = 50
_FOLDED_CHARS, _FOLDED_LINES = 700, 10


@dataclass(frozen=True, slots=True)
class ShownText:
    """A text as a page shows it: all of it as `head`, or its two ends and how much is between them."""

    head: str
    left_out: str = ""
    tail: str = ""

    @property
    def is_long(self) -> bool:
        """Whether it is folded until somebody asks for it."""
        return bool(self.left_out) or len(self.head) > _FOLDED_CHARS or self.head.count("\n") > _FOLDED_LINES


def room_of(
    lengths: Iterable[int], all_chars: int = _ALL_CHARS, least: int = LEAST_CHARS, most: int = MOST_CHARS
) -> int:
    """The characters that each text may have, so that all are not too many: short ones leave room to others."""
    ordered = sorted(lengths)
    room, left = all_chars, len(ordered)
    for length in ordered:
        if length * left > room:
            return max(least, min(most, room // left))
        room, left = room - length, left - 1
    return most


def shown(text: str, limit: int = MOST_CHARS) -> ShownText:
    """The text, cut at its lines where it is longer than `limit`."""
    if len(text) <= limit and text.count("\n") <= _MOST_LINES:
        return ShownText(text)
    head_chars, tail_chars = limit * 5 // 8, limit * 3 // 8
    head = _first_lines(text[:head_chars], cut=len(text) > head_chars)
    tail = _last_lines(text[max(len(head), len(text) - tail_chars) :])
    between = len(text) - len(head) - len(tail)
    return ShownText(head, amount(between), tail) if between > 0 else ShownText(text)


def amount(chars: int) -> str:
    """A number of characters as one reads it."""
    return f"{chars:,} characters" if chars < 100_000 else f"{size_shown(chars)} of text"


def cut(text: str, limit: int) -> str:
    """The text, or its two ends around a line that says how much is missing between them."""
    if len(text) <= limit:
        return text
    head, tail = 2 * limit // 3, limit // 3
    between = amount(len(text) - head - tail)
    return f"{text[:head]}\n[… {between} are left out of this page …]\n{text[len(text) - tail :]}"


def keystrokes(typed: str) -> Markup:
    """What was typed, key by key where it is no text: line ends are marked, and copying gives what was typed."""
    shown_keys = escape(typed).replace("\n", _LINE_END).replace("\t", _TAB)
    return Markup(visible_text(shown_keys.translate(_KEYS)))


def _first_lines(text: str, *, cut: bool) -> str:
    lines = text.split("\n", _MOST_LINES * 2 // 3)
    if len(lines) > _MOST_LINES * 2 // 3:
        return "\n".join(lines[: _MOST_LINES * 2 // 3])
    whole = text.rpartition("\n")[0] if cut else text
    return whole if 2 * len(whole) > len(text) else text  # one line may be all there is


def _last_lines(text: str) -> str:
    lines = text.rsplit("\n", _MOST_LINES // 3)
    if len(lines) > _MOST_LINES // 3:
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
