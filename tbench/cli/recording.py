"""Terminal screens of a stored trial, replayed from its recording."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tbench.storage.recording import CastEvent, CastHead, cast_events, cast_head
from tbench.storage.run_files import RECORDING_NAME
from tbench.text import replace_unseen
from tbench.view.screen import Line, TileScreen

_INK, _GROUND = (30, 90), (40, 100)
"""SGR codes of the first of eight normal colours, and of the first bright one."""


class SessionRecording:
    """The recording of a trial's terminal."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError if the recording is missing."""
        self._file = directory / RECORDING_NAME
        self.head = cast_head(self._file) or CastHead()

    def events(self) -> Iterator[CastEvent]:
        """Yield the events; incomplete or invalid lines are skipped."""
        with self._file.open(encoding="utf-8", errors="replace") as lines:
            next(lines, None)
            yield from cast_events(lines, "oim")

    def blank(self) -> TileScreen:
        """Return an empty screen of the recording's size."""
        return TileScreen(self.head.columns, self.head.rows)

    def screen_after(self, step: int) -> list[str] | None:
        """Return the screen at the end of a step, as lines; None if the step never began."""
        screen, begun = self.blank(), False
        for event in self.events():
            if event.kind == "m" and event.text == f"step {step}":
                begun = True
            elif event.kind == "m" and event.text == f"step {step + 1}":
                break
            elif event.kind == "o":
                screen.feed(event.text)
        return screen_lines(screen) if begun else None


def screen_lines(screen: TileScreen) -> list[str]:
    """Return the lines of a screen with colours, without empty lines at the end."""
    lines = [ansi(line) for line in screen.last_lines(screen.rows, screen.columns)]
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def ansi(line: Line) -> str:
    """Return a line with escape sequences for its colours."""
    if isinstance(line, str):
        return replace_unseen(line, "·")
    pieces = []
    for text, style in zip(line[::2], line[1::2], strict=False):
        codes, text = ";".join(map(_code, style.split())), replace_unseen(text, "·")
        pieces.append(f"\x1b[{codes}m{text}\x1b[0m" if codes else text)
    if len(line) % 2:
        pieces.append(replace_unseen(line[-1], "·"))
    return "".join(pieces)


def _code(word: str) -> str:
    if word in ("b", "d"):
        return {"b": "1", "d": "2"}[word]
    if word.startswith("inv-"):
        return "7"
    usual, bright = _INK if word[0] == "i" else _GROUND
    number = int(word[1:])
    return str(usual + number if number < 8 else bright + number - 8)
