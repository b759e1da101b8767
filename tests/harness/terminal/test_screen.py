"""screen: changes of lines that were read are shown, even if they have scrolled off the screen since.

The truth is a plain `capture-pane` of history and screen, before and after.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from itertools import count

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from sampled import examples
from terminals import LONG, body, press, type_in

from harness.protocols.base import Keys, ScreenView
from harness.terminal import COLUMNS, HISTORY_LINES, ROWS, Terminal, TerminalSpec
from harness.terminal.control_mode import CommandReply, ControlClient, type_bytes
from harness.terminal.screen import ScreenReader
from tbench.sandbox.backend import BUSYBOX
from tbench.sandbox.docker.container import Container

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

PROGRESS = b"\x1b7\x1b[sone 10%\r\ntwo 20%\r\nthree 30%\r\n"
"""Output whose saved cursor position is on its first line."""
OVER_THE_FIRST_LINE = {
    "up": b"\x1b[3AFAILED",
    "up, one by one": b"\x1b[A\x1b[A\x1b[AFAILED",
    "up, beyond the top": b"\x1b[999AFAILED",
    "line up": b"\x1b[3FFAILED",
    "row": b"\x1b[1dFAILED",
    "row and column": b"\x1b[1;1HFAILED",
    "home": b"\x1b[HFAILED",
    "row and column, the other way": b"\x1b[1;1fFAILED",
    "reverse line feed": b"\x1bM\x1bM\x1bMFAILED",
    "saved": b"\x1b8FAILED",
    "saved, the other way": b"\x1b[uFAILED",
    "top of a scroll region": b"\x1b[1;3rFAILED\x1b[r",
    "origin of a scroll region": b"\x1b[1;3r\x1b[?6h\x1b[1;1HFAILED\x1b[?6l\x1b[r",
    "insert lines": b"\x1b[3A\x1b[LFAILED",
    "delete lines": b"\x1b[3A\x1b[MFAILED",
    "scroll down": b"\x1b[3T\x1b[3AFAILED",
    "reverse line feed at the top": b"\x1b[H\x1bMFAILED",
    "erase above": b"\x1b[1J\x1b[3AFAILED",
    "erase below": b"\x1b[3A\x1b[JFAILED",
    "columns changed": b"\x1b[?3hFAILED\x1b[?3l",
    "alignment test": b"\x1b#8FAILED",
    "soft reset": b"\x1b[3A\x1b[!pFAILED",
}
DOWN = b"\x1b[r\x1b[999;1H\r\n"


class Pane(ControlClient):
    """A pane with exactly the given output, and a reader of its screen."""

    def __init__(self) -> None:
        super().__init__(on_output=self._take, on_keys=lambda: None, on_lost=lambda: None)
        self._screen = ScreenReader()
        self._printed = self._taken = 0
        self._arrived = asyncio.Event()
        self.questions = 0
        self._before_questions = self._behind_answers = b""

    async def begin(self, container: Container) -> None:
        shell = (BUSYBOX, "sh", "-c", "stty raw -echo; echo ready; exec cat")
        spec = TerminalSpec(socket="/opt/tbench/run/pane", shell=shell)
        await self.open(container.connect, spec.argv(), spec.variables())
        await self._until_ready()

    async def begin_again(self) -> None:
        """Start another process in the same pane, which the stream does not show."""
        await self.commands(b"respawn-pane -k -t main\n")
        await self._until_ready()

    async def _until_ready(self) -> None:
        self._printed += len(b"ready\n")
        await self._until_arrived()

    def _take(self, output: bytes) -> None:
        self._screen.follow(output)
        self._taken += len(output)
        self._arrived.set()

    async def _until_arrived(self) -> None:
        async with asyncio.timeout(LONG):
            while self._taken < self._printed:
                self._arrived.clear()
                await self._arrived.wait()

    async def print(self, *pieces: bytes) -> None:
        for piece in filter(None, pieces):
            self._printed += len(piece)
            await super().commands(*type_bytes("main", piece))
            await self._until_arrived()

    async def begin_with(self, text: bytes) -> None:
        """Set the pane to this text, and mark it as read."""
        await self.print(b"\x1bc\x1b[3J", text)
        await self._screen.mark_read(self)

    async def view(self, *, before_questions: bytes = b"", behind_answers: bytes = b"") -> ScreenView:
        """Return the reader's view while output is printed before its queries or after the answers."""
        self._before_questions, self._behind_answers, self.questions = before_questions, behind_answers, 0
        view = await self._screen.read(self)
        self._before_questions = self._behind_answers = b""
        return view

    async def commands(self, *commands: bytes) -> list[CommandReply]:
        self.questions += 1
        await self.print(self._before_questions)
        replies = await super().commands(*commands)
        await self.print(self._behind_answers)
        return replies

    async def lines(self) -> list[str]:
        """Return the lines of history and screen."""
        (reply,) = await self.commands(b"capture-pane -p -t main -S -\n")
        return [line.decode() for line in reply.lines]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pane(box: Container) -> AsyncIterator[Pane]:
    pane = Pane()
    await pane.begin(box)
    yield pane
    await pane.commands(b"kill-server\n")
    await pane.close()


