"""Layout of the debugger: renders its state as styled lines and a cursor position for a given size."""

from __future__ import annotations

import io
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tbench.cli.debug.keys import KEYS, RELEASE_KEY
from tbench.cli.debug.panes import (
    Corner,
    PaneState,
    Question,
    Size,
    draft_pane,
    end_words,
    fit_to_size,
    samples_pane,
    steps_pane,
    terminal_pane,
    verdict_words,
)
from tbench.text import replace_unseen, visible_line

SMALLEST = Size(40, 10)
_WAITS = {
    "model": "asking the model",
    "decision": "waiting for you",
    "person": "held",
    None: "running",
}


class Frame(NamedTuple):
    """Content of the screen: one line per row, and the cursor unless hidden."""

    lines: list[Text]
    cursor: Corner | None


def render_screen(state: PaneState) -> Frame:
    """Render the whole screen."""
    size = Size(state.columns, state.rows)
    if size.columns < SMALLEST.columns or size.rows < SMALLEST.rows:
        words = f"this window is too small; the minimum is {SMALLEST.columns} x {SMALLEST.rows}"
        return Frame(fit_to_size([Text(words)], size), None)
    foot, cursor = _foot(state)
    lower = draft_pane(state, Size(size.columns, max(3, min(14, size.rows // 4))))
    room = Size(size.columns, size.rows - 1 - len(lower) - len(foot))
    upper, in_terminal = _upper(state, room)
    lines = fit_to_size([_head(state, room)], Size(size.columns, 1)) + upper + lower + foot
    if cursor is not None:
        return Frame(lines, Corner(cursor.column, size.rows - len(foot) + cursor.row))
    return Frame(lines, in_terminal and Corner(in_terminal.column, in_terminal.row + 1))


# -- the line at the top -------------------------------------------------------------------------------


def _head(state: PaneState, room: Size) -> Text:
    debug = state.debug
    pieces = [state.trial]
    if debug.step:
        pieces.append(f"step {debug.step}")
    if debug.rewinding is not None:
        pieces.append(f"back to step {debug.rewinding}")
    pieces.append(_WAITS[debug.waits_for] if debug.ended is None else end_words(debug.ended))
    if debug.differs:
        pieces.append(f"differs at {debug.differs}")
    if debug.verdicts:
        pieces.append(verdict_words(debug.verdicts[-1]))
    if state.is_typing:
        pieces.append("YOU TYPE")
    head = Text(f" {'  |  '.join(map(visible_line, pieces))} ", no_wrap=True)
    head.truncate(room.columns, overflow="ellipsis", pad=True)
    head.stylize("reverse bold" if debug.waits_for == "decision" or state.is_typing else "reverse")
    return head


def _upper(state: PaneState, room: Size) -> tuple[list[Text], Corner | None]:
    if state.shows_help:
        return fit_to_size(_help(), room), None
    if state.pane == "samples" and len(state.debug.samples) > 1:
        return samples_pane(state, room), None
    if state.pane == "steps" and not state.is_wide:
        return steps_pane(state, room), None
    if not state.is_wide:
        return terminal_pane(state, room)
    left = Size(room.columns * 3 // 5, room.rows)
    right = Size(room.columns - left.columns - 1, room.rows)
    terminal, cursor = terminal_pane(state, left)
    rule = Text("│", style="dim")
    beside = zip(terminal, steps_pane(state, right), strict=True)
    return [Text.assemble(one, rule, other, end="") for one, other in beside], cursor


# -- the foot --------------------------------------------------------------------------------------------


def _foot(state: PaneState) -> tuple[list[Text], Corner | None]:
    """Return the keys and a message, or a prompt with its cursor."""
    width = state.columns
    if state.prompt is not None:
        return _asking(state.prompt, Size(width, max(2, state.rows // 3)))
    typing = Text(f"keys go to the trial's terminal; {RELEASE_KEY} returns it", style="bold", no_wrap=True)
    keys = typing if state.is_typing else _keys_line(width)
    message = Text(visible_line(state.message), style="red" if state.is_error else "", no_wrap=True)
    message.truncate(width, overflow="ellipsis")
    return fit_to_size([keys, message], Size(width, 2)), None


def _keys_line(width: int) -> Text:
    """Return as many keys as fit; the last one is help."""
    shown = [Text.assemble((key.label, "bold"), f" {key.name}") for key in KEYS if key.is_common]
    while len(shown) > 1 and sum(cell_len(each.plain) + 2 for each in shown) - 2 > width:
        del shown[-2]
    return Text("  ", no_wrap=True).join(shown)


def _asking(prompt: Question, room: Size) -> tuple[list[Text], Corner]:
    """Return a prompt, and below it the lines of its text around the cursor."""
    text_help = "Enter submits, Esc cancels, Ctrl-J starts a new line"
    help = "Enter or y: yes; Esc: no" if prompt.is_question else text_help
    default = f" [{prompt.default}]" if prompt.default else ""
    asks = Text(f"{prompt.question}{default}", style="bold", no_wrap=True).append(f"  {help}", style="not bold dim")
    editor, width = prompt.text, room.columns - 3
    before, lines = editor.text[: editor.cursor], list[str]()
    for line in editor.text.split("\n"):
        lines += [line[at : at + width] for at in range(0, max(1, len(line) + 1), width)]
    row = sum((len(line) // width) + 1 for line in before.split("\n")[:-1])
    inner = len(before.rpartition("\n")[2])
    row, column = row + inner // width, inner % width
    rows = min(len(lines), room.rows - 1)
    first = max(0, min(row - rows // 2, len(lines) - rows))
    written = [Text(("> " if at == 0 else "  ") + replace_unseen(lines[at], "·")) for at in range(first, first + rows)]
    cells = cell_len(lines[row][:column]) if row < len(lines) else 0
    return fit_to_size([asks, *written], Size(room.columns, rows + 1)), Corner(2 + cells, 1 + row - first)


def _help() -> list[Text]:
    lines = [Text("Keys", style="bold")]
    return lines + [Text.assemble((f"{key.label:>8}  ", "bold"), f"{key.help}") for key in KEYS]


_CONSOLE = Console(file=io.StringIO(), force_terminal=True, highlight=False, markup=False, emoji=False)


def to_ansi(line: Text) -> str:
    """Return a line with escape sequences for its styles."""
    with _CONSOLE.capture() as text:
        _CONSOLE.print(line, end="", soft_wrap=True)
    return text.get()
