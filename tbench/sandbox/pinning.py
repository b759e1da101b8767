"""Assigns a machine's CPUs and GPUs by number, so that concurrent sandboxes use different ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


class UnitPool:
    """Numbered CPUs or GPUs with their loads. Never waits: demand beyond the free units shares the least used ones."""

    def __init__(self, units: Iterable[int]) -> None:
        self._loads = dict.fromkeys(units, 0.0)

    def take(self, amount: float) -> tuple[int, ...]:
        """Reserve `amount` units, rounded up, at most all, and return their numbers."""
        count = min(math.ceil(amount), len(self._loads))
        if not count:
            return ()
        each = amount / count
        order = sorted(self._loads, key=lambda unit: self._sort_key(unit, each))
        taken = tuple(sorted(order[:count]))
        self._add_load(taken, each)
        return taken

    def give_back(self, taken: Sequence[int], amount: float) -> None:
        if taken:
            self._add_load(taken, -amount / len(taken))

    def _sort_key(self, unit: int, each: float) -> tuple[bool, float, int]:
        """Prefer partly used units for fractions, to keep whole ones free; otherwise the least used unit."""
        load = self._loads[unit]
        fits = load + each <= 1 + 1e-9
        return (not fits, -load if fits and each < 1 else load, unit)

    def _add_load(self, units: Iterable[int], by: float) -> None:
        for unit in units:
            # Rounded, or sums of fractions never return to exactly 0.
            self._loads[unit] = round(self._loads[unit] + by, 6)


@dataclass
class Lease:
    """CPUs and GPUs reserved for one sandbox until it is released."""

    cpus: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    on_release: Callable[[], None] | None = None

    def release(self) -> None:
        """Release everything; calling it again does nothing."""
        release, self.on_release = self.on_release, None
        if release is not None:
            release()


def parse_ranges(text: str) -> list[int]:
    """Parse a Linux list of ranges such as `0-3,8` into numbers. Raises ValueError."""
    ends = (part.split("-") for part in text.strip().split(","))
    return [number for each in ends for number in range(int(each[0]), int(each[-1]) + 1)]
