"""Converts streamed terminal output to plain text, and keeps its head and tail.

Escape sequences are removed, overwritten text appears in its last state, and each line ends in one newline. Only the
current line can change: moving up or clearing the screen has no effect. Pure, no I/O.
Source for the syntax of sequences: https://github.com/tmux/tmux/blob/master/input.c
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from harness.protocols.base import Gap
from harness.terminal.spec import COLUMNS

# The current line: a row of cells and the cursor that overwrites them, as in tmux.
#
# A line is not wrapped, however long it is: a carriage return goes back to its beginning. Source:
# https://github.com/tmux/tmux/blob/master/screen-write.c

EDIT_SEQUENCE = r"\[[0-9]{0,9}(?:;[0-9;:]{0,53})?[@CDGKPX`]"
"""Pattern, after the ESC, of sequences that edit a line; only their first number counts."""
_TOKEN = re.compile(r"[^\r\b\x1b]+|\r+|\x08+|\x1b\[([0-9]*)[0-9;:]*(.)")
_LONGEST_LINE = 2048
"""Maximum number of cells of a line that can still be overwritten; when it is full, the first half becomes final."""
_LONGEST_CELL = 32
"""Maximum number of code points of a cell; further combining characters get their own cell."""
_TAB = 8
_ERASED = "\0"
"""Content of an empty cell: nothing at a line's end, a space elsewhere. It occurs in no text."""
_CONTINUATION = ""
"""Content of the second and further cells of a wide character or a tab."""


def has_edits(line: str) -> bool:
    """Whether `line` contains anything that moves the cursor back or changes earlier output."""
    return "\r" in line or "\b" in line or "\x1b" in line


