"""New events of a recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.terminal.tap import Recording
from tbench.storage.recording import CastHead, cast_head, cast_piece


@pytest.fixture
def cast(tmp_path: Path) -> Path:
    recording = Recording(tmp_path / "session.cast", columns=100, rows=30)
    recording.output(b"one\r\n")
    recording.input("typed")
    recording.marker("a mark")
    recording.output("zwei \N{EURO SIGN}".encode())
    recording.close()
    return tmp_path / "session.cast"


def test_output_alone_is_given(cast: Path) -> None:
    size = cast.stat().st_size
    assert cast_piece(cast, 0, size).text == "one\r\nzwei \N{EURO SIGN}"
    assert cast_piece(cast, 0, size).end == size


def test_the_next_look_begins_where_the_last_one_ended(cast: Path) -> None:
    size = cast.stat().st_size
    with cast.open("a") as opened:
        opened.write('[9.0, "o", "more"]\n[9.1, "o", "not who')
    piece = cast_piece(cast, size, cast.stat().st_size)
    assert (piece.text, piece.skipped) == ("more", False)
    with cast.open("a") as opened:
        opened.write('le"]\n')
    assert cast_piece(cast, piece.end, cast.stat().st_size).text == "not whole"


def test_of_a_recording_that_has_grown_much_the_middle_is_left_out(cast: Path) -> None:
    with cast.open("a") as opened:
        opened.writelines(f'[{number}, "o", "line {number};"]\n' for number in range(1000))
    piece = cast_piece(cast, 10, cast.stat().st_size, 200)
    assert piece.skipped and piece.text.endswith("line 998;line 999;") and len(piece.text) < 200


def test_lines_that_are_none_are_left_out(cast: Path) -> None:
    with cast.open("a") as opened:
        opened.write('[1, "o", 7]\n{"o": 1}\n[1, "o"\n[1, "o", "fine"]\n')
    assert cast_piece(cast, 0, cast.stat().st_size).text.endswith("\N{EURO SIGN}fine")


def test_the_head_says_how_large_the_terminal_is(cast: Path) -> None:
    head = cast_head(cast)
    assert head is not None and (head.columns, head.rows) == (100, 30) and head.begun_at is not None


@pytest.mark.parametrize(
    ("first", "head"),
    [
        ("", None),
        ('{"width": 80', None),
        ("[]\n", CastHead()),
        ("no JSON\n", CastHead()),
        ('{"width": -1}\n', CastHead()),
    ],
)
def test_a_head_that_says_nothing_is_that_of_the_usual_terminal(tmp_path: Path, first: str, head: object) -> None:
    (tmp_path / "x").write_text(first)
    assert cast_head(tmp_path / "x") == head
