"""Recordings of terminals (asciicast version 2): their head, their events, and what is new in one that grows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.trajectory import Step

PIECE_BYTES = 1 << 17
"""Most that one look reads; of a recording that has grown by more, the middle is left out."""
_FIRST_BYTES = 1 << 12
_COLUMNS, _ROWS = 160, 40
_KIND_WITHIN = 40
"""Characters of a line in which its kind stands: output is most of a recording, and need not be looked at."""
_NEAR = 500
"""How many inputs further on an action is looked for."""


class CastEvent(NamedTuple):
    """An event of a recording: seconds, and `o` for output, `i` for input or `m` for a marker with its text."""

    at: float
    kind: str
    text: str


class CastHead(NamedTuple):
    """What the first line of a recording says."""

    columns: int = _COLUMNS
    rows: int = _ROWS
    begun_at: float | None = None
    """Unix time of its begin."""


class CastPiece(NamedTuple):
    """What was printed between two places of a recording."""

    text: str
    end: int
    """Where the next look begins, in bytes."""
    skipped: bool = False
    """Whether something before it was left out, so that the screen is not known from it alone."""


def cast_event(line: str | bytes) -> CastEvent | None:
    """The event of a line; None for one that is torn, or none."""
    try:
        at, kind, text = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return None
    if isinstance(at, int | float) and math.isfinite(at) and isinstance(kind, str) and isinstance(text, str):
        return CastEvent(float(at), kind, text)
    return None


def cast_events(lines: Iterable[str], kinds: str) -> Iterator[CastEvent]:
    """The events of these kinds in some lines."""
    marks = [f'"{kind}"' for kind in kinds]
    for line in lines:
        beginning = line[:_KIND_WITHIN]
        is_likely = any(mark in beginning for mark in marks)
        if is_likely and (event := cast_event(line)) is not None and event.kind in kinds:
            yield event


def cast_head(file: Path) -> CastHead | None:
    """The head of a recording; None where there is none yet. Raises OSError."""
    with file.open("rb") as opened:
        first, end, _ = opened.read(_FIRST_BYTES).partition(b"\n")
    return head_of(first) if end else None


def head_of(line: str | bytes) -> CastHead:
    """What the first line of a recording says; the usual where it says nothing."""
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


def _number(value: object, usual: int) -> int:
    return value if isinstance(value, int) and 0 < value <= 1000 else usual


def cast_piece(file: Path, begin: int, size: int, most: int = PIECE_BYTES) -> CastPiece:
    """What was printed in a recording of `size` bytes since the place `begin`, of which `most` bytes are read.

    A line that is still being written is left to the next look. Raises OSError.
    """
    at = max(begin, size - most)
    with file.open("rb") as opened:
        opened.seek(at)
        data = opened.read(size - at)
    whole = data[: data.rfind(b"\n") + 1]
    lines = whole.decode("utf-8", "replace").split("\n")
    if at != begin or at == 0:  # begun in the middle of a line, or with the head
        lines = lines[1:]
    text = "".join(event.text for event in cast_events(lines, "o"))
    return CastPiece(text, at + len(whole), at != begin)


def typed_at(steps: Sequence[Step], typed: Sequence[CastEvent]) -> dict[int, float]:
    """When steps typed their first action, by index, of those whose actions are found among the inputs, in order."""
    found: dict[int, float] = {}
    place = 0
    for step in steps:
        for action in filter(None, step.actions):
            wanted = action.replace("\0", "")
            near = range(place, min(place + _NEAR, len(typed)))
            at = next((n for n in near if typed[n].text == wanted), None)
            if at is None:
                break
            found.setdefault(step.index, typed[at].at)
            place = at + 1
    return found
