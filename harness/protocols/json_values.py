"""Decodes JSON as models write it: objects remember repeated fields, and only FormatError is raised."""

from __future__ import annotations

import json
from typing import Any

from harness.errors import FormatError

_EXCERPT = 60


class Fields(dict[str, Any]):
    """A JSON object that remembers whether a field was given twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.twice = len(pairs) > len(self)


def _number(digits: str) -> float:
    # int() refuses thousands of digits with an exception of its own; no field needs an int.
    return float(digits)


_DECODER = json.JSONDecoder(object_pairs_hook=Fields, parse_int=_number)


def decode(text: str, start: int = 0) -> tuple[Any, int]:
    """The JSON value at `start` and where it ends. Raises FormatError."""
    try:
        return _DECODER.raw_decode(text, start)
    except RecursionError as error:
        raise FormatError("invalid_json", "Invalid JSON: it is nested too deeply.") from error
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - _EXCERPT) : error.pos + _EXCERPT]
        raise FormatError("invalid_json", f"Invalid JSON: {error.msg}, near {near!r}.") from error
