"""Finds the shell's OSC 133 marks in the output stream, and with them the exact output of each command.

The tools volume's shell set-up prints them: C when a command is about to run, D with the exit code and
whether another typed line already waits when it has ended, B when the prompt has been drawn, P where a command needs
more lines, X with the exit code of a shell that has ended, S before what the set-up itself shows. Shells without
bash's hooks print D with the prompt. A delivered command has a C and a D with its own id. Pure, no I/O.
Source: https://gitlab.freedesktop.org/Per_Bothner/specifications/-/blob/master/proposals/semantic-prompts.md
"""

from __future__ import annotations

import re
from typing import NamedTuple

_MARK = re.compile(
    rb"\x1b\]133;([BCDPSX])(?:;(-?\d+))?;aid=tbench(?:;id=(\d+))?(?:;line=(\d*))?(?:;pid=(\d+))?(?:;number=(\d+))?(?:;pending=(\w+))?"
    rb"(?:;note=(\w+))?(?:\x1b\\|\x07)"
)
_OPENING = b"\x1b]133;"
_LONGEST_MARK = 128


class Mark(NamedTuple):
    """One mark: `kind` is its letter; the exit code is set on D and X, pending on D."""

    kind: str
    exit_code: int | None = None
    pending: bool | None = None
    """Whether another typed line already waits; None where the shell cannot tell."""
    line: int | None = None
    """Number of lines that the shell has read so far (bash, on D and B)."""
    pid: int | None = None
    """The shell's process id."""
    id: int | None = None
    """The delivered command's id."""
    number: int | None = None
    """The prompt's number (bash, on B): one higher behind each command."""
    note: str | None = None
    """The kind of note that a delivered command's end (D) comes with."""


class MarkScanner:
    """Splits output into text and marks, in order, wherever the stream was cut."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> list[bytes | Mark]:
        if self._tail:
            data, self._tail = self._tail + data, b""
        if b"\x1b" not in data:
            return [data]
        pieces: list[bytes | Mark] = []
        position = 0
        for match in _MARK.finditer(data):
            if match.start() > position:
                pieces.append(data[position : match.start()])
            pieces.append(_mark(match))
            position = match.end()
        rest = data[position:]
        cut = _unfinished(rest)
        if cut is not None:
            rest, self._tail = rest[:cut], rest[cut:]
        if rest:
            pieces.append(rest)
        return pieces


def _mark(match: re.Match[bytes]) -> Mark:
    kind, code, identity, line, pid, number, pending, note = match.groups()
    return Mark(
        kind.decode(),
        int(code) if code else None,
        {b"0": False, b"1": True}.get(pending or b""),
        int(line) if line else None,
        int(pid) if pid else None,
        int(identity) if identity else None,
        int(number) if number else None,
        note.decode() if note else None,
    )


def _unfinished(data: bytes) -> int | None:
    """The place where a mark may have begun that the next read will complete."""
    start = data.rfind(_OPENING, max(0, len(data) - _LONGEST_MARK))
    if start >= 0:
        return start
    start = data.rfind(b"\x1b", max(0, len(data) - len(_OPENING)))
    return start if start >= 0 and _OPENING.startswith(data[start:]) else None
