"""plain_text: output gives the same text however it is split, and omissions are counted exactly."""

from __future__ import annotations

import re
import sys
import tracemalloc
import unicodedata
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.terminal.plain_text import Captured, PlainText, TerminalLine, plain_text, without_escapes
from harness.terminal.screen import COLUMNS

FRAGMENTS = [
    *(b"a", b"two words", b"12", b";", b"\n", b"\r\n", b"\r", b"\b", b"\t", b"\x07", b"\x00", b"\x18", b"\x1a"),
    *(b"\x1b", b"[", b"]", b"P", b"k", b"_", b"\\", b"(B", b"m", b"K", b"D", b"\x1b[31m", b"\x1b[K", b"\x1b[3D"),
    *("日".encode(), "é".encode(), "e\u0301".encode(), "😀".encode(), b"\xff", b"\xe6\x97", b"\x1b]0;", b"\x1b\\"),
    *(b"\x1b[" + b"1" * 62, b"x" * 3000),
]
streams = st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=6), max_size=40).map(b"".join)


def captured(data: bytes, limit_bytes: int = 64 << 10, cuts: tuple[int, ...] = ()) -> Captured:
    text = PlainText(limit_bytes)
    for start, end in pairwise((0, *sorted(min(cut, len(data)) for cut in cuts), len(data))):
        text.append(data[start:end])
    return text.finish()


def size(text: str) -> int:
    return len(text.encode())


# -- escape sequences and control characters -----------------------------------------------------


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x1b[1;31mred\x1b[0m\r\nplain\r\n", "red\nplain\n"),
        (b"\x1b[38:2::1:2:3mtrue colour\x1b[?25l", "true colour"),
        (b"\x1b]0;a title\x07after", "after"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1bPq#0\x1b\\image", "image"),
        (b"\x1bXstart\x07of string\x1b\\\x1b^private\x1b\\\x1b_program\x1b\\shown", "shown"),
        (b"\x1bktitle\x1b\\shown", "shown"),
        (b"\x1b(Bset \x1b=keypad \x1b#8.", "set keypad ."),
        (b"nul\x00 bell\x07 \x7f \x0b\x0c\x0e.", "nul bell  ."),
        (b"tab\tstays", "tab\tstays"),
        ("wide 日本語 e\u0301".encode(), "wide 日本語 e\u0301"),
        (b"bad \xff\xfe bytes", "bad \ufffd\ufffd bytes"),
        (b"half \xe6\x97", "half \ufffd"),
        (b"", ""),
    ],
)
def test_sequences_and_control_characters_are_removed(data: bytes, text: str) -> None:
    assert plain_text(data) == text


@pytest.mark.parametrize("introducer", [b"\x1b]52;c;", b"\x1bPq", b"\x1b_G", b"\x1b^", b"\x1bX", b"\x1bk"])
@pytest.mark.parametrize("end", [b"\x1b\\", b"\x18", b"\x1a", b"\x1b[m", b"\x1bPother\x1b\\"])
def test_strings_of_any_length_end_as_in_tmux(introducer: bytes, end: bytes) -> None:
    assert captured(b"a" + introducer + b"z\r\n" * 100_000 + end + b"b") == Captured("ab")


def test_only_an_osc_ends_with_a_bell() -> None:
    assert plain_text(b"\x1b]x\x07shown") == "shown"
    assert plain_text(b"\x1bPx\x07hidden") == ""


@pytest.mark.parametrize("opening", [b"\x1b", b"\x1b[31", b"\x1b]0;tit", b"\x1bPq", b"\x1b(", b"\x1b[1\x1b[2"])
def test_a_sequence_that_is_still_open_at_the_end_is_dropped(opening: bytes) -> None:
    assert plain_text(b"text " + opening) == "text "


def test_can_sub_and_another_sequence_end_a_sequence() -> None:
    assert plain_text(b"a\x1b[3\x181\x1b[3\x1a1\x1b[3\x1b[31mb") == "a11b"


def test_control_characters_within_a_sequence_act_at_once() -> None:
    assert plain_text(b"one\x1b[3\r\n1mtwo\x1b\n]0;title\n\x07") == "one\ntwo\n"
    assert plain_text(b"abc\x1b[\b1K.") == "  ."


def test_characters_beyond_ascii_within_a_sequence_are_nothing() -> None:
    assert plain_text("a\x1b[3é1mb\x1bé(Bc".encode()) == "abc"


def test_a_sequence_with_too_many_parameters_does_nothing() -> None:
    assert plain_text(b"abc\r\x1b[" + b"0;" * 20 + b"0K") == ""
    assert plain_text(b"abc\r\x1b[" + b"0;" * 40 + b"0K") == "abc"
    assert plain_text(b"abc\r\x1b[?K\x1b[0:1K\x1b[ K\x1b[1234567890D") == "abc"


def test_without_escapes_keeps_line_breaks_carriage_returns_and_tabs() -> None:
    assert without_escapes("\x1b[31mred\r\n\ttab\b\x00\x1b]0;title\x07 \x1b[Kend\x1b[3") == "red\r\n\ttab end"


@given(streams)
def test_plain_text_holds_no_control_characters(data: bytes) -> None:
    text = plain_text(data)
    assert not {character for character in text if character < " " or character == "\x7f"} - {"\n", "\t"}


# -- lines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"10%\r5", "50%"),
        (b"10%\r50%\r100%\r\n", "100%\n"),
        (b"progress 100%\r\x1b[Kdone\r\n", "done\n"),
        (b"spinning\r", "spinning"),
        (b"wrapped \r\r\nline\r\r\r\n", "wrapped \nline\n"),
        (b"first\nsecond\r2\n\n", "first\n2econd\n\n"),
        (b"ended\r\n\b\b\x1b[1K\x1b[2Kother", "ended\nother"),
        (b"grep \x1b[01;31m\x1b[Kfound\x1b[m\x1b[K it\r\n", "grep found it\n"),
        (b"N\bNA\bAM\bME\bE\n_\bu\n", "NAME\nu\n"),
    ],
)
def test_each_line_shows_its_last_state(data: bytes, text: str) -> None:
    assert plain_text(data) == text


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x1b\b")), max_size=10))
def test_lines_without_edits_stay_as_they_are(lines: list[str]) -> None:
    text = without_escapes("\n".join(lines))
    assert plain_text(text.encode()) == text
    assert plain_text(text.replace("\n", "\r\n").encode()) == text
    assert plain_text(text.replace("\n", "\r\r\n").encode()) == text


