"""`tbench play`: play back the recording of a trial's terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import NAME_TYPE, Integer, Number

if TYPE_CHECKING:
    from tbench.cli.recording import SessionRecording

_FRAME_SEC = 0.04
"""Minimum time between two frames."""


@click.command(cls=TbenchCommand)
@click.argument("trial", cls=Argument, metavar="TRIAL", type=NAME_TYPE, help="The trial, as RUN/TASK/SEED.")
@click.option("--from-step", type=Integer(min=1), default=1, help="Start at this step.")
@click.option("--speed", type=Number(min=0.01), default=1.0, help="Playback speed as a multiple of the original.")
@click.option("--idle", type=Number(min=0), default=2.0, help="Longest pause without output, in seconds.")
def play(trial: str, from_step: int, speed: float, idle: float) -> None:
    """Play back the recording of a trial's terminal; Ctrl-C leaves."""
    from tbench.cli.interruption import run_interruptibly
    from tbench.cli.recording import SessionRecording
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
            columns, rows = _window_size()
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
    from tbench.cli.recording import screen_lines

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


def _window_size() -> tuple[int, int]:
    import shutil

    size = shutil.get_terminal_size()
    return size.columns, size.lines


def _status_line(recording: SessionRecording, columns: int) -> str:
    text = f" {recording.head.columns} x {recording.head.rows}; Ctrl-C leaves "
    return f"\x1b[7m{text[:columns]}\x1b[0m\x1b[K"
