"""Finds control tokens of chat models in text: servers turn them into the real tokens, so a file can forge turns.

Pure and linear. Known are the tokens of the chat templates and tokenizers of Qwen, Llama, Gemma, DeepSeek, Mistral,
GLM, Phi, gpt-oss and what follows their patterns. `<think>`, `<tool_call>` and `<tool_response>` are among them: in
several vocabularies they are single tokens that a template also writes. XML-like words that no vocabulary holds as
one token (`<thinking>`, `<response>`) are not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

# Every pattern begins with `<` or `[`, has neither anywhere else, and no white space: so the space that `neutralise`
# puts behind the first character ends the match and cannot begin another.
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
_NAMED = 5


def special_tokens(text: str) -> tuple[str, ...]:
    """The control tokens in `text`, each once, in the order of their first appearance."""
    if "<" not in text and "[" not in text:  # every step asks, and the pattern takes a hundred times as long
        return ()
    return tuple(dict.fromkeys(_TOKEN.findall(text)))


def neutralise(text: str) -> str:
    """`text` with a space behind the first character of every control token: `< |im_end|>`.

    A space, because normalising tokenizers remove characters without width. Idempotent; afterwards none is found.
    """
    return _TOKEN.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)


class Admitted(str):
    """A text that has passed the gate, or that was made of such texts and of the harness's own words."""


class TokenGate:
    """The one way for text from outside into a conversation: its control tokens are noted, and defused if wished.

    `hide` takes secrets out of it.
    """

    def __init__(self, *, defuses: bool = False, hide: Callable[[str], str] = str) -> None:
        self._defuses = defuses
        self._hide = hide
        self._found: dict[str, None] = {}

    def admit(self, text: str) -> Admitted:
        """`text` as it may be told to a model."""
        if isinstance(text, Admitted):
            return text
        text = self._hide(text)
        self._found |= dict.fromkeys(special_tokens(text))
        return Admitted(neutralise(text) if self._defuses else text)

    def take_found(self) -> tuple[str, ...]:
        """Take the tokens that were in what was admitted since the last time."""
        found, self._found = tuple(self._found), {}
        return found


def special_tokens_warning(tokens: Iterable[str], where: str) -> str:
    """The warning `special_tokens: …` for a step."""
    found = list(tokens)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"special_tokens: {where} contains {', '.join(found[:_NAMED])}{more}."
