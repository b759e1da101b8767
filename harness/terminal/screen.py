"""Reads an agent's views: the screen, and the new text since the last view, if it can be determined.

Lines are counted from the first line of the history. All lines from the cursor's position at the last view on are new.
The lines above are compared with their earlier content, because programs move up and overwrite them: new output then
begins at the first line that differs. The screen is not enough, as changed lines may have scrolled off.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from harness.protocols.base import ScreenView
from harness.terminal.control_mode import CommandReply, text
from harness.terminal.spec import COLUMNS, HISTORY_LINES, ROWS

_VIEW_LINES = 5_000
"""Maximum number of lines of head and of tail that are read; an observation holds fewer."""
_MAX_QUERIES = 4
"""Maximum number of queries to tmux for one view: usually one, one more if lines wrapped, one more if lines changed,
and the last for output that keeps flowing."""
# Harmless: titles and marks, colours, sequences within a row, character sets, and modes that draw nothing.
_GOES_BACK = re.compile(rb"\x1b(?!\]|\\|[=>]|[()][0AB]|\[[0-9;:]*[CDGKPX@m]|\[\?(?:1|12|25|2004)[hl])")
# A cleared screen is shown in full; and after 3J, lines are counted from zero again.
_CLEARED = re.compile(rb"\x1b(?:\[0*[23](?:;[0-9;]*)?J|\[[01]?(?:;[01]?)?[Hf]\x1b\[0?J|c|\[\?(?:47|1047|1049)[hl])")
_SCROLLS_A_SCREEN = re.compile(rb"\x1b(?:\[[0-9;]*[JS]|\[\?3[hl]|c)")
_UNFINISHED = re.compile(rb"\x1b(?:\[[0-?]{0,30})?\Z")
_LONGEST_UNFINISHED = 32
_PIECE_BYTES = 1 << 16
"""Size of the pieces in which output is analysed: it arrives in scraps, and analysing each would cost more."""
_POSITION = (
    b"display-message -p -t main '#{history_size} #{cursor_y} #{alternate_on}"
    b" #{scroll_region_upper} #{pane_width}x#{pane_height}'\n"
)
_FULL_SCREEN = b"display-message -p -t main '#{alternate_on}#{keypad_flag}#{keypad_cursor_flag}'\n"
_SCREEN = b"capture-pane -p -t main\n"


class Tmux(Protocol):
    """Executes tmux commands: a control client, or a link."""

    async def commands(self, *commands: bytes) -> list[CommandReply]:
        """Send command lines at once and return their replies. Raises ConnectionError."""


class _Plan(NamedTuple):
    """The lines to read along with the screen, for one size of the history."""

    history: int
    start: int
    """First line of the new output."""
    scrolled_off: range = range(0)
    """Lines that had been read and may have changed before they scrolled off the screen."""

    @property
    def elided(self) -> int:
        """Number of lines left out of the middle of the new output."""
        return max(0, self.history + ROWS - self.start - 2 * _VIEW_LINES)

    def commands(self) -> list[bytes]:
        """Return the commands that read the new output, whole or head and tail, then the lines scrolled off."""
        start = self.start - self.history
        head_end = f" -E {start + _VIEW_LINES - 1}" if self.elided else ""
        commands = [f"capture-pane -p -t main -J -S {start}{head_end}\n".encode()]
        if self.elided:
            commands.append(f"capture-pane -p -t main -J -S {ROWS - _VIEW_LINES}\n".encode())
        if lines := self.scrolled_off:
            first, last = lines[0] - self.history, lines[-1] - self.history
            commands.append(f"capture-pane -p -t main -S {first} -E {last}\n".encode())
        return commands

    def new_output(self, replies: Sequence[CommandReply]) -> str:
        """Return the text of the new output from the replies to the commands."""
        head = _text(replies[0].lines)
        if not self.elided:
            return head
        return f"{head}\n[… {self.elided} lines left out …]\n{_text(replies[1].lines)}"


class _Snapshot(NamedTuple):
    """An answer of tmux: the screen, its position in the history, and the lines read along with it."""

    history: int
    cursor: int
    alternate: bool
    region_top: int
    size: str
    rows: Sequence[bytes]
    plan: _Plan | None
    replies: Sequence[CommandReply]

    def scrolled_off(self, lines: range) -> Sequence[bytes] | None:
        """Return the rows of `lines`; None if other lines were read."""
        if self.plan is None or self.plan.history != self.history or self.plan.scrolled_off != lines:
            return None
        return self.replies[-1].lines if lines else ()

    def view(self, *, with_new_output: bool) -> ScreenView:
        screen = _text(self.rows)
        if self.plan is None or not with_new_output:
            return ScreenView(screen=screen, new_output=None)
        new_output = self.plan.new_output(self.replies)
        return ScreenView(screen=screen, new_output=new_output, elided_lines=self.plan.elided)


@dataclass(slots=True)
class _OutputEffects:
    """Possible effects of output on lines that had been read."""

    newlines: int = 0
    scrolled_at_most: int = 0
    went_back: bool = False
    """Whether lines above the cursor may have changed."""
    cleared: bool = False

    @classmethod
    def judge(cls, output: bytes) -> Self:
        newlines = output.count(b"\n")
        printed = cls(newlines, newlines + len(output) // COLUMNS)
        if _GOES_BACK.search(output):
            printed.went_back = True
            printed.cleared = _CLEARED.search(output) is not None
            printed.scrolled_at_most += ROWS * len(_SCROLLS_A_SCREEN.findall(output))
        elif b"\x08" in output:  # from the start of a row it goes to the row above, if that was wrapped
            printed.went_back = True
        return printed

    def __iadd__(self, later: _OutputEffects) -> Self:
        self.newlines += later.newlines
        self.scrolled_at_most += later.scrolled_at_most
        self.went_back = self.went_back or later.went_back
        self.cleared = self.cleared or later.cleared
        return self


class ScreenReader:
    """Reads views; remembers the lines that the agent has read, and tracks the output that may have changed them."""

    def __init__(self) -> None:
        self._top = 0
        """The line that was at the top of the screen at the last view."""
        self._above: Sequence[bytes] = ()
        """The rows from there to the cursor at the last view."""
        self._size = ""
        self._effects = _OutputEffects()
        self._effects_meanwhile = _OutputEffects()
        """The part of `_effects` that arrived during the last query."""
        self._pending = bytearray()

    def follow(self, output: bytes) -> None:
        """Receive output of the pane."""
        self._pending += output
        if len(self._pending) > _PIECE_BYTES:
            self._analyse()

    def lose_position(self) -> None:
        """Record that output may have been missed, so that the next view is only the screen."""
        self._effects.cleared = True

    async def mark_read(self, tmux: Tmux) -> None:
        """Mark the present content as read. Raises ConnectionError, TerminalLost."""
        self._analyse()
        self._keep(await self._take_snapshot(tmux, None))

    async def is_full(self, tmux: Tmux) -> bool:
        """Whether a full-screen program runs: the alternate screen is on, or the keys are in application mode."""
        try:
            (reply,) = await tmux.commands(_FULL_SCREEN)
        except ConnectionError:
            return False
        return b"1" in b"".join(reply.lines)

    async def read(self, tmux: Tmux) -> ScreenView:
        """Read a view. Raises ConnectionError, TerminalLost."""
        self._analyse()
        plan = self._expected_plan()
        for queries_left in reversed(range(_MAX_QUERIES)):
            snapshot = await self._take_snapshot(tmux, plan)
            plan = self._fitting_plan(snapshot)
            if plan is None or plan == snapshot.plan:
                break
            if queries_left == 1:
                # Output keeps flowing: start a screen earlier, to miss nothing that scrolls during the last query.
                plan = plan._replace(start=max(0, plan.start - ROWS))
        self._keep(snapshot)
        return snapshot.view(with_new_output=plan is not None)

    async def _take_snapshot(self, tmux: Tmux, plan: _Plan | None) -> _Snapshot:
        self._effects_meanwhile = _OutputEffects()
        # All at once: output in between would make the position wrong for the screen. The new lines are read along from
        # their expected position, which saves a second query in most steps.
        planned = () if plan is None else plan.commands()
        position, shown, *replies = await tmux.commands(_POSITION, _SCREEN, *planned)
        self._analyse()
        history, cursor, alternate, region_top, size = text(position.lines).split()
        return _Snapshot(int(history), int(cursor), alternate == "1", int(region_top), size, shown.lines, plan, replies)

    def _keep(self, snapshot: _Snapshot) -> None:
        self._top, self._above, self._size = snapshot.history, snapshot.rows[: snapshot.cursor], snapshot.size
        # Output meanwhile may belong after the answer: it counts for this view and the next.
        self._effects, self._effects_meanwhile = self._effects_meanwhile, _OutputEffects()
        # Within a scroll region, a plain line end moves lines above the cursor.
        self._effects.went_back |= snapshot.region_top > 0
        self._effects.cleared |= snapshot.alternate

    def _analyse(self) -> None:
        if not (output := self._pending):
            return
        cut = _UNFINISHED.search(output, max(0, len(output) - _LONGEST_UNFINISHED))
        end = cut.start() if cut else len(output)
        printed = _OutputEffects.judge(bytes(output[:end]))
        self._effects += printed
        self._effects_meanwhile += printed
        self._pending = output[end:]

    def _expected_plan(self) -> _Plan | None:
        """Return the plan for the case that no line wrapped and no read line changed; None if that is unlikely."""
        printed, place = self._effects, self._top + len(self._above)
        if printed.cleared or printed.newlines > _VIEW_LINES:
            return None
        history = max(self._top, place + printed.newlines - (ROWS - 1))
        return _Plan(history, place, self._scrolled_off(self._top, history) if printed.went_back else range(0))

    def _fitting_plan(self, snapshot: _Snapshot) -> _Plan | None:
        """Return the plan for the present content according to `snapshot`; None if new output cannot be determined."""
        top = self._top_now(snapshot)
        if top is None:
            return None
        place = top + len(self._above)
        if not self._effects.went_back and place <= snapshot.history + snapshot.cursor:
            return _Plan(snapshot.history, place)
        scrolled_off = self._scrolled_off(top, snapshot.history)
        are = [*(snapshot.scrolled_off(scrolled_off) or self._above[: snapshot.history - top]), *snapshot.rows]
        differ = [*map(operator.ne, self._above, are), True]
        return _Plan(snapshot.history, top + differ.index(True), scrolled_off)

    def _scrolled_off(self, top: int, history: int) -> range:
        """Return the lines from `top` on that were read and have scrolled off the screen since."""
        return range(top, min(top + len(self._above), history))

    def _top_now(self, snapshot: _Snapshot) -> int | None:
        """Return the current number of the line that was at the top; None if unknown."""
        printed, top = self._effects, self._top
        if printed.cleared or snapshot.alternate or snapshot.size != self._size:
            return None
        if top + printed.scrolled_at_most >= HISTORY_LINES:
            # A full history drops a tenth of its lines at once; this is detectable once, but not twice.
            if printed.scrolled_at_most >= HISTORY_LINES // 10:
                return None
            if snapshot.history < top:
                top -= HISTORY_LINES // 10
        return top if top <= snapshot.history else None


def _text(rows: Sequence[bytes]) -> str:
    return b"\n".join(map(bytes.rstrip, rows)).decode("utf-8", "replace").rstrip("\n")
