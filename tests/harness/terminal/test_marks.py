"""marks: the shell's marks are found wherever the stream was cut, and what lies between them stays exact."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.terminal.marks import Mark, MarkScanner

C = b"\x1b]133;C;aid=tbench\x1b\\"
B = b"\x1b]133;B;aid=tbench\x1b\\"


def done(code: int, pending: str) -> bytes:
    return b"\x1b]133;D;%d;aid=tbench;pending=%s\x1b\\" % (code, pending.encode())


STREAM = b"$ ls" + C + b"a\r\nb\x1b[0m\r\n" + done(0, "1") + b"$ " + B + b"x" + C + done(130, "0") + B + b"$ "
PIECES: list[bytes | Mark] = [
    b"$ ls",
    Mark("C"),
    b"a\r\nb\x1b[0m\r\n",
    Mark("D", 0, pending=True),
    b"$ ",
    Mark("B"),
    b"x",
    Mark("C"),
    Mark("D", 130, pending=False),
    Mark("B"),
    b"$ ",
]


def scan(*portions: bytes) -> list[bytes | Mark]:
    """All pieces, neighbouring text joined."""
    scanner = MarkScanner()
    joined: list[bytes | Mark] = []
    for portion in portions:
        for piece in scanner.feed(portion):
            if isinstance(piece, bytes) and joined and isinstance(joined[-1], bytes):
                joined[-1] += piece
            elif piece:
                joined.append(piece)
    return joined


def test_text_and_marks_come_in_order() -> None:
    assert scan(STREAM) == PIECES


def test_a_stream_cut_after_every_byte_gives_the_same_pieces() -> None:
    assert scan(*(STREAM[at : at + 1] for at in range(len(STREAM)))) == PIECES


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_a_stream_cut_anywhere_gives_the_same_pieces(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    assert scan(*(STREAM[start:end] for start, end in pairwise(places))) == PIECES


@given(
    st.lists(
        st.sampled_from([C, B, done(1, "unknown"), b"\x1b]133;", b"\x1b]13", b"\x1b", b"\x1b\\", b"133;C", b"text"]),
        max_size=20,
    ),
    st.integers(1, 50),
)
def test_beginnings_of_marks_in_the_text_do_not_hide_marks(parts: list[bytes], size: int) -> None:
    stream = b"".join(parts) + b"." * 64  # nothing is held back behind that
    portions = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert scan(*portions) == scan(stream)


@pytest.mark.parametrize(
    "foreign",
    [
        b"\x1b]133;C\x07",
        b"\x1b]133;D;1\x1b\\",
        b"\x1b]133;A;aid=other\x1b\\",
        b"\x1b]133;C;aid=tbench2\x1b\\",
        b"\x1b]133;E;aid=tbench\x1b\\",
    ],
)
def test_marks_of_other_programs_are_text(foreign: bytes) -> None:
    assert scan(b"a" + foreign + C) == [b"a" + foreign, Mark("C")]


def test_a_shell_that_cannot_tell_leaves_pending_open() -> None:
    assert scan(done(3, "unknown")) == [Mark("D", 3, pending=None)]


def test_marks_may_end_with_a_bell_and_ask_for_more_lines() -> None:
    stream = b"\x1b]133;P;aid=tbench\x07> \x1b]133;D;2;aid=tbench;pending=unknown\x07"
    pieces = [Mark("P"), b"> ", Mark("D", 2, pending=None)]
    assert scan(stream) == pieces
    assert scan(*(stream[at : at + 1] for at in range(len(stream)))) == pieces


def test_a_mark_that_never_ends_holds_back_a_bounded_tail() -> None:
    scanner = MarkScanner()
    scanner.feed(b"\x1b]133;D;")
    (piece,) = scanner.feed(b"9" * 1000)
    assert piece == b"\x1b]133;D;" + b"9" * 1000
