"""The terminal that the user sits at: taken as a whole, and given back as it was."""

from __future__ import annotations

import contextlib
import os
import sys
import termios
import tty
from collections.abc import Iterator

from tbench.errors import UsageError

_IN, _OUT = 0, 1
_OTHER_SCREEN = "\x1b[?1049h\x1b[2J"
_AS_IT_WAS = "\x1b[?1l\x1b[?25h\x1b[m\x1b[?1049l"


class OwnTerminal:
    """The user's terminal, on which rows are drawn; only those that have changed are sent."""

    def __init__(self) -> None:
        self._shown: tuple[tuple[int, int], tuple[str, ...]] = ((0, 0), ())

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        columns, rows = os.get_terminal_size(_OUT)
        return max(columns, 1), max(rows, 1)

    def read(self) -> bytes:
        """What was typed; empty where the terminal was closed."""
        with contextlib.suppress(OSError):
            return os.read(_IN, 4096)
        return b""

    def draw(self, lines: tuple[str, ...], cursor: tuple[int, int] | None, *, application_keys: bool) -> None:
        """Show lines from the top on, and the cursor at a column and row, where there is one."""
        size = self.size
        before = self._shown[1] if self._shown[0] == size else ()
        parts = ["\x1b[?25l", "" if before else "\x1b[m\x1b[2J"]
        for row in range(max(len(lines), len(before))):
            line = lines[row] if row < len(lines) else ""
            if not before or row >= len(before) or before[row] != line:
                parts.append(f"\x1b[{row + 1};1H\x1b[m\x1b[K{line}")
        parts.append("\x1b[m\x1b[?1h" if application_keys else "\x1b[m\x1b[?1l")
        if cursor is not None:
            parts.append(f"\x1b[{cursor[1] + 1};{cursor[0] + 1}H\x1b[?25h")
        self._shown = (size, lines)
        _write("".join(parts))


def require_terminal(otherwise: str) -> None:
    """Check that the user has a terminal. Raises UsageError with the words of what to do otherwise."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(otherwise)


@contextlib.contextmanager
def own_terminal() -> Iterator[OwnTerminal]:
    """The user's terminal during the block: raw, on its other screen. Raises UsageError where there is none."""
    require_terminal("this needs a terminal; --once prints the screen and returns")
    before = termios.tcgetattr(_IN)
    try:
        tty.setraw(_IN, termios.TCSADRAIN)
        _write(_OTHER_SCREEN)
        yield OwnTerminal()
    finally:
        with contextlib.suppress(OSError, termios.error):  # it may have been closed
            _write(_AS_IT_WAS)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(_IN, termios.TCSADRAIN, before)


def _write(text: str) -> None:
    data = memoryview(text.encode("utf-8", "replace"))
    while data:
        data = data[os.write(_OUT, data) :]
