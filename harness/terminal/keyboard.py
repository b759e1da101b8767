"""Types text line by line like an attentive person: each line only once a program reads it.

Keys typed while the shell's line editor has the terminal are not translated: a carriage return ends a line for the
editor, but not for the program that reads next; a line feed ends a line for both, but justifies a paragraph in nano. So
the lines after a command are typed when the command reads: the kernel then translates the line ends for a program that
reads lines, and a full-screen program gets the Enter key.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

from harness.concurrency import loop_time
from harness.terminal import control_mode
from harness.terminal.link import KeysLost, Link
from harness.terminal.pane import PaneMonitor
from harness.terminal.waiting import Foreground, ForegroundProbe, PromptWaiter

_TAKEN_SEC = 1.0
"""Longest time for a shell to report that it took a line; on an idle machine it takes a millisecond."""
_READS_SEC = 5.0
"""Longest wait for a command to read the lines after it; then they are typed ahead."""
_PROMPT_SEC = 0.1
"""Longest wait for a line editor's prompt before it is assumed to have none."""
_FIRST_CHECK_SEC, _LONGEST_PAUSE_SEC = 0.015, 0.25
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_LARGE_TEXT_LINES, _SAMPLE_LINES = 64, 16
"""In a text of more than _LARGE_TEXT_LINES lines, _SAMPLE_LINES are typed one by one, and the rest at once."""


class _InputReader(Enum):
    """Kind of program that reads the next typed keys."""

    EDITOR = 1
    """A shell's line editor, at its prompt or in the middle of a command."""
    LINES = 2
    """A program that reads lines."""
    KEYS = 3
    """A program that reads keys."""
    NONE = 4
    """Nothing yet."""


_PIECE = {
    _InputReader.EDITOR: re.compile(r"[^\n]*\n?"),
    # After keys that may end the program, another program reads.
    _InputReader.LINES: re.compile(r"[^\n\x03\x04\x1a\x1c]*[\n\x03\x04\x1a\x1c]?"),
    # Such a program needs a moment to process its keys, which Enter refers to (fzf).
    _InputReader.KEYS: re.compile(r"[^\n]+|\n"),
    _InputReader.NONE: re.compile(r".*", re.DOTALL),
}
"""The piece of text that is typed before the reader is determined again."""
_LARGE_PIECE = {
    _InputReader.EDITOR: re.compile(r".*", re.DOTALL),
    _InputReader.LINES: re.compile(r"[^\x03\x04\x1a\x1c]*[\x03\x04\x1a\x1c]?"),
    _InputReader.KEYS: re.compile(r".*", re.DOTALL),
}


