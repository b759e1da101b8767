"""The wire protocol of tmux's control mode: bytes in, events out; events in, command lines out. Pure, no I/O.

Source: tmux(1), section CONTROL MODE; checked against tmux 3.3a.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Output(NamedTuple):
    """Bytes that a pane printed, unescaped."""

    pane: str
    data: bytes


class CommandReply(NamedTuple):
    """The answer to one command: the lines between %begin and %end, or %error."""

    ok: bool
    lines: tuple[bytes, ...]


class Notification(NamedTuple):
    """Any other %-line, e.g. %session-changed or %exit."""

    name: str
    arguments: bytes


Event = Output | CommandReply | Notification

_OCTAL = re.compile(rb"\\([0-7]{3})")
_FREQUENT = (
    (b"\\015\\012", b"\r\n"),
    (b"\\012", b"\n"),
    (b"\\015", b"\r"),
    (b"\\033", b"\x1b"),
    (b"\\011", b"\t"),
)


def unescape(data: bytes) -> bytes:
    r"""Undo tmux's octal escapes (`\033`, `\134`).

    Every backslash of the escaped text starts an escape, so plain replacements are exact as long as the
    backslash itself comes last; they are far faster than a regular expression on floods of output.
    """
    if b"\\" not in data:
        return data
    for escaped, plain in _FREQUENT:
        data = data.replace(escaped, plain)
    if b"\\" not in data:
        return data
    return _OCTAL.sub(lambda match: bytes((int(match[1], 8) & 0xFF,)), data)


class Parser:
    """Cuts the stream of a control client into events. Lines may be of any length and arrive in any pieces."""

    def __init__(self) -> None:
        self._tail: list[bytes] = []
        self._block: list[bytes] | None = None
        self._ends: tuple[bytes, bytes] = (b"", b"")
        """The lines that can end the current block: %end and %error with its own numbers."""

    def feed(self, data: bytes) -> list[Event]:
        """Events that `data` completes, in order."""
        head, newline, rest = data.partition(b"\n")
        if not newline:
            self._tail.append(data)
            return []
        lines = [b"".join((*self._tail, head)), *rest.split(b"\n")]
        last = lines.pop()
        self._tail = [last] if last else []
        events: list[Event] = []
        at = 0
        while at < len(lines):
            if self._block is not None:
                at = self._in_block(self._block, lines, at, events)
                continue
            if (event := self._line(lines[at])) is not None:
                events.append(event)
            at += 1
        return events

    def _line(self, line: bytes) -> Event | None:
        if line.startswith(b"%output "):
            pane, _, data = line[len(b"%output ") :].partition(b" ")
            return Output(pane.decode("ascii", "replace"), unescape(data))
        if line.startswith(b"%begin "):
            numbers = line[len(b"%begin ") :]
            self._block, self._ends = [], (b"%end " + numbers, b"%error " + numbers)
            return None
        if line.startswith(b"%"):
            name, _, arguments = line[1:].partition(b" ")
            return Notification(name.decode("ascii", "replace"), arguments)
        return None

    def _in_block(self, block: list[bytes], lines: list[bytes], start: int, events: list[Event]) -> int:
        """Take lines into the block from `start` on, and return where the first line is that does not belong to it."""
        # A screen may show a line that looks like %end: only the one with this block's own numbers ends it.
        end = len(lines)
        for line in self._ends:
            end = _index(lines, line, start, end)
        if end == len(lines):
            block += lines[start:]
            return end
        block += lines[start:end]
        events.append(CommandReply(lines[end] == self._ends[0], tuple(block)))
        self._block = None
        return end + 1


def _index(lines: list[bytes], line: bytes, start: int, stop: int) -> int:
    """The index of `line` among `lines` from `start` on; `stop` where it is not before that."""
    try:
        return lines.index(line, start, stop)
    except ValueError:
        return stop


CHUNK_BYTES = 1024
_LITERAL = re.compile(rb"[ -~\n]+")
_BUFFER_BYTES = 16_000
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 /.,:-_=+")
_CONTROL_KEYS = {
    f"C-{key}": byte
    for keys, byte in (
        *((("1", "!"), b"1"), (("9", "("), b"9"), (("0", ")"), b"0"), (("=",), b"="), (("+",), b"+"), (("#",), b"#")),
        *(((";", ":"), b";"), (("'",), b"'"), ((",", "<"), b","), ((".", ">"), b"."), (("`",), b"\0")),
        *((("3", "Escape"), b"\x1b"), (("4",), b"\x1c"), (("5",), b"\x1d"), (("7",), b"\x1f"), (("8",), b"\x7f")),
        *((("Enter",), b"\r"), (("Tab",), b"\t"), (("BTab",), b"\x1b[Z"), (("BSpace",), b"\b")),
    )
    for key in keys
}
"""Bytes for keys that have no control character, for which tmux 3.3a types nothing: those of a VT100's keyboard, which
tmux 3.5 sends, too (input-keys.c, input_key_vt10x)."""


def type_bytes(target: str, data: bytes) -> list[bytes]:
    """Command lines that type exactly `data`, free of tmux's key-name and quoting rules."""
    return [_type_chunk(target, data[start : start + CHUNK_BYTES]) for start in range(0, len(data), CHUNK_BYTES)]


def _type_chunk(target: str, chunk: bytes) -> bytes:
    # As one argument where tmux takes it as it is: it reads that in half the time.
    if _LITERAL.fullmatch(chunk):
        return b'send-keys -t %b -l -- "%b"\n' % (target.encode(), _quoted(chunk))
    return f"send-keys -t {target} -H {chunk.hex(' ')}\n".encode()


def press_key(target: str, key: str) -> bytes:
    """The command line that presses one key by its tmux name."""
    if key in _CONTROL_KEYS:
        return type_bytes(target, _CONTROL_KEYS[key])[0]
    quoted = "'" + key.replace("'", "'\\''") + "'"
    return f"send-keys -t {target} {quoted}\n".encode()


def write_file(path: str, data: bytes) -> list[bytes]:
    """Command lines that make tmux write a file of exactly `data`, one reply each. It must not be empty or hold NUL."""
    chunks = [data[start : start + _BUFFER_BYTES] for start in range(0, len(data), _BUFFER_BYTES)]
    lines = [b'set-buffer -a -b tbench -- "%b"\n' % _quoted(chunk) for chunk in chunks]
    lines[0] = lines[0].replace(b" -a", b"", 1)
    return [*lines, b"save-buffer -b tbench %b\n" % path.encode()]


def read_file(path: str) -> list[bytes]:
    """Command lines whose last reply holds the lines of a small file, or is an error where that is not there."""
    return [b"load-buffer -b tbench %b\n" % path.encode(), b"show-buffer -b tbench\n"]


def _quoted(data: bytes) -> bytes:
    """`data` as it stands between tmux's double quotes: in octal where it could mean something there."""
    data = data.replace(b"\\", b"\\134")
    for special in set(data) - _PLAIN - {0x5C}:
        data = data.replace(bytes((special,)), b"\\%03o" % special)
    return data
