"""Handling of Ctrl-C, SIGTERM and a closed terminal: the first ends a command in order, the second at once."""

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
    main: Coroutine[Any, Any, T], *, stopping: str = "", at_once: Callable[[], None] = lambda: None
) -> T:
    """Run `main` in an event loop of its own, under the same rule for signals from its start to its end.

    The first signal cancels it and says `stopping`; if `main` then returns no result of its own, the command ends with
    130. At the second signal `at_once` runs and the process ends: files have to be whole at any moment.
    """
    return asyncio.run(_interruptible(main, stopping, at_once))


async def _interruptible(main: Coroutine[Any, Any, T], stopping: str, at_once: Callable[[], None]) -> T:
    task, loop = asyncio.create_task(main, name="command"), asyncio.get_running_loop()
    asked = False

    def stop() -> None:
        nonlocal asked
        if asked:
            at_once()
            os._exit(exit_codes.INTERRUPTED)
        asked = True
        task.cancel()
        if stopping:
            tell(stopping)

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        return await task
    except asyncio.CancelledError:
        if not asked:
            raise
        if not stopping:
            tell("interrupted")
        raise click.exceptions.Exit(exit_codes.INTERRUPTED) from None
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def tell(words: str) -> None:
    """Print a line on stderr, wherever the cursor is."""
    with contextlib.suppress(OSError):  # the terminal may be what went away
        # Where a live view has hidden the cursor, it may not come to showing it again.
        if sys.stderr.isatty():
            click.echo("\x1b[?25h", nl=False, err=True)
        print_line(f"tbench: {words}", err=True)
