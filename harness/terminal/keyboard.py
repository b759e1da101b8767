"""Types text as a person does who watches: a line at the prompt, the next one once somebody reads it.

What is typed while the shell's line editor has the terminal stays as it was typed: a carriage return is a line's end to
the editor, but not to the program that reads after it; a line feed is one to both, and justifies a paragraph in nano.
So the lines behind a command are typed when it reads: the kernel then makes line ends of them for a program that
reads lines, and a full-screen program gets the Enter key.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from enum import Enum

from harness.terminal import control_mode
from harness.terminal.foreground import Foreground, Watcher
from harness.terminal.link import KeysLost, Link
from harness.terminal.waiting import Waiting
from harness.terminal.watch import Watch

_TAKEN_SEC = 1.0
"""How long a shell may take to say what becomes of a line; on an idle machine it takes a millisecond."""
_READS_SEC = 5.0
"""How long the lines behind a command wait for it to read; then they are typed ahead."""
_FIRST_LOOK_SEC, _LONGEST_PAUSE_SEC = 0.015, 0.25
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_ONE_BY_ONE = 64
"""More lines than these are typed at once where a line editor or the kernel keeps them apart anyway."""


class _Reader(Enum):
    """Who reads what is typed next."""

    EDITOR = 1
    """A shell's line editor, at its prompt or in the middle of a command."""
    LINES = 2
    """A program that reads lines."""
    KEYS = 3
    """A program that reads keys; or nobody yet."""


class Keyboard:
    """Types into one pane. Raises as `harness.terminal.link.Link.type` does."""

    def __init__(
        self, link: Link, watch: Watch, waiting: Waiting, watcher: Watcher, show: Callable[[str], None]
    ) -> None:
        self._link = link
        self._watch = watch
        self._waiting = waiting
        self._watcher = watcher
        self._show = show

    @property
    def at_line_editor(self) -> bool:
        """A shell's line editor reads what is typed next."""
        return self._waiting.recognised or self._watch.shell.edits

    async def press(self, key: str) -> None:
        """Press one key by its tmux name."""
        await self._until_taken()
        self._show(key)
        self._watch.shell.pressed(key)
        self._waiting.typed(entered=True)
        await self._link.type([control_mode.press_key("main", key)])

    async def type(self, text: str, ends_at: float) -> None:
        """Type text, of which each newline is Enter; all of it by `ends_at` (the event loop's time)."""
        await self._until_taken()
        self._show(text)
        lines = _LINE.findall(text.replace("\r\n", "\n").replace("\r", "\n"))
        reader = _Reader.EDITOR if self.at_line_editor else _Reader.KEYS
        while lines:
            count = self._lines_at_once(reader, len(lines))
            await self._type_lines(lines[:count], b"\n" if reader is _Reader.EDITOR else b"\r")
            del lines[:count]
            if lines:
                reader = await self._next_reader(ends_at)

    def _lines_at_once(self, reader: _Reader, lines: int) -> int:
        if reader is _Reader.KEYS:
            return lines
        goes_on = reader is _Reader.LINES or self._watch.shell.answer == "P"
        return lines if goes_on and lines > _ONE_BY_ONE else 1

    async def _type_lines(self, lines: Sequence[str], line_end: bytes) -> None:
        text = "".join(lines)
        self._watch.shell.typed(text)
        self._waiting.typed(entered="\n" in text or _CONTROLS.search(text) is not None)
        data = text.encode("utf-8", "replace").replace(b"\n", line_end)
        await self._link.type(control_mode.type_bytes("main", data))

    async def _until_taken(self) -> None:
        """A line that was entered before is taken out of the line editor's hands."""
        ends_at, watch = _now() + _TAKEN_SEC, self._watch
        while watch.shell.was_asked and not self._link.is_cut and _now() < ends_at:
            watch.output_matters = True
            await watch.changes(ends_at)

    async def _next_reader(self, ends_at: float) -> _Reader:
        """Who reads behind the line that was just typed, once somebody does."""
        shell, pause_sec = self._watch.shell, _FIRST_LOOK_SEC
        ends_at = min(ends_at, _now() + _READS_SEC)
        while True:
            wait_sec = min(pause_sec, ends_at - _now())
            try:
                await self._waiting.until_settled(wait_sec, or_when=lambda: shell.answer == "P")
            except ConnectionError as error:
                if await self._link.reattach():
                    raise KeysLost("the session ended while something was typed") from error
                return _Reader.KEYS
            if self._waiting.at_prompt or shell.answer == "P":
                return _Reader.EDITOR
            if _now() >= ends_at:
                return _Reader.KEYS
            if (reader := _reader(await self._watcher.look())) is not None:
                return reader
            pause_sec = min(2 * pause_sec, _LONGEST_PAUSE_SEC)


def _reader(now: Foreground | None) -> _Reader | None:
    """Whom a look at the foreground finds reading; None for nobody yet, or for a shell about to show its prompt."""
    if now is None:
        return _Reader.LINES
    if not now.is_at_rest or now.edits_line:
        return None
    return _Reader.KEYS if now.canonical is False else _Reader.LINES


def _now() -> float:
    return asyncio.get_running_loop().time()
