"""Files that are written whole or not at all, and names that are safe to write."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tbench.errors import UsageError
from tbench.files import read_json, read_object_or_none, safe_relative, write_atomically, write_json


def test_the_longest_file_name_can_be_kept(tmp_path: Path) -> None:
    write_atomically(tmp_path / ("x" * 255), b"1")
    assert (tmp_path / ("x" * 255)).read_bytes() == b"1"


def test_a_write_replaces_the_whole_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"long": "x" * 1000})
    write_json(tmp_path / "a.json", {"short": "\u00e9"})
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n  "short": "\u00e9"\n}\n'


def test_threads_that_write_into_one_directory_do_not_write_into_each_others_files(tmp_path: Path) -> None:
    def write(number: int) -> None:
        for _ in range(100):
            write_atomically(tmp_path / str(number), str(number).encode() * 10_000)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    assert {path.name: set(path.read_text()) for path in tmp_path.iterdir()} == {
        str(each): {str(each)} for each in range(4)
    }


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("verifier/reward.txt", "verifier/reward.txt"),
        ("/etc/passwd", "etc/passwd"),
        ("../../etc/passwd", "etc/passwd"),
        ("a/../../b", "a/b"),
        ("./a//b/.", "a/b"),
        ("..", "unnamed"),
        ("", "unnamed"),
        ("a..b/...", "a..b/..."),
    ],
)
def test_names_out_of_a_container_cannot_climb_out_of_the_directory(name: str, safe: str) -> None:
    assert safe_relative(name) == Path(safe)


@pytest.mark.parametrize(
    ("content", "said"), [(b"{", "not JSON"), (b'"\xff"', "not UTF-8 text"), (b"[" * 100_000, "not JSON")]
)
def test_what_is_no_json_is_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(content)
    with pytest.raises(UsageError) as refused:
        read_json(file, "give another")
    assert str(refused.value).startswith(f"{file}: {said}") and "\n" not in str(refused.value)
    assert read_object_or_none(file) is None


def test_a_file_that_is_not_there_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory; give another"):
        read_json(tmp_path / "x.json", "give another")
    assert read_object_or_none(tmp_path / "x.json") is None


def test_only_an_object_counts_as_one(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text('\ufeff{"a": [1]}', encoding="utf-8")
    assert read_object_or_none(file) == read_json(file, "") == {"a": [1]}
    file.write_text("[1]")
    assert read_object_or_none(file) is None and read_json(file, "") == [1]
