"""What is new in the recording of a terminal: read from where the last look ended, never more than a bounded piece."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PIECE_BYTES = 1 << 17
"""Most that one look reads; of a recording that has grown by more, the middle is left out."""
_FIRST_BYTES = 1 << 12
_COLUMNS, _ROWS = 160, 40


@dataclass(frozen=True, slots=True)
class CastHead:
    """What the first line of a recording says."""

    columns: int = _COLUMNS
    rows: int = _ROWS
    begun_at: float | None = None
    """Unix time of its begin."""


@dataclass(frozen=True, slots=True)
class CastPiece:
    """What was printed between two places of a recording."""

    text: str
    end: int
    """Where the next look begins, in bytes."""
    skipped: bool = False
    """Whether something before it was left out, so that the screen is not known from it alone."""


def cast_head(file: Path) -> CastHead | None:
    """The head of a recording; None where there is none yet. Raises OSError."""
    with file.open("rb") as opened:
        first, end, _ = opened.read(_FIRST_BYTES).partition(b"\n")
    if not end:
        return None
    try:
        head = json.loads(first)
    except ValueError:
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
    end = at + len(whole)
    lines = whole.split(b"\n")
    if at != begin or at == 0:  # begun in the middle of a line, or with the head
        lines = lines[1:]
    return CastPiece(_output(lines), end, at != begin)


def _output(lines: Sequence[bytes]) -> str:
    """The text of the events that are output; a line that is none is left out."""
    found = []
    for line in lines:
        if b'"o"' not in line[:40]:
            continue
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, list) and len(event) == 3 and event[1] == "o" and isinstance(event[2], str):
            found.append(event[2])
    return "".join(found)
