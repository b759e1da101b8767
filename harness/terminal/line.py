"""The line that a program is printing: cells in a row and the cursor that overwrites them, as tmux does it.

A line is not wrapped, however long it is: a carriage return goes back to where it began. Pure, no I/O.
Source: https://github.com/tmux/tmux/blob/master/screen-write.c
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from harness.terminal.spec import COLUMNS

EDIT_SEQUENCE = r"\[[0-9]{0,9}(?:;[0-9;:]{0,53})?[@CDGKPX`]"
"""The pattern behind the ESC of sequences that a line obeys; only their first number counts."""
_TOKEN = re.compile(r"[^\r\b\x1b]+|\r+|\x08+|\x1b\[([0-9]*)[0-9;:]*(.)")
_LONGEST_LINE = 2048
"""Most cells of one line that can still be overwritten; when there are as many, the first half becomes final."""
_LONGEST_CELL = 32
"""Most code points of a cell; further combining characters take a cell of their own."""
_TAB = 8
_ERASED = "\0"
"""The content of a cell that nothing was printed in: nothing at a line's end, elsewhere a space. No text holds it."""
_REST = ""
"""The content of the further cells of a wide character or a tab."""


def has_edits(line: str) -> bool:
    """Whether anything in `line` moves the cursor back or changes what was printed."""
    return "\r" in line or "\b" in line or "\x1b" in line


class TerminalLine:
    """The cells of a line and the cursor, which overwrites them.

    Text may be cut into parts anywhere but within a sequence. A line without edits comes out as it went in.
    """

    def __init__(self) -> None:
        self._cells: list[str] = []
        self._cursor = 0

    def obey(self, text: str) -> str:
        """Print `text`, which has no newline, and return the beginning of the line that is final by now."""
        return "".join([self._obey(token) for token in _TOKEN.finditer(text)])

    def end(self) -> str:
        """Return what is left of the line, and begin a new one."""
        text = _text("".join(self._cells).rstrip(_ERASED))
        self._cells.clear()
        self._cursor = 0
        return text

    def _obey(self, token: re.Match[str]) -> str:
        run = token[0]
        if run[0] == "\r":
            self._cursor = 0
        elif run[0] == "\b":
            self._cursor = max(0, self._cursor - len(run))
        elif run[0] == "\x1b":
            self._edit(token[2], int(token[1] or 0))
        else:
            self._print(run)
            return self._final()
        return ""

    def _final(self) -> str:
        """Take the first cells off a line that has grown too long, at whose end the cursor is."""
        half = _LONGEST_LINE // 2
        count = max(0, (len(self._cells) - half) // half) * half
        if count == 0:
            return ""
        text = _text("".join(self._cells[:count]))
        del self._cells[:count]
        self._cursor -= count
        return text

    # -- printing ------------------------------------------------------------------------------

    def _print(self, text: str) -> None:
        self._reach_cursor()
        if text.isascii() and "\t" not in text:
            self._overwrite(text)
            return
        first, *others = text.split("\t")
        self._print_wide(first)
        for part in others:
            self._tab()
            self._print_wide(part)

    def _reach_cursor(self) -> None:
        self._cells += [_ERASED] * (self._cursor - len(self._cells))

    def _print_wide(self, text: str) -> None:
        """Print text that may have characters of no width or of two cells."""
        cells: list[str] = []
        for character in text:
            width = _width(character)
            if width == 0 and self._combine(cells, character):
                continue
            cells.append(character)
            if width == 2:
                cells.append(_REST)
        if cells:
            self._overwrite(cells)

    def _combine(self, cells: list[str], character: str) -> bool:
        """Add a character of no width to the one before it; False where there is none that can take it."""
        line, end = (cells, len(cells)) if cells else (self._cells, self._cursor)
        before = end - 1
        while before > 0 and line[before] == _REST:
            before -= 1
        if before < 0 or len(line[before]) >= _LONGEST_CELL:
            return False
        line[before] += character
        return True

    def _overwrite(self, cells: Sequence[str]) -> None:
        end = self._cursor + len(cells)
        self._split(self._cursor)
        self._split(end)
        self._cells[self._cursor : end] = cells
        self._cursor = end

    def _tab(self) -> None:
        """Print a tab, which stays one over blank cells; over others it only moves the cursor."""
        stop = (self._cursor // _TAB + 1) * _TAB
        if all(cell == _ERASED for cell in self._cells[self._cursor : stop]):
            self._overwrite(["\t", *[_REST] * (stop - self._cursor - 1)])
        else:
            self._cursor = stop
            self._reach_cursor()

    def _split(self, place: int) -> None:
        """Turn the character whose cells lie on both sides of `place` into blanks."""
        if place >= len(self._cells) or self._cells[place] != _REST:
            return
        start = end = place
        while start > 0 and self._cells[start] == _REST:
            start -= 1
        while end < len(self._cells) and self._cells[end] == _REST:
            end += 1
        self._cells[start:end] = [_ERASED] * (end - start)

    # -- editing -------------------------------------------------------------------------------

    def _edit(self, final: str, number: int) -> None:
        """Obey the CSI sequence with this last character and this first parameter, 0 where it is missing."""
        count = max(1, number)
        match final:
            case "C":
                self._cursor = max(self._cursor, min(self._cursor + count, COLUMNS - 1))
            case "D":
                self._cursor = max(0, self._cursor - count)
            case "G" | "`":
                self._cursor = min(count, COLUMNS) - 1
            case "K":
                self._erase_line(number)
            case "X":
                self._erase(self._cursor, self._cursor + count)
            case "P":
                self._delete(count)
            case "@":
                self._insert(count)

    def _erase_line(self, part: int) -> None:
        if part == 0:
            self._split(self._cursor)
            del self._cells[self._cursor :]
        elif part == 1:
            self._erase(0, self._cursor + 1)
        elif part == 2:
            self._cells.clear()

    def _erase(self, start: int, end: int) -> None:
        end = min(end, len(self._cells))
        if start < end:
            self._split(start)
            self._split(end)
            self._cells[start:end] = [_ERASED] * (end - start)

    def _delete(self, count: int) -> None:
        self._split(self._cursor)
        self._split(self._cursor + count)
        del self._cells[self._cursor : self._cursor + count]

    def _insert(self, count: int) -> None:
        """Shift the rest of the line to the right; what passes the screen's last column is lost."""
        if self._cursor >= len(self._cells):
            return
        room = max(COLUMNS, len(self._cells))
        self._split(self._cursor)
        self._cells[self._cursor : self._cursor] = [_ERASED] * min(count, room - self._cursor)
        self._split(room)
        del self._cells[room:]


def _text(cells: str) -> str:
    """The text of cells."""
    return cells.replace(_ERASED, " ")


@lru_cache(maxsize=4096)
def _width(character: str) -> int:
    """The number of cells of a printable character, as wcwidth: 2 for East Asian wide ones, 0 for combining ones."""
    if unicodedata.category(character) in ("Cc", "Cf", "Me", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "FW" else 1
