"""JSON files of other programs: unreadable ones are a one-line error with the path, or None."""

from __future__ import annotations

from pathlib import Path

import pytest

from tbench.errors import UsageError
from tbench.proxies.json_files import read_json, read_object_or_none


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
