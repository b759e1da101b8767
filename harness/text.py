"""Text of models in whatever format: thinking, half surrogate pairs.

Every function is linear in its input and none raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Span = tuple[int, int]

_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"


def strip_thinking(content: str, opaque: Iterable[Span] = ()) -> str:
    """The text that follows the thinking.

    Everything up to the last `</think>` is thinking, also without its opening tag; an unclosed `<think>`
    at the front makes all of it thinking. Tags inside the `opaque` spans are text, not tags.
    """
    close = masked(content, opaque).rfind(_THINK_CLOSE)
    answer = content[close + len(_THINK_CLOSE) :] if close >= 0 else content
    return "" if answer.lstrip().startswith(_THINK_OPEN) else answer


def masked(text: str, spans: Iterable[Span]) -> str:
    """`text` with dots in place of the spans: what is found there stands outside of them."""
    parts: list[str] = []
    copied = 0
    for start, end in sorted(spans):
        parts += (text[copied:start], "." * (end - max(start, copied)))
        copied = max(copied, end)
    return "".join((*parts, text[copied:]))


def after_thinking(content: str, reply_at: Callable[[str, int], Span | None]) -> str:
    """The text that follows the thinking, where a tag within the reply itself is text.

    `reply_at` gives the span of a whole reply that begins at an offset: the front, or behind the first `</think>`.
    """
    first = content.find(_THINK_CLOSE)
    starts = {0, first + len(_THINK_CLOSE)} if first >= 0 else {0}
    return strip_thinking(content, [span for start in starts if (span := reply_at(content, start))])


def without_lone_surrogates(text: str) -> str:
    """Text with U+FFFD for lone surrogates, which vLLM refuses with 400 and no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
