"""control_mode: tmux's output is parsed into events, wherever the stream is split."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.terminal.control_mode import (
    CHUNK_BYTES,
    CommandReply,
    Event,
    Notification,
    Output,
    Parser,
    press_key,
    type_bytes,
    unescape,
)

STREAM = (
    b"%begin 1700000000 1 0\n%end 1700000000 1 0\n"
    b"%session-changed $0 main\n"
    b"%output %0 \\033[1mbold\\033[0m\\015\\012\n"
    b"%begin 1700000001 2 1\nline one\n\n%end 1700000000 1 0\n%output %0 no\n%error 1700000001 9 1\n"
    b"%end 1700000001 2 1\n"
    b"%begin 1700000001 3 1\nparse error: unknown command\n%error 1700000001 3 1\n"
    b"%output %12 \n"
    b"%output %12\n"
    b"%exit\n"
)
EVENTS: list[Event] = [
    CommandReply(ok=True, lines=()),
    Notification("session-changed", b"$0 main"),
    Output("%0", b"\x1b[1mbold\x1b[0m\r\n"),
    CommandReply(ok=True, lines=(b"line one", b"", b"%end 1700000000 1 0", b"%output %0 no", b"%error 1700000001 9 1")),
    CommandReply(ok=False, lines=(b"parse error: unknown command",)),
    Output("%12", b""),
    Output("%12", b""),
    Notification("exit", b""),
]


def escape(data: bytes) -> bytes:
    """Escape like tmux's control_append_data."""
    return b"".join(b"\\%03o" % byte if byte < 0x20 or byte == 0x5C else bytes((byte,)) for byte in data)


def events(*pieces: bytes) -> list[Event]:
    parser = Parser()
    return [event for piece in pieces for event in parser.feed(piece)]


def test_a_session_is_read_into_replies_output_and_notifications() -> None:
    assert events(STREAM) == EVENTS


def test_a_stream_cut_after_every_byte_gives_the_same_events() -> None:
    assert events(*(STREAM[at : at + 1] for at in range(len(STREAM)))) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_a_stream_cut_anywhere_gives_the_same_events(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    assert events(*(STREAM[start:end] for start, end in pairwise(places))) == EVENTS


@given(st.binary(max_size=300))
def test_any_bytes_come_back_through_the_escaping(data: bytes) -> None:
    assert unescape(escape(data)) == data


@given(st.text(alphabet="\\01234567\n\r\x1b\tn", max_size=60))
def test_text_that_looks_like_escapes_comes_back_as_it_was(text: str) -> None:
    assert unescape(escape(text.encode())) == text.encode()


@given(st.lists(st.binary(min_size=1, max_size=80), max_size=8), st.integers(1, 40))
@settings(max_examples=60)
def test_what_the_pane_printed_survives_the_wire_in_any_portions(printed: list[bytes], size: int) -> None:
    wire = b"".join(b"%output %0 " + escape(data) + b"\n" for data in printed)
    pieces = [wire[at : at + size] for at in range(0, len(wire), size)]
    assert events(*pieces) == [Output("%0", data) for data in printed]


@pytest.mark.parametrize("data", [b"x" * 1_000_000, b"\x1b\\\n" * 100_000], ids=["plain", "escaped"])
def test_an_output_line_may_be_megabytes_long(data: bytes) -> None:
    wire = b"%output %0 " + escape(data) + b"\n"
    assert events(*(wire[at : at + 65536] for at in range(0, len(wire), 65536))) == [Output("%0", data)]


def test_nothing_is_lost_or_made_up_at_an_unfinished_line() -> None:
    parser = Parser()
    assert parser.feed(b"%output %0 a") == []
    assert parser.feed(b"") == []
    assert parser.feed(b"b\n%exi") == [Output("%0", b"ab")]
    assert parser.feed(b"t\n") == [Notification("exit", b"")]


def test_lines_outside_the_protocol_are_ignored() -> None:
    assert events(b"stray\n\n%exit now\n") == [Notification("exit", b"now")]


@given(st.binary(min_size=1, max_size=5000) | st.text(st.characters(codec="ascii"), min_size=1).map(str.encode))
def test_typing_carries_every_byte_in_order_and_in_bounded_lines(data: bytes) -> None:
    commands = type_bytes("main", data)
    assert all(command.endswith(b"\n") and command.count(b"\n") == 1 for command in commands)
    assert all(len(command) < 5 * CHUNK_BYTES for command in commands)
    assert b"".join(map(typed_by, commands)) == data


def typed_by(command: bytes) -> bytes:
    """Return what tmux types for a command: hexadecimal bytes, or one word with special characters in octal."""
    start, _, word = command.partition(b' -l -- "')
    if not word:
        return bytes.fromhex(start.partition(b" -H ")[2].decode())
    assert word.endswith(b'"\n') and re.fullmatch(rb"([a-zA-Z0-9 /.,:_=+-]|\\[01][0-7]{2})+", word[:-2])
    return re.sub(rb"\\(\d{3})", lambda octal: bytes((int(octal[1], 8),)), word[:-2])


def test_typing_nothing_needs_no_command() -> None:
    assert type_bytes("main", b"") == []


@pytest.mark.parametrize(
    ("key", "command"),
    [
        ("C-c", b"send-keys -t main 'C-c'\n"),
        ("M-;", b"send-keys -t main 'M-;'\n"),
        ("M-'", b"send-keys -t main 'M-'\\'''\n"),
    ],
)
def test_a_key_is_named_within_quotes(key: str, command: bytes) -> None:
    assert press_key("main", key) == command
