"""A small terminal emulator: draws cells, colours and cursor, which is enough for a small picture of a screen.

The page shows large screens with a complete emulator; this one is cheap enough to keep many at once.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import groupby

from reports.cell_style import PLAIN, CellStyle, apply_codes
from tbench.text import replace_unseen

# The cells and the cursor of a terminal.

Line = str | list[str]
"""Line as a page shows it: plain text, or alternately text and the CSS classes of its style."""
_TAB = 8
_MAX_MARKS = 4
"""Maximum number of combining marks in a cell, against abuse."""


class CharacterGrid:
    """Screen of a fixed size. Lines are stored only as long as their content."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.x = self.y = 0
        self.style = PLAIN
        self._top, self._bottom = 0, rows - 1
        self._chars: list[list[str]] = [[] for _ in range(rows)]
        self._styles: list[list[CellStyle]] = [[] for _ in range(rows)]

    def write(self, text: str) -> None:
        """Print characters at the cursor, wrapping at the last column."""
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
        if 0 < self.x <= len(line) and len(line[self.x - 1]) <= _MAX_MARKS:
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
        """Move the cursor a line down; at the end of the scroll region, scroll up."""
        if self.y == self._bottom:
            self.scroll(1)
        elif self.y < self.rows - 1:
            self.y += 1

    def feed_back(self) -> None:
        """Move the cursor a line up; at the top of the scroll region, scroll down."""
        if self.y == self._top:
            self.scroll(-1)
        elif self.y > 0:
            self.y -= 1

    def tab(self) -> None:
        self.x = min(self.columns - 1, (self.x // _TAB + 1) * _TAB)

    def move(self, *, x: int | None = None, y: int | None = None) -> None:
        """Move the cursor, within the screen."""
        if x is not None:
            self.x = max(0, min(x, self.columns - 1))
        if y is not None:
            self.y = max(0, min(y, self.rows - 1))

    def set_region(self, top: int, bottom: int) -> None:
        """Set the scroll region."""
        bottom = min(bottom, self.rows - 1)
        if 0 <= top < bottom:
            self._top, self._bottom = top, bottom
            self.x = self.y = 0

    def scroll(self, lines: int, first: int | None = None) -> None:
        """Scroll the region below its line `first` up by `lines`, or down if negative."""
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
        """Insert `count` empty lines at the cursor, or delete lines if negative."""
        if self._top <= self.y <= self._bottom:
            self.scroll(-count, self.y)

    def erase_line(self, begin: int, end: int) -> None:
        """Clear the cells of the cursor's line from `begin` up to `end`."""
        self._erase(self.y, begin, end)

    def erase_lines(self, begin: int, end: int) -> None:
        """Clear the lines from `begin` up to `end`."""
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
        """Delete cells at the cursor, moving the rest of the line left."""
        del self._chars[self.y][self.x : self.x + count]
        del self._styles[self.y][self.x : self.x + count]

    def insert_cells(self, count: int) -> None:
        """Insert empty cells at the cursor, moving the rest of the line right."""
        count = min(count, self.columns - self.x)
        self._pad(self.x)
        self._chars[self.y][self.x : self.x] = [" "] * count
        self._styles[self.y][self.x : self.x] = [PLAIN] * count
        del self._chars[self.y][self.columns :]
        del self._styles[self.y][self.columns :]

    def last_lines(self, rows: int, columns: int) -> list[Line]:
        """Return the last lines that are not empty, cut to `columns`."""
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
            parts += [_shown("".join(chars[place : place + length])), style.classes]
            place += length
        return parts


def _shown(text: str) -> str:
    return text if text.isprintable() else replace_unseen(text, "\N{REPLACEMENT CHARACTER}")


_TOKEN = re.compile(
    r"(?P<text>[^\x00-\x1f\x7f]+)"
    r"|\x1b\[(?P<mark>[<-?]?)(?P<numbers>[0-9;:]*)[ -/]*(?P<final>[@-~])"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[ -/]+[0-~]"
    r"|\x1b(?P<escape>[0-OQ-WYZ\\`-~])"
    r"|(?P<control>[\x00-\x1f\x7f])"
)
_TORN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)\Z")
"""Incomplete escape sequence at the end of a piece of output."""
_LONGEST_ESCAPE = 4096
_MOST = 9999
MAX_COLUMNS, MAX_ROWS = 400, 200


class TileScreen:
    """Screen of a terminal."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = max(1, min(columns, MAX_COLUMNS))
        self.rows = max(1, min(rows, MAX_ROWS))
        self._grid = CharacterGrid(self.columns, self.rows)
        self._first = self._grid
        """Normal grid; full-screen programs use an alternate one."""
        self._saved = (0, 0)
        self._torn = ""

    def feed(self, text: str) -> None:
        """Process output."""
        text, self._torn = self._torn + text, ""
        if (torn := _TORN.search(text)) is not None:
            self._torn = torn[0] if len(torn[0]) < _LONGEST_ESCAPE else ""
            text = text[: torn.start()]
        for token in _TOKEN.finditer(text):
            kind = token.lastgroup
            if kind == "text":
                self._grid.write(token[0])
            elif kind == "control":
                self._control(token[0])
            elif kind == "final":
                self._sequence(token["mark"], _numbers(token["numbers"]), token["final"])
            elif kind == "escape":
                self._escape(token["escape"])

    def last_lines(self, rows: int, columns: int) -> list[Line]:
        """Return the last lines that are not empty, cut to `columns`."""
        return self._grid.last_lines(rows, columns)

    def _control(self, char: str) -> None:
        grid = self._grid
        match char:
            case "\n" | "\v" | "\f":
                grid.feed_line()
            case "\r":
                grid.move(x=0)
            case "\b":
                grid.move(x=min(grid.x, grid.columns) - 1)
            case "\t":
                grid.tab()
            case _:
                pass  # bells, and other characters that draw nothing

    def _escape(self, char: str) -> None:
        grid = self._grid
        match char:
            case "7":
                self._saved = grid.x, grid.y
            case "8":
                grid.move(x=self._saved[0], y=self._saved[1])
            case "D":
                grid.feed_line()
            case "E":
                grid.move(x=0)
                grid.feed_line()
            case "M":
                grid.feed_back()
            case "c":
                self._grid = self._first = CharacterGrid(self.columns, self.rows)
            case _:
                pass

    def _sequence(self, mark: str, numbers: tuple[int, ...], final: str) -> None:
        if final == "m" and not mark:
            style = apply_codes(self._grid.style, numbers)
            self._grid.style = style._replace(italic=False, underlined=False)  # too small to be seen
        elif mark == "?" and final in "hl":
            if not {47, 1047, 1049}.isdisjoint(numbers):
                self._show_other(final == "h")
        elif not mark:
            first = numbers[0] if numbers else 0
            if not self._move(first, numbers, final):
                self._change(first, numbers, final)

    def _show_other(self, wanted: bool) -> None:
        """Switch to an empty alternate grid for a full-screen program, or back to the normal one."""
        if wanted and self._grid is self._first:
            self._grid = CharacterGrid(self.columns, self.rows)
        elif not wanted:
            self._grid = self._first

    def _move(self, first: int, numbers: tuple[int, ...], final: str) -> bool:
        """Process a sequence that moves the cursor; return whether it was one."""
        grid, step = self._grid, max(1, first)
        match final:
            case "A":
                grid.move(y=grid.y - step)
            case "B" | "e":
                grid.move(y=grid.y + step)
            case "C" | "a":
                grid.move(x=grid.x + step)
            case "D":
                grid.move(x=min(grid.x, grid.columns) - step)
            case "E":
                grid.move(x=0, y=grid.y + step)
            case "F":
                grid.move(x=0, y=grid.y - step)
            case "G" | "`":
                grid.move(x=step - 1)
            case "d":
                grid.move(y=step - 1)
            case "H" | "f":
                grid.move(x=(numbers[1] if len(numbers) > 1 else 1) - 1, y=step - 1)
            case "s":
                self._saved = grid.x, grid.y
            case "u":
                grid.move(x=self._saved[0], y=self._saved[1])
            case _:
                return False
        return True

    def _change(self, first: int, numbers: tuple[int, ...], final: str) -> None:
        """Process a sequence that changes cells."""
        grid, count = self._grid, max(1, first)
        match final:
            case "J":
                self._erase_screen(first)
            case "K":
                grid.erase_line(grid.x if first == 0 else 0, grid.x + 1 if first == 1 else grid.columns)
            case "X":
                grid.erase_line(grid.x, grid.x + count)
            case "P":
                grid.delete_cells(count)
            case "@":
                grid.insert_cells(count)
            case "L":
                grid.insert_lines(count)
            case "M":
                grid.insert_lines(-count)
            case "S":
                grid.scroll(count)
            case "T":
                grid.scroll(-count)
            case "r":
                grid.set_region(count - 1, (numbers[1] if len(numbers) > 1 else grid.rows) - 1)
            case _:
                pass

    def _erase_screen(self, what: int) -> None:
        grid = self._grid
        if what == 0:
            grid.erase_line(grid.x, grid.columns)
            grid.erase_lines(grid.y + 1, grid.rows)
        elif what == 1:
            grid.erase_lines(0, grid.y)
            grid.erase_line(0, grid.x + 1)
        else:
            grid.erase_lines(0, grid.rows)


@lru_cache(maxsize=4096)
def _numbers(text: str) -> tuple[int, ...]:
    """Return the parameters of a sequence; omitted ones are 0."""
    if not text:
        return ()
    return tuple(min(int(part[:5] or 0), _MOST) for part in text.replace(":", ";").split(";"))
