"""Processes a pane's output: marks, the last line, the output of commands. All of it is recorded."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from harness.concurrency import loop_time
from harness.terminal.plain_text import Captured, PlainText
from harness.terminal.screen import ScreenReader
from harness.terminal.settling import LastLine, Mark, MarkScanner, ShellState
from harness.terminal.tap import Recording, Tap

# Separates the output of delivered commands, the output between them, and the shell's own.

_EDITOR_TAKES, _EDITOR_LEAVES = b"\x1b[?2004h", b"\x1b[?2004l\r"
"""Sequences that readline prints before and after each line that it reads."""
_HELD_BYTES = 4096


class Capture:
    """Captures one delivered command at a time: `expect` it, then wait for `ended` or `shell_ended`."""

    def __init__(self) -> None:
        self.begun = False
        self.ended: Mark | None = None
        """The command's own mark D; None until it comes."""
        self.shell_ended: Mark | None = None
        """Mark X of the shell, if the command ended the shell."""
        self.shell_lost = False
        """Whether a shell has ended between the previous command and this one."""
        self._ended_between = False
        self.background = ""
        """Output of background processes between the previous command and this one."""
        self._output = PlainText()
        self._prompt: bytearray | None = None
        """Output since the shell's prompt, if that came before the command's end; else None."""
        self._is_drawn = False
        """Whether the shell has drawn that prompt."""
        self._between = BackgroundOutput()
        self._echoes: list[bytes] = []
        """Expected echoes of the command's request, and of keys that were pressed to end it."""
        self._was_delivered = False
        """Whether a command was delivered, so that later output is shown with the next command."""
        self._id: int | None = None
        self.append: Callable[[bytes], None] = _discard
        """Receives the pane's output without marks."""

    @property
    def is_over(self) -> bool:
        """Whether the command has reported its end, or has ended the shell."""
        return self.ended is not None or self.shell_ended is not None

    @property
    def is_abandoned(self) -> bool:
        """Whether the shell is back at its prompt although the command has not reported its end."""
        return self._prompt is not None

    def expect(self, id: int) -> None:
        """Record that the command with this id is about to be requested."""
        self._was_delivered = True
        self._id, self.begun, self.ended, self.shell_ended = id, False, None, None
        self._output, self._prompt = PlainText(), None
        self._echoes.clear()

    def note_pressed(self, echo: bytes) -> None:
        """Record that a key was pressed to end the command, which the terminal may echo as `echo`."""
        self._echoes.append(echo)

    def note_requested(self, echo: bytes) -> None:
        """Record that the command was requested, which the shell's line editor echoes as `echo`."""
        self._between.note_requested(echo)
        if echo.strip():
            # At a repeated request, the command may have begun: then its output contains the terminal's echo.
            self._echoes.append(echo)

    def output(self) -> Captured:
        """Return the command's output, without the prompt drawn after it was abandoned."""
        return self._output.finish()

    def discard_output(self) -> None:
        """Discard the command's output so far, because it is read from the screen."""
        self._output = PlainText()

    def release(self) -> None:
        """Stop attributing output to the command."""
        self._id = None
        if self.append == self._append_output:
            self.append = self._append_between
            if self._prompt is not None and not self._is_drawn:
                self._between.prompt_begins()
                self._between.append(bytes(self._prompt))

    def discard_background(self) -> None:
        """Discard output since the last command, because it has been shown in another way."""
        if self._was_delivered:
            self._was_delivered, self.append = False, _discard
            self._between.take_text()

    def take(self, mark: Mark) -> None:
        """Process a mark from the pane."""
        if mark.id is not None and mark.id == self._id:
            self._take_own(mark)
        elif not self._was_delivered:
            return
        elif mark.kind == "X":
            if self._is_running:
                self.shell_ended = mark
            else:
                self._ended_between = True
            self.append = _discard
        elif not self._is_running:
            # The shell's own output: from the set-up (S), a typed command (C to D), the prompt (D to B).
            self.append = _discard if mark.kind in "SC" else self._append_between
            if mark.kind == "D":
                self._between.prompt_begins()
            elif mark.kind == "B":
                self._between.prompt_ends()
        elif mark.kind == "D" and self._prompt is None:
            self._prompt, self._is_drawn = bytearray(), False
        elif mark.kind == "B":
            self._is_drawn = True

    @property
    def _is_running(self) -> bool:
        return self.begun and not self.is_over and self._id is not None

    def _take_own(self, mark: Mark) -> None:
        if mark.kind == "C":
            self.begun = True
            self.shell_lost, self._ended_between = self._ended_between, False
            self.background = self._between.take_text()
            self.append = self._append_output
        elif mark.kind == "D":
            if self._prompt is not None:
                self._output.append(bytes(self._prompt))
            self.ended = mark
            self.append = self._append_between
            self._between.prompt_begins()

    def _append_output(self, data: bytes) -> None:
        for echo in self._echoes:
            if echo in data:
                self._echoes.remove(echo)
                data = data.replace(echo, b"", 1)
                break
        # A program may print the shell's marks, too: then the command has not ended yet.
        if self._prompt is None:
            self._output.append(data)
            return
        self._prompt += data
        if len(self._prompt) > _HELD_BYTES:
            self._output.append(bytes(self._prompt))
            self._prompt = None

    def _append_between(self, data: bytes) -> None:
        self._between.append(data)


def _discard(_: bytes) -> None:
    """Discard output that is not shown."""


