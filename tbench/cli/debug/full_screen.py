"""The user's terminal while the debugger has it: raw, on its alternate screen, and afterwards as it was."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.text import Text

from tbench.cli.debug.layout import Picture
from tbench.cli.debug.styled import Size

_BEGIN = "\x1b[?1049h\x1b[?2004h\x1b[?25l\x1b[0m\x1b[2J"
_END = "\x1b[0m\x1b[?2004l\x1b[?25h\x1b[?1049l"
_FLUSH_SEC = 1.0
"""Longest time that a terminal whose window does not read may keep the end waiting."""


def fits_a_screen() -> bool:
    """Whether there is a terminal at both ends that can show more than lines."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


class FullScreen:
    """A context manager for the terminal at stdin and stdout. What is written never blocks: pictures are left out."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None
        self._unsent = b""
        self._shown: list[str] = []
        self._tty = -1
        self._console = Console(file=io.StringIO(), force_terminal=True, highlight=False, markup=False, emoji=False)

    def __enter__(self) -> Self:
        # Opened anew: the mode of not blocking is then its own, and not that of whoever else has this terminal.
        self._tty = os.open(os.ttyname(1), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.restore()
        with contextlib.suppress(OSError):
            os.close(self._tty)

    @property
    def size(self) -> Size:
        """Of the window; COLUMNS and LINES may be those of another one."""
        try:
            size = os.get_terminal_size(self._tty)
        except OSError:
            return Size(80, 24)
        return Size(size.columns or 80, size.lines or 24)

    def restore(self) -> None:
        """Give the terminal back as it was; once is enough."""
        before, self._before = self._before, None
        if before is None:
            return
        self._unsent += _END.encode()
        self._flush(time.monotonic() + _FLUSH_SEC)
        with contextlib.suppress(termios.error):  # the terminal may have been closed
            termios.tcsetattr(0, termios.TCSAFLUSH, before)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """The terminal as it was, for another program, during the block."""
        self.restore()
        try:
            yield
        finally:
            self._begin()

    def show(self, picture: Picture) -> bool:
        """Draw what differs from what is there; False where the window has not taken the last picture yet."""
        if self._before is None:
            return True
        if self._unsent and not self._flush():
            return False
        lines = [self._drawn(line) for line in picture.lines]
        fresh = len(lines) != len(self._shown)
        parts = ["\x1b[?25l\x1b[0m\x1b[2J" if fresh else "\x1b[?25l"]
        parts += [
            f"\x1b[{row};1H{line}\x1b[0m\x1b[K"
            for row, line in enumerate(lines, start=1)
            if fresh or line != self._shown[row - 1]
        ]
        if picture.cursor is not None:
            parts.append(f"\x1b[{picture.cursor.row + 1};{picture.cursor.column + 1}H\x1b[?25h")
        self._shown, self._unsent = lines, "".join(parts).encode("utf-8", "replace")
        self._flush()
        return True

    def forget(self) -> None:
        """Draw all of the next picture: the window has another size, or somebody else has drawn on it."""
        self._shown = []

    def _begin(self) -> None:
        before = termios.tcgetattr(0)
        tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead stays
        self._before = before
        self.forget()
        self._unsent += _BEGIN.encode()
        self._flush()

    def _drawn(self, line: Text) -> str:
        with self._console.capture() as drawn:
            self._console.print(line, end="", soft_wrap=True)
        return drawn.get()

    def _flush(self, until: float = 0.0) -> bool:
        """Write what the window takes, waiting for it no longer than `until`; whether all is written."""
        while self._unsent:
            try:
                self._unsent = self._unsent[os.write(self._tty, self._unsent) :]
            except BlockingIOError:
                left = until - time.monotonic()
                if left <= 0 or not select.select([], [self._tty], [], left)[1]:
                    return False
            except OSError:  # the terminal was closed
                self._unsent = b""
        return True
