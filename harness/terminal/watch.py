"""Follows what a pane prints: marks, the last line, what commands print; into the recording with all of it."""

from __future__ import annotations

import asyncio
import contextlib

from harness.terminal.capture import Capture
from harness.terminal.last_line import LastLine
from harness.terminal.marks import Mark, MarkScanner
from harness.terminal.recording import Recording
from harness.terminal.screen import ScreenReader
from harness.terminal.settling import ShellState


class Watch:
    """A `harness.terminal.link.Listener`: all that is known of the pane, from what it prints."""

    def __init__(self, screen: ScreenReader, recording: Recording | None) -> None:
        self.shell = ShellState()
        self.capture = Capture()
        self.line = LastLine()
        self.last_news_at = 0.0
        self.last_mark_at = 0.0
        self.marks = 0
        self.last_output = b""
        self.output_matters = False
        """Somebody waits for output, too, not for marks alone."""
        self._screen = screen
        self._recording = recording
        self._scanner = MarkScanner()
        self._changed = asyncio.Event()

    def begin(self) -> None:
        # The marks of the session that is attached again may have passed unseen.
        self._scanner = MarkScanner()
        self.shell = ShellState()
        self.shell.lose_sight()
        self._screen.lose_place()

    def output(self, data: bytes) -> None:
        if self._recording is not None:
            self._recording.output(data)
        self.last_output = (self.last_output + data[-400:])[-400:]
        self.last_news_at = _now()
        self._screen.follow(data)
        for piece in self._scanner.feed(data):
            if isinstance(piece, Mark):
                self._take(piece)
            else:
                self.line.follow(piece)
                self.capture.append(piece)
        if self.output_matters:
            self._changed.set()

    def _take(self, mark: Mark) -> None:
        self.marks += 1
        self.last_mark_at = self.last_news_at
        self.capture.take(mark)
        self.shell.take(mark)
        self._changed.set()

    def keys_arrived(self) -> None:
        self.shell.keys_arrived()

    def cut_off(self) -> None:
        self._changed.set()

    async def changes(self, until: float) -> None:
        """Wait for a mark, the stream's end, the time, or output where that matters."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._changed.wait()


def _now() -> float:
    return asyncio.get_running_loop().time()
