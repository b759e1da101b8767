"""A text that a person writes, key by key."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tbench.cli.debug.presses import Press


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
