"""The events of a run as its journal has them, read from where the last look ended."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import get_args

from pydantic import ValidationError

from tbench.events import Event, TrialFinished

_PIECE_BYTES = 1 << 20
_LONGEST_LINE = 1 << 22
_KINDS: Mapping[str, type[Event]] = MappingProxyType(
    {kind.model_fields["kind"].default: kind for kind in get_args(Event) if kind is not TrialFinished}
)
_UNUSED = b'{"kind":"trial_finished"'
"""Says of a trial what its verdict has said, and in the longest of all lines."""


class JournalTail:
    """The end of a journal that a run appends to."""

    def __init__(self, file: Path) -> None:
        self.unread = 0
        """Lines that are no event of this version."""
        self._file = file
        self._end = 0
        self._size = 0

    def new_events(self) -> Iterator[Event]:
        """The events since the last look; a line that is still being written comes with the next. Raises OSError."""
        size = self._file.stat().st_size
        if size == self._size:
            return
        if size < self._end:
            self._end = 0
        self._size = size
        with self._file.open("rb") as opened:
            opened.seek(self._end)
            torn = b""
            while piece := opened.read(_PIECE_BYTES):
                *lines, torn = (torn + piece).split(b"\n")
                for line in lines:
                    self._end += len(line) + 1
                    if (event := self._event(line)) is not None:
                        yield event
                if len(torn) > _LONGEST_LINE:  # no line of ours
                    self._end += len(torn)
                    torn = b""

    def _event(self, line: bytes) -> Event | None:
        if not line.strip() or line.startswith(_UNUSED):
            return None
        try:
            said = json.loads(line)
            if said["kind"] == "trial_finished":
                return None
            return _KINDS[said["kind"]].model_validate(said)
        except (ValueError, TypeError, KeyError, RecursionError, ValidationError):
            self.unread += 1
            return None
