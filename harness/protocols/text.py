"""Text functions that protocols share: balanced objects, key names, long output.

Every function is linear in its input and none raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from harness.limits import OUTPUT_LIMIT_BYTES
from harness.protocols.base import CommandResult, Gap, ScreenView, View
from harness.text import Span, without_lone_surrogates

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


def cut_middle(text: str, limit_bytes: int = OUTPUT_LIMIT_BYTES) -> str:
    """The first and last half of `limit_bytes` of UTF-8, around a line that says how much was left out."""
    gap = shortened(text, limit_bytes)
    return gap.text if gap else text


def shortened(text: str, limit_bytes: int) -> Gap | None:
    """The first and last half of `limit_bytes` of a text, in whole characters; None for one that is not longer."""
    if _size(text) <= limit_bytes:
        return None
    return _without_middle(Gap(text, "", 0, 0), *_ends(text, text, limit_bytes))


def widened(gap: Gap, limit_bytes: int) -> Gap:
    """`gap` with its ends cut as `shortened` cuts a text; unchanged where they are short enough together."""
    if _size(gap.head + gap.tail) <= limit_bytes:
        return gap
    return _without_middle(gap, *_ends(gap.head, gap.tail, limit_bytes))


def _ends(head: str, tail: str, limit_bytes: int) -> tuple[str, str]:
    half = limit_bytes // 2
    first, last = head.encode("utf-8", "replace"), tail.encode("utf-8", "replace")
    return first[:half].decode("utf-8", "ignore"), last[max(0, len(last) - half) :].decode("utf-8", "ignore")


def _without_middle(gap: Gap, head: str, tail: str) -> Gap:
    """`gap` whose ends were cut to `head` and `tail`, counting as missing what that took."""
    before, after = gap.head + gap.tail, head + tail
    return Gap(head, tail, gap.elided_bytes + _size(before) - _size(after), gap.elided_chars + len(before) - len(after))


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def first_balanced_object(text: str) -> Span | None:
    """The span from the first `{` to the brace that closes it; None where there is none or it stays open.

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
    """The heading and the text, cut, by which a keystroke protocol shows `view`."""
    if isinstance(view, CommandResult):
        gap = gap_shown(view, limit_bytes)
        return "New terminal output:", gap.text if gap else view.output
    if view.new_output is None:
        return "Current terminal screen:", cut_middle(view.screen, limit_bytes)
    if not view.new_output.strip():
        return "No new terminal output. Current terminal screen:", cut_middle(view.screen, limit_bytes)
    return _new_output_heading(view), cut_middle(view.new_output, limit_bytes)


def gap_shown(result: CommandResult, limit_bytes: int) -> Gap | None:
    """The form in which an output that is too long is shown, with all that is missing counted; None for a whole one."""
    if result.gap is None:
        return shortened(result.output, limit_bytes)
    return widened(result.gap, limit_bytes)


def _new_output_heading(view: ScreenView) -> str:
    if not view.elided_lines:
        return "New terminal output:"
    return f"New terminal output ({view.elided_lines} lines in its middle left out):"


def warning_sentences(warnings: tuple[str, ...], at_most: int = 10) -> list[str]:
    """The sentences of `kind: sentence` warnings, for the model; a long list is shortened."""
    sentences = [warning.partition(": ")[2] for warning in warnings[:at_most]]
    more = len(warnings) - len(sentences)
    return [*sentences, f"... and {more} more."] if more else sentences


def unknown_fields(names: Iterable[str], known: Iterable[str], where: str = "") -> list[str]:
    """The warning about names that mean nothing here, if there are any."""
    unknown = dict.fromkeys(name for name in names if name not in known)
    shown = cut_middle(without_lone_surrogates(", ".join(unknown)), 200)
    return [f"unknown_field: {where}Unknown fields are ignored: {shown}."] if unknown else []
