"""Somebody at a real terminal who uses the debugger."""

from __future__ import annotations

import os
import re
import sys
import termios
import time
from typing import ClassVar

import pexpect

from tbench.view.screen import TileScreen

BOUND_SEC = 30
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "EDITOR", "VISUAL")}


class User:
    """Somebody at a terminal, which draws what the debugger prints. A context manager."""

    program: ClassVar[tuple[str, ...]] = ("-m", "tbench", "debug")
    """Arguments of Python that come before the words."""

    def __init__(self, *words: str, size: tuple[int, int] = (80, 24), **environment: str) -> None:
        columns, rows = size
        self.child = pexpect.spawn(
            sys.executable,
            [*self.program, *words],
            dimensions=(rows, columns),
            timeout=BOUND_SEC,
            encoding="utf-8",
            env=ENVIRONMENT | {"TERM": "xterm-256color"} | environment,
        )
        self.before = termios.tcgetattr(self.child.child_fd)
        self._screen = TileScreen(columns, rows)
        self.printed = ""

    def __enter__(self) -> User:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.close(force=True)

    def _read(self) -> bool:
        """Draw what is printed within a moment; False at the end."""
        try:
            text = self.child.read_nonblocking(1 << 16, timeout=0.05)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.printed += text
        self._screen.feed(text)
        return True

    @property
    def lines(self) -> list[str]:
        """Content of the screen."""
        found = self._screen.last_lines(self._screen.rows, self._screen.columns)
        return [line if isinstance(line, str) else "".join(line[::2]) for line in found]

    def sees(self, pattern: str) -> list[str]:
        """Wait until a line of the screen matches."""
        ends_at = time.monotonic() + BOUND_SEC
        while not any(re.search(pattern, line) for line in self.lines):
            assert self._read() and time.monotonic() < ends_at, "\n".join([f"never saw {pattern!r}:", *self.lines])
        return self.lines

    def press(self, keys: str, until: str = "") -> list[str]:
        self.child.send(keys)
        return self.sees(until) if until else self.lines

    def resize(self, columns: int, rows: int) -> None:
        self._screen = TileScreen(columns, rows)
        self.child.setwinsize(rows, columns)

    def ends(self) -> int | None:
        """The exit code, once all is printed."""
        ends_at = time.monotonic() + BOUND_SEC
        while self._read():
            assert time.monotonic() < ends_at, "\n".join(["does not end:", *self.lines])
        after = termios.tcgetattr(self.child.child_fd)
        assert after == self.before
        self.child.close()
        assert self.printed.count("\x1b[?1049h") == self.printed.count("\x1b[?1049l")
        assert self.printed.rfind("\x1b[?25h") > self.printed.rfind("\x1b[?25l")
        return self.child.exitstatus
