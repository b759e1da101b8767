"""Keys of the debugger: bindings, decoding of a raw terminal's input, and a text editor for prompts."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tbench.cli.debug.commands import UNTIL

RELEASE_KEY = "Ctrl-]"


class Binding(NamedTuple):
    """A key binding of the debugger."""

    presses: tuple[str, ...]
    """Names of the key presses."""
    name: str
    """Short name, shown beside the key."""
    help: str
    """One line of help."""
    command: str = ""
    """The command, to which the answer to the question is appended."""
    question: str = ""
    """The prompt for an argument; empty if the command needs none."""
    default: str = ""
    """The answer used for empty input."""
    is_common: bool = True
    """Whether the key is shown in the bottom line."""

    @property
    def label(self) -> str:
        """The key as shown in the help."""
        return self.presses[0] if self.presses[0] != "tab" else "Tab"


KEYS = (
    Binding(("s", " "), "step", "execute the pending reply, and stop at the next one (also: space bar)", "step"),
    Binding(("n",), "to step", "run up to the reply of a step", "run to", "run up to the reply of step"),
    Binding(("u",), "until", f"run until {UNTIL}", "run until", f"run until {UNTIL}"),
    Binding(("g",), "run", "run to the end", "run", is_common=False),
    Binding(("e",), "edit", "edit the pending reply, in $EDITOR if set", "edit", "reply"),
    Binding(("d",), "drop", "discard the pending reply and send the model a reason", "drop", "reason for discarding"),
    Binding(
        ("r",),
        "resample",
        "sample the reply again, with another seed or with options such as seed=7 temperature=1",
        "sample",
        "sample",
        "1",
    ),
    Binding(("k",), "samples", "sample several replies and compare them side by side", "sample", "how many more", "3"),
    Binding(("1",), "choose", "1 to 9: choose a sample", "choose", is_common=False),
    Binding(("t",), "type", f"type into the trial's terminal; {RELEASE_KEY} gives it back"),
    Binding(("m",), "message", "add a message to the model's next observation", "say", "message"),
    Binding(("v",), "verify", "run the verifier now, in a copy of the container", "verify"),
    Binding(("S",), "snapshot", "save the container's files as an image", "snapshot", is_common=False),
    Binding(
        ("b",), "rewind", "replay the trial up to a step, in a fresh container", "rewind", "back to the reply of step"
    ),
    Binding(("C",), "cassette", "save the model's replies as a cassette", "cassette", is_common=False),
    Binding(("p",), "pause", "hold the trial before its next model call, or continue it"),
    Binding((":",), "command", "enter a command, as in scripts", "", ":", is_common=False),
    Binding(("tab",), "pane", "switch between terminal, steps and samples; arrow and page keys scroll the steps"),
    Binding(("q",), "quit", "end the trial and remove its container"),
    Binding(("Q",), "quit, keep", "end the trial and keep its container", is_common=False),
    Binding(("?",), "help", "this page"),
)
"""All key bindings, in the order of the help."""
BY_PRESS = {press: binding for binding in KEYS for press in binding.presses}


# Decoding of input from a terminal in raw mode.


class Press(NamedTuple):
    """A key press, named by its character or key (`enter`, `ctrl-]`), or `paste` with the pasted text."""

    name: str
    text: str = ""


_PASTE_BEGINS, _PASTE_ENDS = "\x1b[200~", "\x1b[201~"
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[ -~])")
_INCOMPLETE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
"""An escape sequence that may continue in the next input."""
_FINALS = {"A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "Z": "back-tab"}
_NUMBERS = {"1": "home", "3": "delete", "4": "end", "5": "page-up", "6": "page-down", "7": "home", "8": "end"}
_CONTROLS = {"\r": "enter", "\t": "tab", "\x7f": "backspace", "\b": "backspace", "\x1b": "escape"}


class PressReader:
    """Decodes key presses from bytes, which may be split anywhere."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def presses(self, data: bytes) -> list[Press]:
        """Return the key presses that these bytes complete."""
        self._rest += self._decoder.decode(data)
        return list(self._complete())

    @property
    def is_incomplete(self) -> bool:
        """Whether the input ends inside an escape sequence, which is the Escape key if nothing follows soon."""
        return bool(self._rest) and not self._rest.startswith(_PASTE_BEGINS)

    def end_escape(self) -> list[Press]:
        """Interpret an incomplete escape sequence as the Escape key and further keys."""
        rest, self._rest = self._rest, ""
        return [Press("escape"), *map(_make_press, rest[1:])] if rest else []

    def _complete(self) -> Iterator[Press]:
        while self._rest:
            if self._rest.startswith(_PASTE_BEGINS):
                pasted, end, rest = self._rest.removeprefix(_PASTE_BEGINS).partition(_PASTE_ENDS)
                if not end:
                    return
                self._rest = rest
                yield Press("paste", pasted.replace("\r\n", "\n").replace("\r", "\n"))
            elif _INCOMPLETE.match(self._rest):
                return
            elif (found := _SEQUENCE.match(self._rest)) is not None:
                self._rest = self._rest[found.end() :]
                yield Press(_key_name(found[0]))
            elif self._rest[0] == "\x1b":
                second, self._rest = _make_press(self._rest[1]), self._rest[2:]
                yield Press(f"alt-{second.name}")
            else:
                char, self._rest = self._rest[0], self._rest[1:]
                yield _make_press(char)


