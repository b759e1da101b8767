"""What an agent sees: the screen, and the text since it last looked, where that can be told."""

from __future__ import annotations

import re

from harness.protocols.base import ScreenView
from harness.terminal.control_client import ControlClient, text
from harness.terminal.control_mode import CommandReply

COLUMNS, ROWS = 160, 40
HISTORY_LINES = 50_000
_VIEW_LINES = 5_000
"""Lines of head and of tail that are read; an observation holds fewer."""
# Whatever moves the cursor home or clears makes "new since last time" a guess.
_REDRAWN = re.compile(rb"\x1b(?:\[[23]?J|\[[0-9;]*H|c|\[\?1049[hl])")
_POSITION = b"display-message -p -t main '#{history_size} #{cursor_y} #{alternate_on}'\n"
_SCREEN = b"capture-pane -p -t main\n"


class ScreenReader:
    """Keeps the place up to which the agent has read; follows the output to know whether that place still holds."""

    def __init__(self) -> None:
        self._base_line = 0
        self._base_history = 0
        self._redrawn = False
        self._scrolled_at_most = 0
        self._newlines = 0

    def follow(self, output: bytes) -> None:
        """Every byte that the pane prints passes here."""
        newlines = output.count(b"\n")
        self._newlines += newlines
        self._scrolled_at_most += newlines + len(output) // COLUMNS
        if not self._redrawn and b"\x1b" in output and _REDRAWN.search(output):
            self._redrawn = True

    def lose_place(self) -> None:
        """Output may have passed unseen: the next view is the screen alone."""
        self._redrawn = True

    async def note_place(self, client: ControlClient) -> None:
        """What is there now has been read. Raises ConnectionError, TerminalLost."""
        (reply,) = await client.commands(_POSITION)
        history, cursor, alternate = _position(reply)
        self._keep_place(history, cursor, redrawn=alternate)

    async def read(self, client: ControlClient) -> ScreenView:
        """Raises ConnectionError, TerminalLost."""
        # In one go: what is printed in between would make the position wrong for the screen. The new lines come
        # along where they are expected to be, which saves a second question in most steps.
        expected = self._expected_place()
        guess = () if expected is None else (_capture(*expected[1:]),)
        position, shown, *lines = await client.commands(_POSITION, _SCREEN, *guess)
        history, cursor, alternate = _position(position)
        start = None if alternate else self._first_new_line(history, cursor)
        new_output, elided = None, 0
        if start is not None and expected == (history, start, cursor):
            new_output = _lines(lines[0])
        elif start is not None:
            new_output, elided = await _lines_between(client, start, cursor)
        self._keep_place(history, cursor, redrawn=alternate)
        return ScreenView(screen=_lines(shown), new_output=new_output, elided_lines=elided)

    def _expected_place(self) -> tuple[int, int, int] | None:
        """History size, first and last new line as they are if no line was wrapped; None for no guess."""
        end = self._base_line + self._newlines
        history = max(self._base_history, end - (ROWS - 1))
        start = self._base_line - history
        if self._redrawn or self._newlines > _VIEW_LINES or start < -history:
            return None
        return history, start, end - history

    def _keep_place(self, history: int, cursor: int, *, redrawn: bool) -> None:
        self._base_line, self._base_history = history + cursor, history
        self._redrawn, self._scrolled_at_most, self._newlines = redrawn, 0, 0

    def _first_new_line(self, history: int, cursor: int) -> int | None:
        """Line (0 is the top of the screen) where new text starts; None where that cannot be told."""
        base_line = self._base_line
        if self._redrawn:
            return None
        if self._base_history + self._scrolled_at_most >= HISTORY_LINES:
            # A full history loses a tenth of its lines at once; once is seen, twice would be guessed.
            if self._scrolled_at_most >= HISTORY_LINES // 10:
                return None
            if history < self._base_history:
                base_line -= HISTORY_LINES // 10
        elif history < self._base_history:
            return None
        start = base_line - history
        return start if -history <= start <= cursor else None


def _position(reply: CommandReply) -> tuple[int, int, bool]:
    history, cursor, alternate = text(reply.lines).split()
    return int(history), int(cursor), alternate == "1"


def _lines(reply: CommandReply) -> str:
    shown = b"\n".join(line.rstrip() for line in reply.lines).decode("utf-8", "replace")
    return shown.rstrip("\n")


async def _lines_between(client: ControlClient, start: int, end: int) -> tuple[str, int]:
    """Lines from `start` to `end` (0 is the top of the screen), the middle left out where there are many."""
    elided = end - start + 1 - 2 * _VIEW_LINES
    if elided <= 0:
        (reply,) = await client.commands(_capture(start, end))
        return _lines(reply), 0
    head, tail = await client.commands(_capture(start, start + _VIEW_LINES - 1), _capture(end - _VIEW_LINES + 1, end))
    return f"{_lines(head)}\n[… {elided} lines left out …]\n{_lines(tail)}", elided


def _capture(start: int, end: int) -> bytes:
    return f"capture-pane -p -t main -J -S {start} -E {end}\n".encode()
