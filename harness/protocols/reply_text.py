"""Text functions shared by protocols: fenced blocks, models' JSON, tool calls in text, long output.

Every function takes time linear in its input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from harness.errors import FormatError
from harness.limits import OUTPUT_LIMIT_BYTES
from harness.model_text import Span, without_lone_surrogates
from harness.protocols.base import CommandResult, Gap, View

# An unclosed string matches up to the end of the text: if it failed there, the scan would start again at every quote.
# Group 1 is the closing quote. The inner quantifier is possessive, because backtracking cannot help.
JSON_TOKEN = re.compile(r'[{}\[\]]|"(?:[^"\\]++|\\.)*(")?', re.DOTALL)

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
    """Keep the first and last half of `limit_bytes` of UTF-8, around a line with the number of bytes left out."""
    gap = shorten(text, limit_bytes)
    return gap.text if gap else text


def shorten(text: str, limit_bytes: int) -> Gap | None:
    """Return the first and last half of `limit_bytes` of a text, in whole characters; None if it is short enough."""
    if _size(text) <= limit_bytes:
        return None
    return _without_middle(Gap(text, "", 0, 0), *_ends(text, text, limit_bytes))


def shorten_gap(gap: Gap, limit_bytes: int) -> Gap:
    """Shorten the ends of `gap` to `limit_bytes` in all; unchanged if they are short enough."""
    if _size(gap.head + gap.tail) <= limit_bytes:
        return gap
    return _without_middle(gap, *_ends(gap.head, gap.tail, limit_bytes))


def _ends(head: str, tail: str, limit_bytes: int) -> tuple[str, str]:
    half = limit_bytes // 2
    first, last = head.encode("utf-8", "replace"), tail.encode("utf-8", "replace")
    return first[:half].decode("utf-8", "ignore"), last[max(0, len(last) - half) :].decode("utf-8", "ignore")


def _without_middle(gap: Gap, head: str, tail: str) -> Gap:
    """Return `gap` with its ends shortened to `head` and `tail`, and the missing parts counted."""
    before, after = gap.head + gap.tail, head + tail
    return Gap(head, tail, gap.elided_bytes + _size(before) - _size(after), gap.elided_chars + len(before) - len(after))


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def first_balanced_object(text: str) -> Span | None:
    """Return the span from the first `{` to its closing brace; None if either is missing.

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
    """Return the canonical tmux key name if `text` is one as a whole, else None.

    As in tmux's key-string.c: any letter case, `C-`, `M-`, `S-` combined, `^x` for `C-x`. The hexadecimal, keypad,
    mouse and `User` forms are not keys here.
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


def render_view(view: View, limit_bytes: int = OUTPUT_LIMIT_BYTES) -> tuple[str, str]:
    """Return the heading and the shortened text with which the model is shown `view`."""
    if isinstance(view, CommandResult):
        gap = shown_gap(view, limit_bytes)
        return "New terminal output:", gap.text if gap else view.output
    if view.new_output is None:
        return "Current terminal screen:", cut_middle(view.screen, limit_bytes)
    if not view.new_output.strip():
        return "No new terminal output. Current terminal screen:", cut_middle(view.screen, limit_bytes)
    elided = f" ({view.elided_lines} lines in its middle left out)" if view.elided_lines else ""
    return f"New terminal output{elided}:", cut_middle(view.new_output, limit_bytes)


def shown_gap(result: CommandResult, limit_bytes: int) -> Gap | None:
    """Return the shown ends of an output that is too long, with counts of what is missing; None if shown in full."""
    if result.gap is None:
        return shorten(result.output, limit_bytes)
    return shorten_gap(result.gap, limit_bytes)


_MAX_WARNINGS = 10


def warning_sentences(warnings: tuple[str, ...]) -> list[str]:
    """Return the sentences of `kind: sentence` warnings for the model; a long list is shortened."""
    sentences = [warning.partition(": ")[2] for warning in warnings[:_MAX_WARNINGS]]
    more = len(warnings) - len(sentences)
    return [*sentences, f"... and {more} more."] if more else sentences


def unknown_fields(names: Iterable[str], known: Iterable[str], where: str = "") -> list[str]:
    """Return the warning about unknown names, if there are any."""
    unknown = dict.fromkeys(name for name in names if name not in known)
    shown = cut_middle(without_lone_surrogates(", ".join(unknown)), 200)
    return [f"unknown_field: {where}Unknown fields are ignored: {shown}."] if unknown else []


# Fenced code blocks.

SHELL = re.compile(r"(?<!`)(?P<fence>`{3,})(?P<label>bash|sh|shell)[ \t\r]*$", re.IGNORECASE)
"""End of a line that opens a shell block."""
ANY = re.compile(r"(?:^[ \t]*+|(?<!`)(?=`++\w))(?P<fence>`{3,})(?P<label>[^\s`]*+)[ \t\r]*+$")
"""End of a line that opens a block with any label; without a label, the fence must be the whole line."""

_NESTED_OPENING = re.compile(r"^[ \t]*(`{3,})[ \t]*\w", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block, which may be unclosed."""

    label: str
    """Label as written."""
    fence: str
    start: int
    end: int
    command: str
    alone: bool
    """Whether only white space stands before the opening fence."""
    closed: bool

    @property
    def contains_another(self) -> bool:
        """Whether a labelled block starts inside, so that this one was closed too early or not at all."""
        return any(len(found[1]) >= len(self.fence) for found in _NESTED_OPENING.finditer(self.command))


