"""`tbench attach`: watch a trial's terminal in the user's own, or take it over."""

from __future__ import annotations

import asyncio
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.terminal.plain_text import cell_width
from tbench.cli.common import json_option, read_stdin
from tbench.cli.full_screen import FullScreen, require_terminal
from tbench.cli.parsing.commands import TbenchCommand, flag
from tbench.cli.steering import require_trial, trial_argument
from tbench.errors import UsageError

if TYPE_CHECKING:
    from tbench.control.client import AttachedTerminal
    from tbench.control.wire import Screen

_CODES = re.compile(r"(\x1b\[[0-9;:]*m)")


@dataclass(frozen=True)
class Crop:
    """The visible part of a screen."""

    lines: tuple[str, ...]
    cursor: tuple[int, int]
    """Column and row within the visible part, from 0."""


def crop(screen: Screen, columns: int, rows: int) -> Crop:
    """Return the part of a screen around its cursor that fits into this many columns and rows."""
    x, y = screen.cursor
    left, top = _first_visible(x, screen.columns, columns), _first_visible(y, screen.rows, rows)
    lines = tuple(crop_line(line, left, columns) for line in screen.lines[top : top + rows])
    return Crop(lines, (min(x - left, columns - 1), min(y - top, rows - 1)))


def _first_visible(cursor: int, whole: int, part: int) -> int:
    """Return the first visible column or row: 0 if the cursor is visible from there."""
    if cursor < part:
        return 0
    # Leave room behind the cursor, so that typing does not scroll at every key.
    return max(0, min(cursor - part + 1 + part // 4, whole - part))


def crop_line(line: str, left: int, columns: int) -> str:
    """Return the cells of a line from column `left` on, at most `columns`, in their colours."""
    if left == 0 and len(line) <= columns and line.isascii() and "\x1b" not in line:
        return line
    parts, at = list[str](), 0
    for text in _CODES.split(line):
        if text.startswith("\x1b["):
            parts.append(text)
            continue
        for char in text:
            width = cell_width(char)
            # A zero-width mark belongs to the character before it.
            if left <= at - (width == 0) and at + width <= left + columns:
                parts.append(char)
            elif left - width < at < left + columns:
                parts.append(" ")  # half of a wide character
            at += width
    return "".join(parts)


_LEAVE, _INTERRUPT = b"\x1d", b"\x03"
"""Ctrl-] and Ctrl-C."""
_AGAIN_SEC = 0.05
"""Delay before drawing again on a window that did not accept a whole frame."""


@click.command(cls=TbenchCommand)
@trial_argument
@flag("--take", "Take the terminal over. The model waits; when you leave, it sees what you typed.")
@flag("--once", "Print the screen and return; needs no terminal.")
@json_option
def attach(where: str, take: bool, once: bool, as_json: bool) -> None:
    """Watch a trial's terminal, or take it over; Ctrl-] leaves."""
    from tbench.cli.interruption import run_interruptibly
    from tbench.cli.printing import print_line

    run, trial = require_trial(where)
    _reject_ended_trial(run, trial)
    if once or as_json:
        if take:
            raise UsageError(
                "--take: cannot be combined with --once or --json; to only hold the trial, use tbench pause"
            )
        return _print_once(run, trial, as_json)
    print_line(run_interruptibly(watch_terminal(run, trial, take)))
    return None


def _reject_ended_trial(run: Path, trial: str) -> None:
    """Raise UsageError with the outcome of a trial, if its run is over."""
    from tbench.control.listener import SOCKET_NAME
    from tbench.runs.live.commands import outcome_text
    from tbench.storage.read_run import read_run

    if (run / SOCKET_NAME).is_socket():
        return
    for result in read_run(run).results:
        if trial in (f"{result.task}/{result.seed}", result.task):
            raise UsageError(
                f"{run}/{trial}: has ended ({outcome_text(result)}); tbench view {run} shows its recording"
            )


def _print_once(run: Path, trial: str, as_json: bool) -> None:
    from harness.terminal.plain_text import without_escapes
    from tbench.cli.printing import print_text
    from tbench.control.client import ask
    from tbench.control.wire import ReadScreen
    from tbench.text import escape_invisible

    screen = ask(run, ReadScreen(trial=trial)).screen
    assert screen is not None
    if as_json:
        return print_text(screen.model_dump_json(indent=2))
    lines = [escape_invisible(without_escapes(line)).rstrip() for line in screen.lines]
    return print_text("\n".join(lines).rstrip("\n"))


async def watch_terminal(run: Path, trial: str, take: bool, *, leaving: str = "gives it back") -> str:
    """Show a trial's terminal until the user leaves or it closes; return a closing message.

    `leaving` describes what Ctrl-] does to a terminal that was taken over.
    """
    from tbench.control.client import attach
    from tbench.control.wire import Attach

    async with attach(run, Attach(trial=trial, take=take, drawn=True)) as connection:
        require_terminal("attach needs a terminal; --once prints the screen and returns")
        with FullScreen() as own:
            return await _TerminalViewer(own, connection, f"{run}/{trial}", leaving if take else None).run()


class _TerminalViewer:
    """A view of a trial's terminal: draws incoming screens and sends keys."""

    def __init__(self, own: FullScreen, connection: AttachedTerminal, title: str, leaving: str | None) -> None:
        """`leaving` describes what Ctrl-] does to a terminal that was taken over; None if it was not."""
        self._own, self._connection, self._title, self._leaving = own, connection, title, leaving
        self._take = leaving is not None
        self._last = connection.first
        self._typed = False
        self._left = asyncio.Event()
        self._again: asyncio.TimerHandle | None = None

    async def run(self) -> str:
        """Run until the user leaves or the terminal closes; return a closing message."""
        loop = asyncio.get_running_loop()
        leaving = asyncio.create_task(self._left.wait(), name="leaving")
        showing = asyncio.create_task(self._show(), name="showing")
        loop.add_reader(0, self._take_keys)
        loop.add_signal_handler(signal.SIGWINCH, self._on_resize)
        try:
            await asyncio.wait({leaving, showing}, return_when=asyncio.FIRST_COMPLETED)
            if not self._left.is_set():
                showing.result()
                return f"{self._title}: the terminal was closed because the agent has ended"
        finally:
            loop.remove_reader(0)
            loop.remove_signal_handler(signal.SIGWINCH)
            leaving.cancel()
            showing.cancel()
            if self._again is not None:
                self._again.cancel()
            await asyncio.wait({leaving, showing})
        return f"{self._title}: left{'; the model will see what you typed' if self._typed else ''}"

    async def _show(self) -> None:
        self._draw()
        while (answer := await self._connection.next()) is not None:
            self._last = answer
            self._draw()

    def _on_resize(self) -> None:
        self._own.invalidate()
        self._draw()

    def _draw(self) -> None:
        screen = self._last.screen
        if screen is None:
            return
        columns, rows = self._own.size
        room = max(1, rows - 1)
        shown = crop(screen, columns, room)
        lines = [*shown.lines, *[""] * (room - len(shown.lines))]
        if rows > 1:
            lines.append(f"\x1b[7m{crop_line(self._status, 0, columns)}\x1b[m")
        cursor = shown.cursor if screen.cursor_visible else None
        if self._again is not None:
            self._again.cancel()
        is_shown = self._own.show(lines, cursor, application_keys=self._take and screen.application_keys)
        self._again = None if is_shown else asyncio.get_running_loop().call_later(_AGAIN_SEC, self._draw)

    @property
    def _status(self) -> str:
        from tbench.text import plain

        leaves = f"Ctrl-] {self._leaving}" if self._take else "Ctrl-] or Ctrl-C leaves"
        return f" {leaves} | {self._last.words} | {plain(self._title)} "

    def _take_keys(self) -> None:
        data = read_stdin()
        keys, leave, _ = data.partition(_LEAVE)
        if leave or not data or (not self._take and _INTERRUPT in keys):
            self._left.set()
        if self._take and self._last.yours and keys:
            self._typed = True
            self._connection.type(keys)
