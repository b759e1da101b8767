"""Text functions that protocols share: fenced blocks, JSON as models write it, tool calls in a text, long output.

Every function is linear in its input and none raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from harness.errors import FormatError
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


_MOST_WARNINGS = 10


def warning_sentences(warnings: tuple[str, ...]) -> list[str]:
    """The sentences of `kind: sentence` warnings, for the model; a long list is shortened."""
    sentences = [warning.partition(": ")[2] for warning in warnings[:_MOST_WARNINGS]]
    more = len(warnings) - len(sentences)
    return [*sentences, f"... and {more} more."] if more else sentences


def unknown_fields(names: Iterable[str], known: Iterable[str], where: str = "") -> list[str]:
    """The warning about names that mean nothing here, if there are any."""
    unknown = dict.fromkeys(name for name in names if name not in known)
    shown = cut_middle(without_lone_surrogates(", ".join(unknown)), 200)
    return [f"unknown_field: {where}Unknown fields are ignored: {shown}."] if unknown else []


# Finds fenced code blocks, and what is wrong with them. Everything is linear and nothing raises.

SHELL = re.compile(r"(?<!`)(?P<fence>`{3,})(?P<label>bash|sh|shell)[ \t\r]*$", re.IGNORECASE)
"""The end of a line that opens a shell's block."""
ANY = re.compile(r"(?:^[ \t]*+|(?<!`)(?=`++\w))(?P<fence>`{3,})(?P<label>[^\s`]*+)[ \t\r]*+$")
"""The end of a line that opens a block of any label; without a label it has to be a whole line."""

_NESTED_OPENING = re.compile(r"^[ \t]*(`{3,})[ \t]*\w", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block, which may be unclosed."""

    label: str
    """The label as written."""
    fence: str
    start: int
    end: int
    command: str
    alone: bool
    """Whether only white space stands before the opening fence."""
    closed: bool

    @property
    def swallows_another(self) -> bool:
        """Whether a labelled block starts inside, so that this one was closed too early, or not at all."""
        return any(len(found[1]) >= len(self.fence) for found in _NESTED_OPENING.finditer(self.command))


def find_blocks(text: str, kind: re.Pattern[str]) -> list[Block]:
    """Every block of `text` whose opening line `kind` matches, in order; the last one may be unclosed.

    A block is ended by the first line that is its fence and nothing else.
    """
    blocks: list[Block] = []
    opening: re.Match[str] | None = None
    closing: tuple[str, ...] = ()
    start = body = offset = 0
    for line in text.split("\n"):
        after = offset + len(line) + 1
        if opening is None:
            opening, start, body = _opening(line, kind), offset, after
            closing = _closing(opening) if opening else ()
        elif line.rstrip() in closing:
            blocks.append(_block(text, opening, (start, min(after, len(text))), text[body:offset]))
            opening = None
        offset = after
    if opening is not None:
        blocks.append(_block(text, opening, (start, len(text)), text[body:], closed=False))
    return blocks


def whole_spans(blocks: Iterable[Block]) -> list[Span]:
    """The spans of blocks that are certainly whole, in which a thinking tag is text.

    One that holds its fence may be a draft in the thinking that ran into the answer's block.
    """
    return [(block.start, block.end) for block in blocks if block.closed and block.fence not in block.command]


def _opening(line: str, kind: re.Pattern[str]) -> re.Match[str] | None:
    return kind.search(line) if "```" in line else None


def _block(text: str, opening: re.Match[str], span: Span, body: str, *, closed: bool = True) -> Block:
    return Block(
        label=opening["label"],
        fence=opening["fence"],
        start=span[0] + opening.start("fence"),
        end=span[1],
        command=body.rstrip("\n"),
        alone=not opening.string[: opening.start("fence")].strip(),
        closed=closed,
    )


def _closing(opening: re.Match[str]) -> tuple[str, ...]:
    """The pattern of a block's closing line: the fence and nothing else, indented not at all or as its opening is."""
    before = opening.string[: opening.start("fence")]
    return (opening["fence"], before + opening["fence"]) if before.isspace() else (opening["fence"],)


# Decodes JSON as models write it: objects remember repeated fields, and only FormatError is raised.

_EXCERPT = 60


class Fields(dict[str, Any]):
    """A JSON object that remembers whether a field was given twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.twice = len(pairs) > len(self)


# int() refuses thousands of digits with an exception of its own; no field needs an int.
_DECODER = json.JSONDecoder(object_pairs_hook=Fields, parse_int=float)


def decode(text: str, start: int = 0) -> tuple[Any, int]:
    """The JSON value at `start` and where it ends. Raises FormatError."""
    try:
        return _DECODER.raw_decode(text, start)
    except RecursionError as error:
        raise FormatError("invalid_json", "Invalid JSON: it is nested too deeply.") from error
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - _EXCERPT) : error.pos + _EXCERPT]
        raise FormatError("invalid_json", f"Invalid JSON: {error.msg}, near {near!r}.") from error


# Finds tool calls that a server has left in a text, in whatever notation a model writes them.

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


def holds_raw_call(text: str) -> bool:
    """Whether the text holds a tool call in some model's own notation, which the server has not parsed.

    Also where the server has dropped the control tokens round it: then the function's name stands before its argument
    with nothing but notation between.
    """
    if _MARKUP.search(text) or (_NAME.search(text) and _ARGUMENTS.search(text)):
        return True
    for argument in _ARGUMENT.finditer(text):
        before = text[max(0, argument.start() - _CALL_CHARS) : argument.start()]
        _, named, between = before.rpartition("bash")
        if named and _NOTATION.search(between) and not _PROSE.search(between):
            return True
    return False