class Keyboard:
    """Types into one pane. Raises like `harness.terminal.link.Link.type`."""

    def __init__(
        self, link: Link, pane: PaneMonitor, waiter: PromptWaiter, probe: ForegroundProbe, show: Callable[[str], None]
    ) -> None:
        self._link = link
        self._pane = pane
        self._waiter = waiter
        self._probe = probe
        self._show = show
        self._typed_to: Foreground | None = None
        """Foreground that the last typed keys will wake; None if none was waiting for keys."""
        self._typed_bytes = 0
        """Number of bytes of the present text that are typed."""

    @property
    def at_line_editor(self) -> bool:
        """Whether a shell's line editor reads the next typed keys."""
        return self._waiter.recognised or self._pane.shell.edits

    async def press(self, key: str) -> None:
        """Press one key by its tmux name, the whole of an action."""
        await self._wait_until_line_taken()
        self._show(key)
        self._pane.shell.note_pressed(key)
        self._waiter.note_typed(entered=True)
        await self._link.type([control_mode.press_key("main", key)], reached=[1])

    async def type(self, text: str, ends_at: float, typed_bytes: int = 0) -> None:
        """Type text, in which each newline is Enter, by `ends_at` (event loop time).

        An earlier process may have typed the first `typed_bytes`; then the rest is typed when a program reads it.
        """
        await self._wait_until_line_taken()
        if not typed_bytes:
            self._show(text)
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        self._typed_to, self._typed_bytes = None, typed_bytes
        at, in_a_row = len(_encoded(text)[:typed_bytes].decode("utf-8", "replace")), 0
        if at:
            reader = await self._next_reader(ends_at) if at < len(text) else _InputReader.NONE
        else:
            reader = _InputReader.EDITOR if self.at_line_editor else await self._present_reader(text)
        while at < len(text):
            in_a_row += 1
            is_many = in_a_row > _SAMPLE_LINES and text.count("\n", at) > _LARGE_TEXT_LINES
            found = (_LARGE_PIECE if is_many else _PIECE)[reader].match(text, at)
            assert found is not None
            await self._type_piece(found[0], b"\n" if reader is _InputReader.EDITOR else b"\r")
            at = found.end()
            if at < len(text):
                before, reader = reader, await self._next_reader(ends_at)
                goes_on = reader is not _InputReader.EDITOR or self._pane.shell.answer == "P"
                in_a_row = in_a_row if reader is before and goes_on else 0

    async def pass_on(self, data: bytes) -> None:
        """Type a person's keys byte by byte, unchanged."""
        text = data.decode("utf-8", "replace").replace("\r", "\n")
        self._show(text)
        self._pane.shell.note_typed(text)
        self._waiter.note_typed(entered="\n" in text or _CONTROLS.search(text) is not None)
        await self._link.type(control_mode.type_bytes("main", data))

    async def _type_piece(self, text: str, line_end: bytes) -> None:
        self._pane.shell.note_typed(text)
        self._waiter.note_typed(entered="\n" in text or _CONTROLS.search(text) is not None)
        if _CONTROLS.search(text):
            self._typed_to = None  # perhaps a signal, which does not wake a program that ignores it
        data, before = _encoded(text).replace(b"\n", line_end), self._typed_bytes
        self._typed_bytes += len(data)
        reached = [before + end for end in control_mode.chunk_ends(data)]
        await self._link.type(control_mode.type_bytes("main", data), reached=reached)

    async def _wait_until_line_taken(self) -> None:
        """Wait until the line editor has passed on a line that was entered before."""
        ends_at, pane = loop_time() + _TAKEN_SEC, self._pane
        while pane.shell.awaits_answer and not self._link.is_cut and loop_time() < ends_at:
            pane.output_matters = True
            await pane.changes(ends_at)

    async def _present_reader(self, text: str) -> _InputReader:
        """Return the present reader of keys; if there is none, assume one, as the first line is typed in any case."""
        if text.find("\n") <= 0:
            return _InputReader.LINES
        try:
            self._typed_to = await self._probe.inspect()
            return _reader(self._typed_to) or _InputReader.LINES
        except ConnectionError as error:
            return await self._reader_after_gap(error)

    async def _next_reader(self, ends_at: float) -> _InputReader:
        """Wait until a program reads after the typed text, and return its kind."""
        shell, pause_sec = self._pane.shell, _FIRST_CHECK_SEC
        ends_at = min(ends_at, loop_time() + _READS_SEC)
        # Keys typed before a line editor has released the terminal may have the wrong line ends for the next reader.
        taken_at = ends_at + _TAKEN_SEC
        try:
            while True:
                wait_sec = min(pause_sec, (ends_at if loop_time() < ends_at else taken_at) - loop_time())
                await self._waiter.wait_until_settled(wait_sec, or_when=lambda: shell.answer == "P")
                if self._waiter.at_prompt or shell.answer == "P":
                    return _InputReader.EDITOR
                now = await self._probe.inspect()
                reader = _reader(now)
                if reader is _InputReader.EDITOR:
                    # It is about to report its prompt, except for `read -e` and empty prompts.
                    reads = pause_sec > _PROMPT_SEC and now is not None and now.is_at_rest
                else:
                    reads = await self._reads(now)
                if reads or loop_time() >= (taken_at if reader is _InputReader.EDITOR else ends_at):
                    self._typed_to = now
                    return reader if reads and reader is not None else _InputReader.NONE
                pause_sec = min(2 * pause_sec, _LONGEST_PAUSE_SEC)
        except ConnectionError as error:
            return await self._reader_after_gap(error)

    async def _reads(self, now: Foreground | None) -> bool:
        """Whether the foreground waits for the next typed keys."""
        if now is None:
            return True
        if not now.is_at_rest or now.is_still(self._typed_to):
            return False  # busy, or has not woken up yet for the last keys
        if now.canonical is True and now.waiting is True:
            return True
        # A wait for several events, or one that the kernel does not report, may be short.
        later = await self._probe.inspect_again()
        return later is None or (later.is_at_rest and later.is_still(now))

    async def _reader_after_gap(self, error: ConnectionError) -> _InputReader:
        if await self._link.reattach():
            raise KeysLost("the session ended while keys were typed") from error
        return _InputReader.NONE


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _reader(now: Foreground | None) -> _InputReader | None:
    """Return the reader of keys, according to the foreground; None if nothing reads."""
    if now is None:
        return _InputReader.LINES
    if now.edits_line:
        return _InputReader.EDITOR
    if not now.is_at_rest:
        return None
    return _InputReader.KEYS if now.canonical is False else _InputReader.LINES
