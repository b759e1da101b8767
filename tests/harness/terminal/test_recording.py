"""recording: every session becomes a valid asciicast v2 file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from harness.terminal.recording import Recording


def read_cast(path: Path) -> tuple[dict[str, Any], list[list[Any]]]:
    """Header and events; what the format demands of both is checked."""
    header, *events = [json.loads(line) for line in path.read_bytes().decode().split("\n") if line]
    assert header["version"] == 2
    assert all(isinstance(header[name], int) for name in ("width", "height", "timestamp"))
    times = [event[0] for event in events]
    assert times == sorted(times)
    assert all(time >= 0 for time in times)
    for event in events:
        assert len(event) == 3
        assert event[1] in {"o", "i", "m"}
        assert isinstance(event[2], str)
    return header, events


def start(directory: Path, **options: Any) -> tuple[Recording, Path]:
    path = directory / "trial" / "session.cast"
    return Recording(path, columns=160, rows=40, **options), path


def test_a_session_is_a_valid_asciicast(tmp_path: Path) -> None:
    recording, path = start(tmp_path)
    recording.output(b"$ ")
    recording.input("echo \x1b[1m'quoted'\n")
    recording.output("line\r\n\u2028\u65e5 \U0001f600".encode())
    recording.marker("a remark")
    recording.close()
    header, events = read_cast(path)
    assert (header["width"], header["height"]) == (160, 40)
    assert [event[1:] for event in events] == [
        ["o", "$ "],
        ["i", "echo \x1b[1m'quoted'\n"],
        ["o", "line\r\n\u2028\u65e5 \U0001f600"],
        ["m", "a remark"],
    ]


def test_a_character_cut_between_two_reads_is_one_character(tmp_path: Path) -> None:
    recording, path = start(tmp_path)
    for byte in "é日\U0001f600".encode():
        recording.output(bytes((byte,)))
    recording.close()
    _, events = read_cast(path)
    assert [event[2] for event in events] == ["é", "日", "\U0001f600"]


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    recording, path = start(tmp_path)
    recording.output(b"a\xffb\xed\xa0\x80\x00")
    recording.input("half \ud800 pair")
    recording.close()
    _, events = read_cast(path)
    assert events[0][2] == "a\ufffdb\ufffd\ufffd\ufffd\x00"
    assert events[1][2] == "half ? pair"


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_the_recorded_output_is_what_was_printed(tmp_path_factory: Any, portions: list[bytes]) -> None:
    recording, path = start(tmp_path_factory.mktemp("cast"))
    for portion in portions:
        recording.output(portion)
    recording.output(b".")  # ends a character that was left open
    recording.close()
    _, events = read_cast(path)
    assert "".join(event[2] for event in events) == (b"".join(portions) + b".").decode("utf-8", "replace")


def test_output_beyond_the_limit_is_left_out_and_a_marker_says_so(tmp_path: Path) -> None:
    recording, path = start(tmp_path, limit_bytes=100)
    for _ in range(50):
        recording.output(b"x" * 30)
    recording.input("still typed\n")
    recording.close()
    _, events = read_cast(path)
    kinds = [event[1] for event in events]
    assert kinds == ["o"] * 4 + ["m", "i"]
    assert "limit" in events[4][2]


def test_what_was_recorded_before_a_flush_is_in_the_file_at_once(tmp_path: Path) -> None:
    recording, path = start(tmp_path)
    recording.output(b"$ ")
    recording.flush()
    assert [event[1:] for event in read_cast(path)[1]] == [["o", "$ "]]
    recording.input("ls\n")
    recording.flush()
    assert len(read_cast(path)[1]) == 2
    recording.close()
    recording.flush()


def test_what_comes_after_the_close_is_ignored(tmp_path: Path) -> None:
    recording, path = start(tmp_path)
    recording.close()
    recording.close()
    recording.output(b"late")
    recording.input("late")
    recording.marker("late")
    assert read_cast(path)[1] == []


def test_a_full_disk_ends_the_recording_and_not_the_session() -> None:
    recording = Recording(Path("/dev/full"), columns=80, rows=24)
    for _ in range(3):
        recording.output(b"x" * 100_000)
    recording.input("ls")
    recording.close()
    assert recording.problem == "No space left on device"


def test_a_disk_that_is_full_at_a_flush_ends_the_recording_and_not_the_session() -> None:
    recording = Recording(Path("/dev/full"), columns=80, rows=24)
    recording.flush()
    recording.input("ls")
    recording.flush()
    assert recording.problem == "No space left on device"
