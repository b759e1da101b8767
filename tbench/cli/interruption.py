"""Ctrl-C, SIGTERM and a closed terminal: the first ends what is going on in order, the second at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator

import typer

EXIT_INTERRUPTED = 130


@contextlib.contextmanager
def interruptible(stopping: str = "", at_once: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """The first signal cancels the current task and says `stopping`; at the second, `at_once` runs and all ends.

    Gives a function that says whether there was one. Files have to be whole at any moment.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    asked = False

    def stop() -> None:
        nonlocal asked
        if asked:
            at_once()
            os._exit(EXIT_INTERRUPTED)
        asked = True
        task.cancel()
        if stopping:
            tell(stopping)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, stop)
    try:
        yield lambda: asked
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def tell(words: str) -> None:
    """A line on stderr, wherever the cursor is."""
    with contextlib.suppress(OSError):  # the terminal may be what went away
        # Where a live view has hidden the cursor, it may not come to showing it again.
        show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""
        typer.echo(f"{show_cursor}tbench: {words}", err=True)
