"""last_line: the line that the cursor stands on, and which lines are prompts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.terminal.last_line import LastLine, looks_like_prompt, looks_like_shell_prompt, same_prompt


def test_the_line_is_what_came_since_the_last_line_break() -> None:
    line = LastLine()
    line.follow(b"one\r\ntwo\r\n\x1b[32mroot\x1b[0m@box:~# ")
    assert (line.text, line.is_fresh) == ("root@box:~#", True)
    line.begin()
    line.follow(b"ls")
    assert (line.text, line.is_fresh) == ("root@box:~# ls", False)


@pytest.mark.parametrize("cleared", [b"\x1b[2J", b"\x1b[H\x1b[J", b"\x1bc", b"\x1b[1;1H"])
def test_a_cleared_screen_begins_the_line_too(cleared: bytes) -> None:
    line = LastLine()
    line.begin()
    line.follow(cleared)
    assert line.is_fresh


@given(st.lists(st.one_of(st.binary(max_size=9), st.sampled_from([b"\r\n", b"\x1b[2J", b"$ ", b"x" * 5000]))))
def test_how_often_it_is_looked_at_makes_no_difference(pieces: list[bytes]) -> None:
    often, once = LastLine(), LastLine()
    for piece in pieces:
        often.follow(piece)
        once.follow(piece)
        assert isinstance(often.is_fresh, bool)
    assert often.text[-1000:] == once.text[-1000:]


@pytest.mark.parametrize("text", ["root@box:~#", "$", "user$", ">>>", "(gdb)", "In [12]:", "box%", "❯", "db=#"])
def test_prompts_are_known_by_their_ends(text: str) -> None:
    assert looks_like_prompt(text)


@pytest.mark.parametrize("text", ["####", "100%", "37.5 %" + "x", "done.", "[====>   ", "Password:", ""])
def test_progress_and_questions_are_no_shells_prompts(text: str) -> None:
    assert not looks_like_shell_prompt(text)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a@b:~$", "a@b:/tmp/x$", True),
        ("In [1]:", "In [23]:", True),
        ("a@b:~$", "a@c:~$", False),
        ("$", "#", False),
        ("", "", False),
    ],
)
def test_a_prompt_is_the_same_whatever_its_directory_and_numbers_are(one: str, other: str, same: bool) -> None:
    assert same_prompt(one, other) == same
