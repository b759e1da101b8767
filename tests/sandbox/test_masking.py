"""Secrets are hidden in all that comes in pieces, wherever it is cut, and nothing else changes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.sandbox.masking import Masks

SECRETS = ("pa%40ss-w0rd", "pa@ss-w0rd", "me:pa%40ss-w0rd", "aab")
pieces = st.lists(st.sampled_from([*SECRETS, "p", "aa", "a", "me:", "ss-w0rd", "x", "\n", " ", "\0"]), max_size=12)


@given(pieces.map("".join), st.lists(st.integers(0, 80), max_size=6))
def test_it_does_not_matter_where_output_is_cut(text: str, cuts: list[int]) -> None:
    data, masks = text.encode(), Masks(SECRETS)
    stream, told, at = masks.stream(), b"", 0
    for cut in [*sorted(each for each in cuts if each < len(data)), len(data)]:
        told += stream.take(data[at:cut])
        at = cut
    told += stream.rest()
    assert len(told) == len(data)
    assert not any(secret.encode() in told for secret in SECRETS)
    assert all(new in (old, ord("*")) for old, new in zip(data, told, strict=True))


@given(st.text())
def test_other_text_is_left_alone(text: str) -> None:
    assert Masks(("a-long-secret",)).masked_text(text) == text
    assert Masks(()).masked_text(text) == text


@pytest.mark.parametrize(
    "between", ["\n", "\r\n", "\n%output %0 ", "\n%extended-output %3 12 : "], ids=lambda each: json.dumps(each)
)
def test_a_secret_is_found_across_lines_of_a_screen_and_of_tmux(between: str) -> None:
    masked = Masks(SECRETS).masked(f"at pa%40{between}ss-w0rd.".encode())
    assert masked == f"at *****{between}*******.".encode()


@pytest.mark.parametrize("between", ["", "\n", "\r\n", "\n%output %0 ", "\n%extended-output %3 12 : "], ids=json.dumps)
def test_a_secret_across_lines_is_found_wherever_it_is_cut(between: str) -> None:
    data = f"\nat pa%40{between}ss-w0rd.\n".encode()
    for cut in range(len(data) + 1):
        stream = Masks(SECRETS).stream()
        assert stream.take(data[:cut]) + stream.take(data[cut:]) + stream.rest() == (
            f"\nat *****{between}*******.\n".encode()
        )


def test_a_line_is_held_back_only_behind_the_beginning_of_a_secret_and_no_longer_than_until_the_next() -> None:
    stream = Masks(SECRETS).stream()
    assert stream.take(b"%end 12 34 p\n") == b"%end 12 34 p\n"
    assert stream.take(b"%output %0 px\n") == b"%output %0 px\n"
    assert stream.take(b"%output %0 p\n") == b"%output %0 "
    assert stream.take(b"%begin 1 2 3\n") == b"p\n%begin 1 2 3\n"
