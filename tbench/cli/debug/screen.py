"""The debugger's screen: its layout, and the user's terminal while it is drawn there."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tbench.cli.debug.keys import KEYS, TYPING_ENDS
from tbench.cli.debug.panes import (
    Corner,
    Question,
    Shown,
    Size,
    draft_pane,
    end_words,
    filled,
    samples_pane,
    steps_pane,
    terminal_pane,
    verdict_words,
)
from tbench.text import unseen_as, visible_line

# How the debugger looks on a screen of a given size: lines of styled text, and where the cursor is.

SMALLEST = Size(40, 10)
_WAITS = {
    "model": "asks the model",
    "decision": "waits for you",
    "person": "is held",
    None: "goes on",
}


class Picture(NamedTuple):
    """What is to be on the screen: as many lines as it has rows, and the cursor where it is shown."""

    lines: list[Text]
    cursor: Corner | None


def picture(shown: Shown) -> Picture:
    """The whole screen."""
    size = Size(shown.columns, shown.rows)
    if size.columns < SMALLEST.columns or size.rows < SMALLEST.rows:
        words = f"this window is too small: {SMALLEST.columns} x {SMALLEST.rows} is the least"
        return Picture(filled([Text(words)], size), None)
    foot, cursor = _foot(shown)
    lower = draft_pane(shown, Size(size.columns, max(3, min(14, size.rows // 4))))
    room = Size(size.columns, size.rows - 1 - len(lower) - len(foot))
    upper, in_terminal = _upper(shown, room)
    lines = filled([_head(shown, room)], Size(size.columns, 1)) + upper + lower + foot
    if cursor is not None:
        return Picture(lines, Corner(cursor.column, size.rows - len(foot) + cursor.row))
    return Picture(lines, in_terminal and Corner(in_terminal.column, in_terminal.row + 1))


# -- the line at the top -------------------------------------------------------------------------------


def _head(shown: Shown, room: Size) -> Text:
    debug = shown.debug
    pieces = [shown.trial]
    if debug.step:
        pieces.append(f"step {debug.step}")
    if debug.rewinding is not None:
        pieces.append(f"back to step {debug.rewinding}")
    pieces.append(_WAITS[debug.waits_for] if debug.ended is None else end_words(debug.ended))
    if debug.differs:
        pieces.append(f"differs at {debug.differs}")
    if debug.verdicts:
        pieces.append(verdict_words(debug.verdicts[-1]))
    if shown.types:
        pieces.append("YOU TYPE")
    head = Text(f" {'  |  '.join(map(visible_line, pieces))} ", no_wrap=True)
    head.truncate(room.columns, overflow="ellipsis", pad=True)
    head.stylize("reverse bold" if debug.waits_for == "decision" or shown.types else "reverse")
    return head


def _upper(shown: Shown, room: Size) -> tuple[list[Text], Corner | None]:
    if shown.helps:
        return filled(_help(), room), None
    if shown.pane == "samples" and len(shown.debug.samples) > 1:
        return samples_pane(shown, room), None
    if shown.pane == "steps" and not shown.is_wide:
        return steps_pane(shown, room), None
    if not shown.is_wide:
        return terminal_pane(shown, room)
    left = Size(room.columns * 3 // 5, room.rows)
    right = Size(room.columns - left.columns - 1, room.rows)
    terminal, cursor = terminal_pane(shown, left)
    rule = Text("│", style="dim")
    beside = zip(terminal, steps_pane(shown, right), strict=True)
    return [Text.assemble(one, rule, other, end="") for one, other in beside], cursor


# -- the foot --------------------------------------------------------------------------------------------


def _foot(shown: Shown) -> tuple[list[Text], Corner | None]:
    """The keys and a message, or a question with what is written; where the cursor is in it."""
    width = shown.columns
    if shown.prompt is not None:
        return _asking(shown.prompt, Size(width, max(2, shown.rows // 3)))
    keys = _typing_line() if shown.types else _keys_line(width)
    message = Text(visible_line(shown.message), style="red" if shown.is_bad else "", no_wrap=True)
    message.truncate(width, overflow="ellipsis")
    return filled([keys, message], Size(width, 2)), None


def _typing_line() -> Text:
    return Text(f"keys go to its terminal; {TYPING_ENDS} gives it back", style="bold", no_wrap=True)


def _keys_line(width: int) -> Text:
    """As many keys as fit; the last one explains all of them."""
    shown = [Text.assemble((key.shown, "bold"), f" {key.name}") for key in KEYS if key.is_daily]
    while len(shown) > 1 and sum(cell_len(each.plain) + 2 for each in shown) - 2 > width:
        del shown[-2]
    return Text("  ", no_wrap=True).join(shown)


def _asking(prompt: Question, room: Size) -> tuple[list[Text], Corner]:
    """The question, and below it the text, of which the lines around the cursor are shown."""
    help = "Enter does it, Esc leaves it; Ctrl-J begins a line"
    default = f" [{prompt.default}]" if prompt.default else ""
    asks = Text(f"{prompt.asks}{default}", style="bold", no_wrap=True).append(f"  {help}", style="not bold dim")
    editor, width = prompt.text, room.columns - 3
    before, lines = editor.text[: editor.at], list[str]()
    for line in editor.text.split("\n"):
        lines += [line[at : at + width] for at in range(0, max(1, len(line) + 1), width)]
    row = sum((len(line) // width) + 1 for line in before.split("\n")[:-1])
    inner = len(before.rpartition("\n")[2])
    row, column = row + inner // width, inner % width
    rows = min(len(lines), room.rows - 1)
    first = max(0, min(row - rows // 2, len(lines) - rows))
    written = [Text(("> " if at == 0 else "  ") + unseen_as(lines[at], "·")) for at in range(first, first + rows)]
    cells = cell_len(lines[row][:column]) if row < len(lines) else 0
    return filled([asks, *written], Size(room.columns, rows + 1)), Corner(2 + cells, 1 + row - first)


def _help() -> list[Text]:
    lines = [Text("Keys", style="bold")]
    return lines + [Text.assemble((f"{key.shown:>8}  ", "bold"), f"{key.does}") for key in KEYS]


# The user's terminal while the debugger has it: raw, on its alternate screen, and afterwards as it was.

_BEGIN = "\x1b[?1049h\x1b[?2004h\x1b[?25l\x1b[0m\x1b[2J"
_END = "\x1b[0m\x1b[?2004l\x1b[?25h\x1b[?1049l"
_FLUSH_SEC = 1.0
"""Longest time that a terminal whose window does not read may keep the end waiting."""


def fits_a_screen() -> bool:
    """Whether there is a terminal at both ends that can show more than lines."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


