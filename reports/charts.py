"""Charts as SVG: numbers in, markup out."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from markupsafe import Markup

from reports.page_frame import STATUS_SYMBOLS, html_text
from tbench.results import LARGEST_REWARD
from tbench.scores.summary import percent
from tbench.text import replace_unseen

# SVG elements with escaped attributes and texts, positioned in percent of the width.
#
# Wide charts have no viewBox: with positions in percent, letters keep their size and dots stay round both on a phone
# and on a large screen. Only lines are stretched, in a `stretched_plot` inside.

_NAME = re.compile(r"[a-z][a-z0-9-]*")


def element(tag: str, *children: str, **attributes: str | float | None) -> Markup:
    """Return an element. `class_` becomes class, `text_anchor` text-anchor; None leaves an attribute out."""
    given = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items() if value is not None)
    written = "".join(f' {name}="{_text(value)}"' for name, value in given)
    return Markup(f"<{tag}{written}>{''.join(_text(each) for each in children)}</{tag}>")  # every part is escaped


def picture(kind: str, label: str, *children: str, **attributes: str | float | None) -> Markup:
    """Return a chart that is one picture; `label` describes it to screen readers."""
    return element("svg", title(label), *children, class_=f"chart {kind}", role="img", **attributes)


def linked_picture(kind: str, label: str, *children: str, **attributes: str | float | None) -> Markup:
    """Return a chart that contains links, which an element with the role `img` may not contain."""
    known = {"role": "group", "aria_label": label}
    return element("svg", *children, class_=f"chart {kind}", **known, **attributes)


def title(words: str) -> Markup:
    """Return a title: tooltip, and text for screen readers."""
    return element("title", words)


def stretched_plot(height: float, *children: str) -> Markup:
    """Return a plot that is 100 units wide, however wide the chart is."""
    box = {"viewBox": f"0 0 100 {number(height)}", "preserveAspectRatio": "none"}
    return element("svg", *children, width="100%", height=number(height), **box)


def line(kind: str, x1: str | float, y1: float, x2: str | float, y2: float) -> Markup:
    """Return a straight line with a CSS class."""
    return element("line", class_=kind, x1=x1, y1=number(y1), x2=x2, y2=number(y2))


def dot(kind: str, x: float, y: float, radius: float, *children: str) -> Markup:
    """Return a circle; `x` is in percent of the width."""
    return element("circle", *children, class_=kind, cx=percents(x), cy=number(y), r=number(radius))


def text(words: str, x: str | float, y: float, anchor: str = "middle", kind: str = "label") -> Markup:
    """Return a short text whose `anchor` (start, middle, end) is at `x`."""
    return element("text", words, class_=kind, x=x, y=number(y), text_anchor=anchor)


def percents(share: float) -> str:
    """Format a percentage for SVG."""
    return f"{number(share)}%"


def number(value: float) -> str:
    """Format a number with at most two decimals."""
    shown = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if shown == "-0" else shown


def class_name(name: str) -> str:
    """Return the name if it can be a CSS class, else `other`."""
    return name if _NAME.fullmatch(name) else "other"


def _text(value: str | float) -> str:
    """Escape text and replace characters that no page may contain; markup is returned unchanged."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return html_text(replace_unseen(value, "\N{REPLACEMENT CHARACTER}"))
    return number(value)


# Scales of axes, and the round numbers at their ticks.


