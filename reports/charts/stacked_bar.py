"""A bar of several parts, such as where the time of a trial went."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from reports.charts.svg import class_name, element, percents, picture, title


@dataclass(frozen=True, slots=True)
class BarPart:
    """A part of a bar."""

    name: str
    """Also the class that gives it its colour."""
    amount: float
    words: str
    """What it is and how much, for who points at it."""


def stacked_bar(parts: Sequence[BarPart], *, full: float | None = None, label: str) -> Markup:
    """The parts side by side. `full` is the amount that is as wide as the chart: that of all of them by default."""
    amounts = [part.amount if math.isfinite(part.amount) and part.amount > 0 else 0.0 for part in parts]
    whole = max(full or 0.0, 0.0) if full is not None and math.isfinite(full) else math.fsum(amounts)
    pieces, x = list[Markup](), 0.0
    for part, amount in zip(parts, amounts, strict=True):
        width = min(100.0 - x, 100 * (amount / whole)) if whole > 0 else 0.0
        if width > 0:
            pieces.append(_piece(part, x, width))
        x += width
    return picture("bar", label, *pieces)


def _piece(part: BarPart, x: float, width: float) -> Markup:
    place = {"x": percents(x), "width": percents(width), "height": "100%"}
    return element("rect", title(part.words), class_=f"part {class_name(part.name)}", **place)
