"""Sorts what the pane prints: a delivered command's output, what comes between two, and the shell's own words."""

from __future__ import annotations

from collections.abc import Callable

from harness.terminal.marks import Mark
from harness.terminal.plain_text import Captured, PlainText

_LINE_EDITOR = (b"\x1b[?2004h", b"\x1b[?2004l\r")
"""Printed by readline around each line that it reads."""
_HELD_BYTES = 4096


class Capture:
    """Follows one delivered command at a time: `expect` it, then wait for `ended` or `shell_ended`."""

    def __init__(self) -> None:
        self.begun = False
        self.ended: Mark | None = None
        """The command's own mark D."""
        self.shell_ended: Mark | None = None
        self.background = ""
        """What background processes printed between the command before and this one."""
        self._output = PlainText()
        self._prompt: bytearray | None = None
        """What came since a prompt began that was drawn before the command reported its end."""
        self._between = Between()
        self._id: int | None = None
        self._goes_to: Callable[[bytes], None] = self._append_between

    @property
    def is_over(self) -> bool:
        """The command has reported its end, or the shell has ended under it."""
        return self.ended is not None or self.shell_ended is not None

    def expect(self, id: int) -> None:
        """The command with this id is going to be asked for."""
        self._id, self.begun, self.ended, self.shell_ended = id, False, None, None
        self._output, self._prompt = PlainText(), None

    def asked(self, echo: bytes) -> None:
        """It was asked for now, which the shell's line editor shows as `echo`."""
        self._between.asked(echo)

    def output(self) -> Captured:
        """What the command printed; without a prompt that was drawn because it was abandoned."""
        return self._output.captured()

    def give_up(self) -> None:
        """What comes now is no longer the command's."""
        self._id = None
        if self._goes_to == self._append_output:
            self._goes_to = self._append_between

    def forget_background(self) -> None:
        """What was printed since the last command has been seen otherwise."""
        self._between = Between()

    def append(self, data: bytes) -> None:
        """The pane printed something that is no mark."""
        self._goes_to(data)

    def take(self, mark: Mark) -> None:
        """A mark came out of the pane."""
        if mark.id is not None and mark.id == self._id:
            self._take_own(mark)
        elif mark.kind == "X":
            self.shell_ended = mark
            self._goes_to = _forget
        elif not self._is_running:
            # Of the shell's own: its prompt (A to B), what the set-up shows (S), a typed command (C to D).
            self._goes_to = _forget if mark.kind in "ASC" else self._append_between
            if mark.kind == "A":
                self._between.prompt_is_marked = True
        elif mark.kind == "A" and self._prompt is None:
            self._prompt = bytearray()

    @property
    def _is_running(self) -> bool:
        return self.begun and not self.is_over and self._id is not None

    def _take_own(self, mark: Mark) -> None:
        if mark.kind == "C":
            self.begun = True
            self.background, self._between = self._between.text(), Between()
            self._goes_to = self._append_output
        elif mark.kind == "D":
            if self._prompt is not None:
                self._output.append(bytes(self._prompt))
            self.ended = mark
            self._goes_to = self._append_between

    def _append_output(self, data: bytes) -> None:
        # A program may print a prompt with its marks, too: then the command's own end is still to come.
        if self._prompt is None:
            self._output.append(data)
        elif len(self._prompt) < _HELD_BYTES:
            self._prompt += data
        else:
            self._output.append(bytes(self._prompt) + data)
            self._prompt = None

    def _append_between(self, data: bytes) -> None:
        self._between.append(data)


def _forget(_: bytes) -> None:
    """For what nobody is shown."""


class Between:
    """What came out between two commands, without the prompt and the echo of what asked for the next command."""

    def __init__(self) -> None:
        self.prompt_is_marked = False
        """What was appended holds no prompt; else it is the last, unfinished line."""
        self._text = PlainText()
        self._held = bytearray()
        """The unfinished line or, once the next command was asked for, all that came since."""
        self._echo: bytes | None = None

    def append(self, data: bytes) -> None:
        self._held += data
        if self._echo is None:
            self._let_go(self._held.rfind(b"\n") + 1)
        if len(self._held) > _HELD_BYTES:
            self._let_go_of_all()

    def asked(self, echo: bytes) -> None:
        """The next command was asked for, which the line editor shows as `echo`."""
        if not self.prompt_is_marked:
            self._held.clear()
        self._let_go_of_all()
        self._echo = echo

    def text(self) -> str:
        """All of it; empty where there is nothing to see."""
        self._let_go_of_all()
        text = self._text.captured().text
        return text if text.strip() else ""

    def _let_go_of_all(self) -> None:
        if self._echo:
            for shown in (self._echo, *_LINE_EDITOR):
                self._held = self._held.replace(shown, b"", 1)
            self._echo = b""
        self._let_go(len(self._held))

    def _let_go(self, count: int) -> None:
        self._text.append(bytes(self._held[:count]))
        del self._held[:count]
