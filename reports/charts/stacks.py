"""Dots on one line that stand on each other where they would cover each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

_PLACES = 160
"""Places beside each other that a dot can have."""


def stacked(shares: Iterable[float], most: int) -> Iterator[tuple[float, int, int]]:
    """For each dot its share of the width as it was, its place in the stack there, and its index.

    A stack has `most` dots; what is more than that is not shown again.
    """
    heights: Counter[int] = Counter()
    for index, share in enumerate(shares):
        place = round(share * _PLACES)
        if heights[place] < most:
            yield share, heights[place], index
        heights[place] += 1