def _make_press(char: str) -> Press:
    if char in _CONTROLS:
        return Press(_CONTROLS[char])
    if char < " ":
        return Press(f"ctrl-{chr(ord(char) + 0x40).lower()}")
    return Press(char)


def _key_name(sequence: str) -> str:
    """Return the name of the key that sends a sequence, or `unknown`."""
    numbers, final = sequence[2:-1], sequence[-1]
    if final == "~":
        return _NUMBERS.get(numbers.partition(";")[0], "unknown")
    return _FINALS.get(final, "unknown")


# Editing of a text in a prompt.


@dataclass
class LineEditor:
    """A text with a cursor; Ctrl-J starts a new line."""

    text: str = ""
    cursor: int = 0
    """Index of the character under the cursor."""

    @classmethod
    def with_text(cls, text: str) -> LineEditor:
        """Return an editor for a text, with the cursor at its end."""
        return cls(text, len(text))

    def press(self, press: Press) -> bool:
        """Apply a key press; return False if the key has no meaning here."""
        match press.name:
            case "paste":
                self._insert(press.text)
            case "ctrl-j":
                self._insert("\n")
            case "left" | "ctrl-b":
                self.cursor = max(0, self.cursor - 1)
            case "right" | "ctrl-f":
                self.cursor = min(len(self.text), self.cursor + 1)
            case "home" | "ctrl-a":
                self.cursor = self._line_start()
            case "end" | "ctrl-e":
                self.cursor = self._line_end()
            case "up" | "down":
                self._to_line(-1 if press.name == "up" else 1)
            case _:
                return self._erase(press.name) or self._insert_typed(press.name)
        return True

    def _insert_typed(self, name: str) -> bool:
        if len(name) != 1:
            return False
        self._insert(name)
        return True

    def _erase(self, name: str) -> bool:
        """Apply an erasing key; return False for other keys."""
        match name:
            case "backspace":
                self._cut(self.cursor - 1, self.cursor)
            case "delete" | "ctrl-d":
                self._cut(self.cursor, self.cursor + 1)
            case "ctrl-u":
                self._cut(self._line_start(), self.cursor)
            case "ctrl-k":
                self._cut(self.cursor, self._line_end())
            case "ctrl-w" | "alt-backspace":
                word = re.search(r"\S*\s*\Z", self.text[: self.cursor])
                self._cut(word.start() if word else 0, self.cursor)
            case _:
                return False
        return True

    def _insert(self, text: str) -> None:
        self.text = self.text[: self.cursor] + text + self.text[self.cursor :]
        self.cursor += len(text)

    def _cut(self, start: int, end: int) -> None:
        start = max(0, start)
        self.text = self.text[:start] + self.text[end:]
        self.cursor = start

    def _line_start(self) -> int:
        return self.text.rfind("\n", 0, self.cursor) + 1

    def _line_end(self) -> int:
        end = self.text.find("\n", self.cursor)
        return len(self.text) if end < 0 else end

    def _to_line(self, by: int) -> None:
        """Move to the line above or below, to the same column if possible."""
        column = self.cursor - self._line_start()
        if by < 0 and self._line_start() > 0:
            self.cursor = self._line_start() - 1
        elif by > 0 and self._line_end() < len(self.text):
            self.cursor = self._line_end() + 1
        else:
            return
        start = self._line_start()
        self.cursor = min(start + column, self._line_end())
