"""Styled lines: those of a terminal, and texts of others, in a room of so many columns and rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from tbench.text import unseen_as, visible

_TEXT_LINES = 400
"""Most lines of one text that are wrapped: nobody reads more of a step here."""
_WRAPPING = Console(width=80, color_system=None)
"""Rich wants one to wrap text; nothing is printed on it."""


class Size(NamedTuple):
    """Columns and rows."""

    columns: int
    rows: int


class Corner(NamedTuple):
    """A column and a row, from 0."""

    column: int
    row: int


def from_screen(line: str) -> Text:
    """A line of a terminal's screen, whose colours are escapes; nothing else in it is obeyed."""
    text = Text.from_ansi(line)
    text.no_wrap = True
    text.plain = unseen_as(text.plain, "·")
    return text


def wrapped(text: str, width: int, style: str) -> list[Text]:
    """A text of others in lines of this width, as it is: no escape in it is obeyed."""
    lines = list[Text]()
    for line in visible(text).expandtabs(4).split("\n")[:_TEXT_LINES]:
        lines += Text(line, style=style).wrap(_WRAPPING, max(1, width), overflow="fold") or [Text()]
    return lines


def filled(lines: Sequence[Text], room: Size) -> list[Text]:
    """So many lines of so many columns."""
    shown = [line.copy() for line in lines[: room.rows]]
    shown += [Text() for _ in range(room.rows - len(shown))]
    for line in shown:
        line.end = ""
        line.truncate(room.columns, overflow="crop", pad=True)
    return shown
