"""The user's terminal: full-screen drawing, and restoring it afterwards."""

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

_BEGIN, _BRACKETED_PASTE = "\x1b[?1049h\x1b[?25l\x1b[0m\x1b[2J", "\x1b[?2004h"
_END = "\x1b[0m\x1b[?1l\x1b[?2004l\x1b[?25h\x1b[?1049l"
_FLUSH_SEC = 1.0
"""Maximum time to wait at the end for a terminal that does not accept output."""


def supports_full_screen() -> bool:
    """Whether stdin and stdout are a terminal with cursor movement."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


def require_terminal(otherwise: str) -> None:
    """Raise UsageError with the given message unless stdin and stdout are a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(otherwise)


class FullScreen:
    """Context manager that puts the terminal into raw mode on its alternate screen, and restores it afterwards.

    Writing never blocks: if the terminal is slow, frames are skipped.
    """

    def __init__(self, *, bracketed_paste: bool = False) -> None:
        """With `bracketed_paste`, the terminal marks pasted text (bracketed paste)."""
        self._beginning = _BEGIN + (_BRACKETED_PASTE if bracketed_paste else "")
        self._before: list[Any] | None = None
        self._unsent = b""
        self._shown: Sequence[str] = ()
        self._tty = -1

    def __enter__(self) -> Self:
        # Opened again, so that non-blocking mode does not affect other processes on this terminal.
        self._tty = os.open(os.ttyname(1), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.restore()
        with contextlib.suppress(OSError):
            os.close(self._tty)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows of the terminal; COLUMNS and LINES may be outdated."""
        try:
            columns, rows = os.get_terminal_size(self._tty)
        except OSError:
            return 80, 24
        return columns or 80, rows or 24

    def restore(self) -> None:
        """Restore the terminal; further calls do nothing."""
        before, self._before = self._before, None
        if before is None:
            return
        self._unsent += _END.encode()
        self.flush(time.monotonic() + _FLUSH_SEC)
        with contextlib.suppress(termios.error):  # the terminal may have been closed
            termios.tcsetattr(0, termios.TCSADRAIN, before)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Restore the terminal for the block, for another program."""
        self.restore()
        try:
            yield
        finally:
            self._begin()

    def show(self, lines: Sequence[str], cursor: tuple[int, int] | None, *, application_keys: bool = False) -> bool:
        """Draw the lines that have changed, and the cursor at a column and row unless it is None.

        Return False if the terminal has not accepted everything yet: then call it again.
        """
        if self._before is None:
            return True
        if not self.flush():
            return False
        fresh = len(lines) != len(self._shown)
        parts = ["\x1b[?25l\x1b[0m\x1b[2J" if fresh else "\x1b[?25l"]
        # Clear before drawing: after a full line, clearing to its end would erase the last character.
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

    def invalidate(self) -> None:
        """Draw the next frame completely, because the size has changed or another program has drawn."""
        self._shown = ()

    def _begin(self) -> None:
        before = termios.tcgetattr(0)
        tty.setraw(0, termios.TCSADRAIN)  # keeps type-ahead
        self._before = before
        self.invalidate()
        self._unsent += self._beginning.encode()
        self.flush()

    def flush(self, until: float = 0.0) -> bool:
        """Write what the terminal accepts, waiting at most until `until`; return whether everything is written."""
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
