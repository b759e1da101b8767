"""Text of models, tasks and servers, made fit for a file, for one line of a message, or for a terminal.

What is no visible character is written as its escape, `\\u001b` for ESC, which says the same within a JSON string.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What moves a cursor, changes a terminal, ends a line or turns the reading direction, but for newline and tab."""


def visible(text: str) -> str:
    """`text` without anything that a terminal obeys or that changes how it reads; its lines and tabs stay."""
    return _UNSEEN.sub(lambda found: _escape(found[0]), text)


def unseen_as(text: str, char: str) -> str:
    """`text` with `char` for each such character, for newlines and for tabs: where escapes would be too long."""
    return _UNSEEN.sub(char, text).replace("\n", char).replace("\t", char)


def visible_line(text: str) -> str:
    """The same as one line: `text` cannot end it and begin another."""
    return visible(text).replace("\n", _escape("\n")).replace("\t", _escape("\t"))


def one_line(text: str, limit: int = 500) -> str:
    """`text` on one visible line, cut in the middle: messages end in tables, journals and terminals."""
    flat = visible(" ".join(text.split()))
    return flat if len(flat) <= limit else f"{flat[: limit // 2]} … {flat[-limit // 2 :]}"


def plain(text: str, limit: int = 300) -> str:
    """One printable line of at most `limit` characters: it can neither move the cursor nor add a line."""
    line = " ".join(text[: 4 * limit].split())
    line = "".join(char if char.isprintable() else _escape(char) for char in line)
    return line if len(line) <= limit else line[: limit - 3] + "..."


def counted(number: int, noun: str) -> str:
    """A number and what is counted."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size_shown(size_bytes: float) -> str:
    """A number of bytes as one reads it: `12 kB`, `0.3 MB`, `410 MB`, `3.4 GB`; units are powers of 1000."""
    megabytes = size_bytes / 1e6
    if megabytes >= 999.5:
        return f"{megabytes / 1000:,.1f} GB"
    if megabytes >= 9.95:
        return f"{megabytes:.0f} MB"
    return f"{megabytes:.1f} MB" if megabytes >= 0.0995 else f"{size_bytes / 1000:.0f} kB"


def names_shown(names: Iterable[str], at_most: int = 5) -> str:
    """The first few of some names, and how many more there are."""
    known = list(names)
    more = f" and {len(known) - at_most} more" if len(known) > at_most else ""
    return ", ".join(known[:at_most]) + more


def _escape(char: str) -> str:
    """The escape that JSON has for a character; half a surrogate pair has none."""
    if "\ud800" <= char <= "\udfff":
        return "\N{REPLACEMENT CHARACTER}"
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
