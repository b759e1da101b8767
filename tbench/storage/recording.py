"""Reads recordings of terminals (asciicast version 2): header, events, and new output of a growing recording."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.trajectory import Step

PIECE_BYTES = 1 << 17
"""Maximum bytes that one call reads; if a recording has grown by more, the middle is skipped."""
_FIRST_BYTES = 1 << 12
_COLUMNS, _ROWS = 160, 40
_KIND_CHARS = 40
"""A line has its kind within so many characters, so lines of other kinds need not be parsed."""
_SEARCHED_INPUTS = 500
"""Number of inputs after the last action found in which the next one is searched."""


class CastEvent(NamedTuple):
    """An event of a recording: time in seconds, kind (`o` output, `i` input, `m` marker) and text."""

    at: float
    kind: str
    text: str


class CastHead(NamedTuple):
    """Header of a recording."""

    columns: int = _COLUMNS
    rows: int = _ROWS
    begun_at: float | None = None
    """Start of the recording as Unix time."""


class CastPiece(NamedTuple):
    """Output between two positions of a recording."""

    text: str
    end: int
    """Position in bytes at which the next call continues."""
    skipped: bool = False
    """Whether output before `text` was skipped, so that the screen cannot be derived from `text` alone."""


def cast_event(line: str | bytes) -> CastEvent | None:
    """Parse the event of a line; None for an incomplete or invalid line."""
    try:
        at, kind, text = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return None
    if isinstance(at, int | float) and math.isfinite(at) and isinstance(kind, str) and isinstance(text, str):
        return CastEvent(float(at), kind, text)
    return None


def cast_events(lines: Iterable[str], kinds: str) -> Iterator[CastEvent]:
    """Yield the events of these kinds."""
    marks = [f'"{kind}"' for kind in kinds]
    for line in lines:
        beginning = line[:_KIND_CHARS]
        is_likely = any(mark in beginning for mark in marks)
        if is_likely and (event := cast_event(line)) is not None and event.kind in kinds:
            yield event


def cast_head(file: Path) -> CastHead | None:
    """Read the header of a recording; None if it is not complete yet. Raises OSError."""
    with file.open("rb") as opened:
        first, end, _ = opened.read(_FIRST_BYTES).partition(b"\n")
    return parse_head(first) if end else None


def parse_head(line: str | bytes) -> CastHead:
    """Parse the first line of a recording, with defaults for missing values."""
    try:
        head = json.loads(line)
    except (ValueError, RecursionError):
        return CastHead()
    if not isinstance(head, dict):
        return CastHead()
    begun = head.get("timestamp")
    return CastHead(
        _number(head.get("width"), _COLUMNS),
        _number(head.get("height"), _ROWS),
        float(begun) if isinstance(begun, int | float) and 0 <= begun < 1e11 else None,
    )


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) and 0 < value <= 1000 else default


def cast_piece(file: Path, begin: int, size: int, most: int = PIECE_BYTES) -> CastPiece:
    """Read the output in a recording of `size` bytes from position `begin` on, at most `most` bytes.

    An incomplete last line is left for the next call. Raises OSError.
    """
    at = max(begin, size - most)
    with file.open("rb") as opened:
        opened.seek(at)
        data = opened.read(size - at)
    whole = data[: data.rfind(b"\n") + 1]
    lines = whole.decode("utf-8", "replace").split("\n")
    if at != begin or at == 0:  # starts in the middle of a line, or with the header
        lines = lines[1:]
    text = "".join(event.text for event in cast_events(lines, "o"))
    return CastPiece(text, at + len(whole), at != begin)


def first_action_times(steps: Sequence[Step], typed: Sequence[CastEvent]) -> dict[int, float]:
    """Return the time of each step's first action, by index of the step, if it is found among the inputs."""
    found: dict[int, float] = {}
    position = 0
    for step in steps:
        for action in filter(None, step.actions):
            wanted = action.replace("\0", "")
            near = range(position, min(position + _SEARCHED_INPUTS, len(typed)))
            at = next((n for n in near if typed[n].text == wanted), None)
            if at is None:
                break
            found.setdefault(step.index, typed[at].at)
            position = at + 1
    return found
