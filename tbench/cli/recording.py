"""`tbench play`, and the terminal screens of a stored trial, replayed from its recording."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from tbench.cli.parsing.commands import TbenchCommand, argument, option
from tbench.cli.parsing.values import NAME_TYPE, Integer, Number
from tbench.storage.recording import CastEvent, CastHead, cast_events, cast_head
from tbench.storage.run_files import RECORDING_NAME
from tbench.text import replace_unseen
from tbench.view.screen import Line, TileScreen

_INK, _GROUND = (30, 90), (40, 100)
"""SGR codes of the first normal colour and of the first bright one, for text and for its background."""


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


# `tbench play`

_FRAME_SEC = 0.04
"""Minimum time between two frames."""


@click.command(cls=TbenchCommand)
@argument("trial", "TRIAL", "The trial, as RUN/TASK/SEED.", type=NAME_TYPE)
@option("--from-step", "Start at this step.", Integer(min=1), default=1)
@option("--speed", "Playback speed as a multiple of the original.", Number(min=0.01), default=1.0)
@option("--idle", "Shorten pauses to at most this many seconds.", Number(min=0), default=2.0)
def play(trial: str, from_step: int, speed: float, idle: float) -> None:
    """Play back the recording of a trial's terminal; Ctrl-C leaves."""
    from tbench.cli.interruption import run_interruptibly
    from tbench.errors import UsageError
    from tbench.storage.stored_trial import find_trial

    found = find_trial(trial)
    if not sys.stdout.isatty():
        raise UsageError(f"play needs a terminal; tbench show {found.name} prints the steps")
    try:
        recording = SessionRecording(found.directory)
    except OSError:
        raise UsageError(f"{found.name}: has no recording") from None
    if from_step > max(1, len(found.steps)):
        raise UsageError(f"--from-step {from_step}: {found.name} has {len(found.steps)} steps")
    run_interruptibly(_play(recording, from_step, speed, idle))


async def _play(recording: SessionRecording, from_step: int, speed: float, idle: float) -> bool:
    """Draw each frame for its time; return whether playback reached the end."""
    click.echo("\x1b[?1049h\x1b[?25l\x1b[2J", nl=False, color=True)
    try:
        for frame, pause_sec in frames(recording, from_step, speed, idle):
            columns, rows = shutil.get_terminal_size()
            shown = "".join(f"\x1b[{at + 1};1H{line}\x1b[0m\x1b[K" for at, line in enumerate(frame[: rows - 1]))
            click.echo(f"{shown}\x1b[J\x1b[{rows};1H{_status_line(recording, columns)}", nl=False, color=True)
            await asyncio.sleep(pause_sec)
    except asyncio.CancelledError:
        return False
    finally:
        click.echo("\x1b[0m\x1b[?25h\x1b[?1049l", nl=False, color=True)
    return True


def frames(recording: SessionRecording, from_step: int, speed: float, idle: float) -> Iterator[tuple[list[str], float]]:
    """Yield the screens in order, each with the seconds for which it is shown."""
    screen, begun, before, due = recording.blank(), from_step == 1, 0.0, 0.0
    for event in recording.events():
        begun = begun or (event.kind == "m" and event.text == f"step {from_step}")
        if begun:
            due += min(max(0.0, event.at - before) / speed, idle)
            if due >= _FRAME_SEC:
                yield screen_lines(screen), due
                due = 0.0
        before = event.at
        if event.kind == "o":
            screen.feed(event.text)
    yield screen_lines(screen), due


def _status_line(recording: SessionRecording, columns: int) -> str:
    text = f" {recording.head.columns} x {recording.head.rows}; Ctrl-C leaves "
    return f"\x1b[7m{text[:columns]}\x1b[0m\x1b[K"
