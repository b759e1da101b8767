"""What a terminal in raw mode sends, as key presses."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import NamedTuple


class Press(NamedTuple):
    """A key press: the character itself, the name of a key such as `enter` or `ctrl-]`, or `paste` with its text."""

    name: str
    text: str = ""


_PASTE_BEGINS, _PASTE_ENDS = "\x1b[200~", "\x1b[201~"
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[ -~])")
_TORN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
"""An escape that may go on in what comes next."""
_FINALS = {"A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "Z": "back-tab"}
_NUMBERS = {"1": "home", "3": "delete", "4": "end", "5": "page-up", "6": "page-down", "7": "home", "8": "end"}
_CONTROLS = {"\r": "enter", "\t": "tab", "\x7f": "backspace", "\b": "backspace", "\x1b": "escape"}


class PressReader:
    """Reads key presses out of bytes, which may be torn anywhere."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def presses(self, data: bytes) -> list[Press]:
        """The presses that are complete with these bytes."""
        self._rest += self._decoder.decode(data)
        return list(self._complete())

    @property
    def is_torn(self) -> bool:
        """Whether an escape has begun that may go on, unless nothing follows within a moment."""
        return bool(self._rest) and not self._rest.startswith(_PASTE_BEGINS)

    def end_escape(self) -> list[Press]:
        """What the torn escape is when nothing has followed: the key Escape, and whatever came after it."""
        rest, self._rest = self._rest, ""
        return [Press("escape"), *map(_pressed, rest[1:])] if rest else []

    def _complete(self) -> Iterator[Press]:
        while self._rest:
            if self._rest.startswith(_PASTE_BEGINS):
                pasted, end, rest = self._rest.removeprefix(_PASTE_BEGINS).partition(_PASTE_ENDS)
                if not end:
                    return
                self._rest = rest
                yield Press("paste", pasted.replace("\r\n", "\n").replace("\r", "\n"))
            elif _TORN.match(self._rest):
                return
            elif (found := _SEQUENCE.match(self._rest)) is not None:
                self._rest = self._rest[found.end() :]
                yield Press(_named(found[0]))
            elif self._rest[0] == "\x1b":
                second, self._rest = _pressed(self._rest[1]), self._rest[2:]
                yield Press(f"alt-{second.name}")
            else:
                char, self._rest = self._rest[0], self._rest[1:]
                yield _pressed(char)


def _pressed(char: str) -> Press:
    if char in _CONTROLS:
        return Press(_CONTROLS[char])
    if char < " ":
        return Press(f"ctrl-{chr(ord(char) + 0x40).lower()}")
    return Press(char)


def _named(sequence: str) -> str:
    """The key that sends a sequence; `unknown` for what no key here means anything by."""
    numbers, final = sequence[2:-1], sequence[-1]
    if final == "~":
        return _NUMBERS.get(numbers.partition(";")[0], "unknown")
    return _FINALS.get(final, "unknown")
