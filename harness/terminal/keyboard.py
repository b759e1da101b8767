"""Types text as a person does who watches: a line at the prompt, the next one once somebody reads it.

What is typed while the shell's line editor has the terminal stays as it was typed: a carriage return is a line's end to
the editor, but not to the program that reads after it; a line feed is one to both, and justifies a paragraph in nano.
So the lines behind a command are typed when it reads: the kernel then makes line ends of them for a program that
reads lines, and a full-screen program gets the Enter key.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from enum import Enum

from harness.terminal import control_mode
from harness.terminal.link import KeysLost, Link
from harness.terminal.waiting import Foreground, Waiting, Watcher
from harness.terminal.watch import Watch

_TAKEN_SEC = 1.0
"""Longest time for a shell to say what becomes of a line; on an idle machine it takes a millisecond."""
_READS_SEC = 5.0
"""Longest time that the lines behind a command wait for it to read; then they are typed ahead."""
_PROMPT_SEC = 0.1
"""Longest pause before a line editor that has reported no prompt is taken to have none."""
_FIRST_LOOK_SEC, _LONGEST_PAUSE_SEC = 0.015, 0.25
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_MANY, _USED_TO = 64, 16
"""Texts of more lines than the first are typed at once, where the same reader has read as many as the second."""


class _InputReader(Enum):
    """What reads what is typed next."""

    EDITOR = 1
    """A shell's line editor, at its prompt or in the middle of a command."""
    LINES = 2
    """A program that reads lines."""
    KEYS = 3
    """A program that reads keys."""
    NOBODY = 4
    """Nothing yet."""


