"""Which part of the whole a process takes: `I/N`, counted from 0."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Shard:
    """One of several parts, counted from 0."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The shard of a text such as `0/4`. Raises ValueError."""
        found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        if found is None or int(found[1]) >= int(found[2]):
            raise ValueError("must be I/N with I from 0 to N-1, e.g. 0/4 to 3/4")
        return cls(int(found[1]), int(found[2]))


def checked_shard(text: str | None) -> str | None:
    """The same text, of a shard or none. Raises ValueError."""
    return None if text is None else str(Shard.parse(text))
