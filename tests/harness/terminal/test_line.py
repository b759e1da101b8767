"""line: carriage returns, backspaces and editing sequences overwrite cells as on a terminal."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.terminal.line import TerminalLine
from harness.terminal.screen import COLUMNS


def shown(text: str) -> str:
    line = TerminalLine()
    return line.obey(text) + line.end()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("10%\r5", "50%"),
        ("abc\b\bX", "aXc"),
        ("\b\bX", "X"),
        ("N\bN_\bu", "Nu"),
        ("progress 100%\r\x1b[Kdone", "done"),
        ("abcdef\b\b\x1b[0K", "abcd"),
        ("abcdef\b\b\x1b[1K", "     f"),
        ("abcdef\x1b[2Kg", "      g"),
        ("abcdef\x1b[3K", "abcdef"),
        ("a\x1b[3Cb", "a   b"),
        ("a\x1b[3C", "a"),
        ("abcdef\x1b[3DX", "abcXef"),
        ("abcdef\x1b[99DX", "Xbcdef"),
        ("abcdef\x1b[3GX\x1b[`Y", "YbXdef"),
        ("abcdef\x1b[2G\x1b[2P", "adef"),
        ("abcdef\x1b[2G\x1b[2X", "a  def"),
        ("abcdef\x1b[5G\x1b[2X", "abcd"),
        ("abcdef\x1b[2G\x1b[2@", "a  bcdef"),
        ("abc\x1b[0DX", "abX"),
        ("abc\x1b[2;7DX", "aXc"),
        ("printed  ", "printed  "),
    ],
)
def test_the_cursor_overwrites_what_it_passes(text: str, line: str) -> None:
    assert shown(text) == line


def test_the_screen_ends_the_way_to_the_right() -> None:
    assert shown("a\x1b[999C\x1b[3D[OK]") == "a" + " " * (COLUMNS - 5) + "[OK]"
    assert shown("a\x1b[999GX") == "a" + " " * (COLUMNS - 2) + "X"
    assert shown("abc\r\x1b[" + str(COLUMNS - 2) + "@") == " " * (COLUMNS - 2) + "ab"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("日本\bX", "日 X"),
        ("日本\b\bX", "日X"),
        ("日本\rX", "X 本"),
        ("ab\r日", "日"),
        ("日本x\b\b\b\x1b[P", "日 x"),
        ("日本\r\x1b[C\x1b[K", ""),
        ("日本\r\x1b[C\x1b[@", "   本"),
        ("e\u0301x\rE", "Ex"),
        ("ex\b\u0301", "e\u0301x"),
        ("日\u0301", "日\u0301"),
        ("\u0301", "\u0301"),
    ],
)
def test_wide_characters_take_two_cells_and_combining_ones_none(text: str, line: str) -> None:
    assert shown(text) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\tb", "a\tb"),
        ("a\tb\rXY", "XY      b"),
        ("abcdefghij\r\tX", "abcdefghXj"),
        ("abc\r\tX", "abc     X"),
        ("abc\r\x1b[K\tX", "\tX"),
        ("a\tb\b\b\x1b[K", "a"),
    ],
)
def test_a_tab_takes_the_cells_up_to_its_stop_and_overwrites_nothing(text: str, line: str) -> None:
    assert shown(text) == line


def test_more_combining_characters_than_a_cell_holds_are_kept() -> None:
    text = "a" + "\u0301" * 100 + "b"
    assert shown(text) == text


def test_the_beginning_of_a_very_long_line_becomes_final() -> None:
    line = TerminalLine()
    assert line.obey("x" * 2000) == ""
    assert line.obey("\t" * 60) == "x" * 1024
    assert line.obey("\rEND") == ""
    assert line.end() == "END" + "x" * 973 + "\t" * 60


# -- against a simple model ----------------------------------------------------------------------


@dataclass(eq=False)
class Glyph:
    text: str
    width: int


class Model:
    """Cells as pairs of a glyph and which of its cells this is; None is blank."""

    def __init__(self) -> None:
        self.cells: list[tuple[Glyph, int] | None] = []
        self.cursor = 0

    def step(self, piece: str) -> None:
        if piece == "\r":
            self.cursor = 0
        elif piece == "\b":
            self.cursor -= self.cursor > 0
        elif piece == "\t":
            self.tab()
        elif match := re.fullmatch(r"\x1b\[(\d*)(.)", piece):
            self.edit(match[2], int(match[1] or 0))
        elif unicodedata.category(piece) == "Mn" and self.cursor > 0:
            self.combine(piece)
        else:
            self.put(Glyph(piece, 1 + (unicodedata.east_asian_width(piece) == "W")))
        self.drop_broken()

    def tab(self) -> None:
        stop = self.cursor - self.cursor % 8 + 8
        if any(self.cells[self.cursor : stop]):
            self.cursor = stop
        else:
            self.put(Glyph("\t", stop - self.cursor))

    def fill(self) -> None:
        while len(self.cells) < self.cursor:
            self.cells.append(None)

    def put(self, glyph: Glyph) -> None:
        self.fill()
        for part in range(glyph.width):
            self.cells[self.cursor : self.cursor + 1] = [(glyph, part)]
            self.cursor += 1

    def combine(self, character: str) -> None:
        self.fill()
        before = self.cells[self.cursor - 1]
        if before is None:
            self.cells[self.cursor - 1] = (Glyph(" " + character, 1), 0)
        else:
            before[0].text += character

    def edit(self, final: str, number: int) -> None:
        cells, at, count = self.cells, self.cursor, max(1, number)
        if final == "K":
            erased = {0: range(at, len(cells)), 1: range(at + 1), 2: range(len(cells))}.get(number, range(0))
            self.cells = [None if place in erased else cell for place, cell in enumerate(cells)]
        elif final == "X":
            self.cells = [None if at <= place < at + count else cell for place, cell in enumerate(cells)]
        elif final == "P":
            self.cells = cells[:at] + cells[at + count :]
        elif final == "@":
            self.cells = (cells[:at] + [None] * min(count, COLUMNS) * (at < len(cells)) + cells[at:])[
                : max(COLUMNS, len(cells))
            ]
        elif final == "C":
            self.cursor = max(at, min(at + count, COLUMNS - 1))
        elif final == "D":
            self.cursor = max(0, at - count)
        else:
            self.cursor = min(count, COLUMNS) - 1

    def drop_broken(self) -> None:
        for place, cell in enumerate(self.cells):
            if (
                cell
                and cell[0].width > 1
                and self.cells[place - cell[1] : place - cell[1] + cell[0].width]
                != [(cell[0], part) for part in range(cell[0].width)]
            ):
                self.cells = [None if other and other[0] is cell[0] else other for other in self.cells]

    def text(self) -> str:
        while self.cells and self.cells[-1] is None:
            self.cells.pop()
        return "".join(" " if cell is None else cell[0].text if cell[1] == 0 else "" for cell in self.cells)


numbers = st.sampled_from(["", "0", "1", "2", "3", "5", "9", "150", "999999999"])
edits = st.builds("\x1b[{}{}".format, numbers, st.sampled_from("@CDGKPX`"))
characters = st.sampled_from(["a", "b", " ", "日", "本", "😀", "\u0301", "\u0308", "é"])
pieces = st.lists(characters | edits | st.sampled_from(["\r", "\b", "\b", "\t"]), max_size=40)


@given(pieces)
def test_a_line_is_what_a_simple_model_shows(parts: list[str]) -> None:
    model = Model()
    for part in parts:
        model.step(part)
    assert shown("".join(parts)) == model.text()


@given(pieces, pieces)
def test_a_line_printed_in_two_parts_is_the_same(first: list[str], second: list[str]) -> None:
    line = TerminalLine()
    final = line.obey("".join(first)) + line.obey("".join(second)) + line.end()
    assert final == shown("".join(first + second))
