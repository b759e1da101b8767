"""What `tbench replay run` tells on stderr while it runs."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence

import typer

from tbench.proxies.replay.asking.client import ReplayProgress

SHOWN = 10
"""Lines of a kind that are shown before the rest is counted."""


class Telling:
    """A line of progress now and then: on a terminal always the same one."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._began = self._last = time.monotonic()

    def __call__(self, progress: ReplayProgress) -> None:
        now, is_last = time.monotonic(), progress.done == progress.planned
        if now - self._last < (0.2 if self._is_terminal else 10.0) and not (is_last and self._is_terminal):
            return
        self._last = now
        rate = progress.done / max(now - self._began, 1e-9)
        words = f"{progress.done}/{progress.planned} asked, {progress.errors} errors, {rate:.1f} per second"
        if self._is_terminal:
            typer.echo(f"\r\x1b[Kreplay: {words}" + ("\n" if is_last else ""), nl=False, err=True)
        else:
            say(words)


class Seldom:
    """Of what makes requests wait, a line every few seconds: many of them wait for the same reason."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last = float("-inf")

    def __call__(self, reason: str, seconds: float) -> None:
        if time.monotonic() - self._last < 5.0:
            return
        self._last = time.monotonic()
        say(f"{self._name}: {reason.rstrip('.')}; trying again in {seconds:.1f} s")


def say_some(what: str, lines: Sequence[str]) -> None:
    for line in lines[:SHOWN]:
        say(f"{what}: {line}")
    if len(lines) > SHOWN:
        say(f"{what}: {len(lines) - SHOWN} more")


def say(words: str) -> None:
    with contextlib.suppress(OSError):  # a reader that went away must not cost a run
        typer.echo(f"replay: {words}", err=True)
