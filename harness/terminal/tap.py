"""The terminal as others than the agent see it: drawn and printed while it runs, and recorded as asciicast."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from harness.terminal.control_mode import CommandReply, text
from harness.terminal.plain_text import without_escapes

DRAW = (
    b"display-message -p -t main '#{pane_width} #{pane_height} #{cursor_x} #{cursor_y} #{cursor_flag}"
    b" #{keypad_cursor_flag} #{keypad_flag} #{insert_flag} #{origin_flag} #{wrap_flag}"
    b" #{scroll_region_upper} #{scroll_region_lower}'\n",
    b"capture-pane -e -p -t main\n",
)
"""The commands whose replies are a screen."""
_HELD_BYTES = 256 << 10
"""The most that is kept for somebody who takes nothing; then the screen is drawn anew for them."""
_SWITCHES_SCREEN = re.compile(rb"\x1b\[\?(?:47|1047|1049)[hl]")
_LONGEST_SWITCH = 8
_UNFINISHED = re.compile(rb"\x1b(?:[\[\]][ -~]{0,60}|[ -/]?)?\Z")
_CODES = re.compile(r"(\x1b\[[0-9;:]*m|[\x0e\x0f])")
_ACS = str.maketrans("`afgjklmnopqrstuvwxyz{|}~", "◆▒°±┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·")
"""What a VT100 draws for letters in its other character set."""


class _Modes(NamedTuple):
    """What the terminal does with what comes next."""

    application_keys: bool
    keypad: bool
    insert: bool
    origin: bool
    wrap: bool
    region: tuple[int, int]
    """First and last row that scroll."""


@dataclass(frozen=True, slots=True)
class DrawnScreen:
    """The screen as tmux has drawn it."""

    columns: int
    rows: int
    cursor: tuple[int, int]
    """Column and row, from 0."""
    cursor_visible: bool
    lines: tuple[str, ...]
    """One per row; each begins and ends with all colours off, which are its only escape sequences."""
    modes: _Modes

    @classmethod
    def read(cls, replies: Sequence[CommandReply]) -> DrawnScreen:
        """The screen of the replies to `DRAW`."""
        facts, shown = replies
        columns, rows, x, y, visible, *flags, upper, lower = map(int, text(facts.lines).split())
        keys, keypad, insert, origin, wrap = map(bool, flags)
        return cls(
            columns=columns,
            rows=rows,
            cursor=(min(x, columns - 1), y),
            cursor_visible=bool(visible),
            lines=_each_on_its_own([line.decode("utf-8", "replace") for line in shown.lines[:rows]]),
            modes=_Modes(keys, keypad, insert, origin, wrap, (upper, lower)),
        )

    @property
    def text(self) -> str:
        """What is to be read on it."""
        return "\n".join(without_escapes(line).rstrip() for line in self.lines).rstrip("\n")

    def escapes(self) -> bytes:
        """What draws it on a terminal of its size, and sets that up for what comes next."""
        modes = self.modes
        parts = ["\x1b[?6l\x1b[r\x1b[4l\x1b[?7h\x1b(B\x0f\x1b[m\x1b[H\x1b[2J"]
        parts += [f"\x1b[{row};1H{line}" for row, line in enumerate(self.lines, 1) if line]
        upper, lower = modes.region
        if (upper, lower) != (0, self.rows - 1):
            parts.append(f"\x1b[{upper + 1};{lower + 1}r")
        # Within a region, places are counted from its top where the origin is there.
        parts.append(f"\x1b[{self.cursor[1] + 1};{self.cursor[0] + 1}H")
        if modes.origin:
            parts.append(f"\x1b[?6h\x1b[{self.cursor[1] - upper + 1};{self.cursor[0] + 1}H")
        parts += ["\x1b[4h" if modes.insert else "", "" if modes.wrap else "\x1b[?7l"]
        parts += ["\x1b[?1h" if modes.application_keys else "\x1b[?1l", "\x1b=" if modes.keypad else "\x1b>"]
        parts.append("\x1b[?25h" if self.cursor_visible else "\x1b[?25l")
        return "".join(parts).encode("utf-8", "replace")


def _each_on_its_own(lines: Sequence[str]) -> tuple[str, ...]:
    """Lines that go on in the colours and characters of those before them, each made whole."""
    whole, colours, in_acs = [], "", False
    for line in lines:
        drawn, is_empty = [colours], True
        for code in _CODES.split(line):
            if code in ("\x0e", "\x0f"):
                in_acs = code == "\x0e"
            elif code.startswith("\x1b"):
                drawn.append(code)
                is_reset = code.startswith(("\x1b[m", "\x1b[0m", "\x1b[0;"))
                colours = code if is_reset else colours + code
                colours = "" if colours in ("\x1b[m", "\x1b[0m") else colours
            elif code:
                drawn.append(code.translate(_ACS) if in_acs else code)
                is_empty = False
        text = "" if is_empty else "".join(drawn)
        whole.append(f"{text}\x1b[m" if "\x1b" in text else text)
    return tuple(whole)


class Tap:
    """What a pane prints, for one who looks on. It keeps little: who falls behind is shown the screen anew.

    It begins with the screen, from which the bytes that follow go on; switches between the two screens that a terminal
    has are left out, and what is to be seen then is drawn instead.
    """

    def __init__(self) -> None:
        self.is_over = False
        """Whether the terminal was closed."""
        self._held = bytearray()
        self._tail = b""
        self._follows = False
        """Whether what is printed goes on from what was drawn."""
        self._before = b""
        """The last that was printed, seen or not: it may end within an escape sequence."""
        self._news = asyncio.Event()
        self._news.set()

    def output(self, data: bytes) -> None:
        """Take what the pane printed."""
        if self._follows:
            if len(self._held) + len(data) > _HELD_BYTES or _SWITCHES_SCREEN.search(self._tail + data):
                self.lose_place()
            else:
                self._held += data
                self._tail = data[-_LONGEST_SWITCH:]
        self._before = (self._before + data)[-64:] if len(data) < 64 else data[-64:]
        self._news.set()

    def lose_place(self) -> None:
        """Note that what comes next does not go on from what was shown."""
        self._follows = False
        self._held.clear()
        self._news.set()

    def nudge(self) -> None:
        """Wake the one who waits for news, who has some of another kind."""
        self._news.set()

    def end(self) -> None:
        """Note that nothing comes any more."""
        self.is_over = True
        self._news.set()

    def drawn(self) -> None:
        """Note that a screen was drawn at this place in the stream."""
        self._held.clear()
        cut = _UNFINISHED.search(self._before)
        self._held += b"" if cut is None else cut[0]
        self._tail = b""
        self._follows = True

    @property
    def has_lost_place(self) -> bool:
        """Whether the screen has to be drawn before anything else."""
        return not self._follows

    async def news(self) -> None:
        """Return when something was printed since the last time, or the terminal was closed."""
        await self._news.wait()
        if not self.is_over:
            self._news.clear()

    def take(self) -> bytes:
        """What was printed since the last time."""
        data = bytes(self._held)
        self._held.clear()
        return data


# The terminal session as an asciicast v2 file, written as it happens.
#
# Source: https://docs.asciinema.org/manual/asciicast/v2/

_ENCODER = json.JSONEncoder(ensure_ascii=False)
"""Encoder that is made once: a step has several events."""


class Recording:
    """Appends events to an asciicast. Output beyond `limit_bytes` is left out, and a marker says so.

    A file that cannot be written any more (a full disk) ends the recording, not the session: `problem` says why.
    """

    def __init__(self, path: Path, *, columns: int, rows: int, limit_bytes: int = 64 << 20) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] | None = path.open("w", encoding="utf-8", errors="replace", newline="\n")
        self.problem: str | None = None
        self._left = limit_bytes
        self._start = time.monotonic()
        # Incremental, because a character may be cut between two reads; never surrogates.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        header = {"version": 2, "width": columns, "height": rows, "timestamp": int(time.time())}
        self._file.write(json.dumps(header) + "\n")

    def output(self, data: bytes) -> None:
        """Record what the terminal printed."""
        if self._left <= 0:
            return
        self._left -= len(data)
        text = self._decoder.decode(data)
        if text:
            self._write("o", text)
        if self._left <= 0:
            self.marker("recording limit reached: later output is not recorded")

    def input(self, text: str) -> None:
        """Record what was typed."""
        self._write("i", text)

    def marker(self, label: str) -> None:
        """Record a remark, shown by players as a chapter mark."""
        self._write("m", label)

    def _write(self, kind: str, text: str) -> None:
        if self._file is None:
            return
        elapsed_sec = round(time.monotonic() - self._start, 6)
        try:
            self._file.write(f'[{elapsed_sec}, "{kind}", {_ENCODER.encode(text)}]\n')
        except OSError as error:
            self._give_up(error)

    def flush(self) -> None:
        """Put into the file what was recorded so far, so that it outlives this process."""
        if self._file is None:
            return
        try:
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Flush and close; later events are ignored."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                self._give_up(error)
            self._file = None

    def _give_up(self, error: OSError) -> None:
        self.problem = error.strerror or str(error)
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