def find_blocks(text: str, kind: re.Pattern[str]) -> list[Block]:
    """Return all blocks of `text` whose opening line matches `kind`, in order; the last one may be unclosed.

    A block ends at the first line that consists of its fence.
    """
    blocks: list[Block] = []
    opening: re.Match[str] | None = None
    closing: tuple[str, ...] = ()
    start = body = offset = 0
    for line in text.split("\n"):
        after = offset + len(line) + 1
        if opening is None:
            opening, start, body = kind.search(line) if "```" in line else None, offset, after
            closing = _closing(opening) if opening else ()
        elif line.rstrip() in closing:
            blocks.append(_block(opening, (start, min(after, len(text))), text[body:offset]))
            opening = None
        offset = after
    if opening is not None:
        blocks.append(_block(opening, (start, len(text)), text[body:], closed=False))
    return blocks


def whole_spans(blocks: Iterable[Block]) -> list[Span]:
    """Return the spans of blocks that are certainly complete; a thinking tag inside them is plain text.

    A block that contains its own fence may be an unclosed draft in the thinking that took in the answer's block.
    """
    return [(block.start, block.end) for block in blocks if block.closed and block.fence not in block.command]


def _block(opening: re.Match[str], span: Span, body: str, *, closed: bool = True) -> Block:
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
    """Return the possible closing lines of a block: its fence, not indented or indented like the opening."""
    before = opening.string[: opening.start("fence")]
    return (opening["fence"], before + opening["fence"]) if before.isspace() else (opening["fence"],)


# Models' JSON: objects remember repeated fields, and only FormatError is raised.

_EXCERPT = 60


class Fields(dict[str, Any]):
    """A JSON object that remembers whether a field was given twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.has_duplicates = len(pairs) > len(self)


# int() refuses thousands of digits with an exception of its own; no field needs an int.
_DECODER = json.JSONDecoder(object_pairs_hook=Fields, parse_int=float)


def decode(text: str, start: int = 0) -> tuple[Any, int]:
    """Decode the JSON value at `start`, and return it with the index of its end. Raises FormatError."""
    try:
        return _DECODER.raw_decode(text, start)
    except RecursionError as error:
        raise FormatError("invalid_json", "Invalid JSON: it is nested too deeply.") from error
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - _EXCERPT) : error.pos + _EXCERPT]
        raise FormatError("invalid_json", f"Invalid JSON: {error.msg}, near {near!r}.") from error


# Tool calls that a server has left unparsed in a text, in any model's notation.

_MARKUP = re.compile(
    r"<[|\uff5c][^\s<>]{0,40}?(?i:tool|call|func|invoke|python_tag|action|plugin|channel)"
    r"|<(?:/?[\w-]+:)?(?:tool_calls?\b|TOOLCALL|function_calls?\b|tool_use\b|function=|parameter=|invoke name=)"
    r"|\[TOOL_CALLS\]"
)
"""Control tokens and tags that chat templates put around calls."""
_NAME = re.compile(r"""["'](?:tool_?)?(?:name|function)["']\s*:\s*["']""")
_ARGUMENTS = re.compile(r"""["'](?:arguments|parameters)["']\s*:\s*["'{]""")
_ARGUMENT = re.compile(r"""(?:(?<=[{(,"'>])|^[ \t]*)(?:command(?:["'`]?\s*[:=]|<)|(?<=bash\()["'])""", re.MULTILINE)
"""Name of our function's argument, in a call's notation; Python calls may omit it."""
_NOTATION = re.compile(r"""[{(<\[":]""")
_PROSE = re.compile(r"[^\W\d_]\s+[^\W\d_]")
"""Two words with a space between: prose, not notation."""
_CALL_CHARS = 120
"""Maximum number of characters between the name of a function and the name of its argument."""


def holds_raw_call(text: str) -> bool:
    """Whether the text holds a tool call in some model's own notation, which the server has not parsed.

    Also finds calls whose control tokens the server has dropped: a function name before its argument, separated only by
    notation.
    """
    if _MARKUP.search(text) or (_NAME.search(text) and _ARGUMENTS.search(text)):
        return True
    for argument in _ARGUMENT.finditer(text):
        before = text[max(0, argument.start() - _CALL_CHARS) : argument.start()]
        _, named, between = before.rpartition("bash")
        if named and _NOTATION.search(between) and not _PROSE.search(between):
            return True
    return False