class BackgroundOutput:
    """The output between two commands, without the prompt and the echo of the next command's request."""

    def __init__(self) -> None:
        self._text = PlainText()
        self._held = bytearray()
        """Latest output, not added to `_text` yet."""
        self._prompt = b""
        """Bytes of the prompt as last drawn."""
        self._prompt_at: int | None = None
        """Earliest index in `_held` at which a prompt begins; None if its end was reported."""
        self._echo = b""
        """Echo of the next command's request that the line editor has yet to show."""

    def append(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > _HELD_BYTES:
            self._flush()

    def prompt_begins(self) -> None:
        """Record that the shell draws its prompt next."""
        self._prompt_at = len(self._held)

    def prompt_ends(self) -> None:
        """Record that the shell has drawn its prompt."""
        if self._prompt_at is not None:
            self._drop_prompt(self._prompt_at)
            self._prompt_at = None
        elif self._prompt and self._held.endswith(self._prompt):
            # The shell has drawn its prompt again.
            del self._held[-len(self._prompt) :]

    def _drop_prompt(self, begins_at: int) -> None:
        # The line editor takes the terminal first: earlier output comes from other processes.
        editor_at = self._held.rfind(_EDITOR_TAKES, begins_at)
        drawn_at = begins_at if editor_at < 0 else editor_at + len(_EDITOR_TAKES)
        drawn = bytes(self._held[drawn_at:])
        if self._prompt and self._prompt in drawn:
            # Another process may have printed in between.
            kept = drawn.replace(self._prompt, b"", 1)
        else:
            self._prompt, kept = drawn, b""
        self._held[begins_at if editor_at < 0 else editor_at :] = kept

    def note_requested(self, echo: bytes) -> None:
        """Record that the next command was requested, which the line editor echoes as `echo`."""
        if self._prompt_at is not None:
            # If the mark after the prompt is missing, the prompt is the last, unfinished line.
            del self._held[self._held.rfind(b"\n") + 1 :]
        self._flush()
        self._echo = echo
        # If the agent has removed the hook, the shell only draws its prompt again.
        self._prompt_at = 0

    def take_text(self) -> str:
        """Return all of the text and start over; empty if it is only white space."""
        self._flush()
        text, self._text = self._text.finish().text, PlainText()
        self._echo, self._prompt_at = b"", None
        return text if text.strip() else ""

    def _drop_echo(self, echo: bytes) -> None:
        # The line editor releases the terminal after the echo; other processes may print in between.
        leaves_at = self._held.find(_EDITOR_LEAVES)
        echo_at = self._held.rfind(echo, 0, leaves_at) if leaves_at >= 0 else self._held.find(echo)
        if leaves_at >= 0:
            del self._held[leaves_at : leaves_at + len(_EDITOR_LEAVES)]
        if echo.strip():
            # If typed before the line editor had the terminal, it is echoed by both.
            self._held = self._held.replace(echo, b"")
        elif echo_at >= 0:
            del self._held[echo_at : echo_at + len(echo)]

    def _flush(self) -> None:
        if self._echo:
            self._drop_echo(self._echo)
            self._echo = b""
        self._text.append(bytes(self._held))
        self._held.clear()
        if self._prompt_at is not None:
            self._prompt_at = 0


class PaneMonitor:
    """State of the pane according to its output."""

    def __init__(self, screen: ScreenReader, recording: Recording) -> None:
        self.shell = ShellState()
        self.capture = Capture()
        self.line = LastLine()
        self.last_news_at = 0.0
        self.last_mark_at = 0.0
        self.marks = 0
        self.last_output = b""
        self.output_matters = False
        """Whether output and the beginning of commands wake waiting tasks, which is rarely needed."""
        self.taps: tuple[Tap, ...] = ()
        """Taps of viewers."""
        self._screen = screen
        self._recording = recording
        self._scanner = MarkScanner()
        self._news: asyncio.Future[None] | None = None
        """Future of the task that waits for news, if any."""

    def begin(self) -> None:
        """Forget the pane's state before a client attaches: marks of the session may have been missed."""
        self._scanner = MarkScanner()
        self.shell = ShellState()
        self.shell.lose_track()
        self._screen.lose_position()
        for tap in self.taps:
            tap.lose_position()

    def output(self, data: bytes) -> None:
        """Receive output of the pane."""
        self._recording.output(data)
        self.last_output = (self.last_output + data[-400:])[-400:]
        self.last_news_at = loop_time()
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
            self._wake()

    def _take(self, mark: Mark) -> None:
        self.marks += 1
        self.last_mark_at = self.last_news_at
        self.capture.take(mark)
        self.shell.take(mark)
        if mark.kind != "C" or mark.id is not None:
            self._wake()

    def keys_arrived(self) -> None:
        """Receive that tmux has received the typed keys, at this position in the stream."""
        self.shell.keys_arrived()

    def cut_off(self) -> None:
        """Receive that the stream has ended."""
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def changes(self, until: float) -> None:
        """Wait for a command's end, a prompt, the stream's end, the time, or output if `output_matters`."""
        # A future and a timer, because asyncio.timeout with an event costs three times as much per wait.
        loop = asyncio.get_running_loop()
        self._news = loop.create_future()
        timer = loop.call_at(until, self._wake) if until < math.inf else None
        try:
            await self._news
        finally:
            self._news = None
            if timer is not None:
                timer.cancel()
