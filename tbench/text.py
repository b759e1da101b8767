"""Makes text of models, tasks and servers safe for files, one-line messages and terminals; formats counts and sizes.

Invisible characters are escaped as in JSON, such as `\\u001b` for ESC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move the cursor, control a terminal, end a line or change the text direction, except newline and
tab."""
_UNSEEN_ASCII = bytes(code for code in range(128) if _UNSEEN.match(chr(code)))


ESCAPE = re.compile(
    r"\x1b\[(?P<sgr>[0-9;:]*)m"
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # other control sequences
    r"|\x1b[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\|\Z)"  # titles, links, device strings
    r"|\x1b[ -/]*[0-~]|\x1b"
)
"""A terminal's escape sequences; the codes of a style are in the group `sgr`."""
OVERWRITTEN = re.compile(r"^.*\r(?!\n|\Z)", re.MULTILINE)
"""The part of a line that a later part overwrote."""


def escape_invisible(text: str) -> str:
    """Escape the invisible characters of `text` except newlines and tabs."""
    if text.isascii():  # ten times faster for almost all text
        raw = text.encode("ascii")
        if len(raw.translate(None, _UNSEEN_ASCII)) == len(raw):
            return text
    return _UNSEEN.sub(lambda found: _escape(found[0]), text)


def replace_unseen(text: str, char: str) -> str:
    """Replace each invisible character, newline and tab of `text` by `char`, for use where escapes are too long."""
    return _UNSEEN.sub(char, text).replace("\n", char).replace("\t", char)


def without_escapes(text: str) -> str:
    """Return the text without a terminal's escapes; of an overwritten line, only the last version."""
    return OVERWRITTEN.sub("", ESCAPE.sub("", text.replace("\r\n", "\n"))).replace("\r", "")


def visible_line(text: str) -> str:
    """Escape the invisible characters, newlines and tabs of `text`, so that it stays on one line."""
    return escape_invisible(text).replace("\n", _escape("\n")).replace("\t", _escape("\t"))


def one_line(text: str, limit: int = 500) -> str:
    """Return `text` as one visible line for messages, shortened in the middle."""
    flat = escape_invisible(" ".join(text.split()))
    return flat if len(flat) <= limit else f"{flat[: limit // 2]} … {flat[-limit // 2 :]}"


def plain(text: str, limit: int = 300) -> str:
    """Return `text` as one printable line of at most `limit` characters, shortened at the end."""
    line = " ".join(text[: 4 * limit].split())
    line = "".join(char if char.isprintable() else _escape(char) for char in line)
    return line if len(line) <= limit else line[: limit - 3] + "..."


def counted(number: int, noun: str) -> str:
    """Format a number with a noun in singular or plural: `1 reply`, `2 replies`, `3 keys`."""
    if number == 1:
        return f"{number:,} {noun}"
    return f"{number:,} {re.sub(r'(?<![aeiou])y$', 'ie', noun)}s"


def size_text(size_bytes: float) -> str:
    """Format a number of bytes: `12 kB`, `0.3 MB`, `410 MB`, `3.4 GB`; units are powers of 1000."""
    megabytes = size_bytes / 1e6
    if megabytes >= 999.5:
        return f"{megabytes / 1000:,.1f} GB"
    if megabytes >= 9.95:
        return f"{megabytes:.0f} MB"
    return f"{megabytes:.1f} MB" if megabytes >= 0.0995 else f"{size_bytes / 1000:.0f} kB"


def names_text(names: Iterable[str], at_most: int = 5) -> str:
    """List the first few names and the number of further ones."""
    known = list(names)
    more = f" and {len(known) - at_most} more" if len(known) > at_most else ""
    return ", ".join(known[:at_most]) + more


def _escape(char: str) -> str:
    """Return the JSON escape of a character, or a replacement character for a lone surrogate."""
    if "\ud800" <= char <= "\udfff":
        return "\N{REPLACEMENT CHARACTER}"
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
