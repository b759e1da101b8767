"""Thinking, and half surrogate pairs."""

from __future__ import annotations

import pytest

from harness.text import masked, strip_thinking, without_lone_surrogates


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("plain", "plain"),
        ("", ""),
        ("<think>a</think>b", "b"),
        ("  \n<think>a</think>\n\nb", "\n\nb"),
        ("a</think>b", "b"),
        ("<think>a</think>b</think>c", "c"),
        ("<think>a", ""),
        ("\n <think>a {} ```bash", ""),
        ("<think>a</think><think>b", ""),
        ("say <think> in the middle", "say <think> in the middle"),
        ("</think>", ""),
    ],
)
def test_thinking_is_stripped(content: str, answer: str) -> None:
    assert strip_thinking(content) == answer


def test_a_tag_in_an_opaque_span_is_text() -> None:
    content = "<think>a</think>[</think>]b"
    assert strip_thinking(content, [(16, 26)]) == "[</think>]b"
    assert strip_thinking("[</think>]b", [(0, 10)]) == "[</think>]b"


def test_masked_text_keeps_its_length_whatever_the_spans() -> None:
    assert masked("abcdefg", [(4, 6), (0, 2)]) == "..cd..g"
    assert masked("abcdefg", [(0, 5), (1, 3), (3, 6)]) == "......g"
    assert masked("abc", []) == "abc"


def test_lone_surrogates_are_replaced() -> None:
    assert without_lone_surrogates("a\ud800b😀\ud83d\ude00") == "a\ufffdb😀😀"