class FullScreen:
    """A context manager for the terminal at stdin and stdout. What is written never blocks: pictures are left out."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None
        self._unsent = b""
        self._shown: list[str] = []
        self._tty = -1
        self._console = Console(file=io.StringIO(), force_terminal=True, highlight=False, markup=False, emoji=False)

    def __enter__(self) -> Self:
        # Opened anew: the mode of not blocking is then its own, and not that of whoever else has this terminal.
        self._tty = os.open(os.ttyname(1), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.restore()
        with contextlib.suppress(OSError):
            os.close(self._tty)

    @property
    def size(self) -> Size:
        """Of the window; COLUMNS and LINES may be those of another one."""
        try:
            size = os.get_terminal_size(self._tty)
        except OSError:
            return Size(80, 24)
        return Size(size.columns or 80, size.lines or 24)

    def restore(self) -> None:
        """Give the terminal back as it was; once is enough."""
        before, self._before = self._before, None
        if before is None:
            return
        self._unsent += _END.encode()
        self._flush(time.monotonic() + _FLUSH_SEC)
        with contextlib.suppress(termios.error):  # the terminal may have been closed
            termios.tcsetattr(0, termios.TCSAFLUSH, before)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """The terminal as it was, for another program, during the block."""
        self.restore()
        try:
            yield
        finally:
            self._begin()

    def show(self, picture: Picture) -> bool:
        """Draw what differs from what is there; False where the window has not taken the last picture yet."""
        if self._before is None:
            return True
        if self._unsent and not self._flush():
            return False
        lines = [self._drawn(line) for line in picture.lines]
        fresh = len(lines) != len(self._shown)
        parts = ["\x1b[?25l\x1b[0m\x1b[2J" if fresh else "\x1b[?25l"]
        parts += [
            f"\x1b[{row};1H{line}\x1b[0m\x1b[K"
            for row, line in enumerate(lines, start=1)
            if fresh or line != self._shown[row - 1]
        ]
        if picture.cursor is not None:
            parts.append(f"\x1b[{picture.cursor.row + 1};{picture.cursor.column + 1}H\x1b[?25h")
        self._shown, self._unsent = lines, "".join(parts).encode("utf-8", "replace")
        self._flush()
        return True

    def forget(self) -> None:
        """Draw all of the next picture: the window has another size, or somebody else has drawn on it."""
        self._shown = []

    def _begin(self) -> None:
        before = termios.tcgetattr(0)
        tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead stays
        self._before = before
        self.forget()
        self._unsent += _BEGIN.encode()
        self._flush()

    def _drawn(self, line: Text) -> str:
        with self._console.capture() as drawn:
            self._console.print(line, end="", soft_wrap=True)
        return drawn.get()

    def _flush(self, until: float = 0.0) -> bool:
        """Write what the window takes, waiting for it no longer than `until`; whether all is written."""
        while self._unsent:
            try:
                self._unsent = self._unsent[os.write(self._tty, self._unsent) :]
            except BlockingIOError:
                left = until - time.monotonic()
                if left <= 0 or not select.select([], [self._tty], [], left)[1]:
                    return False
            except OSError:  # the terminal was closed
                self._unsent = b""
        return True
