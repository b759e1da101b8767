"""The cells of a terminal's screen and its cursor: text goes in, lines scroll out."""

from __future__ import annotations

import unicodedata
from itertools import groupby

from tbench.text import unseen_as
from tbench.view.colours import PLAIN, CellStyle

Line = str | list[str]
"""A line as a page shows it: plain text, or text and the classes of its style in turns."""
_TAB = 8
_MOST_MARKS = 4
"""Combining marks that a cell keeps: more of them are a mischief."""


class CharacterGrid:
    """A screen of so many columns and rows. Lines are as long as what stands in them."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.x = self.y = 0
        self.style = PLAIN
        self._top, self._bottom = 0, rows - 1
        self._chars: list[list[str]] = [[] for _ in range(rows)]
        self._styles: list[list[CellStyle]] = [[] for _ in range(rows)]

    def write(self, text: str) -> None:
        """Print characters at the cursor; what is beyond the last column begins another line."""
        if not text.isascii():
            self._write_one_by_one(text)
            return
        while text:
            self._wrap()
            piece, text = text[: self.columns - self.x], text[self.columns - self.x :]
            self._put(list(piece))
            self.x += len(piece)

    def _write_one_by_one(self, text: str) -> None:
        for char in text:
            if unicodedata.combining(char) or char == "\N{ZERO WIDTH JOINER}" or "\ufe00" <= char <= "\ufe0f":
                self._add_mark(char)
                continue
            cells = [char, ""] if unicodedata.east_asian_width(char) in "WF" else [char]
            self._wrap()
            if self.x + len(cells) > self.columns > 1:
                self.x = self.columns
                self._wrap()
            self._put(cells[: self.columns])
            self.x += len(cells)

    def _add_mark(self, mark: str) -> None:
        line = self._chars[self.y]
        if 0 < self.x <= len(line) and len(line[self.x - 1]) <= _MOST_MARKS:
            line[self.x - 1] += mark

    def _wrap(self) -> None:
        if self.x >= self.columns:
            self.x = 0
            self.feed_line()

    def _put(self, cells: list[str]) -> None:
        self._pad(self.x)
        end = self.x + len(cells)
        self._chars[self.y][self.x : end] = cells
        self._styles[self.y][self.x : end] = [self.style] * len(cells)

    def _pad(self, length: int) -> None:
        missing = length - len(self._chars[self.y])
        if missing > 0:
            self._chars[self.y] += [" "] * missing
            self._styles[self.y] += [PLAIN] * missing

    def feed_line(self) -> None:
        """Go a line down; at the end of the scrolled region its first line goes."""
        if self.y == self._bottom:
            self.scroll(1)
        elif self.y < self.rows - 1:
            self.y += 1

    def feed_back(self) -> None:
        """Go a line up; at the begin of the scrolled region a line comes in above."""
        if self.y == self._top:
            self.scroll(-1)
        elif self.y > 0:
            self.y -= 1

    def tab(self) -> None:
        self.x = min(self.columns - 1, (self.x // _TAB + 1) * _TAB)

    def move(self, *, x: int | None = None, y: int | None = None) -> None:
        """Set the cursor, within the screen."""
        if x is not None:
            self.x = max(0, min(x, self.columns - 1))
        if y is not None:
            self.y = max(0, min(y, self.rows - 1))

    def set_region(self, top: int, bottom: int) -> None:
        """Scroll these lines alone from now on."""
        bottom = min(bottom, self.rows - 1)
        if 0 <= top < bottom:
            self._top, self._bottom = top, bottom
            self.x = self.y = 0

    def scroll(self, lines: int, first: int | None = None) -> None:
        """Move the lines of the region from `first` on up by so many, or down where it is negative."""
        first = self._top if first is None else first
        height = self._bottom - first + 1
        if height < 1:
            return
        for _ in range(min(abs(lines), height)):
            gone, new = (first, self._bottom) if lines > 0 else (self._bottom, first)
            for part in (self._chars, self._styles):
                del part[gone]
            self._chars.insert(new, [])
            self._styles.insert(new, [])

    def insert_lines(self, count: int) -> None:
        """Push the lines from the cursor on down; with a negative count, pull them up."""
        if self._top <= self.y <= self._bottom:
            self.scroll(-count, self.y)

    def erase_line(self, begin: int, end: int) -> None:
        """Empty the cells of the cursor's line from `begin` up to `end`."""
        self._erase(self.y, begin, end)

    def erase_lines(self, begin: int, end: int) -> None:
        """Empty the lines from `begin` up to `end`."""
        for line in range(max(0, begin), min(end, self.rows)):
            self._erase(line, 0, self.columns)

    def _erase(self, line: int, begin: int, end: int) -> None:
        chars, styles = self._chars[line], self._styles[line]
        if end >= len(chars):
            del chars[begin:]
            del styles[begin:]
        else:
            chars[begin:end] = [" "] * (end - begin)
            styles[begin:end] = [PLAIN] * (end - begin)

    def delete_cells(self, count: int) -> None:
        """Take cells out at the cursor; what is right of them moves there."""
        del self._chars[self.y][self.x : self.x + count]
        del self._styles[self.y][self.x : self.x + count]

    def insert_cells(self, count: int) -> None:
        """Push what is right of the cursor further to the right."""
        count = min(count, self.columns - self.x)
        self._pad(self.x)
        self._chars[self.y][self.x : self.x] = [" "] * count
        self._styles[self.y][self.x : self.x] = [PLAIN] * count
        del self._chars[self.y][self.columns :]
        del self._styles[self.y][self.columns :]

    def last_lines(self, rows: int, columns: int) -> list[Line]:
        """The last lines that hold something, cut to so many columns."""
        end = self.rows
        while end > self.y + 1 and not "".join(self._chars[end - 1]).strip():
            end -= 1
        return [self._line(at, columns) for at in range(max(0, end - rows), end)]

    def _line(self, at: int, columns: int) -> Line:
        chars, styles = self._chars[at][:columns], self._styles[at][:columns]
        if styles.count(PLAIN) == len(styles):
            return _shown("".join(chars)).rstrip()
        parts: list[str] = []
        place = 0
        for style, cells in groupby(styles):
            length = len(list(cells))
            parts += [_shown("".join(chars[place : place + length])), style.words]
            place += length
        return parts


def _shown(text: str) -> str:
    return text if text.isprintable() else unseen_as(text, "\N{REPLACEMENT CHARACTER}")
