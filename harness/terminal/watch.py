"""Follows what a pane prints: its marks, its last line, what commands print. All of it goes into the recording."""

from __future__ import annotations

import asyncio
import math

from harness.terminal.capture import Capture
from harness.terminal.last_line import LastLine
from harness.terminal.marks import Mark, MarkScanner
from harness.terminal.recording import Recording
from harness.terminal.screen import ScreenReader
from harness.terminal.settling import ShellState
from harness.terminal.tap import Tap


class Watch:
    """All that is known of the pane, from what it prints: a `harness.terminal.link.Listener`."""

    def __init__(self, screen: ScreenReader, recording: Recording | None) -> None:
        self.shell = ShellState()
        self.capture = Capture()
        self.line = LastLine()
        self.last_news_at = 0.0
        self.last_mark_at = 0.0
        self.marks = 0
        self.last_output = b""
        self.output_matters = False
        """Whether output, and the beginning of commands, wake those who wait: mostly they need not."""
        self.taps: tuple[Tap, ...] = ()
        """Of those who look on."""
        self._screen = screen
        self._recording = recording
        self._scanner = MarkScanner()
        self._news: asyncio.Future[None] | None = None
        """The waiter for news, if there is one."""

    def begin(self) -> None:
        # The marks of the session that is attached again may have passed unseen.
        self._scanner = MarkScanner()
        self.shell = ShellState()
        self.shell.lose_sight()
        self._screen.lose_place()
        for tap in self.taps:
            tap.lose_place()

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
        for tap in self.taps:
            tap.output(data)
        if self.output_matters:
            self._tell()

    def _take(self, mark: Mark) -> None:
        self.marks += 1
        self.last_mark_at = self.last_news_at
        self.capture.take(mark)
        self.shell.take(mark)
        if mark.kind != "C" or mark.id is not None:
            self._tell()

    def keys_arrived(self) -> None:
        self.shell.keys_arrived()

    def cut_off(self) -> None:
        self._tell()

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def changes(self, until: float) -> None:
        """Wait for a command's end, a prompt, the stream's end, the time, or output where that matters."""
        # A future and a timer: asyncio.timeout with an event, for each wait of each step, costs three times as much.
        loop = asyncio.get_running_loop()
        self._news = loop.create_future()
        timer = loop.call_at(until, self._tell) if until < math.inf else None
        try:
            await self._news
        finally:
            self._news = None
            if timer is not None:
                timer.cancel()


def _now() -> float:
    return asyncio.get_running_loop().time()
