"""`tbench play`: a trial's terminal once more, in one's own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_NAME, Integer, Number

if TYPE_CHECKING:
    from tbench.cli.screens import SessionRecording

_FRAME_SEC = 0.04
"""Least time between two pictures."""


@click.command(cls=TbenchCommand)
@click.argument("trial", cls=Argument, metavar="TRIAL", type=A_NAME, help="RUN/TASK/SEED.")
@click.option("--from-step", type=Integer(min=1), default=1, help="Begin with this step.")
@click.option("--speed", type=Number(min=0.01), default=1.0, help="How many times as fast as it was.")
@click.option("--idle", type=Number(min=0), default=2.0, help="Most seconds for which nothing happens.")
def play(trial: str, from_step: int, speed: float, idle: float) -> None:
    """Play the recording of a trial's terminal in yours; Ctrl-C leaves."""
    from tbench.cli.interruption import run_interruptibly
    from tbench.cli.screens import SessionRecording
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
    """Draw each picture for its time; whether that came to its end, and was not left before."""
    click.echo("\x1b[?1049h\x1b[?25l\x1b[2J", nl=False, color=True)
    try:
        for picture, pause_sec in pictures(recording, from_step, speed, idle):
            columns, rows = _window()
            shown = "".join(f"\x1b[{at + 1};1H{line}\x1b[0m\x1b[K" for at, line in enumerate(picture[: rows - 1]))
            click.echo(f"{shown}\x1b[J\x1b[{rows};1H{_foot(recording, columns)}", nl=False, color=True)
            await asyncio.sleep(pause_sec)
    except asyncio.CancelledError:
        return False
    finally:
        click.echo("\x1b[0m\x1b[?25h\x1b[?1049l", nl=False, color=True)
    return True


def pictures(
    recording: SessionRecording, from_step: int, speed: float, idle: float
) -> Iterator[tuple[list[str], float]]:
    """The screens one after the other, each with the seconds for which it stands."""
    from tbench.cli.screens import drawn

    screen, begun, before, due = recording.blank(), from_step == 1, 0.0, 0.0
    for event in recording.events():
        begun = begun or (event.kind == "m" and event.text == f"step {from_step}")
        if begun:
            due += min(max(0.0, event.at - before) / speed, idle)
            if due >= _FRAME_SEC:
                yield drawn(screen), due
                due = 0.0
        before = event.at
        if event.kind == "o":
            screen.feed(event.text)
    yield drawn(screen), due


def _window() -> tuple[int, int]:
    import shutil

    size = shutil.get_terminal_size()
    return size.columns, size.lines


def _foot(recording: SessionRecording, columns: int) -> str:
    words = f" {recording.head.columns} x {recording.head.rows}; Ctrl-C leaves "
    return f"\x1b[7m{words[:columns]}\x1b[0m\x1b[K"
