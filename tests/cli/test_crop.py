"""Cropping of a trial's screen to a window of another size."""

from __future__ import annotations

import pytest

from tbench.cli.attach import crop, crop_line
from tbench.control.wire import Screen


def screen(*lines: str, cursor: tuple[int, int] = (0, 0), columns: int = 160, rows: int = 40) -> Screen:
    return Screen(columns=columns, rows=rows, cursor=cursor, cursor_visible=True, application_keys=False, lines=lines)


def test_a_larger_window_shows_all_of_it() -> None:
    shown = crop(screen("$ ls", "file", cursor=(3, 1)), 200, 50)
    assert (shown.lines, shown.cursor) == (("$ ls", "file"), (3, 1))


def test_a_smaller_window_shows_the_part_around_the_cursor() -> None:
    lines = [f"{row:02d} {'x' * 157}" for row in range(40)]
    shown = crop(screen(*lines, cursor=(159, 39)), 80, 24)
    assert shown.cursor == (79, 23)
    assert [len(line) for line in shown.lines] == [80] * 24
    assert shown.lines[-1] == lines[39][80:]
    shown = crop(screen(*lines, cursor=(5, 3)), 80, 24)
    assert (shown.lines[0], shown.cursor) == (lines[0][:80], (5, 3))


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (79, 23), (160, 39), (500, 500)])
@pytest.mark.parametrize("cursor", [(0, 0), (80, 20), (159, 39)])
def test_the_cursor_is_always_within_the_window(size: tuple[int, int], cursor: tuple[int, int]) -> None:
    shown = crop(screen(*["x" * 160] * 40, cursor=cursor), *size)
    assert 0 <= shown.cursor[0] < size[0]
    assert 0 <= shown.cursor[1] < size[1]
    assert len(shown.lines) <= size[1]
    assert all(len(line) <= size[0] for line in shown.lines)


@pytest.mark.parametrize(
    ("line", "left", "columns", "shown"),
    [
        ("abcdef", 2, 3, "cde"),
        ("\x1b[1mab\x1b[32mcdef\x1b[m", 3, 2, "\x1b[1m\x1b[32mde\x1b[m"),
        ("日本語", 0, 3, "日 "),
        ("日本語", 1, 3, " 本"),
        ("e\u0301e\u0301e\u0301", 1, 1, "e\u0301"),
        ("ab", 5, 3, ""),
    ],
)
def test_lines_are_cut_by_cells_and_keep_their_colours(line: str, left: int, columns: int, shown: str) -> None:
    assert crop_line(line, left, columns) == shown