_AT_ONCE = {
    _InputReader.EDITOR: re.compile(r"[^\n]*\n?"),
    # Behind what may end a program, somebody else reads.
    _InputReader.LINES: re.compile(r"[^\n\x03\x04\x1a\x1c]*[\n\x03\x04\x1a\x1c]?"),
    # It takes a moment until such a program has done what its keys say, and the Enter key is about that (fzf).
    _InputReader.KEYS: re.compile(r"[^\n]+|\n"),
    _InputReader.NOBODY: re.compile(r".*", re.DOTALL),
}
"""The piece of text that is typed before it is looked at again what reads."""
_AT_ONCE_OF_MANY = {
    _InputReader.EDITOR: re.compile(r".*", re.DOTALL),
    _InputReader.LINES: re.compile(r"[^\x03\x04\x1a\x1c]*[\x03\x04\x1a\x1c]?"),
    _InputReader.KEYS: re.compile(r".*", re.DOTALL),
}


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
        self._typed_to: Foreground | None = None
        """The foreground that was going to read when something was typed that wakes it."""

    @property
    def at_line_editor(self) -> bool:
        """Whether a shell's line editor reads what is typed next."""
        return self._waiting.recognised or self._watch.shell.edits

    async def press(self, key: str) -> None:
        """Press one key by its tmux name."""
        await self._until_taken()
        self._show(key)
        self._watch.shell.pressed(key)
        self._waiting.typed(entered=True)
        await self._link.type([control_mode.press_key("main", key)])

    async def type(self, text: str, ends_at: float) -> None:
        """Type text, in which each newline is Enter; all of it by `ends_at`, in the event loop's time."""
        await self._until_taken()
        self._show(text)
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        self._typed_to = None
        reader = _InputReader.EDITOR if self.at_line_editor else await self._present_reader(text)
        at, in_a_row = 0, 0
        while at < len(text):
            in_a_row += 1
            is_many = in_a_row > _USED_TO and text.count("\n", at) > _MANY
            found = (_AT_ONCE_OF_MANY if is_many else _AT_ONCE)[reader].match(text, at)
            assert found is not None
            await self._type_at_once(found[0], b"\n" if reader is _InputReader.EDITOR else b"\r")
            at = found.end()
            if at < len(text):
                before, reader = reader, await self._next_reader(ends_at)
                goes_on = reader is not _InputReader.EDITOR or self._watch.shell.answer == "P"
                in_a_row = in_a_row if reader is before and goes_on else 0

    async def pass_on(self, data: bytes) -> None:
        """Type what a person types, byte by byte as it is."""
        text = data.decode("utf-8", "replace").replace("\r", "\n")
        self._show(text)
        self._watch.shell.typed(text)
        self._waiting.typed(entered="\n" in text or _CONTROLS.search(text) is not None)
        await self._link.type(control_mode.type_bytes("main", data))

    async def _type_at_once(self, text: str, line_end: bytes) -> None:
        self._watch.shell.typed(text)
        self._waiting.typed(entered="\n" in text or _CONTROLS.search(text) is not None)
        if _CONTROLS.search(text):
            self._typed_to = None  # perhaps a signal, which wakes nobody who ignores it
        data = text.encode("utf-8", "replace").replace(b"\n", line_end)
        await self._link.type(control_mode.type_bytes("main", data))

    async def _until_taken(self) -> None:
        """Wait until the line editor has handed over a line that was entered before."""
        ends_at, watch = _now() + _TAKEN_SEC, self._watch
        while watch.shell.was_asked and not self._link.is_cut and _now() < ends_at:
            watch.output_matters = True
            await watch.changes(ends_at)

    async def _present_reader(self, text: str) -> _InputReader:
        """What reads now; as this text's first line is typed in any case, something does."""
        if text.find("\n") <= 0:
            return _InputReader.LINES
        try:
            self._typed_to = await self._watcher.look()
            return _reader(self._typed_to) or _InputReader.LINES
        except ConnectionError as error:
            return await self._reader_after_gap(error)

    async def _next_reader(self, ends_at: float) -> _InputReader:
        """What reads behind the text that was just typed, once something does."""
        shell, pause_sec = self._watch.shell, _FIRST_LOOK_SEC
        ends_at = min(ends_at, _now() + _READS_SEC)
        # What is typed before a line editor has let go of the terminal may not have the line ends of who reads next.
        taken_at = ends_at + _TAKEN_SEC
        try:
            while True:
                wait_sec = min(pause_sec, (ends_at if _now() < ends_at else taken_at) - _now())
                await self._waiting.until_settled(wait_sec, or_when=lambda: shell.answer == "P")
                if self._waiting.at_prompt or shell.answer == "P":
                    return _InputReader.EDITOR
                now = await self._watcher.look()
                reader = _reader(now)
                if reader is _InputReader.EDITOR:
                    # It is about to tell of its prompt; but for `read -e`, and where the prompt is empty.
                    reads = pause_sec > _PROMPT_SEC and now is not None and now.is_at_rest
                else:
                    reads = await self._reads(now)
                if reads or _now() >= (taken_at if reader is _InputReader.EDITOR else ends_at):
                    self._typed_to = now
                    return reader if reads and reader is not None else _InputReader.NOBODY
                pause_sec = min(2 * pause_sec, _LONGEST_PAUSE_SEC)
        except ConnectionError as error:
            return await self._reader_after_gap(error)

    async def _reads(self, now: Foreground | None) -> bool:
        """Whether the foreground waits for what is typed next."""
        if now is None:
            return True
        if not now.is_at_rest or now.is_still(self._typed_to):
            return False  # busy, or has not woken up yet for what was typed last
        if now.canonical is True and now.waiting is True:
            return True
        # A sleep until any of several things happens, or one that the kernel does not tell of, may be a short one.
        later = await self._watcher.look_again()
        return later is None or (later.is_at_rest and later.is_still(now))

    async def _reader_after_gap(self, error: ConnectionError) -> _InputReader:
        if await self._link.reattach():
            raise KeysLost("the session ended while something was typed") from error
        return _InputReader.NOBODY


def _reader(now: Foreground | None) -> _InputReader | None:
    """What is reading, by a look at the foreground; None where nothing is."""
    if now is None:
        return _InputReader.LINES
    if now.edits_line:
        return _InputReader.EDITOR
    if not now.is_at_rest:
        return None
    return _InputReader.KEYS if now.canonical is False else _InputReader.LINES


def _now() -> float:
    return asyncio.get_running_loop().time()
