"""The part of a trial's screen that fits into a window of one's own. Pure."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from tbench.control.wire import Screen

_CODES = re.compile(r"(\x1b\[[0-9;:]*m)")


@dataclass(frozen=True)
class Crop:
    """What is shown of a screen."""

    lines: tuple[str, ...]
    cursor: tuple[int, int]
    """Column and row within it, from 0."""


def crop(screen: Screen, columns: int, rows: int) -> Crop:
    """The part of the screen around its cursor that fits into so many columns and rows."""
    x, y = screen.cursor
    left, top = _begin(x, screen.columns, columns), _begin(y, screen.rows, rows)
    lines = tuple(cut(line, left, columns) for line in screen.lines[top : top + rows])
    return Crop(lines, (min(x - left, columns - 1), min(y - top, rows - 1)))


def _begin(cursor: int, whole: int, part: int) -> int:
    """The first place that is shown: the very first where the cursor is seen from there."""
    if cursor < part:
        return 0
    # Some room behind the cursor, so that what is typed does not move everything each time.
    return max(0, min(cursor - part + 1 + part // 4, whole - part))


def cut(line: str, left: int, columns: int) -> str:
    """The cells of a line from `left` on, at most `columns`, in their colours."""
    if left == 0 and len(line) <= columns and line.isascii() and "\x1b" not in line:
        return line
    parts, at = list[str](), 0
    for text in _CODES.split(line):
        if text.startswith("\x1b["):
            parts.append(text)
            continue
        for char in text:
            width = _cells(char)
            # A mark without a width belongs to the character before it.
            if left <= at - (width == 0) and at + width <= left + columns:
                parts.append(char)
            elif left - width < at < left + columns:
                parts.append(" ")  # half of a wide one
            at += width
    return "".join(parts)


def _cells(char: str) -> int:
    if unicodedata.category(char) in ("Cc", "Cf", "Me", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "FW" else 1
