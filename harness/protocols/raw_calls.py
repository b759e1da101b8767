"""Finds tool calls that a server has left in a text, in whatever notation a model writes them."""

from __future__ import annotations

import re

_MARKUP = re.compile(
    r"<[|\uff5c][^\s<>]{0,40}?(?i:tool|call|func|invoke|python_tag|action|plugin|channel)"
    r"|<(?:/?[\w-]+:)?(?:tool_calls?\b|TOOLCALL|function_calls?\b|tool_use\b|function=|parameter=|invoke name=)"
    r"|\[TOOL_CALLS\]"
)
"""Control tokens and tags with which chat templates surround calls."""
_NAME = re.compile(r"""["'](?:tool_?)?(?:name|function)["']\s*:\s*["']""")
_ARGUMENTS = re.compile(r"""["'](?:arguments|parameters)["']\s*:\s*["'{]""")
_ARGUMENT = re.compile(r"""(?:(?<=[{(,"'>])|^[ \t]*)(?:command(?:["'`]?\s*[:=]|<)|(?<=bash\()["'])""", re.MULTILINE)
"""The name of our function's argument, in a call's notation; Python may leave it out."""
_NOTATION = re.compile(r"""[{(<\[":]""")
_PROSE = re.compile(r"[^\W\d_]\s+[^\W\d_]")
"""Two words with a space between: a sentence, no notation."""
_CALL_CHARS = 120
"""Most characters between a function's name and that of its argument."""


def holds_raw_call(text: str, function: str = "bash") -> bool:
    """Whether the text holds a tool call in some model's own notation, which the server has not parsed.

    Also where the server has dropped the control tokens round it: then the function's name stands before its argument
    with nothing but notation between.
    """
    if _MARKUP.search(text) or (_NAME.search(text) and _ARGUMENTS.search(text)):
        return True
    for argument in _ARGUMENT.finditer(text):
        before = text[max(0, argument.start() - _CALL_CHARS) : argument.start()]
        _, named, between = before.rpartition(function)
        if named and _NOTATION.search(between) and not _PROSE.search(between):
            return True
    return False
