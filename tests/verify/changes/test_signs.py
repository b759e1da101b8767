"""Signs as they are told."""

from __future__ import annotations

from tbench.verify.changes.signs import Sign, told


def test_signs_of_one_kind_are_one_line_that_says_how_many_there_are() -> None:
    signs = [Sign("kind", f"/path/{number}", "is wrong") for number in range(100)]
    assert told([*signs, Sign("other", "/x", "is, too")]) == (
        "kind: /path/0, /path/1, /path/2 and 97 more is wrong",
        "other: /x is, too",
    )


def test_no_path_adds_a_line_or_moves_the_cursor() -> None:
    (line,) = told([Sign("kind", "/a\nknown\tpackage \x1b[2J", "is wrong")])
    assert line.isprintable()
