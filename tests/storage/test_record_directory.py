"""A directory of records: begun, gone on with, locked, and left by a process that was killed."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from full_disk import files_end_at
from pydantic import BaseModel

from tbench.errors import UsageError
from tbench.storage.record_directory import Layout, LineFile, RecordDirectory, read_lines

LAYOUT = Layout("voyage", "plan.json", ("first.jsonl", "second.jsonl"))


def test_a_new_directory_has_its_manifest_and_its_files_at_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er"
    assert LAYOUT.is_new(path)
    with contextlib.closing(RecordDirectory.create(path, LAYOUT, {"to": "Ithaca"})) as directory:
        assert json.loads((path / "plan.json").read_bytes()) == {"to": "Ithaca"}
        assert sorted(each.name for each in path.iterdir()) == ["first.jsonl", "plan.json", "second.jsonl"]
        directory.append("second.jsonl", '{"day": 1}')
        assert (path / "second.jsonl").read_text() == '{"day": 1}\n'
    assert not LAYOUT.is_new(path)


def test_one_that_goes_on_keeps_its_lines_and_its_manifest_unless_there_is_another(tmp_path: Path) -> None:
    with contextlib.closing(RecordDirectory.create(tmp_path, LAYOUT, {"to": "Ithaca"})) as directory:
        directory.append("first.jsonl", "1")
    with (tmp_path / "second.jsonl").open("a") as file:
        file.write('{"tor')
    with contextlib.closing(RecordDirectory.go_on(tmp_path, LAYOUT)) as directory:
        directory.append("first.jsonl", "2")
    assert [(tmp_path / name).read_text() for name in LAYOUT.lines] == ["1\n2\n", ""]
    assert json.loads((tmp_path / "plan.json").read_bytes()) == {"to": "Ithaca"}
    RecordDirectory.go_on(tmp_path, LAYOUT, {"to": "Troy"}).close()
    assert json.loads((tmp_path / "plan.json").read_bytes()) == {"to": "Troy"}


@pytest.mark.parametrize("name", ["plan.json", "anything", ".hidden"])
def test_a_directory_that_holds_anything_is_refused_untouched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match=r"not empty; name a new .* or go on with the voyage in it with --resume"):
        RecordDirectory.create(tmp_path, LAYOUT, {})
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


def test_what_a_start_leaves_that_was_killed_before_its_manifest_is_as_good_as_nothing(tmp_path: Path) -> None:
    (tmp_path / "first.jsonl").touch()
    (tmp_path / f".writing-{os.getpid() + 1}").write_text('{"to": "Ith')
    assert LAYOUT.is_new(tmp_path)
    RecordDirectory.create(tmp_path, LAYOUT, {}).close()
    (tmp_path / "plan.json").unlink()
    (tmp_path / "first.jsonl").write_text("1\n")
    assert not LAYOUT.is_new(tmp_path)


def test_only_one_process_at_a_time_adds_to_it_and_the_second_changes_nothing(tmp_path: Path) -> None:
    first = RecordDirectory.create(tmp_path, LAYOUT, {})
    with (tmp_path / "second.jsonl").open("a") as file:
        file.write("a line that is just being writ")
    with pytest.raises(UsageError, match="this voyage is still going on; wait for its end, or end it first"):
        RecordDirectory.go_on(tmp_path, LAYOUT, {"to": "Troy"})
    assert (tmp_path / "second.jsonl").read_text() == "a line that is just being writ"
    assert json.loads((tmp_path / "plan.json").read_bytes()) == {}
    first.close()
    RecordDirectory.go_on(tmp_path, LAYOUT).close()


def test_of_two_that_begin_at_once_the_one_without_the_lock_is_refused(tmp_path: Path) -> None:
    """The other one is at the point where it has the lock and no manifest yet."""
    other = RecordDirectory(tmp_path, LAYOUT)
    with pytest.raises(UsageError, match="this voyage is still going on"):
        RecordDirectory.create(tmp_path, LAYOUT, {})
    other.close()


def test_a_place_that_cannot_be_written_is_named_and_left_unlocked(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=f"{tmp_path / 'file' / 'x'}: cannot be written: Not a directory"):
        RecordDirectory.create(tmp_path / "file" / "x", LAYOUT, {})
    with pytest.raises(UsageError, match=f"{tmp_path / 'absent'}: cannot be written: No such file"):
        RecordDirectory.go_on(tmp_path / "absent", LAYOUT)
    with files_end_at(10), pytest.raises(UsageError, match="cannot be written: File too large"):
        RecordDirectory.create(tmp_path / "full", LAYOUT, {"to": "Ithaca"})
    RecordDirectory.create(tmp_path / "full", LAYOUT, {"to": "Ithaca"}).close()


def test_a_file_that_is_not_the_locked_one_can_be_rewritten_and_goes_on(tmp_path: Path) -> None:
    with contextlib.closing(RecordDirectory.create(tmp_path, LAYOUT, {})) as directory:
        directory.append("second.jsonl", "1")
        directory.rewrite("second.jsonl", ["2", "3"])
        directory.append("second.jsonl", "4")
        assert (tmp_path / "second.jsonl").read_text() == "2\n3\n4\n"
        with pytest.raises(AssertionError):
            directory.rewrite("first.jsonl", [])


def test_others_see_whether_a_process_adds_to_it_and_do_not_keep_it_from_that(tmp_path: Path) -> None:
    with contextlib.closing(RecordDirectory.create(tmp_path, LAYOUT, {})):
        assert LAYOUT.is_locked(tmp_path)
    assert not LAYOUT.is_locked(tmp_path)
    RecordDirectory.go_on(tmp_path, LAYOUT).close()
    with pytest.raises(FileNotFoundError):
        LAYOUT.is_locked(tmp_path / "nowhere")


# Lines of JSON: what is an object of the model, where what is not, and what a full disk or a kill leaves.


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
