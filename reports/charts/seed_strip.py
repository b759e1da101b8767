"""The scores of single seeds on one axis, with their mean and their spread."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from reports.charts.scale import ChartScale, finite, scale_of
from reports.charts.stacks import stacked
from reports.charts.svg import dot, element, line, number, percents, picture, text, title
from tbench.scores.summary import percent

_AXIS, _HEIGHT = 46.0, 66.0
_TOP = 6.0
_LEAST = 0.2
_MOST, _RISE = 6, 6.5
"""Dots in a stack, and how much higher each of them is."""


def seed_strip(per_seed: Sequence[float], mean: float, std: float | None, *, label: str) -> Markup:
    """A dot for each seed, a line at the mean and a band of one standard deviation on either side."""
    scores = [score for each in per_seed if (score := finite(each)) is not None]
    middle, spread = finite(mean), abs(finite(std) or 0.0)
    ends = [] if middle is None else [middle - spread, middle + spread]
    if scores and min(scores) >= 0 and max(scores) <= 1:
        ends = [min(1.0, max(0.0, end)) for end in ends]
    scale = scale_of([*scores, *ends], least=_LEAST)
    pieces = [*_axis(scale), *_spread(scale, middle, ends), *_dots(scale, scores)]
    return picture("wide strip", label, *pieces, height=number(_HEIGHT))


def _axis(scale: ChartScale) -> list[Markup]:
    found = [line("axis", "0%", _AXIS, "100%", _AXIS)]
    for tick, words in zip(scale.ticks(), scale.tick_words(), strict=True):
        x = percents(100 * scale.share(tick))
        found += [line("axis", x, _AXIS, x, _AXIS + 4), text(f"{words} %", x, _AXIS + 17)]
    return found


def _spread(scale: ChartScale, mean: float | None, ends: Sequence[float]) -> list[Markup]:
    if mean is None:
        return []
    left, right = (100 * scale.share(end) for end in ends)
    box = {"x": percents(left), "width": percents(right - left), "y": number(_TOP), "height": number(_AXIS - _TOP)}
    x = percents(100 * scale.share(mean))
    return [element("rect", class_="band", **box), line("mean", x, _TOP, x, _AXIS)]


def _dots(scale: ChartScale, scores: Sequence[float]) -> list[Markup]:
    return [
        dot("dot", 100 * share, _AXIS - 7 - _RISE * height, 4.5, title(f"{percent(scores[index])} %"))
        for share, height, index in stacked([scale.share(score) for score in scores], _MOST)
    ]
