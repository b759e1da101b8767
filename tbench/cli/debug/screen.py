"""How the debugger looks on a screen of a given size: lines of styled text, and where the cursor is."""

from __future__ import annotations

import io
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tbench.cli.debug.keys import KEYS, TYPING_ENDS
from tbench.cli.debug.panes import (
    Corner,
    Question,
    Shown,
    Size,
    draft_pane,
    end_words,
    filled,
    samples_pane,
    steps_pane,
    terminal_pane,
    verdict_words,
)
from tbench.text import unseen_as, visible_line

SMALLEST = Size(40, 10)
_WAITS = {
    "model": "asks the model",
    "decision": "waits for you",
    "person": "is held",
    None: "goes on",
}


class Picture(NamedTuple):
    """What is to be on the screen: as many lines as it has rows, and the cursor where it is shown."""

    lines: list[Text]
    cursor: Corner | None


def picture(shown: Shown) -> Picture:
    """The whole screen."""
    size = Size(shown.columns, shown.rows)
    if size.columns < SMALLEST.columns or size.rows < SMALLEST.rows:
        words = f"this window is too small: {SMALLEST.columns} x {SMALLEST.rows} is the least"
        return Picture(filled([Text(words)], size), None)
    foot, cursor = _foot(shown)
    lower = draft_pane(shown, Size(size.columns, max(3, min(14, size.rows // 4))))
    room = Size(size.columns, size.rows - 1 - len(lower) - len(foot))
    upper, in_terminal = _upper(shown, room)
    lines = filled([_head(shown, room)], Size(size.columns, 1)) + upper + lower + foot
    if cursor is not None:
        return Picture(lines, Corner(cursor.column, size.rows - len(foot) + cursor.row))
    return Picture(lines, in_terminal and Corner(in_terminal.column, in_terminal.row + 1))


# -- the line at the top -------------------------------------------------------------------------------


def _head(shown: Shown, room: Size) -> Text:
    debug = shown.debug
    pieces = [shown.trial]
    if debug.step:
        pieces.append(f"step {debug.step}")
    if debug.rewinding is not None:
        pieces.append(f"back to step {debug.rewinding}")
    pieces.append(_WAITS[debug.waits_for] if debug.ended is None else end_words(debug.ended))
    if debug.differs:
        pieces.append(f"differs at {debug.differs}")
    if debug.verdicts:
        pieces.append(verdict_words(debug.verdicts[-1]))
    if shown.types:
        pieces.append("YOU TYPE")
    head = Text(f" {'  |  '.join(map(visible_line, pieces))} ", no_wrap=True)
    head.truncate(room.columns, overflow="ellipsis", pad=True)
    head.stylize("reverse bold" if debug.waits_for == "decision" or shown.types else "reverse")
    return head


def _upper(shown: Shown, room: Size) -> tuple[list[Text], Corner | None]:
    if shown.helps:
        return filled(_help(), room), None
    if shown.pane == "samples" and len(shown.debug.samples) > 1:
        return samples_pane(shown, room), None
    if shown.pane == "steps" and not shown.is_wide:
        return steps_pane(shown, room), None
    if not shown.is_wide:
        return terminal_pane(shown, room)
    left = Size(room.columns * 3 // 5, room.rows)
    right = Size(room.columns - left.columns - 1, room.rows)
    terminal, cursor = terminal_pane(shown, left)
    rule = Text("│", style="dim")
    beside = zip(terminal, steps_pane(shown, right), strict=True)
    return [Text.assemble(one, rule, other, end="") for one, other in beside], cursor


# -- the foot --------------------------------------------------------------------------------------------


def _foot(shown: Shown) -> tuple[list[Text], Corner | None]:
    """The keys and a message, or a question with what is written; where the cursor is in it."""
    width = shown.columns
    if shown.prompt is not None:
        return _asking(shown.prompt, Size(width, max(2, shown.rows // 3)))
    keys = _typing_line() if shown.types else _keys_line(width)
    message = Text(visible_line(shown.message), style="red" if shown.is_bad else "", no_wrap=True)
    message.truncate(width, overflow="ellipsis")
    return filled([keys, message], Size(width, 2)), None


def _typing_line() -> Text:
    return Text(f"keys go to its terminal; {TYPING_ENDS} gives it back", style="bold", no_wrap=True)


def _keys_line(width: int) -> Text:
    """As many keys as fit; the last one explains all of them."""
    shown = [Text.assemble((key.shown, "bold"), f" {key.name}") for key in KEYS if key.is_daily]
    while len(shown) > 1 and sum(cell_len(each.plain) + 2 for each in shown) - 2 > width:
        del shown[-2]
    return Text("  ", no_wrap=True).join(shown)


def _asking(prompt: Question, room: Size) -> tuple[list[Text], Corner]:
    """The question, and below it the text, of which the lines around the cursor are shown."""
    help = "Enter does it, Esc leaves it; Ctrl-J begins a line"
    default = f" [{prompt.default}]" if prompt.default else ""
    asks = Text(f"{prompt.asks}{default}", style="bold", no_wrap=True).append(f"  {help}", style="not bold dim")
    editor, width = prompt.text, room.columns - 3
    before, lines = editor.text[: editor.at], list[str]()
    for line in editor.text.split("\n"):
        lines += [line[at : at + width] for at in range(0, max(1, len(line) + 1), width)]
    row = sum((len(line) // width) + 1 for line in before.split("\n")[:-1])
    inner = len(before.rpartition("\n")[2])
    row, column = row + inner // width, inner % width
    rows = min(len(lines), room.rows - 1)
    first = max(0, min(row - rows // 2, len(lines) - rows))
    written = [Text(("> " if at == 0 else "  ") + unseen_as(lines[at], "·")) for at in range(first, first + rows)]
    cells = cell_len(lines[row][:column]) if row < len(lines) else 0
    return filled([asks, *written], Size(room.columns, rows + 1)), Corner(2 + cells, 1 + row - first)


def _help() -> list[Text]:
    lines = [Text("Keys", style="bold")]
    return lines + [Text.assemble((f"{key.shown:>8}  ", "bold"), f"{key.does}") for key in KEYS]


_CONSOLE = Console(file=io.StringIO(), force_terminal=True, highlight=False, markup=False, emoji=False)


def drawn(line: Text) -> str:
    """A line with the escapes of its styles."""
    with _CONSOLE.capture() as text:
        _CONSOLE.print(line, end="", soft_wrap=True)
    return text.get()
