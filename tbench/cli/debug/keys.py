"""Keys of the debugger: how a raw terminal sends them, what each does, and the line that is edited with them."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

TYPING_ENDS = "Ctrl-]"


class Binding(NamedTuple):
    """A key and its command."""

    presses: tuple[str, ...]
    """Names of the key presses."""
    name: str
    """One word for it."""
    does: str
    """A line of help."""
    words: str = ""
    """The command in words, or its beginning where the answer to a question ends it."""
    asks: str = ""
    """The question, where there is one."""
    default: str = ""
    """What an empty answer means."""
    is_daily: bool = True
    """Whether it is among those that are always shown."""

    @property
    def shown(self) -> str:
        """The key as the help has it."""
        return self.presses[0] if self.presses[0] != "tab" else "Tab"


KEYS = (
    Binding(("s", " "), "step", "do what waits, and stop at the next reply (also the space bar)", "step"),
    Binding(("n",), "to step", "go on to the reply of a step", "run to", "go on to the reply of step"),
    Binding(("u",), "until", "go on until a text is on the screen", "run until", "go on until the screen shows"),
    Binding(("g",), "go on", "go on to the end", "run", is_daily=False),
    Binding(("e",), "edit", "edit the reply that waits, in $EDITOR where it is set", "edit", "reply"),
    Binding(("d",), "drop", "do nothing of it; the model reads why", "drop", "why it is not done"),
    Binding(("r",), "resample", "ask once more with another seed; also: seed=7 temperature=1", "sample", "sample", "1"),
    Binding(("k",), "samples", "ask for several replies and see them side by side", "sample", "how many more", "3"),
    Binding(("1",), "choose", "1 to 9: choose this sample", "choose", is_daily=False),
    Binding(("t",), "type", f"type into its terminal yourself; {TYPING_ENDS} gives it back"),
    Binding(("m",), "message", "tell the model something with its next message", "say", "tell the model"),
    Binding(("v",), "verify", "let the verifier judge a copy, now", "verify"),
    Binding(("S",), "snapshot", "keep the container's files as an image", "snapshot", is_daily=False),
    Binding(("b",), "rewind", "do it again up to a step, in a fresh container", "rewind", "back to the reply of step"),
    Binding(("C",), "cassette", "save its model's replies, to be played back", "cassette", is_daily=False),
    Binding(("p",), "pause", "hold it before its next model call, or let it go on"),
    Binding((":",), "command", "a command in words, as scripts write them", "", ":", is_daily=False),
    Binding(("tab",), "pane", "the terminal, the steps, the samples; arrows and page keys scroll the steps"),
    Binding(("q",), "quit", "end the trial, and remove its container"),
    Binding(("Q",), "quit, keep", "end the trial, and keep its container", is_daily=False),
    Binding(("?",), "help", "this page"),
)
"""All of them, in the order of the help."""
BY_PRESS = {press: binding for binding in KEYS for press in binding.presses}


# What a terminal in raw mode sends, as key presses.


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


# A text that a person writes, key by key.


@dataclass
class LineEditor:
    """A text with a cursor in it; Ctrl-J begins another line."""

    text: str = ""
    at: int = 0
    """Index of the character that the cursor stands on."""

    @classmethod
    def holding(cls, text: str) -> LineEditor:
        """An editor of this text, with the cursor at its end."""
        return cls(text, len(text))

    def press(self, press: Press) -> bool:
        """Do what a key means within a text; False where it means nothing here."""
        match press.name:
            case "paste":
                self._insert(press.text)
            case "ctrl-j":
                self._insert("\n")
            case "left" | "ctrl-b":
                self.at = max(0, self.at - 1)
            case "right" | "ctrl-f":
                self.at = min(len(self.text), self.at + 1)
            case "home" | "ctrl-a":
                self.at = self._line_start()
            case "end" | "ctrl-e":
                self.at = self._line_end()
            case "up" | "down":
                self._to_line(-1 if press.name == "up" else 1)
            case _:
                return self._erase(press.name) or self._typed(press.name)
        return True

    def _typed(self, name: str) -> bool:
        if len(name) != 1:
            return False
        self._insert(name)
        return True

    def _erase(self, name: str) -> bool:
        """Take away what an erasing key takes away; False for other keys."""
        match name:
            case "backspace":
                self._cut(self.at - 1, self.at)
            case "delete" | "ctrl-d":
                self._cut(self.at, self.at + 1)
            case "ctrl-u":
                self._cut(self._line_start(), self.at)
            case "ctrl-k":
                self._cut(self.at, self._line_end())
            case "ctrl-w" | "alt-backspace":
                word = re.search(r"\S*\s*\Z", self.text[: self.at])
                self._cut(word.start() if word else 0, self.at)
            case _:
                return False
        return True

    def _insert(self, text: str) -> None:
        self.text = self.text[: self.at] + text + self.text[self.at :]
        self.at += len(text)

    def _cut(self, start: int, end: int) -> None:
        start = max(0, start)
        self.text = self.text[:start] + self.text[end:]
        self.at = start

    def _line_start(self) -> int:
        return self.text.rfind("\n", 0, self.at) + 1

    def _line_end(self) -> int:
        end = self.text.find("\n", self.at)
        return len(self.text) if end < 0 else end

    def _to_line(self, by: int) -> None:
        """Go to the line above or below, to the same column where it has one."""
        column = self.at - self._line_start()
        if by < 0 and self._line_start() > 0:
            self.at = self._line_start() - 1
        elif by > 0 and self._line_end() < len(self.text):
            self.at = self._line_end() + 1
        else:
            return
        start = self._line_start()
        self.at = min(start + column, self._line_end())