async def view_after(pane: Pane, *printed: bytes) -> ScreenView:
    """Return the view, after checking that it shows every changed line."""
    before = await pane.lines()
    await pane.print(*printed)
    view = await pane.view()
    after = await pane.lines()
    assert view.new_output is not None
    changed = [line for at, line in enumerate(after) if line and [line] != before[at : at + 1]]
    shown = view.new_output.replace("\n", "")
    assert [line for line in changed if line not in shown] == []
    return view


def new_lines(view: ScreenView) -> list[str]:
    assert view.new_output is not None
    return view.new_output.split("\n")


# -- drawn over ----------------------------------------------------------------------------------


@pytest.mark.parametrize("drawn", OVER_THE_FIRST_LINE.values(), ids=OVER_THE_FIRST_LINE)
async def test_what_is_drawn_over_lines_that_were_read_is_new(pane: Pane, drawn: bytes) -> None:
    await pane.begin_with(PROGRESS)
    assert "FAILED" in ((await view_after(pane, drawn)).new_output or "")


@pytest.mark.parametrize("drawn", OVER_THE_FIRST_LINE.values(), ids=OVER_THE_FIRST_LINE)
async def test_what_was_drawn_over_and_has_scrolled_off_is_new(pane: Pane, drawn: bytes) -> None:
    await pane.begin_with(PROGRESS)
    view = await view_after(pane, drawn, DOWN, b"more\r\n" * ROWS)
    assert "FAILED" in (view.new_output or "")
    assert "FAILED" not in view.screen
    assert new_lines(await view_after(pane, b"then\r\n")) == ["then"]


@pytest.mark.parametrize("drawn", OVER_THE_FIRST_LINE.values(), ids=OVER_THE_FIRST_LINE)
async def test_what_is_drawn_over_a_full_screen_is_new(pane: Pane, drawn: bytes) -> None:
    await pane.begin_with(b"line\r\n" * 3 * ROWS + PROGRESS)
    assert "FAILED" in ((await view_after(pane, drawn)).new_output or "")


async def test_a_sequence_that_comes_in_pieces_is_recognised(pane: Pane) -> None:
    await pane.begin_with(PROGRESS)
    pieces = [bytes([byte]) for byte in b"\x1b[3AFAILED" + DOWN]
    assert "FAILED" in ((await view_after(pane, *pieces, b"more\r\n" * ROWS)).new_output or "")
    await pane.begin_with(b"before\r\n")
    await pane.print(b"\x1b[2", b"J\x1b[Hafter\r\n")
    assert await pane.view() == ScreenView(screen="after", new_output=None)


async def test_a_backspace_into_the_row_above_is_recognised(pane: Pane) -> None:
    await pane.begin_with(b"x" * (COLUMNS + 2))
    view = await view_after(pane, b"\x08" * 10 + b"FAILED\r\n", b"more\r\n" * ROWS)
    assert "xFAILEDxx" in new_lines(view)[0]


async def test_text_below_the_cursor_is_new(pane: Pane) -> None:
    await pane.begin_with(b"before\r\n")
    view = await view_after(pane, b"one\r\ntwo\r\nthree\x1b[2A\r")
    assert new_lines(view) == ["one", "two", "three"]
    assert "FAILED" in ((await view_after(pane, b"\x1b7\x1b[BFAILED\x1b8")).new_output or "")


async def test_lines_that_scroll_in_a_region_are_new(pane: Pane) -> None:
    """The region persists between views, so plain lines move the lines above the cursor."""
    await pane.begin_with(b"line\r\n" * 5 + PROGRESS)
    await view_after(pane, b"\x1b[3;20r\x1b[20;1H")
    await view_after(pane, b"".join(b"a%d\r\n" % number for number in range(10)))
    await view_after(pane, b"".join(b"b%d\r\n" % number for number in range(100)))
    view = await view_after(pane, b"\x1b[r" + DOWN, b"c\r\n")
    assert new_lines(view)[-1] == "c"


