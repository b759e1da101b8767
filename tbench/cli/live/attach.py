"""`tbench attach`: a trial's terminal in one's own."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tbench.cli.common import json_option
from tbench.cli.live.where import a_trial, trial_argument
from tbench.cli.parsing.commands import TbenchCommand

if TYPE_CHECKING:
    from tbench.cli.live.own_terminal import OwnTerminal
    from tbench.control.client import Attached

_LEAVE, _INTERRUPT = b"\x1d", b"\x03"
"""Ctrl-] and Ctrl-C."""


@click.command(cls=TbenchCommand)
@trial_argument
@click.option("--take", is_flag=True, help="Type into it: the model is held, and told what you typed once you leave.")
@click.option("--once", is_flag=True, help="Print the screen and return; needs no terminal.")
@json_option
def attach(where: str, take: bool, once: bool, as_json: bool) -> None:
    """Look on at a trial's terminal, or take it over; Ctrl-] leaves."""
    from tbench.cli.interruption import run_interruptibly
    from tbench.cli.printing import print_line
    from tbench.errors import UsageError

    run, trial = a_trial(where)
    _refuse_ended(run, trial)
    if once or as_json:
        if take:
            raise UsageError("--take: cannot be together with --once or --json; tbench pause holds the trial")
        return _print_once(run, trial, as_json)
    print_line(run_interruptibly(look_on(run, trial, take)))
    return None


def _refuse_ended(run: Path, trial: str) -> None:
    """Say what came of a trial of a run that is over. Raises UsageError."""
    from tbench.control.wire import SOCKET_NAME
    from tbench.errors import UsageError
    from tbench.storage.read_run import read_run

    if (run / SOCKET_NAME).is_socket():
        return
    for result in read_run(run).results:
        if trial in (f"{result.task}/{result.seed}", result.task):
            came = f"error {result.error.type}" if result.error else f"reward {result.reward:g}"
            raise UsageError(f"{run}/{trial}: has ended ({came}); tbench view {run} shows its recording")


def _print_once(run: Path, trial: str, as_json: bool) -> None:
    from harness.terminal.plain_text import without_escapes
    from tbench.cli.printing import print_text
    from tbench.control.client import ask
    from tbench.control.wire import ReadScreen
    from tbench.text import visible

    screen = ask(run, ReadScreen(trial=trial)).screen
    assert screen is not None
    if as_json:
        return print_text(screen.model_dump_json(indent=2))
    lines = [visible(without_escapes(line)).rstrip() for line in screen.lines]
    return print_text("\n".join(lines).rstrip("\n"))


async def look_on(run: Path, trial: str, take: bool, *, leaving: str = "gives it back") -> str:
    """Show the trial's terminal until the user leaves or it is closed; what then is to be said.

    `leaving` says what Ctrl-] does with a terminal that was taken.
    """
    from tbench.cli.live.own_terminal import own_terminal
    from tbench.control.client import attached
    from tbench.control.wire import Attach

    async with attached(run, Attach(trial=trial, take=take, drawn=True)) as way:
        with own_terminal() as own:
            return await _Looking(own, way, f"{run}/{trial}", leaving if take else None).until_left()


class _Looking:
    """A person who looks on: screens come in and are drawn, keys go out."""

    def __init__(self, own: OwnTerminal, way: Attached, called: str, leaving: str | None) -> None:
        """`leaving` says what Ctrl-] does with a terminal that was taken; None where it was not."""
        self._own, self._way, self._called, self._leaving = own, way, called, leaving
        self._take = leaving is not None
        self._last = way.first
        self._typed = False
        self._left = asyncio.Event()

    async def until_left(self) -> str:
        """What is to be said when the user has left or the terminal was closed."""
        loop = asyncio.get_running_loop()
        leaving = asyncio.create_task(self._left.wait(), name="leaving")
        showing = asyncio.create_task(self._show(), name="showing")
        loop.add_reader(0, self._take_keys)
        loop.add_signal_handler(signal.SIGWINCH, self._draw)
        try:
            await asyncio.wait({leaving, showing}, return_when=asyncio.FIRST_COMPLETED)
            if not self._left.is_set():
                showing.result()
                return f"{self._called}: its terminal was closed: the agent has come to its end"
        finally:
            loop.remove_reader(0)
            loop.remove_signal_handler(signal.SIGWINCH)
            leaving.cancel()
            showing.cancel()
            await asyncio.wait({leaving, showing})
        return f"{self._called}: left{'; its model is told what you typed' if self._typed else ''}"

    async def _show(self) -> None:
        self._draw()
        while (answer := await self._way.next()) is not None:
            self._last = answer
            self._draw()

    def _draw(self) -> None:
        from tbench.cli.live.crop import crop, cut

        screen = self._last.screen
        if screen is None:
            return
        columns, rows = self._own.size
        room = max(1, rows - 1)
        shown = crop(screen, columns, room)
        lines = [*shown.lines, *[""] * (room - len(shown.lines))]
        if rows > 1:
            lines.append(f"\x1b[7m{cut(self._status, 0, columns)}\x1b[m")
        cursor = shown.cursor if screen.cursor_visible else None
        self._own.draw(tuple(lines), cursor, application_keys=self._take and screen.application_keys)

    @property
    def _status(self) -> str:
        from tbench.text import plain

        leaves = f"Ctrl-] {self._leaving}" if self._take else "Ctrl-] or Ctrl-C leaves"
        return f" {leaves} | {self._last.words} | {plain(self._called)} "

    def _take_keys(self) -> None:
        data = self._own.read()
        keys, leave, _ = data.partition(_LEAVE)
        if leave or not data or (not self._take and _INTERRUPT in keys):
            self._left.set()
        if self._take and self._last.yours and keys:
            self._typed = True
            self._way.type(keys)
