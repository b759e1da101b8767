"""Messages of errors as one reads them: the output of a failed build as its terminal would show it, in plain text."""

from __future__ import annotations

import re

MOST_CHARACTERS = 12_000
_ESCAPE = r"(?:\x1b|\\u001b|\\x1b)"
_SEQUENCE = re.compile(
    rf"{_ESCAPE}\[[0-?]*[ -/]*[@-~]"  # colours, moves of the cursor
    rf"|{_ESCAPE}\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # titles, links
    r"|\x1b[PX^_][^\x1b\n]*(?:\x1b\\)?"
    r"|\x1b[ -/]*[0-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_BLANKS = re.compile(r"\n{3,}")


def readable(message: str) -> str:
    """The text without what a terminal obeys; its lines stay, of lines drawn over each other the last one."""
    plain = _SEQUENCE.sub("", message).replace("\r\n", "\n")
    lines = (line.rstrip("\r").rpartition("\r")[2].rstrip() for line in plain.split("\n"))
    text = _BLANKS.sub("\n\n", "\n".join(lines)).strip("\n")
    if len(text) <= MOST_CHARACTERS:
        return text
    half = MOST_CHARACTERS // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n… {left_out:,} characters are left out here …\n{text[-half:]}"
