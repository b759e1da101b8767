"""Where numbers lie on an axis: scales that fit them, and the round numbers that are written beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tbench.results import LARGEST_REWARD


@dataclass(frozen=True, slots=True)
class ChartScale:
    """A part of the line of numbers that a chart shows, from `low` to `high`."""

    low: float
    high: float

    def share(self, value: float) -> float:
        """How far a number is from the low end to the high one, 0 to 1; ends stand for what is beyond them."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def ticks(self, about: int = 4) -> tuple[float, ...]:
        """Some `about` round numbers on it."""
        step = self._step(about)
        first = math.ceil(self.low / step - 1e-9)
        count = math.floor(self.high / step + 1e-9) - first + 1
        return tuple((first + number) * step for number in range(count))

    def tick_words(self, about: int = 4) -> tuple[str, ...]:
        """The ticks in percent, with as many decimals as tell them apart."""
        decimals = max(0, -math.floor(math.log10(100 * self._step(about)) + 1e-9))
        return tuple(_words(100 * tick, decimals) for tick in self.ticks(about))

    def _step(self, about: int) -> float:
        raw = (self.high - self.low) / about
        unit = 10.0 ** math.floor(math.log10(raw))
        return next(unit * size for size in (1, 2, 5, 10) if unit * size >= raw * (1 - 1e-9))


def scale_of(values: Iterable[float], *, least: float) -> ChartScale:
    """A scale with room for the values and for a little more, at least `least` wide.

    Where all of them are from 0 to 1, as scores mostly are, it ends there too.
    """
    known = list(values) or [0.0, 1.0]
    low, high = min(known), max(known)
    within = low >= 0.0 and high <= 1.0
    margin = max((high - low) * 0.08, (least - (high - low)) / 2)
    low, high = low - margin, high + margin
    if not within:
        return ChartScale(low, high)
    shift = max(0.0, -low) - max(0.0, high - 1.0)  # towards the middle, as wide as it was
    return ChartScale(max(0.0, low + shift), min(1.0, high + shift))


def finite(value: float | None) -> float | None:
    """The value as a chart can show it: None for what is no number, the largest reward for what is larger."""
    if value is None or not math.isfinite(value):
        return None
    return min(LARGEST_REWARD, max(-LARGEST_REWARD, float(value)))


def _words(value: float, decimals: int) -> str:
    words = f"{value:.{decimals}f}" if abs(value) < 1e5 else f"{value:.3g}"
    return words.replace("-", "\N{MINUS SIGN}")
