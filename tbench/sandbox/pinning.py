"""Hands out a machine's cpus and GPUs by number, so that sandboxes beside each other have different ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


class Shares:
    """Numbered units, each with how much of it is in use. Never waits: what does not fit shares the least used."""

    def __init__(self, units: Iterable[int]) -> None:
        self._loads = dict.fromkeys(units, 0.0)

    def take(self, amount: float) -> tuple[int, ...]:
        """Numbers of the units to use for `amount` of them, rounded up; all where there are no more."""
        count = min(math.ceil(amount), len(self._loads))
        if not count:
            return ()
        each = amount / count
        order = sorted(self._loads, key=lambda unit: self._preference(unit, each))
        taken = tuple(sorted(order[:count]))
        self._change(taken, each)
        return taken

    def give_back(self, taken: Sequence[int], amount: float) -> None:
        if taken:
            self._change(taken, -amount / len(taken))

    def _preference(self, unit: int, each: float) -> tuple[bool, float, int]:
        """Parts of a unit fill up one that is begun, so that whole ones stay free; else the least used comes first."""
        load = self._loads[unit]
        fits = load + each <= 1 + 1e-9
        return (not fits, -load if fits and each < 1 else load, unit)

    def _change(self, units: Iterable[int], by: float) -> None:
        for unit in units:
            # Rounded, or sums of fractions never come back to nothing.
            self._loads[unit] = round(self._loads[unit] + by, 6)


@dataclass
class Lease:
    """What one sandbox has of a machine's units, until it is released."""

    cpus: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    on_release: Callable[[], None] | None = None

    def release(self) -> None:
        """Give everything back; a second time it does nothing."""
        release, self.on_release = self.on_release, None
        if release is not None:
            release()


def parse_ranges(text: str) -> list[int]:
    """The numbers in a list of ranges such as `0-3,8`, as Linux tells them. Raises ValueError."""
    ends = (part.split("-") for part in text.strip().split(","))
    return [number for each in ends for number in range(int(each[0]), int(each[-1]) + 1)]
