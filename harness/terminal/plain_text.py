"""Turns what a program prints on its terminal into plain text as it streams in, and keeps head and tail of it.

Escape sequences are removed, overwritten text shows its last state, and a line ends in one newline. Only the line that
is being printed can change: moving up or clearing the screen does nothing. Pure, no I/O.
Source of how sequences begin and end: https://github.com/tmux/tmux/blob/master/input.c
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

# The line that a program is printing: cells in a row and the cursor that overwrites them, as tmux does it.
#
# A line is not wrapped, however long it is: a carriage return goes back to where it began. Pure, no I/O. Source:
# https://github.com/tmux/tmux/blob/master/screen-write.c

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


_BYTES_AT_ONCE = 16 << 10
"""Most bytes that are read at once, so that what they are turned into stays small."""


@dataclass(frozen=True)
class Captured:
    """Plain text, whole or with a gap in its middle."""

    text: str
    """The whole text, or head and tail around a line that says how many bytes are missing."""
    gap: Gap | None = None


class PlainText:
    """A program's output as plain text, of which the first and last half of `limit_bytes` of UTF-8 are kept.

    What lies between is only counted. Takes linear time, and memory for a few times the limit, whatever comes.
    """

    def __init__(self, limit_bytes: int = 64 << 10) -> None:
        self._reader = _OutputReader()
        self._ends = _Ends(limit_bytes)

    def append(self, data: bytes) -> None:
        """Read the next piece of the output, which may be cut anywhere, also within characters and escape sequences."""
        for start in range(0, len(data), _BYTES_AT_ONCE):
            self._ends.add(self._reader.read(data[start : start + _BYTES_AT_ONCE]))

    def captured(self) -> Captured:
        """The text of the output, which is at its end: nothing may be appended after that."""
        self._ends.add(self._reader.end())
        return self._ends.captured()


def plain_text(data: bytes) -> str:
    """A program's output as a reader would see it line by line."""
    reader = _OutputReader()
    parts = [reader.read(data[start : start + _BYTES_AT_ONCE]) for start in range(0, len(data), _BYTES_AT_ONCE)]
    return "".join([*parts, reader.end()])


def without_escapes(text: str) -> str:
    """`text` without escape sequences and control characters; line breaks, carriage returns and tabs stay."""
    return _without_controls(_SEQUENCE.sub(_inner_controls, text)).replace("\b", "")


class _Ends:
    """The first and the last half of `limit_bytes` of a text that comes in parts, and how long it is."""

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
        # Trimmed in strides, so a flood costs linear time.
        if len(self._tail) > 2 * self._limit:
            del self._tail[: len(self._tail) - self._limit]

    def captured(self) -> Captured:
        if self._bytes <= self._limit:
            return Captured((self._head + self._tail).decode())
        # Characters that a limit cuts through belong to the gap.
        head = self._head.decode("utf-8", "ignore")
        tail = self._tail[len(self._tail) - self._limit // 2 :].decode("utf-8", "ignore")
        shown = head + tail
        gap = Gap(head, tail, self._bytes - len(shown.encode()), self._chars - len(shown))
        return Captured(gap.text, gap)


class _OutputReader:
    """Reads output piece by piece and gives back the plain text that later output cannot change."""

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
            return self._line.obey(rest)
        first, newline, others = complete.partition("\n")
        plain = self._line.obey(first) + self._line.end() + "\n"
        if newline:
            plain += self._whole_lines(others) + "\n"
        return plain + self._line.obey(rest)

    def _whole_lines(self, text: str) -> str:
        if not has_edits(text):
            return text
        return "\n".join(map(self._whole_line, text.split("\n")))

    def _whole_line(self, text: str) -> str:
        """The last state of a line that was printed from its beginning, without its newline."""
        text = text.rstrip("\r")
        if not has_edits(text):
            return text
        # Colouring programs (grep, gcc) erase the rest of the line after each colour, where there is nothing yet.
        coloured = text.replace("\x1b[K", "")
        if not has_edits(coloured):
            return coloured
        return self._line.obey(text) + self._line.end()


# -- escape sequences ----------------------------------------------------------------------------

# As tmux reads them: CAN and SUB end every sequence, ESC begins another one (in a DCS, tmux would go on to ST). Of
# other characters within a sequence, control characters act at once and those beyond ASCII are nothing; in strings
# both are part of the string. A body is as long as it can be, so what follows it is its end, an ESC, or still to come.
_SEQUENCE = re.compile(
    rf"""
    \x1b\x1b*(?:                          # not "one or more": a search for a fixed beginning is ten times as fast
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
"""The characters behind the ESC of sequences that hold a string: OSC, DCS, SOS, PM, APC, window title."""
_LONGEST_EDIT = 65
"""Most characters behind the ESC of a CSI sequence that tmux obeys, 63 of them parameters."""
_CONTROLS = dict.fromkeys((*range(0x08), 0x0B, 0x0C, *range(0x0E, 0x1B), *range(0x1C, 0x20), 0x7F))
"""Control characters that do nothing to a line, for `str.translate`, which is fast for ASCII only."""
_CONTROL = re.compile(f"[{re.escape(''.join(map(chr, _CONTROLS)))}]+")
_ACTING_CONTROL = re.compile(r"[\b\t\n\r]")
_NOT_ASCII_TEXT = re.compile(r"[^ -~]+")


class _Sequences:
    """Removes escape sequences and control characters from a text that comes in pieces.

    What stays are printable characters, newlines, tabs and what acts on the line: CR, BS and editing sequences.
    """

    def __init__(self) -> None:
        self._open = ""
        """The beginning of a sequence that has not ended yet; of a string only its kind."""

    def remove(self, text: str) -> str:
        """Return the next piece without sequences; one that has not ended yet is kept back."""
        if self._open or "\x1b" in text:
            text = _SEQUENCE.sub(_what_stays, self._without_open(self._open + text))
        return _without_controls(text)

    def _without_open(self, text: str) -> str:
        self._open = ""
        # Only the last one can be open, because every ESC ends the one before.
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


def _what_stays(found: re.Match[str]) -> str:
    """The part of a sequence that stays: itself where it edits the line, and the control characters within it."""
    if found.lastgroup is None:
        return ""
    if found.lastgroup == "edit":
        return "\x1b" + found["edit"]
    # Where control characters in its middle have acted, a sequence is as if they had come before it.
    sequence = _NOT_ASCII_TEXT.sub("", found["body"] + (found["end"] or ""))
    is_edit = _EDIT.fullmatch(sequence) is not None
    return _inner_controls(found) + ("\x1b" + sequence if is_edit else "")


def _inner_controls(found: re.Match[str]) -> str:
    """The control characters within a sequence that act on the line."""
    if found["body"] is None:
        return ""
    inner = found["before"] if found["body"].startswith(_STRINGS) else found["before"] + found["body"]
    return "".join(_ACTING_CONTROL.findall(inner))
