"""Lines of JSON: what is an object of the model, and where what is not."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from tbench.storage.lines import read_lines


class Point(BaseModel):
    x: int


def test_each_line_is_an_object_or_a_problem_with_its_place() -> None:
    raw = b'{"x": 1}\n\n[1]\n{"x": "far"}\nnot json\n' + b"[" * 100_000 + b'\n \n{"x": 2}'
    problems: list[str] = []
    found = list(read_lines(Path("f"), raw, Point, problems))
    assert found == [("f:1", Point(x=1)), ("f:8", Point(x=2))]
    assert [problem.partition(" ")[0] for problem in problems] == ["f:3:", "f:4:", "f:5:", "f:6:"]
    assert problems[0].startswith("f:3: line: ") and problems[1].startswith("f:4: x: ")
    assert all("not JSON" in problem and "\n" not in problem for problem in problems[2:])


def test_a_line_can_be_mended_before_it_is_looked_at() -> None:
    assert list(read_lines(Path("f"), b"3", Point, [], lambda value: {"x": value})) == [("f:1", Point(x=3))]
