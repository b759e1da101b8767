"""The terminal that the user sits at: taken as a whole, drawn on, and given back as it was."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from tbench.errors import UsageError

_BEGIN, _TELLS_PASTES = "\x1b[?1049h\x1b[?25l\x1b[0m\x1b[2J", "\x1b[?2004h"
_END = "\x1b[0m\x1b[?1l\x1b[?2004l\x1b[?25h\x1b[?1049l"
_FLUSH_SEC = 1.0
"""Longest time that a terminal whose window does not read may keep the end waiting."""


def fits_a_screen() -> bool:
    """Whether there is a terminal at both ends that can show more than lines."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


def require_terminal(otherwise: str) -> None:
    """Check that the user has a terminal. Raises UsageError with the words of what to do otherwise."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(otherwise)


class FullScreen:
    """A context manager for the terminal at stdin and stdout: raw, on its alternate screen, and afterwards as it was.

    What is written never blocks: pictures are left out.
    """

    def __init__(self, *, tells_pastes: bool = False) -> None:
        """With `tells_pastes` what is pasted comes between marks."""
        self._beginning = _BEGIN + (_TELLS_PASTES if tells_pastes else "")
        self._before: list[Any] | None = None
        self._unsent = b""
        self._shown: Sequence[str] = ()
        self._tty = -1

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
    def size(self) -> tuple[int, int]:
        """Columns and rows of the window; COLUMNS and LINES may be those of another one."""
        try:
            columns, rows = os.get_terminal_size(self._tty)
        except OSError:
            return 80, 24
        return columns or 80, rows or 24

    def restore(self) -> None:
        """Give the terminal back as it was; once is enough."""
        before, self._before = self._before, None
        if before is None:
            return
        self._unsent += _END.encode()
        self.flush(time.monotonic() + _FLUSH_SEC)
        with contextlib.suppress(termios.error):  # the terminal may have been closed
            termios.tcsetattr(0, termios.TCSADRAIN, before)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """The terminal as it was, for another program, during the block."""
        self.restore()
        try:
            yield
        finally:
            self._begin()

    def show(self, lines: Sequence[str], cursor: tuple[int, int] | None, *, application_keys: bool = False) -> bool:
        """Draw what differs from what is there, and the cursor at a column and row, where there is one.

        False where the window has not taken all of it yet: then it is to be called again.
        """
        if self._before is None:
            return True
        if not self.flush():
            return False
        fresh = len(lines) != len(self._shown)
        parts = ["\x1b[?25l\x1b[0m\x1b[2J" if fresh else "\x1b[?25l"]
        # Cleared before it is drawn: behind a full line, the end of the line is its last character.
        parts += [
            f"\x1b[{row};1H\x1b[0m\x1b[K{line}"
            for row, line in enumerate(lines, start=1)
            if fresh or line != self._shown[row - 1]
        ]
        parts.append(f"\x1b[0m\x1b[?1{'h' if application_keys else 'l'}")
        if cursor is not None:
            parts.append(f"\x1b[{cursor[1] + 1};{cursor[0] + 1}H\x1b[?25h")
        self._shown, self._unsent = lines, "".join(parts).encode("utf-8", "replace")
        return self.flush()

    def forget(self) -> None:
        """Draw all of the next picture: the window has another size, or somebody else has drawn on it."""
        self._shown = ()

    def _begin(self) -> None:
        before = termios.tcgetattr(0)
        tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead stays
        self._before = before
        self.forget()
        self._unsent += self._beginning.encode()
        self.flush()

    def flush(self, until: float = 0.0) -> bool:
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
