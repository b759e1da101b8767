"""Files that are written whole or not at all, and names that are safe to write."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tbench.files import safe_relative, write_atomically, write_json


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
