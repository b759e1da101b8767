"""Lines of JSON: what is an object of the model, where what is not, and what a full disk or a kill leaves."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from full_disk import files_end_at
from pydantic import BaseModel

from tbench.storage.lines import LineFile, read_lines


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


def test_a_line_that_a_full_disk_cuts_is_taken_back_and_the_next_one_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with contextlib.closing(LineFile(path)) as file:
        file.append('"first"')
        with files_end_at(12), pytest.raises(OSError):
            file.append('"second, and cut"')
        assert path.read_text() == '"first"\n'
        file.append('"third"')
    assert [json.loads(line) for line in path.read_text().splitlines()] == ["first", "third"]


LONG = "x" * 200_000


@pytest.mark.parametrize(
    ("torn", "kept"),
    [
        ("", ""),
        ('{"a": 1}', '{"a": 1}\n'),
        ('{"a": 1}\n{"b"', '{"a": 1}\n'),
        ('{"a": 1}\n{"b": 2}', '{"a": 1}\n{"b": 2}\n'),
        ("\0\0\0", ""),
        (f'"{LONG}"\n"{LONG}', f'"{LONG}"\n'),
        (f'"{LONG}"\n"{LONG}"', f'"{LONG}"\n"{LONG}"\n'),
        (f'"{LONG}"\n', f'"{LONG}"\n'),
    ],
)
def test_a_last_line_without_its_end_is_ended_where_it_is_whole_and_removed_where_not(
    tmp_path: Path, torn: str, kept: str
) -> None:
    (tmp_path / "a.jsonl").write_text(torn)
    LineFile(tmp_path / "a.jsonl").close()
    assert (tmp_path / "a.jsonl").read_text() == kept
