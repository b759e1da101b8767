"""Turns what a program prints on its terminal into plain text as it streams in, and keeps head and tail of it.

Escape sequences are removed, overwritten text shows its last state, and a line ends in one newline. Only the line that
is being printed can change: moving up or clearing the screen does nothing. Pure, no I/O.
Source of how sequences begin and end: https://github.com/tmux/tmux/blob/master/input.c
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from harness.protocols.base import Gap
from harness.terminal.line import EDIT_SEQUENCE, TerminalLine, has_edits

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
