"""Decoding of key presses, and editing of text with them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.cli.debug.keys import LineEditor, Press, PressReader


def presses(*pieces: bytes) -> list[Press]:
    reader = PressReader()
    found = [press for piece in pieces for press in reader.presses(piece)]
    return [*found, *reader.end_escape()]


@pytest.mark.parametrize(
    ("pieces", "names"),
    [
        ([b"a\r\n\t\x7f"], ["a", "enter", "ctrl-j", "tab", "backspace"]),
        ([b"\x1b[A\x1bOB\x1b[5~\x1b[1;5C"], ["up", "down", "page-up", "right"]),
        ([b"\x1b", b"[", b"A"], ["up"]),
        ([b"\x1b"], ["escape"]),
        ([b"\x1bx\x03\x1d"], ["alt-x", "ctrl-c", "ctrl-]"]),
        (["ä€".encode()[:3], "ä€".encode()[3:]], ["ä", "€"]),
        ([b"\x1b[99~\x1b[I"], ["unknown", "unknown"]),
        ([b"\xff"], ["\N{REPLACEMENT CHARACTER}"]),
    ],
)
def test_bytes_are_key_presses_wherever_they_are_torn(pieces: list[bytes], names: list[str]) -> None:
    assert [press.name for press in presses(*pieces)] == names


def test_what_is_pasted_is_one_press() -> None:
    assert presses(b"a\x1b[200~q\rs", b"\x1b[A\x1b[201~b") == [Press("a"), Press("paste", "q\ns\x1b[A"), Press("b")]


@given(st.lists(st.binary(max_size=12), max_size=6))
def test_no_bytes_are_too_much(pieces: list[bytes]) -> None:
    presses(*pieces)


@pytest.mark.parametrize(
    ("begins", "keys", "shown"),
    [
        ("", b"abc\x1b[D\x1b[DX", "aX|bc"),
        ("one two", b"\x17", "one |"),
        ("one\ntwo", b"\x15x", "one\nx|"),
        ("one\ntwo", b"\x1b[A\x0b", "one|\ntwo"),
        ("one\ntwo", b"\x01\x1b[A\x1b[3~", "|ne\ntwo"),
        ("a", b"\x1b[H\x7f\nb", "\nb|a"),
        ("long line\nx", b"\x1b[A\x1b[A\x1b[B\x1b[B", "long line\nx|"),
        ("x", b"\x1b[200~y\rz\x1b[201~", "xy\nz|"),
    ],
)
def test_a_text_is_written_key_by_key(begins: str, keys: bytes, shown: str) -> None:
    editor = LineEditor.with_text(begins)
    for press in presses(keys):
        assert editor.press(press)
    assert f"{editor.text[: editor.cursor]}|{editor.text[editor.cursor :]}" == shown


@given(st.lists(st.sampled_from([b"a", b"\x7f", b"\x1b[A", b"\x1b[B", b"\x1b[C", b"\x1b[D", b"\n", b"\x17", b"\x15"])))
def test_the_cursor_never_leaves_the_text(keys: list[bytes]) -> None:
    editor = LineEditor()
    for press in presses(*keys):
        editor.press(press)
        assert 0 <= editor.cursor <= len(editor.text)
