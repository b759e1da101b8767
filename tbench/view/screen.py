"""The last screen of a terminal, drawn from what it printed: enough of a terminal for a small picture of it.

The page shows the large one with a whole emulator; here many are kept at once, and cheaply.
"""

from __future__ import annotations

import re
from functools import lru_cache

from tbench.view.colours import restyled
from tbench.view.grid import CharacterGrid, Line

_TOKEN = re.compile(
    r"(?P<text>[^\x00-\x1f\x7f]+)"
    r"|\x1b\[(?P<mark>[<-?]?)(?P<numbers>[0-9;:]*)[ -/]*(?P<final>[@-~])"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[ -/]+[0-~]"
    r"|\x1b(?P<escape>[0-OQ-WYZ\\`-~])"
    r"|(?P<control>[\x00-\x1f\x7f])"
)
_TORN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)\Z")
"""An escape that goes on in what is printed next."""
_LONGEST_ESCAPE = 4096
_MOST = 9999
MOST_COLUMNS, MOST_ROWS = 400, 200


class TileScreen:
    """A terminal's screen so far."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = max(1, min(columns, MOST_COLUMNS))
        self.rows = max(1, min(rows, MOST_ROWS))
        self._grid = CharacterGrid(self.columns, self.rows)
        self._first = self._grid
        """The usual grid; another one is shown while a full-screen program runs."""
        self._saved = (0, 0)
        self._torn = ""

    def feed(self, text: str) -> None:
        """Draw what was printed."""
        text, self._torn = self._torn + text, ""
        if (torn := _TORN.search(text)) is not None:
            self._torn = torn[0] if len(torn[0]) < _LONGEST_ESCAPE else ""
            text = text[: torn.start()]
        for token in _TOKEN.finditer(text):
            kind = token.lastgroup
            if kind == "text":
                self._grid.write(token[0])
            elif kind == "control":
                self._control(token[0])
            elif kind == "final":
                self._sequence(token["mark"], _numbers(token["numbers"]), token["final"])
            elif kind == "escape":
                self._escape(token["escape"])

    def last_lines(self, rows: int, columns: int) -> list[Line]:
        """The last lines that hold something, cut to so many columns."""
        return self._grid.last_lines(rows, columns)

    def _control(self, char: str) -> None:
        grid = self._grid
        match char:
            case "\n" | "\v" | "\f":
                grid.feed_line()
            case "\r":
                grid.move(x=0)
            case "\b":
                grid.move(x=min(grid.x, grid.columns) - 1)
            case "\t":
                grid.tab()
            case _:
                pass  # bells, and what no terminal draws

    def _escape(self, char: str) -> None:
        grid = self._grid
        match char:
            case "7":
                self._saved = grid.x, grid.y
            case "8":
                grid.move(x=self._saved[0], y=self._saved[1])
            case "D":
                grid.feed_line()
            case "E":
                grid.move(x=0)
                grid.feed_line()
            case "M":
                grid.feed_back()
            case "c":
                self._grid = self._first = CharacterGrid(self.columns, self.rows)
            case _:
                pass

    def _sequence(self, mark: str, numbers: tuple[int, ...], final: str) -> None:
        if final == "m" and not mark:
            self._grid.style = restyled(self._grid.style, numbers)
        elif mark == "?" and final in "hl":
            if not {47, 1047, 1049}.isdisjoint(numbers):
                self._show_other(final == "h")
        elif not mark:
            first = numbers[0] if numbers else 0
            if not self._move(first, numbers, final):
                self._change(first, numbers, final)

    def _show_other(self, wanted: bool) -> None:
        """Begin an empty grid for a full-screen program, or go back to the usual one."""
        if wanted and self._grid is self._first:
            self._grid = CharacterGrid(self.columns, self.rows)
        elif not wanted:
            self._grid = self._first

    def _move(self, first: int, numbers: tuple[int, ...], final: str) -> bool:
        """Move the cursor, where the sequence does that."""
        grid, step = self._grid, max(1, first)
        match final:
            case "A":
                grid.move(y=grid.y - step)
            case "B" | "e":
                grid.move(y=grid.y + step)
            case "C" | "a":
                grid.move(x=grid.x + step)
            case "D":
                grid.move(x=min(grid.x, grid.columns) - step)
            case "E":
                grid.move(x=0, y=grid.y + step)
            case "F":
                grid.move(x=0, y=grid.y - step)
            case "G" | "`":
                grid.move(x=step - 1)
            case "d":
                grid.move(y=step - 1)
            case "H" | "f":
                grid.move(x=(numbers[1] if len(numbers) > 1 else 1) - 1, y=step - 1)
            case "s":
                self._saved = grid.x, grid.y
            case "u":
                grid.move(x=self._saved[0], y=self._saved[1])
            case _:
                return False
        return True

    def _change(self, first: int, numbers: tuple[int, ...], final: str) -> None:
        """Change cells, where the sequence does that."""
        grid, count = self._grid, max(1, first)
        match final:
            case "J":
                self._erase_screen(first)
            case "K":
                grid.erase_line(grid.x if first == 0 else 0, grid.x + 1 if first == 1 else grid.columns)
            case "X":
                grid.erase_line(grid.x, grid.x + count)
            case "P":
                grid.delete_cells(count)
            case "@":
                grid.insert_cells(count)
            case "L":
                grid.insert_lines(count)
            case "M":
                grid.insert_lines(-count)
            case "S":
                grid.scroll(count)
            case "T":
                grid.scroll(-count)
            case "r":
                grid.set_region(count - 1, (numbers[1] if len(numbers) > 1 else grid.rows) - 1)
            case _:
                pass

    def _erase_screen(self, what: int) -> None:
        grid = self._grid
        if what == 0:
            grid.erase_line(grid.x, grid.columns)
            grid.erase_lines(grid.y + 1, grid.rows)
        elif what == 1:
            grid.erase_lines(0, grid.y)
            grid.erase_line(0, grid.x + 1)
        else:
            grid.erase_lines(0, grid.rows)


@lru_cache(maxsize=4096)
def _numbers(text: str) -> tuple[int, ...]:
    """The parameters of a sequence; what is left out is 0."""
    if not text:
        return ()
    return tuple(min(int(part[:5] or 0), _MOST) for part in text.replace(":", ";").split(";"))
