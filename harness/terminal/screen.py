"""Reads what an agent sees: the screen, and the text since it last looked, where that can be told.

Lines are counted from the first one of the history. All lines from the cursor's place at the last view on are new.
Those above it are compared with what they were, because programs go back up and draw over what has been read: new
output then begins at the first line that differs. The screen would not do: what has changed may have scrolled off it.
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
"""Most lines of head and of tail that are read; an observation holds fewer."""
_QUESTIONS = 4
"""Most questions to tmux for one view: one as a rule, one more where lines wrapped, one more where lines changed; the
last is for output that keeps flowing."""
# Harmless are titles and marks, colours, what stays within its row, character sets, and modes that draw nothing.
_GOES_BACK = re.compile(rb"\x1b(?!\]|\\|[=>]|[()][0AB]|\[[0-9;:]*[CDGKPX@m]|\[\?(?:1|12|25|2004)[hl])")
# Who clears the screen wants to see what is drawn on it next; and after 3J, lines are counted from zero again.
_CLEARED = re.compile(rb"\x1b(?:\[0*[23](?:;[0-9;]*)?J|\[[01]?(?:;[01]?)?[Hf]\x1b\[0?J|c|\[\?(?:47|1047|1049)[hl])")
_SCROLLS_A_SCREEN = re.compile(rb"\x1b(?:\[[0-9;]*[JS]|\[\?3[hl]|c)")
_UNFINISHED = re.compile(rb"\x1b(?:\[[0-?]{0,30})?\Z")
_LONGEST_UNFINISHED = 32
_JUDGED_BYTES = 1 << 16
"""Size of the pieces in which output is judged: most comes in scraps, and judging each would cost more."""
_POSITION = (
    b"display-message -p -t main '#{history_size} #{cursor_y} #{alternate_on}"
    b" #{scroll_region_upper} #{pane_width}x#{pane_height}'\n"
)
_FULL_SCREEN = b"display-message -p -t main '#{alternate_on}#{keypad_flag}#{keypad_cursor_flag}'\n"
_SCREEN = b"capture-pane -p -t main\n"


class Tmux(Protocol):
    """What answers tmux commands: a control client, or the link that has one."""

    async def commands(self, *commands: bytes) -> list[CommandReply]:
        """Send command lines in one go, and return their replies. Raises ConnectionError."""


class _Plan(NamedTuple):
    """The lines to read along with the screen, for one size of the history, as tmux counts from the screen's top."""

    history: int
    start: int
    """First line of the new output."""
    scrolled_off: range = range(0)
    """Lines that had been read, and may have changed before they scrolled off the screen."""

    @property
    def elided(self) -> int:
        """The number of lines left out of the middle of the new output."""
        return max(0, self.history + ROWS - self.start - 2 * _VIEW_LINES)

    def commands(self) -> list[bytes]:
        """The commands that read the new output, in one piece or head and tail, then what has scrolled off."""
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
        """The text of the new output, from the replies to the commands."""
        head = _text(replies[0].lines)
        if not self.elided:
            return head
        return f"{head}\n[… {self.elided} lines left out …]\n{_text(replies[1].lines)}"


class _Snapshot(NamedTuple):
    """The answer of tmux: the screen, where it stands, and the lines that were to be read along with it."""

    history: int
    cursor: int
    alternate: bool
    region_top: int
    size: str
    rows: Sequence[bytes]
    plan: _Plan | None
    replies: Sequence[CommandReply]

    def scrolled_off(self, lines: range) -> Sequence[bytes] | None:
        """The rows of `lines`; None where other ones were read along."""
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
class _Printed:
    """What printed bytes may have done to lines that had been read."""

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
        elif b"\x08" in output:  # from the start of a row it goes to the one above, where that was wrapped
            printed.went_back = True
        return printed

    def __iadd__(self, later: _Printed) -> Self:
        self.newlines += later.newlines
        self.scrolled_at_most += later.scrolled_at_most
        self.went_back = self.went_back or later.went_back
        self.cleared = self.cleared or later.cleared
        return self