@dataclass(frozen=True, slots=True)
class ChartScale:
    """Range of numbers that a chart shows, from `low` to `high`."""

    low: float
    high: float

    def share(self, value: float) -> float:
        """Return the position of a number between the two ends, clamped to 0 to 1."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def ticks(self, about: int = 4) -> tuple[float, ...]:
        """Return roughly `about` round numbers within the range."""
        step = self._step(about)
        first = math.ceil(self.low / step - 1e-9)
        count = math.floor(self.high / step + 1e-9) - first + 1
        return tuple((first + number) * step for number in range(count))

    def tick_words(self, about: int = 4) -> tuple[str, ...]:
        """Return the ticks in percent, with enough decimals to tell them apart."""
        decimals = max(0, -math.floor(math.log10(100 * self._step(about)) + 1e-9))
        return tuple(_words(100 * tick, decimals) for tick in self.ticks(about))

    def _step(self, about: int) -> float:
        raw = (self.high - self.low) / about
        unit = 10.0 ** math.floor(math.log10(raw))
        return next(unit * size for size in (1, 2, 5, 10) if unit * size >= raw * (1 - 1e-9))


def fit_scale(values: Iterable[float], *, least: float) -> ChartScale:
    """Return a scale that fits the values with a margin and is at least `least` wide.

    If all values are between 0 and 1, like most scores, the scale stays within this range.
    """
    known = list(values) or [0.0, 1.0]
    low, high = min(known), max(known)
    within = low >= 0.0 and high <= 1.0
    margin = max((high - low) * 0.08, (least - (high - low)) / 2)
    low, high = low - margin, high + margin
    if not within:
        return ChartScale(low, high)
    shift = max(0.0, -low) - max(0.0, high - 1.0)  # towards the middle, keeping the width
    return ChartScale(max(0.0, low + shift), min(1.0, high + shift))


def finite(value: float | None) -> float | None:
    """Return the value for a chart: None if it is not finite, and at most the largest reward."""
    if value is None or not math.isfinite(value):
        return None
    return min(LARGEST_REWARD, max(-LARGEST_REWARD, float(value)))


def _words(value: float, decimals: int) -> str:
    words = f"{value:.{decimals}f}" if abs(value) < 1e5 else f"{value:.3g}"
    return words.replace("-", "\N{MINUS SIGN}")


# Dots on one line, stacked where they would overlap.

_PLACES = 160
"""Number of positions of dots side by side."""


def stack_dots(shares: Iterable[float], most: int) -> Iterator[tuple[float, int, int]]:
    """Yield for each dot its position in the width, its place in the stack there, and its index.

    A stack has at most `most` dots; further ones are left out.
    """
    heights: Counter[int] = Counter()
    for index, share in enumerate(shares):
        place = round(share * _PLACES)
        if heights[place] < most:
            yield share, heights[place], index
        heights[place] += 1


# Durations of trials, a row of dots for each status.

_LANE, _TOP, _FOOT = 30.0, 4.0, 20.0
_MOST = 5
_OFFSETS = (0.0, -5.0, 5.0, -2.5, 2.5)
_COARSE = (0.1, 1, 10, 60, 600, 3600, 36_000, 360_000)
_FINE = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 18_000, 36_000, 72_000, 180_000)
_LONGEST_SEC = 1e9


def duration_dots(durations: Sequence[tuple[float, str]], *, label: str) -> Markup:
    """Draw durations (seconds) of trials in a row for each status, on a logarithmic axis, with bars at the medians."""
    known = [(min(sec, _LONGEST_SEC), status) for sec, status in durations if math.isfinite(sec) and sec >= 0]
    ranks = {status: rank for rank, status in enumerate(STATUS_SYMBOLS)}
    lanes = sorted(dict.fromkeys(status for _, status in known), key=lambda status: ranks.get(status, len(ranks)))
    axis = _TOP + _LANE * max(1, len(lanes))
    scale = _log_scale([sec for sec, _ in known])
    pieces = list(_axis(scale, axis))
    for at, status in enumerate(lanes):
        lane = [sec for sec, each in known if each == status]
        pieces += _lane(lane, status, _TOP + _LANE * (at + 0.5), scale)
    if not known:
        pieces.append(text("no durations", "50%", _TOP + _LANE / 2 + 4))
    return picture("wide durations", label, *pieces, height=number(axis + _FOOT))


def _log_scale(durations_sec: Sequence[float]) -> ChartScale:
    """Return the scale of the durations' logarithms, which spans at least a factor of three."""
    used = [math.log10(max(sec, 0.1)) for sec in durations_sec] or [0.0, 2.0]
    middle, half = (min(used) + max(used)) / 2, max(0.25, (max(used) - min(used)) / 2 * 1.06)
    return ChartScale(middle - half, middle + half)


def _share(sec: float, scale: ChartScale) -> float:
    return scale.share(math.log10(max(sec, 0.1)))