async def test_where_nothing_above_has_changed_only_new_lines_are_new(pane: Pane) -> None:
    await pane.begin_with(PROGRESS)
    assert new_lines(await view_after(pane, b"\x1b[3A\x1b[3Bnext\r\n")) == ["next"]
    assert new_lines(await view_after(pane, b"\x1b7\x1b[H\x1b8next\r\n")) == ["next"]
    many = [str(number) for number in range(3 * ROWS)]
    assert new_lines(await view_after(pane, b"\x1b[A\x1b[B" + "\r\n".join(many).encode())) == many


async def test_new_output_begins_with_the_first_line_that_has_changed(pane: Pane) -> None:
    await pane.begin_with(PROGRESS)
    assert new_lines(await view_after(pane, b"\x1b[2AFAILED\x1b[2B\r")) == ["FAILED%", "three 30%"]


async def test_a_line_drawn_again_as_it_was_is_not_new(pane: Pane) -> None:
    await pane.begin_with(b"before\r\n" + PROGRESS)
    assert new_lines(await view_after(pane, b"\x1b[3A\x1b[Jone 10%\r\ntwo 20%\r\nthree 30%\r\nfour\r\n")) == ["four"]


async def test_a_screen_of_another_size_is_shown_whole(pane: Pane) -> None:
    await pane.begin_with(b"x" * 150 + b"\r\n" + PROGRESS)
    await pane.commands(b"resize-window -t main -x 100\n")
    assert (await pane.view()).new_output is None
    assert new_lines(await view_after(pane, b"next\r\n")) == ["next"]
    await pane.commands(b"resize-window -t main -x 160\n")
    assert (await pane.view()).new_output is None


async def test_a_pane_that_was_begun_again_is_shown_from_its_top(pane: Pane) -> None:
    await pane.begin_with(b"line\r\n" * 30)
    await pane.begin_again()
    assert new_lines(await pane.view()) == ["ready"]


async def test_what_is_printed_before_each_question_does_not_hide_what_was_printed_first(pane: Pane) -> None:
    await pane.begin_with(b"line\r\n" * ROWS)
    await pane.print(b"first\r\n")
    view = await pane.view(before_questions=b"more\r\n" * 9)
    assert "first\nmore" in (view.new_output or "")


async def test_what_is_drawn_behind_an_answer_is_new_the_next_time(pane: Pane) -> None:
    await pane.begin_with(PROGRESS)
    await pane.view(behind_answers=b"\x1b[2AFAILED" + DOWN + b"more\r\n" * ROWS)
    await pane.print(b"then\r\n")
    assert new_lines(await pane.view())[:2] == ["FAILED%", "three 30%"]


