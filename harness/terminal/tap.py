"""The terminal for people who watch: its screen, a live tap of its output, and its recording as an asciicast."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import re
import time
from collections.abc import Callable, Sequence
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
"""The commands whose replies make up a screen."""
_HELD_BYTES = 256 << 10
"""Maximum number of bytes kept for a viewer that does not read; beyond that, it gets the whole screen again."""
_SWITCHES_SCREEN = re.compile(rb"\x1b\[\?(?:47|1047|1049)[hl]")
_LONGEST_SWITCH = 8
_UNFINISHED = re.compile(rb"\x1b(?:[\[\]][ -~]{0,60}|[ -/]?)?\Z")
_CODES = re.compile(r"(\x1b\[[0-9;:]*m|[\x0e\x0f])")
_ACS = str.maketrans("`afgjklmnopqrstuvwxyz{|}~", "◆▒°±┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·")
"""The VT100's line drawing characters."""


class _Modes(NamedTuple):
    """Terminal modes that affect subsequent output and keys."""

    application_keys: bool
    keypad: bool
    insert: bool
    origin: bool
    wrap: bool
    region: tuple[int, int]
    """First and last row that scroll."""


@dataclass(frozen=True, slots=True)
class DrawnScreen:
    """The screen as drawn by tmux."""

    columns: int
    rows: int
    cursor: tuple[int, int]
    """Column and row, from 0."""
    cursor_visible: bool
    lines: tuple[str, ...]
    """One per row; the only escape sequences are colours, which are off at the beginning and end of each."""
    modes: _Modes

    @classmethod
    def read(cls, replies: Sequence[CommandReply]) -> DrawnScreen:
        """Build the screen from the replies to `DRAW`."""
        facts, shown = replies
        columns, rows, x, y, visible, *flags, upper, lower = map(int, text(facts.lines).split())
        keys, keypad, insert, origin, wrap = map(bool, flags)
        return cls(
            columns=columns,
            rows=rows,
            cursor=(min(x, columns - 1), y),
            cursor_visible=bool(visible),
            lines=_self_contained([line.decode("utf-8", "replace") for line in shown.lines[:rows]]),
            modes=_Modes(keys, keypad, insert, origin, wrap, (upper, lower)),
        )

    @property
    def text(self) -> str:
        """The screen's plain text."""
        return "\n".join(without_escapes(line).rstrip() for line in self.lines).rstrip("\n")

    def escapes(self) -> bytes:
        """Return the bytes that draw it on a terminal of the same size, and set the same modes."""
        modes = self.modes
        parts = ["\x1b[?6l\x1b[r\x1b[4l\x1b[?7h\x1b(B\x0f\x1b[m\x1b[H\x1b[2J"]
        parts += [f"\x1b[{row};1H{line}" for row, line in enumerate(self.lines, 1) if line]
        upper, lower = modes.region
        if (upper, lower) != (0, self.rows - 1):
            parts.append(f"\x1b[{upper + 1};{lower + 1}r")
        # In origin mode, positions are relative to the top of the scroll region.
        parts.append(f"\x1b[{self.cursor[1] + 1};{self.cursor[0] + 1}H")
        if modes.origin:
            parts.append(f"\x1b[?6h\x1b[{self.cursor[1] - upper + 1};{self.cursor[0] + 1}H")
        parts += ["\x1b[4h" if modes.insert else "", "" if modes.wrap else "\x1b[?7l"]
        parts += ["\x1b[?1h" if modes.application_keys else "\x1b[?1l", "\x1b=" if modes.keypad else "\x1b>"]
        parts.append("\x1b[?25h" if self.cursor_visible else "\x1b[?25l")
        return "".join(parts).encode("utf-8", "replace")