class ScreenReader:
    """Reads views; keeps what the agent has read, and follows the output to know what may have happened to that."""

    def __init__(self) -> None:
        self._top = 0
        """The line that was at the top of the screen when it was read."""
        self._above: Sequence[bytes] = ()
        """The rows from there to the cursor, as they were when they were read."""
        self._size = ""
        self._printed = _Printed()
        self._printed_meanwhile = _Printed()
        """The part of `_printed` that came while the last question was asked."""
        self._not_judged = bytearray()

    def follow(self, output: bytes) -> None:
        """Take what the pane prints."""
        self._not_judged += output
        if len(self._not_judged) > _JUDGED_BYTES:
            self._judge()

    def lose_place(self) -> None:
        """Note that output may have passed unseen, so that the next view is the screen alone."""
        self._printed.cleared = True

    async def note_place(self, tmux: Tmux) -> None:
        """Take what is there now as read. Raises ConnectionError, TerminalLost."""
        self._judge()
        self._keep(await self._take_snapshot(tmux, None))

    async def is_full(self, tmux: Tmux) -> bool:
        """Whether a full-screen program has the screen: the alternate one, or the keys in their other mode."""
        try:
            (reply,) = await tmux.commands(_FULL_SCREEN)
        except ConnectionError:
            return False
        return b"1" in b"".join(reply.lines)

    async def read(self, tmux: Tmux) -> ScreenView:
        """Read a view. Raises ConnectionError, TerminalLost."""
        self._judge()
        plan = self._expected_plan()
        for questions_left in reversed(range(_QUESTIONS)):
            snapshot = await self._take_snapshot(tmux, plan)
            plan = self._fitting_plan(snapshot)
            if plan is None or plan == snapshot.plan:
                break
            if questions_left == 1:
                # Output keeps flowing: a screen earlier, to miss nothing that scrolls while the last question is asked.
                plan = plan._replace(start=max(0, plan.start - ROWS))
        self._keep(snapshot)
        return snapshot.view(with_new_output=plan is not None)

    async def _take_snapshot(self, tmux: Tmux, plan: _Plan | None) -> _Snapshot:
        self._printed_meanwhile = _Printed()
        # In one go: what is printed in between would make the position wrong for the screen. The new lines come
        # along where they are expected to be, which saves a second question in most steps.
        planned = () if plan is None else plan.commands()
        position, shown, *replies = await tmux.commands(_POSITION, _SCREEN, *planned)
        self._judge()
        history, cursor, alternate, region_top, size = text(position.lines).split()
        return _Snapshot(int(history), int(cursor), alternate == "1", int(region_top), size, shown.lines, plan, replies)

    def _keep(self, snapshot: _Snapshot) -> None:
        self._top, self._above, self._size = snapshot.history, snapshot.rows[: snapshot.cursor], snapshot.size
        # What was printed meanwhile may have come behind the answer: it counts for this view and the next.
        self._printed, self._printed_meanwhile = self._printed_meanwhile, _Printed()
        # Within a scroll region, a plain line end moves lines that are above the cursor.
        self._printed.went_back |= snapshot.region_top > 0
        self._printed.cleared |= snapshot.alternate

    def _judge(self) -> None:
        if not (output := self._not_judged):
            return
        cut = _UNFINISHED.search(output, max(0, len(output) - _LONGEST_UNFINISHED))
        end = cut.start() if cut else len(output)
        printed = _Printed.judge(bytes(output[:end]))
        self._printed += printed
        self._printed_meanwhile += printed
        self._not_judged = output[end:]

    def _expected_plan(self) -> _Plan | None:
        """The plan that fits if no line has wrapped and none that was read has changed; None for no guess."""
        printed, place = self._printed, self._top + len(self._above)
        if printed.cleared or printed.newlines > _VIEW_LINES:
            return None
        history = max(self._top, place + printed.newlines - (ROWS - 1))
        return _Plan(history, place, self._scrolled_off(self._top, history) if printed.went_back else range(0))

    def _fitting_plan(self, snapshot: _Snapshot) -> _Plan | None:
        """The plan for what is there now, as far as `snapshot` tells; None where new output cannot be told."""
        top = self._top_now(snapshot)
        if top is None:
            return None
        place = top + len(self._above)
        if not self._printed.went_back and place <= snapshot.history + snapshot.cursor:
            return _Plan(snapshot.history, place)
        scrolled_off = self._scrolled_off(top, snapshot.history)
        are = [*(snapshot.scrolled_off(scrolled_off) or self._above[: snapshot.history - top]), *snapshot.rows]
        differ = [*map(operator.ne, self._above, are), True]
        return _Plan(snapshot.history, top + differ.index(True), scrolled_off)

    def _scrolled_off(self, top: int, history: int) -> range:
        """The lines that were read, from `top` on, and have scrolled off the screen since."""
        return range(top, min(top + len(self._above), history))

    def _top_now(self, snapshot: _Snapshot) -> int | None:
        """The place now of the line that was at the top; None where that cannot be told."""
        printed, top = self._printed, self._top
        if printed.cleared or snapshot.alternate or snapshot.size != self._size:
            return None
        if top + printed.scrolled_at_most >= HISTORY_LINES:
            # A full history loses a tenth of its lines at once; once is seen, twice would be guessed.
            if printed.scrolled_at_most >= HISTORY_LINES // 10:
                return None
            if snapshot.history < top:
                top -= HISTORY_LINES // 10
        return top if top <= snapshot.history else None


def _text(rows: Sequence[bytes]) -> str:
    return b"\n".join(map(bytes.rstrip, rows)).decode("utf-8", "replace").rstrip("\n")
