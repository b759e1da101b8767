"""Draws a score over runs: the line with its intervals, the baseline, alarms, and the point of change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from reports.charts import (
    ChartScale,
    dot,
    element,
    finite,
    fit_scale,
    line,
    linked_picture,
    number,
    percents,
    picture,
    stretched_plot,
    text,
    title,
)
from tbench.scores.summary import percent

_NORMAL_975 = 1.96
_HEIGHT, _FOOT = 190.0, 22.0
_LEAST = 0.1
_WHISKERS, _DOTS, _STOPS = 30, 60, 40
"""Numbers of points above which a band replaces the whiskers, most dots are left out, and the Tab key skips links."""
_LABELS, _TICKS = 5, 5
_LONGEST = 12


@dataclass(frozen=True, slots=True)
class ScorePoint:
    """Point of the chart: a run."""

    label: str
    """Short label below the axis."""
    score: float | None
    se: float | None
    """Standard error of the score; the chart shows 1.96 of it on either side."""
    href: str | None
    title: str
    """Tooltip: the run, its score and its state."""
    alarm: bool = False
    coverage: float = 1.0
    """Share of the planned trials with a verdict; below 1 the dot is hollow."""


def score_history(
    points: Sequence[ScorePoint],
    *,
    base_mean: float | None = None,
    base_sd: float | None = None,
    change_at: int | None = None,
    whole: bool = False,
    label: str,
) -> Markup:
    """Draw the points in order, one column each.

    `base_sd` is the standard deviation of a run by chance, `change_at` the index of the first point after a
    change. The scale fits the points; with `whole` it runs from 0 to 1, so that several charts can be compared.
    """
    return _HistoryDrawing(points, finite(base_mean), abs(finite(base_sd) or 0.0), change_at, whole=whole).draw(label)


class _HistoryDrawing:
    """The parts of one chart, drawn from back to front."""

    def __init__(
        self,
        points: Sequence[ScorePoint],
        base_mean: float | None,
        base_sd: float,
        change_at: int | None,
        *,
        whole: bool,
    ) -> None:
        self._points, self._count = points, len(points)
        self._base_mean, self._base_sd = base_mean, base_sd
        self._change_at = change_at if change_at is not None and 0 <= change_at < len(points) else None
        self._scores = [finite(point.score) for point in points]
        self._scale = self._fitting_scale([0.0, 1.0] if whole else [])

    def draw(self, label: str) -> Markup:
        parts = [self._axes, self._baseline, self._change, self._plot, self._dots, self._marks, self._links]
        pieces = [piece for part in parts for piece in part()]
        has_links = any(point.href is not None for point in self._points)
        draw = linked_picture if has_links else picture
        return draw("wide history", label, *pieces, height=number(_HEIGHT + _FOOT))

    def _fitting_scale(self, ends: Sequence[float]) -> ChartScale:
        """Return a scale that includes the scores, their intervals, the baseline and the values `ends`."""
        scores = [score for score in self._scores if score is not None]
        low_high = [end for at in range(self._count) for end in self._interval(at) or ()]
        base = [self._base_mean] if self._base_mean is not None else []
        known = [*ends, *scores, *base]
        if known and min(known) >= 0 and max(known) <= 1:
            low_high = [min(1.0, max(0.0, end)) for end in low_high]
        return fit_scale([*known, *low_high], least=_LEAST)

    def _interval(self, at: int) -> tuple[float, float] | None:
        score, se = self._scores[at], abs(finite(self._points[at].se) or 0.0)
        return (score - _NORMAL_975 * se, score + _NORMAL_975 * se) if score is not None and se else None

    def _x(self, at: float) -> float:
        """Return the middle of a column, in percent."""
        return 100 * (at + 0.5) / self._count

    def _y(self, value: float) -> float:
        return _HEIGHT * (1 - self._scale.share(value))

    def _axes(self) -> Iterator[Markup]:
        for tick, words in zip(self._scale.ticks(_TICKS), self._scale.tick_words(_TICKS), strict=True):
            y = self._y(tick)
            yield line("axis", "0", y, "100%", y)
            yield text(f"{words}\N{NO-BREAK SPACE}%", "-8", y + 4, "end")
        yield from self._labels()
        if all(score is None for score in self._scores):
            yield text("no scores yet", "50%", _HEIGHT / 2)

    def _labels(self) -> Iterator[Markup]:
        """Draw labels of a few points; every other one is hidden on a phone."""
        shown = min(self._count, _LABELS)
        for nth, at in enumerate(_evenly(self._count, shown)):
            words = self._points[at].label
            cut = words if len(words) <= _LONGEST else f"{words[: _LONGEST // 2]}…{words[-_LONGEST // 2 + 1 :]}"
            kind = "label minor" if nth % 2 and shown > 3 else "label"
            yield text(cut, percents(self._x(at)), _HEIGHT + 17, self._anchor(at), kind)

    def _anchor(self, at: int) -> str:
        x = self._x(at)
        return "start" if x < 5 else "end" if x > 95 else "middle"

    def _baseline(self) -> Iterator[Markup]:
        if self._base_mean is None:
            return
        if self._base_sd:
            top = self._y(self._base_mean + _NORMAL_975 * self._base_sd)
            height = self._y(self._base_mean - _NORMAL_975 * self._base_sd) - top
            box = {"x": "0", "width": "100%", "y": number(top), "height": number(height)}
            yield element("rect", class_="base-band", **box)
        y = self._y(self._base_mean)
        yield line("base", "0", y, "100%", y)
        yield text(f"baseline {percent(self._base_mean)}\N{NO-BREAK SPACE}%", "100%", y - 5, "end", "label halo")

    def _change(self) -> Iterator[Markup]:
        if self._change_at is None:
            return
        x = 100 * self._change_at / self._count
        yield line("change", percents(x), -4, percents(x), _HEIGHT)
        left = x > 75
        words = "changed here →" if left else "← changed here"
        inside = element("svg", text(words, "-6" if left else "6", 8, "end" if left else "start", "label halo"))
        yield _group_at(x, 0, inside)

    def _plot(self) -> Iterator[Markup]:
        """Draw the line with its band, stretched to the width of the chart."""
        stretches = [list(run) for shown, run in groupby(range(self._count), self._is_shown) if shown]
        bands = [] if self._count <= _WHISKERS else list(self._bands())
        lines = [
            element("path", class_="line", d=_path([(self._x(at), self._y(self._scores[at] or 0.0)) for at in run]))
            for run in stretches
            if len(run) > 1
        ]
        yield stretched_plot(_HEIGHT, *bands, *lines)
        if self._count <= _WHISKERS:
            yield from self._whiskers()

    def _is_shown(self, at: int) -> bool:
        return self._scores[at] is not None

    def _bands(self) -> Iterator[Markup]:
        for shown, run in groupby(range(self._count), lambda at: self._interval(at) is not None):
            ends = [(self._x(at), ends) for at in run if (ends := self._interval(at)) is not None]
            if shown and len(ends) > 1:
                high = [(x, self._y(top)) for x, (_, top) in ends]
                low = [(x, self._y(bottom)) for x, (bottom, _) in reversed(ends)]
                yield element("path", class_="band", d=f"{_path([*high, *low])}z")

    def _whiskers(self) -> Iterator[Markup]:
        for at in range(self._count):
            if (ends := self._interval(at)) is not None:
                x = percents(self._x(at))
                yield line("whisker", x, self._y(ends[0]), x, self._y(ends[1]))

    def _marks(self) -> Iterator[Markup]:
        """Draw a triangle at each alarm (with many points, at the first of consecutive ones) and a bar below them."""
        for is_alarm, run in groupby(range(self._count), lambda at: self._points[at].alarm):
            columns = list(run)
            if not is_alarm:
                continue
            left, right = (100 * edge / self._count for edge in (columns[0], columns[-1] + 1))
            yield line("mark wide-mark", percents(left), _HEIGHT, percents(right), _HEIGHT)
            for at in columns if self._count <= _WHISKERS else columns[:1]:
                yield _group_at(self._x(at), self._mark_y(at), element("path", class_="mark", d="M0,0 L-5.5,-9 h11 z"))

    def _mark_y(self, at: int) -> float:
        """Return the height of a triangle: above the point and its whisker, or above the axis if there is no score."""
        score, ends = self._scores[at], self._interval(at)
        if score is None:
            return _HEIGHT - 4
        top = ends[1] if ends is not None and self._count <= _WHISKERS else score
        return max(6.0, self._y(top) - 6)

    def _dots(self) -> Iterator[Markup]:
        radius = 4.5 if self._count <= _WHISKERS else 3.0
        for at, (point, score) in enumerate(zip(self._points, self._scores, strict=True)):
            if score is not None and (self._count <= _DOTS or self._stands_out(at)):
                kind = " ".join(["dot", *(["alarm"] * point.alarm), *(["hollow"] * (point.coverage < 1.0))])
                yield dot(kind, self._x(at), self._y(score), radius)

    def _stands_out(self, at: int) -> bool:
        """Whether a point has a dot even among many: the last one, the first of an alarm, an isolated one."""
        before, after = at > 0 and self._is_shown(at - 1), at + 1 < self._count and self._is_shown(at + 1)
        begins_alarm = self._points[at].alarm and not (at > 0 and self._points[at - 1].alarm)
        return begins_alarm or not (before or after) or at == self._count - 1

    def _links(self) -> Iterator[Markup]:
        """Draw the column of each point, with its tooltip and link."""
        for at, point in enumerate(self._points):
            box = {"x": percents(100 * at / self._count), "width": percents(100 / self._count)}
            column = element("rect", title(point.title), class_="hit", height=number(_HEIGHT), **box)
            if point.href is None:
                yield column
            else:
                stop = None if self._count <= _STOPS else "-1"
                yield element("a", column, href=point.href, aria_label=point.title, tabindex=stop)


def _group_at(x: float, y: float, *children: str) -> Markup:
    """Group elements around a point; `x` is in percent."""
    return element("svg", *children, x=percents(x), y=number(y), class_="around")


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + " ".join(f"{number(x)},{number(y)}" for x, y in places)


def _evenly(count: int, shown: int) -> list[int]:
    """Return `shown` evenly spaced indices out of `count`, including the first and the last."""
    if shown <= 1:
        return list(range(shown))
    return [round(at * (count - 1) / (shown - 1)) for at in range(shown)]
