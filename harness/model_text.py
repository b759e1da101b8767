"""Functions for models' text in any format: thinking, lone surrogates, and control tokens that a file could forge.

Every function is linear in its input and none raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

Span = tuple[int, int]

_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"


def strip_thinking(content: str, opaque: Iterable[Span] = ()) -> str:
    """Return the text after the thinking.

    Everything up to the last `</think>` is thinking, also without its opening tag; an unclosed `<think>` at the front
    of the rest makes all of the rest thinking. Tags inside the `opaque` spans are text, not tags.
    """
    close = mask_spans(content, opaque).rfind(_THINK_CLOSE)
    answer = content[close + len(_THINK_CLOSE) :] if close >= 0 else content
    return "" if answer.lstrip().startswith(_THINK_OPEN) else answer


def mask_spans(text: str, spans: Iterable[Span]) -> str:
    """Return `text` with the spans replaced by dots, so that searches only find matches outside them."""
    parts: list[str] = []
    copied = 0
    for start, end in sorted(spans):
        parts += (text[copied:start], "." * (end - max(start, copied)))
        copied = max(copied, end)
    return "".join((*parts, text[copied:]))


def after_thinking(content: str, reply_at: Callable[[str, int], Span | None]) -> str:
    """Return the text after the thinking; tags within the reply itself are text.

    `reply_at` gives the span of a complete reply at an offset: the front, or after the first `</think>`.
    """
    first = content.find(_THINK_CLOSE)
    starts = {0, first + len(_THINK_CLOSE)} if first >= 0 else {0}
    return strip_thinking(content, [span for start in starts if (span := reply_at(content, start))])


def without_lone_surrogates(text: str) -> str:
    """Replace lone surrogates, which vLLM refuses with 400 and no file can hold, by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


# Control tokens of chat models in text: servers turn them into the real tokens, so a file can forge turns.
#
# Covers the tokens of the chat templates and tokenizers of Qwen, Llama, Gemma, DeepSeek, Mistral, GLM, Phi, gpt-oss
# and tokens that follow their patterns. `<think>`, `<tool_call>` and `<tool_response>` are included: in several
# vocabularies they are single tokens that a template also writes. XML-like tags that are not a single token anywhere
# (`<thinking>`, `<response>`) are not.

# Every pattern begins with `<` or `[`, has neither anywhere else, and no white space: so the space that `neutralise`
# inserts after the first character ends the match and cannot begin another.
_TOKEN = re.compile(
    r"""
      <\|[\w."/:+-]{1,64}\|?>                  # <|im_start|>, <|eot_id|>, <|channel|>; Gemma's <|turn>, <|"|>
    | <[A-Za-z_0-9]{1,64}\|>                   # Gemma's <turn|>
    | </?\uff5c[^\uff5c<>\[\]\s]{1,64}\uff5c>? # DeepSeek's, with full-width bars
    | <(?:start|end)_of_(?:turn|image|audio)>
    | </?(?:think|tool_call|tool_response|arg_key|arg_value)>
    | <(?:bos|eos|pad|unk|mask|sop|eop)>
    | </?s>
    | </?seed:[a-z_]{1,64}>
    | \[gMASK\]
    | \[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS|TOOL_CALLS|TOOL_CONTENT|THINK|ARGS|CALL_ID|IMG)\]
    """,
    re.VERBOSE,
)
_MAX_NAMED = 5


def special_tokens(text: str) -> tuple[str, ...]:
    """Return the control tokens in `text`, each once, in order of first appearance."""
    if "<" not in text and "[" not in text:  # called at every step, and the pattern takes a hundred times as long
        return ()
    return tuple(dict.fromkeys(_TOKEN.findall(text)))


def neutralise(text: str) -> str:
    """Insert a space after the first character of every control token: `< |im_end|>`.

    A space, because normalising tokenizers remove zero-width characters. Idempotent; the result has no control tokens.
    """
    return _TOKEN.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)


class Admitted(str):
    """Text that a TokenGate has admitted, or that consists of such text and the harness's own."""


class TokenGate:
    """Filter for all outside text that enters a conversation: records its control tokens, and defuses them on request.

    `hide` removes secrets from the text.
    """

    def __init__(self, *, defuses: bool = False, hide: Callable[[str], str] = str) -> None:
        self._defuses = defuses
        self._hide = hide
        self._found: dict[str, None] = {}

    def admit(self, text: str) -> Admitted:
        """Return `text` in the form in which it may be sent to a model."""
        if isinstance(text, Admitted):
            return text
        text = self._hide(text)
        self._found |= dict.fromkeys(special_tokens(text))
        return Admitted(neutralise(text) if self._defuses else text)

    def take_found(self) -> tuple[str, ...]:
        """Return the control tokens found since the last call, and forget them."""
        found, self._found = tuple(self._found), {}
        return found


def special_tokens_warning(tokens: Iterable[str], where: str) -> str:
    """Return the warning `special_tokens: …` for a step."""
    found = list(tokens)
    more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    return f"special_tokens: {where} contains {', '.join(found[:_MAX_NAMED])}{more}."
