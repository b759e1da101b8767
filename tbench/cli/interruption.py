"""Handling of Ctrl-C, SIGTERM and a closed terminal: the first ends a command cleanly, the second at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from tbench import exit_codes
from tbench.cli.printing import print_line

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_interruptibly(
    main: Coroutine[Any, Any, T],
    *,
    stopping: str = "",
    end_view: Callable[[], None] = lambda: None,
    at_once: Callable[[], None] = lambda: None,
) -> T:
    """Run `main` in a new event loop, and handle signals from its start to its end.

    The first signal cancels `main`, ends the live view, which would overwrite messages, and prints `stopping`; unless
    `main` still returns a result, the command exits with 130. The second signal runs `at_once` and exits immediately:
    files must be complete at any moment.
    """
    return asyncio.run(_interruptible(main, stopping, end_view, at_once))


async def _interruptible(
    main: Coroutine[Any, Any, T], stopping: str, end_view: Callable[[], None], at_once: Callable[[], None]
) -> T:
    task, loop = asyncio.create_task(main, name="command"), asyncio.get_running_loop()
    asked = False

    def stop() -> None:
        nonlocal asked
        if asked:
            at_once()
            os._exit(exit_codes.INTERRUPTED)
        asked = True
        task.cancel()
        with contextlib.suppress(OSError):  # the terminal may be gone
            end_view()
        if stopping:
            print_notice(stopping)

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
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
