"""Text of models, tasks and servers, made fit for a terminal."""

from __future__ import annotations


def plain(text: str, limit: int = 300) -> str:
    """One printable line of at most `limit` characters: it can neither move the cursor nor add a line."""
    line = " ".join(text[: 4 * limit].split())
    line = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in line)
    return line if len(line) <= limit else line[: limit - 3] + "..."