def _self_contained(lines: Sequence[str]) -> tuple[str, ...]:
    """Make each line self-contained: tmux continues the colours and character set of the line above."""
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
    """A pane's output for one viewer. It buffers little: a viewer that falls behind gets the whole screen again.

    It starts with the screen, and continues with the bytes that follow. A switch between the terminal's two screens is
    not passed on; the new screen is drawn instead.
    """

    def __init__(self) -> None:
        self.is_over = False
        """Whether the terminal was closed."""
        self._held = bytearray()
        self._tail = b""
        self._follows = False
        """Whether output continues from the drawn screen."""
        self._before = b""
        """The end of all output so far, which may be within an escape sequence."""
        self._news = asyncio.Event()
        self._news.set()

    def output(self, data: bytes) -> None:
        """Receive output of the pane."""
        if self._follows:
            if len(self._held) + len(data) > _HELD_BYTES or _SWITCHES_SCREEN.search(self._tail + data):
                self.lose_position()
            else:
                self._held += data
                self._tail = data[-_LONGEST_SWITCH:]
        self._before = (self._before + data)[-64:] if len(data) < 64 else data[-64:]
        self._news.set()

    def lose_position(self) -> None:
        """Record that further output does not continue from what was shown."""
        self._follows = False
        self._held.clear()
        self._news.set()

    def nudge(self) -> None:
        """Wake the task that waits for news, because of another event."""
        self._news.set()

    def end(self) -> None:
        """Record that the terminal was closed."""
        self.is_over = True
        self._news.set()

    def note_drawn(self) -> None:
        """Record that the screen was drawn at this position in the stream."""
        self._held.clear()
        cut = _UNFINISHED.search(self._before)
        self._held += b"" if cut is None else cut[0]
        self._tail = b""
        self._follows = True

    @property
    def needs_redraw(self) -> bool:
        """Whether the screen has to be drawn first."""
        return not self._follows

    async def news(self) -> None:
        """Wait until there is new output since the last call, or the terminal was closed."""
        await self._news.wait()
        if not self.is_over:
            self._news.clear()

    def take(self) -> bytes:
        """Return the output since the last call."""
        data = bytes(self._held)
        self._held.clear()
        return data


# The terminal session as an asciicast v2 file, written as it happens.
#
# Source: https://docs.asciinema.org/manual/asciicast/v2/

_ENCODER = json.JSONEncoder(ensure_ascii=False)
"""Reused encoder, as a step has several events."""


class Recording:
    """Appends events to an asciicast. Output beyond `limit_bytes` is dropped, with a marker.

    A write error (a full disk) ends the recording, not the session; `problem` is the reason.
    """

    def __init__(
        self, path: Path | None, *, columns: int, rows: int, limit_bytes: int = 64 << 20, goes_on: bool = False
    ) -> None:
        """With `goes_on`, continue the recording of another process, if there is one. Without a path, there is none."""
        self.problem: str | None = None
        # Incremental, because a character may be split between two reads; never yields surrogates.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._file: IO[str] | None = None
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        before, last_sec = _continued(path) if goes_on else (0, 0.0)
        mode = "a" if before else "w"
        self._file = path.open(mode, encoding="utf-8", errors="replace", newline="\n")
        if before:
            self._file.truncate(before)
        self._left = limit_bytes - before
        self._start = time.monotonic() - last_sec
        if not before:
            header = {"version": 2, "width": columns, "height": rows, "timestamp": int(time.time())}
            self._file.write(json.dumps(header) + "\n")

    def output(self, data: bytes) -> None:
        """Record output of the terminal."""
        if self._file is None or self._left <= 0:
            return
        self._left -= len(data)
        text = self._decoder.decode(data)
        if text:
            self._write("o", text)
        if self._left <= 0:
            self.marker("recording limit reached: further output is not recorded")

    def input(self, text: str) -> None:
        """Record typed text."""
        self._write("i", text)

    def marker(self, label: str) -> None:
        """Record a remark, shown by players as a chapter mark."""
        self._write("m", label)

    def _write(self, kind: str, text: str) -> None:
        if self._file is not None:
            elapsed_sec = round(time.monotonic() - self._start, 6)
            line = f'[{elapsed_sec}, "{kind}", {_ENCODER.encode(text)}]\n'
            self._try(self._file, lambda file: file.write(line))

    def flush(self) -> None:
        """Write everything recorded so far to the file, so that it outlives this process."""
        if self._file is not None:
            self._try(self._file, lambda file: file.flush())

    def close(self) -> None:
        """Flush and close; later events are ignored."""
        if self._file is not None:
            self._try(self._file, lambda file: file.close())
            self._file = None

    def _try(self, file: IO[str], use: Callable[[IO[str]], object]) -> None:
        """Use the file, or end the recording if that fails."""
        try:
            use(file)
        except OSError as error:
            self.problem, self._file = error.strerror or str(error), None
            with contextlib.suppress(OSError):
                file.close()


def _continued(path: Path) -> tuple[int, float]:
    """Return the length in bytes of a recording without an incomplete last line, and the time of its last event."""
    try:
        whole = path.read_bytes().rpartition(b"\n")[0]
    except FileNotFoundError:
        return 0, 0.0
    last = json.loads(whole.rpartition(b"\n")[2]) if whole else None
    return (len(whole) + 1 if whole else 0), float(last[0]) if isinstance(last, list) else 0.0