class TerminalLine:
    """The cells of a line and the cursor that overwrites them.

    Text may be split anywhere except within a sequence. A line without edits comes out unchanged.
    """

    def __init__(self) -> None:
        self._cells: list[str] = []
        self._cursor = 0

    def apply(self, text: str) -> str:
        """Print `text`, which has no newline, and return the part of the line that has become final."""
        return "".join([self._apply(token) for token in _TOKEN.finditer(text)])

    def end(self) -> str:
        """Return the rest of the line, and begin a new one."""
        text = _text("".join(self._cells).rstrip(_ERASED))
        self._cells.clear()
        self._cursor = 0
        return text

    def _apply(self, token: re.Match[str]) -> str:
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
        """Remove the first cells from a line that has grown too long, with the cursor at its end."""
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
        """Print text that may have zero-width or wide characters."""
        cells: list[str] = []
        for character in text:
            width = cell_width(character)
            if width == 0 and self._combine(cells, character):
                continue
            cells.append(character)
            if width == 2:
                cells.append(_CONTINUATION)
        if cells:
            self._overwrite(cells)

    def _combine(self, cells: list[str], character: str) -> bool:
        """Add a zero-width character to the previous one; False if there is none that can take it."""
        line, end = (cells, len(cells)) if cells else (self._cells, self._cursor)
        before = end - 1
        while before > 0 and line[before] == _CONTINUATION:
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
        """Print a tab, which is kept over empty cells; over others it only moves the cursor."""
        stop = (self._cursor // _TAB + 1) * _TAB
        if all(cell == _ERASED for cell in self._cells[self._cursor : stop]):
            self._overwrite(["\t", *[_CONTINUATION] * (stop - self._cursor - 1)])
        else:
            self._cursor = stop
            self._reach_cursor()

    def _split(self, place: int) -> None:
        """Blank the character that spans the cells before and after `place`, if any."""
        if place >= len(self._cells) or self._cells[place] != _CONTINUATION:
            return
        start = end = place
        while start > 0 and self._cells[start] == _CONTINUATION:
            start -= 1
        while end < len(self._cells) and self._cells[end] == _CONTINUATION:
            end += 1
        self._cells[start:end] = [_ERASED] * (end - start)

    # -- editing -------------------------------------------------------------------------------

    def _edit(self, final: str, number: int) -> None:
        """Apply the CSI sequence with this final character and first parameter, 0 if missing."""
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
        """Shift the rest of the line to the right; cells beyond the screen's last column are lost."""
        if self._cursor >= len(self._cells):
            return
        room = max(COLUMNS, len(self._cells))
        self._split(self._cursor)
        self._cells[self._cursor : self._cursor] = [_ERASED] * min(count, room - self._cursor)
        self._split(room)
        del self._cells[room:]


def _text(cells: str) -> str:
    return cells.replace(_ERASED, " ")


@lru_cache(maxsize=4096)
def cell_width(character: str) -> int:
    """Return the cells of a printable character, like wcwidth: 2 for East Asian wide ones, 0 for combining ones."""
    if unicodedata.category(character) in ("Cc", "Cf", "Me", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "FW" else 1


_BYTES_AT_ONCE = 16 << 10
"""Maximum number of bytes that are read at once, which bounds the size of intermediate results."""


@dataclass(frozen=True)
class Captured:
    """Plain text, whole or with a gap in its middle."""

    text: str
    """The whole text, or head and tail around a line with the number of missing bytes."""
    gap: Gap | None = None


class PlainText:
    """A program's output as plain text; keeps the first and last half of `limit_bytes` of UTF-8, and counts the rest.

    Takes linear time, and memory of a few times the limit, for any input.
    """

    def __init__(self, limit_bytes: int = 64 << 10) -> None:
        self._reader = _OutputReader()
        self._ends = _HeadAndTail(limit_bytes)

    def append(self, data: bytes) -> None:
        """Read the next piece of the output, which may be split anywhere, even within characters and sequences."""
        for start in range(0, len(data), _BYTES_AT_ONCE):
            self._ends.add(self._reader.read(data[start : start + _BYTES_AT_ONCE]))

    def finish(self) -> Captured:
        """End the output and return its text; nothing may be appended afterwards."""
        self._ends.add(self._reader.end())
        return self._ends.finish()


def plain_text(data: bytes) -> str:
    """Convert a program's output to plain text."""
    reader = _OutputReader()
    parts = [reader.read(data[start : start + _BYTES_AT_ONCE]) for start in range(0, len(data), _BYTES_AT_ONCE)]
    return "".join([*parts, reader.end()])


def without_escapes(text: str) -> str:
    """Remove escape sequences and control characters, except line breaks, carriage returns and tabs."""
    return _without_controls(_SEQUENCE.sub(_inner_controls, text)).replace("\b", "")


class _HeadAndTail:
    """Keeps the first and last half of `limit_bytes` of a text that comes in parts, and counts its length."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._head = b""
        self._tail = bytearray()
        self._bytes = 0
        self._chars = 0

    def add(self, text: str) -> None:
        data = text.encode()
        self._bytes += len(data)
        self._chars += len(text)
        room = self._limit // 2 - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Trimmed in large steps, so a flood costs linear time.
        if len(self._tail) > 2 * self._limit:
            del self._tail[: len(self._tail) - self._limit]

    def finish(self) -> Captured:
        if self._bytes <= self._limit:
            return Captured((self._head + self._tail).decode())
        # Characters that are cut by a limit belong to the gap.
        head = self._head.decode("utf-8", "ignore")
        tail = self._tail[len(self._tail) - self._limit // 2 :].decode("utf-8", "ignore")
        shown = head + tail
        gap = Gap(head, tail, self._bytes - len(shown.encode()), self._chars - len(shown))
        return Captured(gap.text, gap)


class _OutputReader:
    """Reads output piece by piece and returns the plain text that later output cannot change."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._sequences = _Sequences()
        self._line = TerminalLine()

    def read(self, data: bytes) -> str:
        return self._read(self._decoder.decode(data))

    def end(self) -> str:
        """Return the rest: the last line, without a newline."""
        return self._read(self._decoder.decode(b"", final=True)) + self._line.end()

    def _read(self, text: str) -> str:
        text = self._sequences.remove(text).replace("\r\n", "\n")
        complete, newline, rest = text.rpartition("\n")
        if not newline:
            return self._line.apply(rest)
        first, newline, others = complete.partition("\n")
        plain = self._line.apply(first) + self._line.end() + "\n"
        if newline:
            if has_edits(others):
                others = "\n".join(map(self._whole_line, others.split("\n")))
            plain += others + "\n"
        return plain + self._line.apply(rest)

    def _whole_line(self, text: str) -> str:
        """Return the final state of a complete line, without its newline."""
        text = text.rstrip("\r")
        if not has_edits(text):
            return text
        # Colouring programs (grep, gcc) erase the still empty rest of the line after each colour.
        coloured = text.replace("\x1b[K", "")
        if not has_edits(coloured):
            return coloured
        return self._line.apply(text) + self._line.end()


# -- escape sequences ----------------------------------------------------------------------------

# As tmux reads them: CAN and SUB end every sequence, ESC begins another one (in a DCS, tmux would read on to ST).
# Control characters within a sequence act at once and non-ASCII characters are ignored; in strings both are part of the
# string. Bodies are matched greedily: after one comes its end, an ESC, or output that has not arrived yet.
_SEQUENCE = re.compile(
    rf"""
    \x1b\x1b*(?:                          # not \x1b+: a search for a fixed beginning is ten times as fast
        \[[0-9;:]*+m                        # colours: the most frequent ones, so decided first
      | (?P<edit>{EDIT_SEQUENCE})
      | \[[ -?]*+[@-~]                      # any other CSI sequence that is whole
      | (?P<before>[^ -~\x18\x1a\x1b]*+)
        (?P<body>
            \[[^@-~\x18\x1a\x1b]*           # CSI
          | \][^\x07\x18\x1a\x1b]*          # OSC, which BEL ends too
          | [PX^_k][^\x18\x1a\x1b]*         # DCS, SOS, PM, APC, and the title of a window
          | [^0-~\x18\x1a\x1b]*             # two and more characters, ST among them
        )
        (?P<end>[^\x1b])?
    )
    """,
    re.VERBOSE,
)
_EDIT = re.compile(EDIT_SEQUENCE)
_STRINGS = ("]", "P", "X", "^", "_", "k")
"""Characters after the ESC of sequences with a string: OSC, DCS, SOS, PM, APC, window title."""
_LONGEST_EDIT = 65
"""Maximum number of characters after the ESC of a CSI sequence that tmux obeys, 63 of them parameters."""
_CONTROLS = dict.fromkeys((*range(0x08), 0x0B, 0x0C, *range(0x0E, 0x1B), *range(0x1C, 0x20), 0x7F))
"""Control characters without effect on a line, for `str.translate`, which is only fast for ASCII."""
_CONTROL = re.compile(f"[{re.escape(''.join(map(chr, _CONTROLS)))}]+")
_ACTING_CONTROL = re.compile(r"[\b\t\n\r]")
_NOT_ASCII_TEXT = re.compile(r"[^ -~]+")


class _Sequences:
    """Removes escape sequences and control characters from a text that comes in pieces.

    Keeps printable characters, newlines, tabs, and everything that edits the line: CR, BS and editing sequences.
    """

    def __init__(self) -> None:
        self._open = ""
        """Beginning of an unfinished sequence; for a string, only its kind."""

    def remove(self, text: str) -> str:
        """Return the next piece without sequences; an unfinished one is held back."""
        if self._open or "\x1b" in text:
            text = _SEQUENCE.sub(_kept_part, self._without_open(self._open + text))
        return _without_controls(text)

    def _without_open(self, text: str) -> str:
        self._open = ""
        # Only the last one can be unfinished, because every ESC ends the previous one.
        start = text.rfind("\x1b")
        last = _SEQUENCE.match(text, start) if start >= 0 else None
        if last is None or last["body"] is None or last["end"] or last.end() < len(text):
            return text
        is_string = last["body"].startswith(_STRINGS)
        kept = last["body"][0] if is_string else _NOT_ASCII_TEXT.sub("", last["body"])[:_LONGEST_EDIT]
        self._open = "\x1b" + kept
        return text[:start] + _inner_controls(last)


def _without_controls(text: str) -> str:
    return text.translate(_CONTROLS) if text.isascii() else _CONTROL.sub("", text)


def _kept_part(found: re.Match[str]) -> str:
    """Return the kept part of a sequence: the control characters within it, and the sequence if it edits the line."""
    if found.lastgroup is None:
        return ""
    if found.lastgroup == "edit":
        return "\x1b" + found["edit"]
    # Control characters within a sequence act as if they preceded it.
    sequence = _NOT_ASCII_TEXT.sub("", found["body"] + (found["end"] or ""))
    is_edit = _EDIT.fullmatch(sequence) is not None
    return _inner_controls(found) + ("\x1b" + sequence if is_edit else "")


def _inner_controls(found: re.Match[str]) -> str:
    """Return the control characters within a sequence that act on the line."""
    if found["body"] is None:
        return ""
    inner = found["before"] if found["body"].startswith(_STRINGS) else found["before"] + found["body"]
    return "".join(_ACTING_CONTROL.findall(inner))