def test_a_line_that_is_too_long_to_be_overwritten_loses_nothing() -> None:
    text = "".join(f"{number}日e\u0301\t" for number in range(5000))
    assert plain_text(text.encode()) == text
    overwritten = plain_text(text.encode() + b"\r.")
    assert len(overwritten) == len(text)
    assert overwritten[: len(text) // 2] == text[: len(text) // 2]


# -- the stream ----------------------------------------------------------------------------------


@given(streams, st.lists(st.integers(0, 400), max_size=8).map(tuple))
def test_a_stream_cut_anywhere_gives_the_same_text(data: bytes, cuts: tuple[int, ...]) -> None:
    assert captured(data, cuts=cuts) == captured(data) == Captured(plain_text(data))


@given(streams)
def test_a_stream_cut_after_every_byte_gives_the_same_text(data: bytes) -> None:
    assert captured(data, cuts=tuple(range(min(len(data), 500)))) == captured(data)


@given(st.binary(max_size=300))
def test_any_bytes_have_a_plain_text(data: bytes) -> None:
    assert captured(data, limit_bytes=50, cuts=(10, 20)) == captured(data, limit_bytes=50)


@given(streams, st.integers(0, 200), st.lists(st.integers(0, 400), max_size=5).map(tuple))
def test_what_is_left_out_is_counted_exactly(data: bytes, limit: int, cuts: tuple[int, ...]) -> None:
    whole, seen = plain_text(data), captured(data, limit, cuts)
    if size(whole) <= limit:
        assert seen == Captured(whole)
        return
    assert seen.gap is not None
    head, tail = seen.gap.head, seen.gap.tail
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert limit // 2 - 3 <= min(size(head), size(tail)) <= max(size(head), size(tail)) <= limit // 2
    assert size(whole) == size(head) + seen.gap.elided_bytes + size(tail)
    assert len(whole) == len(head) + seen.gap.elided_chars + len(tail)
    assert seen.text == f"{head}\n[... {seen.gap.elided_bytes} bytes left out ...]\n{tail}"


def test_the_end_may_be_asked_for_twice() -> None:
    text = PlainText(limit_bytes=4)
    text.append(b"abcdef\xe6")
    assert text.finish() == text.finish()


# -- floods --------------------------------------------------------------------------------------


def held(value: object) -> int:
    """Return the memory of an object of ours, including its parts, in bytes."""
    parts = value if isinstance(value, list) else getattr(value, "__dict__", {}).values()
    return sys.getsizeof(value) + sum(map(held, parts))


@pytest.mark.parametrize(
    "unit",
    [b"y\r\n", b"x", b"\x1b]0;", b"\x1b[31mred\x1b[m\r\n", b"\r\x1b[K50%", "\u0301".encode(), b"\t", b"\x1b[", b"1;"],
)
def test_a_flood_is_held_in_bounded_memory(unit: bytes) -> None:
    text = PlainText(limit_bytes=1000)
    text.append(b"\x1b[" if unit == b"1;" else b"")
    for _ in range(10):
        text.append(unit * (50_000 // len(unit)))
        assert held(text) < 300_000


def test_a_large_portion_is_read_in_parts() -> None:
    data = b"x" * 1_000_000
    tracemalloc.start()
    try:
        assert captured(data).gap is not None
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "unit",
    [
        *(b"\r", b"\b", b"\r\b", b"\x1b", b"\x1b[", b"\x1b[1", b"\x1b]", b"\x1bP", b"\x1b(", b"\x1b[\n", b"\x1b[3\xff"),
        *(b"x\r", b"ab\b", b"\t\b", "日\b".encode(), "\u0301".encode(), b"x\x1b[D\x1b[@", b"\x1b[C", b"\x1b[99Gx\r"),
        *(b"1", b"\x1b[999C", b"\x1b[9@", b"\x1b[9P", b"\x1b[9X", b"\x1b[2K", b"\r" * 999 + b"\n"),
    ],
)
@pytest.mark.parametrize("before", [b"", b"x" * 2000 + b"\r", b"\x1b["])
def test_whatever_comes_takes_linear_time(unit: bytes, before: bytes) -> None:
    # A quadratic step would take hours.
    plain_text(before + unit * (40_000 // len(unit)))


# line: carriage returns, backspaces and editing sequences overwrite cells as on a terminal.


def shown(text: str) -> str:
    line = TerminalLine()
    return line.apply(text) + line.end()


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
    assert line.apply("x" * 2000) == ""
    assert line.apply("\t" * 60) == "x" * 1024
    assert line.apply("\rEND") == ""
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
    final = line.apply("".join(first)) + line.apply("".join(second)) + line.end()
    assert final == shown("".join(first + second))
