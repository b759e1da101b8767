"""Durations, sizes and commands in the syntax of compose files."""

from __future__ import annotations

import pytest

from tbench.compose.keys import command_words, duration_sec, size_bytes
from tbench.compose.yaml_tree import parse
from tbench.errors import TaskInvalid


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2s", 2), ("1m30s", 90), ("1h", 3600), ("250ms", 0.25), ("1.5s", 1.5), ("10us", 1e-5), ("0", 0), ("0s", 0)],
)
def test_a_duration_is_in_seconds(text: str, seconds: float) -> None:
    assert duration_sec(parse("c", text.encode())) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "size"),
    [("512m", 512 << 20), ("2gb", 2 << 30), ("1.5G", 3 << 29), ("64k", 65536), ("100", 100), ("7 MiB", 7 << 20)],
)
def test_a_size_is_in_bytes(text: str, size: int) -> None:
    assert size_bytes(parse("c", text.encode())) == size


@pytest.mark.parametrize("text", ["2", "s", "-1s", "1x", "1s 2s", "10000h", "inf", "[1s]"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(TaskInvalid):
        duration_sec(parse("c", text.encode()))


@pytest.mark.parametrize("text", ["m", "-1m", "1x", "nan", "1e9", "2000t", "{a: 1}"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(TaskInvalid):
        size_bytes(parse("c", text.encode()))


def test_a_command_is_a_list_or_a_text_that_is_split_as_a_shell_does() -> None:
    assert command_words(parse("c", b"[sh, -c, 'a  b']")) == ("sh", "-c", "a  b")
    assert command_words(parse("c", b"sh -c 'a  b' \"c\"")) == ("sh", "-c", "a  b", "c")
    assert command_words(parse("c", b"[]")) == ()
    assert command_words(parse("c", b"~")) is None
    with pytest.raises(TaskInvalid, match="cannot be split"):
        command_words(parse("c", b"sh -c 'a"))
