"""Finds fenced code blocks, and what is wrong with them. Everything is linear and nothing raises."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from harness.text import Span

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
