"""Text that all protocols deal with: balanced objects, key names, long output.

Every function is linear in its input and none raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from harness.protocols.base import CommandResult, ScreenView, View
from harness.text import Span, without_lone_surrogates

OUTPUT_LIMIT_BYTES = 10_000

# A string token always matches up to the end of the text: if it could fail there, the scan would start
# again at every quote. Group 1 is its closing quote; possessive, because there is nothing to try again.
JSON_TOKEN = re.compile(r'[{}\[\]]|"(?:[^"\\]++|\\.)*+(")?', re.DOTALL)

_KEY = re.compile(r"(\^?)((?:[CMS]-)*)(.+)", re.IGNORECASE)
_NAMED_KEYS = {
    name.lower(): name
    for name in (
        *("Enter", "Escape", "Tab", "BTab", "Space", "BSpace", "Up", "Down", "Left", "Right", "Home", "End"),
        *("PageUp", "PageDown", "PgUp", "PgDn", "PPage", "NPage", "IC", "DC", "Insert", "Delete"),
        *(f"F{number}" for number in range(1, 13)),
    )
}
_LONGEST_KEY = 20
_NO_CONTROL_KEY = frozenset('"$%&*{|}~')


def cut_middle(text: str, limit_bytes: int = OUTPUT_LIMIT_BYTES, *, already_left_out: int = 0) -> str:
    """Keep the first and last half of `limit_bytes` of UTF-8, whole characters only.

    A line between the halves says how many bytes were left out, `already_left_out` of them elsewhere before.
    """
    cut = halves(text, limit_bytes)
    if cut is None:
        return text
    head, tail = cut
    shown = len(head.encode()) + len(tail.encode())
    left_out = len(text.encode("utf-8", "replace")) - shown + already_left_out
    return f"{head}\n[... {left_out} bytes left out ...]\n{tail}"


def halves(text: str, limit_bytes: int) -> tuple[str, str] | None:
    """The ends of a text of more than `limit_bytes` of UTF-8, half as long each, whole characters only."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit_bytes:
        return None
    half = limit_bytes // 2
    return data[:half].decode("utf-8", "ignore"), data[len(data) - half :].decode("utf-8", "ignore")


def first_balanced_object(text: str) -> Span | None:
    """From the first `{` to the brace that closes it; None where there is none or it stays open.

    Braces inside JSON strings do not count.
    """
    start = text.find("{")
    depth = 0
    for token in JSON_TOKEN.finditer(text, start) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0:
            return start, token.end()
    return None


def key_name(text: str) -> str | None:
    """The tmux key that `text` names as a whole, in canonical spelling, or None where it is text.

    As in tmux's key-string.c: any letter case, `C-`, `M-`, `S-` combined, `^x` for `C-x`. Not keys here:
    the hexadecimal, keypad, mouse and `User` forms.
    """
    match = _KEY.fullmatch(text) if len(text) <= _LONGEST_KEY else None
    if match is None:
        return None
    modifiers = ("C-" if match[1] else "") + match[2].upper()
    base = match[3]
    if named := _NAMED_KEYS.get(base.lower()):
        return modifiers + named
    if not modifiers or len(base) > 1 or not (base.isascii() and base.isprintable()):
        return None
    if "C-" not in modifiers:
        return modifiers + base
    return None if base in _NO_CONTROL_KEY else modifiers + base.lower()


def seen(view: View, limit_bytes: int = OUTPUT_LIMIT_BYTES) -> tuple[str, str]:
    """What a keystroke protocol shows of `view`: a heading that says what it is, and the text, cut."""
    if isinstance(view, CommandResult):
        return "New terminal output:", cut_middle(view.output, limit_bytes, already_left_out=view.elided_bytes)
    if view.new_output is None:
        return "Current terminal screen:", cut_middle(view.screen, limit_bytes)
    if not view.new_output.strip():
        return "No new terminal output. Current terminal screen:", cut_middle(view.screen, limit_bytes)
    return _new_output_heading(view), cut_middle(view.new_output, limit_bytes)


def _new_output_heading(view: ScreenView) -> str:
    if not view.elided_lines:
        return "New terminal output:"
    return f"New terminal output ({view.elided_lines} lines in its middle left out):"


def warning_sentences(warnings: tuple[str, ...], at_most: int = 10) -> list[str]:
    """The sentences of `kind: sentence` warnings for the model, a long list shortened."""
    sentences = [warning.partition(": ")[2] for warning in warnings[:at_most]]
    more = len(warnings) - len(sentences)
    return [*sentences, f"... and {more} more."] if more else sentences


def unknown_fields(names: Iterable[str], known: Iterable[str], where: str = "") -> list[str]:
    """The warning about names that mean nothing here, if there are any."""
    unknown = dict.fromkeys(name for name in names if name not in known)
    shown = cut_middle(without_lone_surrogates(", ".join(unknown)), 200)
    return [f"unknown_field: {where}Unknown fields are ignored: {shown}."] if unknown else []