def _axis(scale: ChartScale, y: float) -> Iterator[Markup]:
    for sec in _ticks(scale.low, scale.high):
        x = percents(100 * _share(sec, scale))
        yield line("axis", x, _TOP, x, y)
        yield text(_seconds_words(sec), x, y + 15)


def _ticks(low: float, high: float) -> list[float]:
    """Return two to six round durations between two logarithms."""
    coarse, fine = ([sec for sec in some if low <= math.log10(sec) <= high] for some in (_COARSE, _FINE))
    if len(coarse) > 2 or (len(coarse) == 2 and len(fine) > 6):
        return coarse
    return fine if len(fine) > 1 else [10**at for at in (low, (low + high) / 2, high)]


def _seconds_words(sec: float) -> str:
    if sec < 60:
        return f"{sec:.2g} s"
    return f"{sec / 60:.2g} min" if sec < 3600 else f"{sec / 3600:.3g} h"


def _lane(lane: Sequence[float], status: str, y: float, scale: ChartScale) -> Iterator[Markup]:
    symbol = STATUS_SYMBOLS.get(status, "")
    yield text(f"{symbol} {status}".strip()[:12], "0", y + 4, "end", "label lane")
    for share, height, index in stack_dots([_share(sec, scale) for sec in lane], _MOST):
        words = title(f"{status}: {_seconds_words(lane[index])}")
        yield dot(f"grain s-{class_name(status)}", 100 * share, y + _OFFSETS[height], 3.5, words)
    x = percents(100 * _share(median(lane), scale))
    yield line("median", x, y - 11, x, y + 11)


# The scores of single seeds on one axis, with their mean and spread.

_AXIS, _HEIGHT = 46.0, 66.0
_SEED_STRIP_TOP = 6.0
_LEAST = 0.2
_SEED_STRIP_MOST, _RISE = 6, 6.5
"""Maximum number of dots in a stack, and the distance between them."""


def seed_strip(per_seed: Sequence[float], mean: float, std: float | None, *, label: str) -> Markup:
    """Draw a dot for each seed, a line at the mean and a band of one standard deviation on either side."""
    scores = [score for each in per_seed if (score := finite(each)) is not None]
    middle, spread = finite(mean), abs(finite(std) or 0.0)
    ends = [] if middle is None else [middle - spread, middle + spread]
    if scores and min(scores) >= 0 and max(scores) <= 1:
        ends = [min(1.0, max(0.0, end)) for end in ends]
    scale = fit_scale([*scores, *ends], least=_LEAST)
    pieces = [*_seed_strip_axis(scale), *_spread(scale, middle, ends), *_dots(scale, scores)]
    return picture("wide strip", label, *pieces, height=number(_HEIGHT))


def _seed_strip_axis(scale: ChartScale) -> list[Markup]:
    found = [line("axis", "0%", _AXIS, "100%", _AXIS)]
    for tick, words in zip(scale.ticks(), scale.tick_words(), strict=True):
        x = percents(100 * scale.share(tick))
        found += [line("axis", x, _AXIS, x, _AXIS + 4), text(f"{words} %", x, _AXIS + 17)]
    return found


def _spread(scale: ChartScale, mean: float | None, ends: Sequence[float]) -> list[Markup]:
    if mean is None:
        return []
    left, right = (100 * scale.share(end) for end in ends)
    box = {
        "x": percents(left),
        "width": percents(right - left),
        "y": number(_SEED_STRIP_TOP),
        "height": number(_AXIS - _SEED_STRIP_TOP),
    }
    x = percents(100 * scale.share(mean))
    return [element("rect", class_="band", **box), line("mean", x, _SEED_STRIP_TOP, x, _AXIS)]


def _dots(scale: ChartScale, scores: Sequence[float]) -> list[Markup]:
    return [
        dot("dot", 100 * share, _AXIS - 7 - _RISE * height, 4.5, title(f"{percent(scores[index])} %"))
        for share, height, index in stack_dots([scale.share(score) for score in scores], _SEED_STRIP_MOST)
    ]


# Sparklines: a score over the last runs, as high as a line of text.

