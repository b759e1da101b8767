"""Follows what a pane prints: marks, the last line, the output of commands. All of it goes into the recording."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from harness.terminal.plain_text import Captured, PlainText
from harness.terminal.screen import ScreenReader
from harness.terminal.settling import LastLine, Mark, MarkScanner, ShellState
from harness.terminal.tap import Recording, Tap

# Sorts what the pane prints: a delivered command's output, what comes between two, and the shell's own words.

_EDITOR_TAKES, _EDITOR_LEAVES = b"\x1b[?2004h", b"\x1b[?2004l\r"
"""The sequences that readline prints around each line that it reads."""
_HELD_BYTES = 4096


class Capture:
    """Follows one delivered command at a time: `expect` it, then wait for `ended` or `shell_ended`."""

    def __init__(self) -> None:
        self.begun = False
        self.ended: Mark | None = None
        """The command's own mark D; None until it comes."""
        self.shell_ended: Mark | None = None
        """The mark X of the shell that the command ended; None where it has not."""
        self.shell_lost = False
        """Whether a shell has ended between the command before and this one."""
        self._ended_between = False
        self.background = ""
        """The text that background processes printed between the command before and this one."""
        self._output = PlainText()
        self._prompt: bytearray | None = None
        """The output since the shell said that it is back at its prompt, though the command goes on; else None."""
        self._is_drawn = False
        """Whether the shell has drawn that prompt."""
        self._between = Between()
        self._echoes: list[bytes] = []
        """The echoes of keys that were pressed to end the command."""
        self._follows = False
        """Whether a command was delivered, so that what comes behind it is shown with the next."""
        self._id: int | None = None
        self.append: Callable[[bytes], None] = _forget
        """Takes what the pane prints and is no mark."""

    @property
    def is_over(self) -> bool:
        """Whether the command has reported its end, or the shell has ended under it."""
        return self.ended is not None or self.shell_ended is not None

    @property
    def is_left(self) -> bool:
        """Whether the shell has said that it is back at its prompt, though the command has not reported its end."""
        return self._prompt is not None

    def expect(self, id: int) -> None:
        """Note that the command with this id is going to be asked for."""
        self._follows = True
        self._id, self.begun, self.ended, self.shell_ended = id, False, None, None
        self._output, self._prompt = PlainText(), None
        self._echoes.clear()

    def pressed(self, echo: bytes) -> None:
        """Note that a key was pressed to end the command, which the terminal may show as `echo`."""
        self._echoes.append(echo)

    def asked(self, echo: bytes) -> None:
        """Note that the command was asked for, which the shell's line editor shows as `echo`."""
        self._between.asked(echo)
        if echo.strip():
            # Asked for once more, it may have begun meanwhile: then the terminal shows that in the midst of its output.
            self._echoes.append(echo)

    def output(self) -> Captured:
        """The command's output, without a prompt that was drawn because it was abandoned."""
        return self._output.captured()

    def give_up(self) -> None:
        """Take what comes from now on as no longer the command's."""
        self._id = None
        if self.append == self._append_output:
            self.append = self._append_between
            if self._prompt is not None and not self._is_drawn:
                self._between.prompt_begins()
                self._between.append(bytes(self._prompt))

    def forget_background(self) -> None:
        """Drop what was printed since the last command, which has been seen otherwise."""
        if self._follows:
            self._follows, self.append = False, _forget
            self._between.take_text()

    def take(self, mark: Mark) -> None:
        """Take a mark that came out of the pane."""
        if mark.id is not None and mark.id == self._id:
            self._take_own(mark)
        elif not self._follows:
            return
        elif mark.kind == "X":
            if self._is_running:
                self.shell_ended = mark
            else:
                self._ended_between = True
            self.append = _forget
        elif not self._is_running:
            # Of the shell's own: what the set-up shows (S), a typed command (C to D), the prompt (D to B).
            self.append = _forget if mark.kind in "SC" else self._append_between
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
        # A program may print the shell's marks, too: then the command's own end is still to come.
        if self._prompt is None:
            self._output.append(data)
            return
        self._prompt += data
        if len(self._prompt) > _HELD_BYTES:
            self._output.append(bytes(self._prompt))
            self._prompt = None

    def _append_between(self, data: bytes) -> None:
        self._between.append(data)


def _forget(_: bytes) -> None:
    """Drop output that nobody is shown."""


class Between:
    """The output between two commands, without the prompt and the echo of what asked for the next command."""

    def __init__(self) -> None:
        self._text = PlainText()
        self._held = bytearray()
        """The latest output, not taken over yet."""
        self._prompt = b""
        """The bytes of the prompt as it was drawn last."""
        self._prompt_at: int | None = None
        """The earliest place in `_held` where a prompt begins; None where its end was told."""
        self._echo = b""
        """The echo that the line editor has still to show of what asked for the next command."""

    def append(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > _HELD_BYTES:
            self._let_go_of_all()

    def prompt_begins(self) -> None:
        """Note that the shell draws its prompt next."""
        self._prompt_at = len(self._held)

    def prompt_ends(self) -> None:
        """Note that the shell has drawn its prompt."""
        if self._prompt_at is not None:
            self._drop_prompt(self._prompt_at)
            self._prompt_at = None
        elif self._prompt and self._held.endswith(self._prompt):
            # Drawn again.
            del self._held[-len(self._prompt) :]

    def _drop_prompt(self, begins_at: int) -> None:
        # The line editor takes the terminal first: what came before is somebody else's.
        editor_at = self._held.rfind(_EDITOR_TAKES, begins_at)
        drawn_at = begins_at if editor_at < 0 else editor_at + len(_EDITOR_TAKES)
        drawn = bytes(self._held[drawn_at:])
        if self._prompt and self._prompt in drawn:
            # Somebody may have printed between the two.
            kept = drawn.replace(self._prompt, b"", 1)
        else:
            self._prompt, kept = drawn, b""
        self._held[begins_at if editor_at < 0 else editor_at :] = kept

    def asked(self, echo: bytes) -> None:
        """Note that the next command was asked for, which the line editor shows as `echo`."""
        if self._prompt_at is not None:
            # A prompt without its mark is the last, unfinished line.
            del self._held[self._held.rfind(b"\n") + 1 :]
        self._let_go_of_all()
        self._echo = echo
        # Where the agent has taken the hook away, the shell only draws its prompt again.
        self._prompt_at = 0

    def take_text(self) -> str:
        """Take all of the text, and begin anew; empty where there is nothing to see."""
        self._let_go_of_all()
        text, self._text = self._text.captured().text, PlainText()
        self._echo, self._prompt_at = b"", None
        return text if text.strip() else ""

    def _drop_echo(self, echo: bytes) -> None:
        # The line editor leaves behind it; what others print may come in between.
        leaves_at = self._held.find(_EDITOR_LEAVES)
        echo_at = self._held.rfind(echo, 0, leaves_at) if leaves_at >= 0 else self._held.find(echo)
        if leaves_at >= 0:
            del self._held[leaves_at : leaves_at + len(_EDITOR_LEAVES)]
        if echo.strip():
            # Typed before the line editor had the terminal, it is shown by that as well as by the editor.
            self._held = self._held.replace(echo, b"")
        elif echo_at >= 0:
            del self._held[echo_at : echo_at + len(echo)]

    def _let_go_of_all(self) -> None:
        if self._echo:
            self._drop_echo(self._echo)
            self._echo = b""
        self._text.append(bytes(self._held))
        self._held.clear()
        if self._prompt_at is not None:
            self._prompt_at = 0


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
