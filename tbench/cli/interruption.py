"""Handling of Ctrl-C, SIGTERM and a closed terminal: the first ends a command cleanly, the second at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import click

from tbench import exit_codes
from tbench.cli.printing import print_line

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PLANNED = (signal.SIGTERM, signal.SIGHUP)
"""Signals that stop a run as planned, so that its running trials can be continued."""


def run_interruptibly(
    main: Coroutine[Any, Any, T],
    *,
    stopping: str = "",
    end_view: Callable[[], None] = lambda: None,
    at_once: Callable[[], None] = lambda: None,
    stop: Callable[[str], bool] = lambda _: False,
) -> T:
    """Run `main` in a new event loop, and handle signals from its start to its end.

    The first signal cancels `main`, ends the live view (it would overwrite messages) and prints `stopping`. The command
    exits with 130, unless `main` still returns a result. The second signal runs `at_once` and exits immediately: files
    must be complete at any moment. SIGTERM and SIGHUP call `stop` with their name first: if it returns True, `main`
    ends by itself, and another signal exits immediately and does nothing else.
    """
    return asyncio.run(_interruptible(main, stopping, end_view, at_once, stop))


async def _interruptible(
    main: Coroutine[Any, Any, T],
    stopping: str,
    end_view: Callable[[], None],
    at_once: Callable[[], None],
    stop_planned: Callable[[str], bool],
) -> T:
    task, loop = asyncio.create_task(main, name="command"), asyncio.get_running_loop()
    asked = is_planned = False

    def stop() -> None:
        nonlocal asked
        if is_planned:
            os._exit(exit_codes.STOPPED)
        if asked:
            at_once()
            os._exit(exit_codes.INTERRUPTED)
        asked = True
        task.cancel()
        with contextlib.suppress(OSError):  # the terminal may be gone
            end_view()
        if stopping:
            print_notice(stopping)

    def stop_as_planned(name: str) -> None:
        nonlocal is_planned
        if asked or is_planned or not stop_planned(name):
            stop()
            return
        is_planned = True
        with contextlib.suppress(OSError):
            end_view()

    for number in _SIGNALS:
        handler = partial(stop_as_planned, number.name) if number in _PLANNED else stop
        loop.add_signal_handler(number, handler)
    try:
        return await task
    except asyncio.CancelledError:
        if not asked:
            raise
        if not stopping:
            print_notice("interrupted")
        raise click.exceptions.Exit(exit_codes.INTERRUPTED) from None
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def print_notice(text: str) -> None:
    """Print a line on stderr, over the ^C that a terminal has echoed."""
    with contextlib.suppress(OSError):  # the terminal may be gone
        if sys.stderr.isatty():
            click.echo("\r", nl=False, err=True)
        print_line(f"tbench: {text}", err=True)
