"""Text of models, tasks and servers, made fit for one line of a message or a terminal."""

from __future__ import annotations


def one_line(text: str, limit: int = 500) -> str:
    """`text` on one line, cut in the middle: messages end in tables, journals and terminals."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[: limit // 2]} … {flat[-limit // 2 :]}"


def plain(text: str, limit: int = 300) -> str:
    """One printable line of at most `limit` characters: it can neither move the cursor nor add a line."""
    line = " ".join(text[: 4 * limit].split())
    line = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in line)
    return line if len(line) <= limit else line[: limit - 3] + "..."
