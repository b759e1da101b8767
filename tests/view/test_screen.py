"""The small terminal emulator."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.cell_style import PLAIN, CellStyle, apply_codes
from tbench.view.screen import TileScreen


def shown(text: str, columns: int = 20, rows: int = 5) -> list[str]:
    screen = TileScreen(columns, rows)
    screen.feed(text)
    lines = screen.last_lines(rows, columns)
    return [line if isinstance(line, str) else "".join(line[::2]) for line in lines]


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("one\r\ntwo", ["one", "two"]),
        ("10%\r20%\r100%", ["100%"]),
        ("abc\b\bX", ["aXc"]),
        ("a\tb", ["a       b"]),
        ("x" * 25, ["x" * 20, "x" * 5]),
        ("\x1b[2J\x1b[3;4Hhere", ["", "", "   here"]),
        ("old\r\nold\x1b[H\x1b[Jnew", ["new"]),
        ("keep me\x1b[4D\x1b[K", ["kee"]),
        ("a\r\nb\r\nc\x1b[2A\r\x1b[Mx", ["x", "c"]),
        ("abcdef\x1b[4D\x1b[2P", ["abef"]),
        ("abef\x1b[2D\x1b[2@cd", ["abcdef"]),
        ("\x1b]0;title\x07text\x1b]8;;http://x\x1b\\link", ["textlink"]),
        ("\x1b[?1049hfull screen\x1b[?1049lback", ["back"]),
        ("日本", ["日本"]),
        ("e\N{COMBINING ACUTE ACCENT}x", ["e\N{COMBINING ACUTE ACCENT}x"]),
        ("a\N{RIGHT-TO-LEFT OVERRIDE}b", ["a\N{REPLACEMENT CHARACTER}b"]),
        ("\x1b7\r\nmoved\x1b8saved", ["saved", "moved"]),
    ],
)
def test_a_screen_shows_what_a_terminal_would(printed: str, expected: list[str]) -> None:
    assert shown(printed) == expected


def test_lines_scroll_out_at_the_top() -> None:
    assert shown("\r\n".join("abcdefg")) == ["c", "d", "e", "f", "g"]


def test_a_region_scrolls_alone() -> None:
    assert shown("head\r\n\x1b[2;4r\x1b[2H1\r\n2\r\n3\r\n4\x1b[5Hfoot") == ["head", "2", "3", "4", "foot"]


def test_escapes_may_be_cut_between_two_pieces() -> None:
    screen = TileScreen(20, 3)
    for piece in ("a\x1b", "[31", "mred\x1b]0;ti", "tle\x07\x1b[0m", "!"):
        screen.feed(piece)
    assert screen.last_lines(3, 20) == [["a", "", "red", "i1", "!", ""]]


def test_the_last_lines_are_cut_to_the_given_columns() -> None:
    screen = TileScreen(20, 5)
    screen.feed("first\r\nsecond line\r\nthird line")
    assert screen.last_lines(2, 6) == ["second", "third"]


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        ((31,), "i1"),
        ((1, 92), "i10 b"),
        ((44, 2), "g4 d"),
        ((7,), "inv-g"),
        ((7, 31, 42), "i2 g1"),
        ((38, 5, 196), "i9"),
        ((48, 5, 236), "g0"),
        ((38, 2, 20, 20, 220), "i12"),
        ((38, 5), "i0"),
        ((31, 0), ""),
        ((31, 39), ""),
        ((1, 22), ""),
        ((999,), ""),
    ],
)
def test_styles_are_classes_of_the_page(codes: tuple[int, ...], words: str) -> None:
    assert apply_codes(PLAIN, codes).classes == words


def test_a_style_without_codes_is_the_plain_one() -> None:
    assert apply_codes(CellStyle(foreground=3, bold=True), ()) == PLAIN


@given(st.text(alphabet=st.sampled_from("ab\r\n\t\b\x1b[]0123456789;?hlmHJKABCDLMPXrSTu78c日\u0301 "), max_size=300))
def test_no_output_breaks_the_screen(printed: str) -> None:
    screen = TileScreen(10, 4)
    for start in range(0, len(printed), 7):
        screen.feed(printed[start : start + 7])
    lines = screen.last_lines(4, 10)
    assert len(lines) <= 4
    texts = [line if isinstance(line, str) else "".join(line[::2]) for line in lines]
    assert all(sum(not unicodedata.combining(char) for char in text) <= 10 for text in texts)