async def test_a_full_history_shows_what_was_drawn_over(pane: Pane) -> None:
    scroll = b"\x1b[%dS" % ROWS
    await pane.begin_with(scroll * (HISTORY_LINES // ROWS - 1) + PROGRESS)
    before = len(await pane.lines())
    await pane.print(b"\x1b[2AFAILED", DOWN, b"more\r\n" * 3 * ROWS)
    view = await pane.view()
    assert len(await pane.lines()) < before, "the oldest lines have been dropped meanwhile"
    assert new_lines(view)[:2] == ["FAILED%", "three 30%"]
    assert new_lines(view)[-1] == "more"
    await pane.print(scroll * (HISTORY_LINES // 5 // ROWS))
    assert (await pane.view()).new_output is None, "nobody can say how often lines have been dropped"


# -- programs ------------------------------------------------------------------------------------

DOWNLOADS = """cat > /tmp/downloads <<'E'
printf 'one 10%%\\ntwo 20%%\\nthree 30%%\\n'; read answer
printf '\\033[4A\\033[2Kone FAILED\\n\\033[2Ktwo 100%%\\n\\033[2Kthree 99%%\\n'; read answer
printf '\\033[4A\\033[Jone FAILED\\ntwo 100%%\\nthree 100%%\\n'; seq $1
E
"""


async def test_progress_in_several_lines_is_seen(terminal: Terminal) -> None:
    await type_in(terminal, DOWNLOADS)
    await terminal.send(Keys("sh /tmp/downloads 3\n", 0.2))
    await terminal.view()
    await terminal.send(Keys("\n", 0.2))
    assert new_lines(await terminal.view())[:3] == ["one FAILED", "two 100%", "three 99%"]
    assert new_lines(await type_in(terminal, "\n"))[:-1] == ["three 100%", "1", "2", "3"]


async def test_progress_that_has_scrolled_off_is_seen(terminal: Terminal) -> None:
    await type_in(terminal, DOWNLOADS)
    await terminal.send(Keys("sh /tmp/downloads 100\n", 0.2))
    await terminal.view()
    lines = new_lines(await type_in(terminal, "\n\n"))
    assert lines[:4] == ["one FAILED", "two 100%", "three 100%", "1"]
    assert lines[-2] == "100"


async def test_editing_a_long_command_line_shows_what_is_new(terminal: Terminal) -> None:
    """The shell moves up and redraws the line's first row, which has been read."""
    await type_in(terminal, "echo first\n")
    long_text = "x" * 2 * COLUMNS
    await terminal.send(Keys(f"echo {long_text}", 0.2))
    assert new_lines(await terminal.view())[-1].endswith(f"echo {long_text}")
    await press(terminal, "C-a", 0.1)
    await terminal.view()
    await terminal.send(Keys("echo and ", 0.1))
    assert new_lines(await terminal.view())[-1].endswith(f"echo and echo {long_text}")
    await press(terminal, "Enter")
    assert body(await terminal.view())[-1:] == [f"and echo {long_text}"]
    assert body(await type_in(terminal, "echo then\n")) == ["then"]


async def test_searching_the_history_shows_what_is_new(terminal: Terminal) -> None:
    long_text = "y" * 2 * COLUMNS
    await type_in(terminal, f"echo {long_text}\n")
    await type_in(terminal, "echo short\n")
    await press(terminal, "C-r", 0.1)
    await terminal.view()
    await terminal.send(Keys("yyy", 0.1))
    assert "i-search)`yyy': echo y" in (await terminal.view()).screen
    await press(terminal, "C-a", 0.1)
    assert f"# echo {long_text}" in ((await terminal.view()).new_output or "")
    assert await press(terminal, "Enter")
    assert body(await terminal.view()) == [long_text]


async def test_output_that_keeps_flowing_is_seen_without_a_gap(terminal: Terminal) -> None:
    await terminal.send(Keys("for n in $(seq 500); do echo number $n; sleep 0.001; done\n", 0))
    seen: set[str] = set()
    while "500" not in seen:
        seen |= set(re.findall(r"^number (\d+)$", (await terminal.view()).new_output or "", re.MULTILINE))
    assert len(seen) == 500


# -- what it costs -------------------------------------------------------------------------------


async def questions(pane: Pane, printed: bytes) -> int:
    await pane.print(printed)
    await pane.view()
    return pane.questions


async def test_a_view_takes_one_question_and_one_more_where_lines_were_drawn_over(pane: Pane) -> None:
    await pane.begin_with(PROGRESS)
    coloured = b"\x1b]133;C\x1b\\\x1b[1;31mred\x1b[0m\x1b[K\r\n\x1b[?2004h$ "
    assert await questions(pane, coloured) == 1
    assert await questions(pane, coloured * 3 * ROWS) == 1
    assert await questions(pane, b"\x1b[A\x1b[B") == 1
    assert await questions(pane, b"\x1b[A\rFAILED\r\n") == 2
    assert await questions(pane, b"\x1b[A\rAGAIN\r\n" + DOWN) == 2


# -- anything at all -----------------------------------------------------------------------------

VIEW = b""
MOVES = [b"\x1b[%d" + final for final in (b"A", b"B", b"E", b"F", b"d", b"L", b"M", b"S", b"T", b";2H")]
ACTION = st.one_of(
    st.integers(1, 30).map(lambda count: b"\n".join([b"%s"] * count) + b"\r\n"),
    st.sampled_from(
        [b"%s", b"%s\r\n", b"%s" * 40, b"\x1bM", b"\x1bD", b"\x1bE", b"\x1b7", b"\x1b8", b"\x1b[s", b"\x1b[u"]
    ),
    st.sampled_from([b"\x1b[J", b"\x1b[1J", b"\x1b[K", b"\x1b[1K", b"\x08" * 200, b"\r", b"\x1b[1P", b"\x1b[2@"]),
    st.sampled_from([b"\x1b[r", b"\x1b[?6h", b"\x1b[?6l", b"\x1b[4h", b"\x1b[4l", b"\x1b[?7l", b"\x1b[?7h"]),
    st.builds(lambda move, count: move % count, st.sampled_from(MOVES), st.integers(1, ROWS)),
    st.builds(lambda top, rows: b"\x1b[%d;%dr" % (top, top + rows), st.integers(1, 30), st.integers(1, 12)),
    st.just(VIEW),
)


@given(actions=st.lists(ACTION, min_size=5, max_size=60))
@examples(200)
async def test_no_line_changes_unseen_whatever_is_printed(pane: Pane, actions: list[bytes]) -> None:
    await pane.begin_with(b"\r\n".join(b"begin%d" % number for number in range(30)))
    printed = b""
    words = (b"<%d>" % number for number in count())
    for action in [*actions, VIEW]:
        printed += re.sub(rb"%s", lambda _: next(words), action)
        if action == VIEW:
            await view_after(pane, printed)
            printed = b""