_WIDTH, _SPARKLINE_HEIGHT, _EDGE = 120.0, 28.0, 4.0


def sparkline(
    scores: Sequence[float | None], *, alarms: Collection[int] = (), whole: bool = False, label: str
) -> Markup:
    """Draw scores in order, with gaps for None and a triangle at each alarm.

    The scale fits the scores; with `whole` it runs from 0 to 1, so that several sparklines can be compared.
    """
    known = [finite(score) for score in scores]
    ends = [0.0, 1.0] if whole else []
    scale = fit_scale([*ends, *(score for score in known if score is not None)], least=_LEAST)
    places = [_place(at, score, len(known), scale) for at, score in enumerate(known)]
    marks = [_triangle(place) for at, place in enumerate(places) if at in alarms and place is not None]
    shown = [place for place in places if place is not None]
    for x, y in shown[-1:]:
        kind = "dot alarm" if len(known) - 1 in alarms else "dot"
        marks.append(element("circle", class_=kind, cx=number(x), cy=number(y), r="3"))
    return picture("spark", label, *_lines(places), *marks, viewBox=f"0 0 {_WIDTH:.0f} {_SPARKLINE_HEIGHT:.0f}")


def _place(at: int, score: float | None, count: int, scale: ChartScale) -> tuple[float, float] | None:
    if score is None:
        return None
    share = at / (count - 1) if count > 1 else 0.5
    x = _EDGE + share * (_WIDTH - 2 * _EDGE)
    return x, _EDGE + (1 - scale.share(score)) * (_SPARKLINE_HEIGHT - 2 * _EDGE)


def _lines(places: Sequence[tuple[float, float] | None]) -> list[Markup]:
    found, piece = list[Markup](), list[str]()
    for place in (*places, None):
        if place is not None:
            piece.append(f"{number(place[0])},{number(place[1])}")
            continue
        if piece:
            found.append(element("polyline", class_="line", points=" ".join(piece if len(piece) > 1 else piece * 2)))
        piece = []
    return found


def _triangle(place: tuple[float, float]) -> Markup:
    """Return a triangle that points at a position from above, or from below if there is no room above."""
    x, y = place
    side = -1 if y >= 12 else 1
    start = f"M{number(x)},{number(y + 3.5 * side)}"
    return element("path", class_="mark", d=f"{start} l-3.5,{6 * side} h7 z")


# Stacked bars, such as how the time of a trial was spent.


@dataclass(frozen=True, slots=True)
class BarPart:
    """Part of a bar."""

    name: str
    """Name, also the CSS class that sets the colour."""
    amount: float
    words: str
    """Tooltip: name and amount."""


def stacked_bar(parts: Sequence[BarPart], *, full: float | None = None, label: str) -> Markup:
    """Draw the parts side by side. `full` is the amount that fills the chart, by default the sum of the parts."""
    amounts = [part.amount if math.isfinite(part.amount) and part.amount > 0 else 0.0 for part in parts]
    whole = max(full or 0.0, 0.0) if full is not None and math.isfinite(full) else math.fsum(amounts)
    pieces, x = list[str](), 0.0
    for part, amount in zip(parts, amounts, strict=True):
        width = min(100.0 - x, 100 * (amount / whole)) if whole > 0 else 0.0
        if width > 0:  # without `element`, which is slower: each trial has such a bar
            place = f'x="{number(x)}%" width="{number(width)}%" height="100%"'
            words = _text(part.words)
            pieces.append(f'<rect class="part {class_name(part.name)}" {place}><title>{words}</title></rect>')
        x += width
    return Markup(f'<svg class="chart bar" role="img"><title>{_text(label)}</title>{"".join(pieces)}</svg>')


def status_bar(counts: Mapping[Any, int], label: str = "") -> Markup:
    """Draw the number of trials by status as a bar, with a label."""
    known = {status: count for status in STATUS_SYMBOLS if (count := counts.get(status))}
    parts = [BarPart(f"s-{status}", count, f"{count:,} {status}") for status, count in known.items()]
    return stacked_bar(parts, label=label + ", ".join(part.words for part in parts))
