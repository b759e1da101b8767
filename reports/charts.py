"""Charts as SVG: numbers in, markup out."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup, escape

from reports.look import SIGNS
from tbench.results import LARGEST_REWARD
from tbench.scores.summary import percent
from tbench.text import unseen_as

# Pieces of SVG: elements whose attributes and texts are escaped, and places in percents of the width.
#
# Wide charts have no viewBox: what is placed in percents keeps the size of its letters and the roundness of its dots
# on a phone as on a large screen. Only lines are stretched, in a `stretched` plot within.

_NAME = re.compile(r"[a-z][a-z0-9-]*")


def element(tag: str, *children: str, **attributes: str | float | None) -> Markup:
    """An element. `class_` is the attribute class, `text_anchor` text-anchor; None leaves an attribute out."""
    given = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items() if value is not None)
    said = "".join(f' {name}="{_text(value)}"' for name, value in given)
    return Markup(f"<{tag}{said}>{''.join(_text(each) for each in children)}</{tag}>")  # every part is escaped


def picture(kind: str, label: str, *children: str, **attributes: str | float | None) -> Markup:
    """A chart as one picture; `label` is what is said of it to those who do not see it."""
    return element("svg", title(label), *children, class_=f"chart {kind}", role="img", **attributes)


def linked_picture(kind: str, label: str, *children: str, **attributes: str | float | None) -> Markup:
    """A chart with links in it, which a picture may not have."""
    known = {"role": "group", "aria_label": label}
    return element("svg", *children, class_=f"chart {kind}", **known, **attributes)


def title(words: str) -> Markup:
    """What a reader hears of an element, or sees with the mouse on it."""
    return element("title", words)


def stretched(height: float, *children: str) -> Markup:
    """A plot that is 100 units wide, however wide the chart is."""
    box = {"viewBox": f"0 0 100 {number(height)}", "preserveAspectRatio": "none"}
    return element("svg", *children, width="100%", height=number(height), **box)


def line(kind: str, x1: str | float, y1: float, x2: str | float, y2: float) -> Markup:
    """A straight line of a class."""
    return element("line", class_=kind, x1=x1, y1=number(y1), x2=x2, y2=number(y2))


def dot(kind: str, x: float, y: float, radius: float, *children: str) -> Markup:
    """A circle, `x` in percents of the width."""
    return element("circle", *children, class_=kind, cx=percents(x), cy=number(y), r=number(radius))


def text(words: str, x: str | float, y: float, anchor: str = "middle", kind: str = "label") -> Markup:
    """A few words, of which `anchor` (start, middle, end) is at `x`."""
    return element("text", words, class_=kind, x=x, y=number(y), text_anchor=anchor)


def percents(share: float) -> str:
    """A number of percents as SVG writes it."""
    return f"{number(share)}%"


def number(value: float) -> str:
    """A number in as few characters as tell it on a screen."""
    said = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if said == "-0" else said


def class_name(name: str) -> str:
    """A name as a class of its own; `other` for one that can be none."""
    return name if _NAME.fullmatch(name) else "other"


def _text(value: str | float) -> str:
    """Text escaped, without what turns the reading direction or no page may hold; markup stays as it is."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return str(escape(unseen_as(value, "\N{REPLACEMENT CHARACTER}")))
    return number(value)


# Where numbers lie on an axis: scales that fit them, and the round numbers that are written beside them.


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


# Dots on one line that stand on each other where they would cover each other.

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


# How long trials took, a line of dots for each way in which they ended.

_LANE, _TOP, _FOOT = 30.0, 4.0, 20.0
_MOST = 5
_OFFSETS = (0.0, -5.0, 5.0, -2.5, 2.5)
_COARSE = (0.1, 1, 10, 60, 600, 3600, 36_000, 360_000)
_FINE = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 18_000, 36_000, 72_000, 180_000)
_LONGEST_SEC = 1e9


def duration_dots(durations: Sequence[tuple[float, str]], *, label: str) -> Markup:
    """The seconds that each trial took, by its status, on one axis whose steps are tenfold; a bar is at the median."""
    known = [(min(sec, _LONGEST_SEC), status) for sec, status in durations if math.isfinite(sec) and sec >= 0]
    words = dict.fromkeys(status for _, status in known)
    lanes = sorted(words, key=lambda status: list(SIGNS).index(status) if status in SIGNS else len(SIGNS))
    axis = _TOP + _LANE * max(1, len(lanes))
    low, high = _ends([sec for sec, _ in known])
    pieces = list(_axis(low, high, axis))
    for at, status in enumerate(lanes):
        lane = [sec for sec, each in known if each == status]
        pieces += _lane(lane, status, _TOP + _LANE * (at + 0.5), low, high)
    if not known:
        pieces.append(text("no durations", "50%", _TOP + _LANE / 2 + 4))
    return picture("wide durations", label, *pieces, height=number(axis + _FOOT))


def _ends(durations_sec: Sequence[float]) -> tuple[float, float]:
    """The logarithms of the ends of the axis: at least from a number of seconds to its threefold."""
    used = [math.log10(max(sec, 0.1)) for sec in durations_sec] or [0.0, 2.0]
    middle, half = (min(used) + max(used)) / 2, max(0.25, (max(used) - min(used)) / 2 * 1.06)
    return middle - half, middle + half


def _share(sec: float, low: float, high: float) -> float:
    return min(1.0, max(0.0, (math.log10(max(sec, 0.1)) - low) / (high - low)))


def _axis(low: float, high: float, y: float) -> Iterator[Markup]:
    for sec in _ticks(low, high):
        x = percents(100 * _share(sec, low, high))
        yield line("axis", x, _TOP, x, y)
        yield text(_seconds_words(sec), x, y + 15)


def _ticks(low: float, high: float) -> list[float]:
    """Round durations between two logarithms, two to six of them."""
    coarse, fine = ([sec for sec in some if low <= math.log10(sec) <= high] for some in (_COARSE, _FINE))
    if len(coarse) > 2 or (len(coarse) == 2 and len(fine) > 6):
        return coarse
    return fine if len(fine) > 1 else [10**at for at in (low, (low + high) / 2, high)]


def _seconds_words(sec: float) -> str:
    if sec < 60:
        return f"{sec:.2g} s"
    return f"{sec / 60:.2g} min" if sec < 3600 else f"{sec / 3600:.3g} h"


def _lane(lane: Sequence[float], status: str, y: float, low: float, high: float) -> Iterator[Markup]:
    sign = SIGNS.get(status, "")
    yield text(f"{sign} {status}".strip()[:12], "0", y + 4, "end", "label lane")
    dots = stacked([_share(sec, low, high) for sec in lane], _MOST)
    for share, height, index in dots:
        words = title(f"{status}: {_seconds_words(lane[index])}")
        yield dot(f"grain s-{class_name(status)}", 100 * share, y + _OFFSETS[height], 3.5, words)
    x = percents(100 * _share(median(lane), low, high))
    yield line("median", x, y - 11, x, y + 11)


# The scores of single seeds on one axis, with their mean and their spread.

_AXIS, _HEIGHT = 46.0, 66.0
_SEED_STRIP_TOP = 6.0
_LEAST = 0.2
_SEED_STRIP_MOST, _RISE = 6, 6.5
"""Dots in a stack, and how much higher each of them is."""


def seed_strip(per_seed: Sequence[float], mean: float, std: float | None, *, label: str) -> Markup:
    """A dot for each seed, a line at the mean and a band of one standard deviation on either side."""
    scores = [score for each in per_seed if (score := finite(each)) is not None]
    middle, spread = finite(mean), abs(finite(std) or 0.0)
    ends = [] if middle is None else [middle - spread, middle + spread]
    if scores and min(scores) >= 0 and max(scores) <= 1:
        ends = [min(1.0, max(0.0, end)) for end in ends]
    scale = scale_of([*scores, *ends], least=_LEAST)
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
        for share, height, index in stacked([scale.share(score) for score in scores], _SEED_STRIP_MOST)
    ]


# A line as high as a word: how a score went over the last runs.

_WIDTH, _SPARKLINE_HEIGHT, _EDGE = 120.0, 28.0, 4.0


def sparkline(
    scores: Sequence[float | None], *, alarms: Collection[int] = (), whole: bool = False, label: str
) -> Markup:
    """The scores from the first to the last, gaps where there is none, with a triangle at each alarm.

    The scale ends where the scores do; with `whole` it is from 0 to 1, so that lines below each other can be compared.
    """
    known = [finite(score) for score in scores]
    ends = [0.0, 1.0] if whole else []
    scale = scale_of([*ends, *(score for score in known if score is not None)], least=_LEAST)
    places = [_place(at, score, len(known), scale) for at, score in enumerate(known)]
    marks = [_triangle(place) for at, place in enumerate(places) if at in alarms and place is not None]
    shown = [place for place in places if place is not None]
    last = [_dot(*shown[-1], last_is_alarm=(len(known) - 1) in alarms)] if shown else []
    return picture("spark", label, *_lines(places), *marks, *last, viewBox=f"0 0 {_WIDTH:.0f} {_SPARKLINE_HEIGHT:.0f}")


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
    """A triangle that points at the place from above, or from below where there is no room above it."""
    x, y = place
    side = -1 if y >= 12 else 1
    start = f"M{number(x)},{number(y + 3.5 * side)}"
    return element("path", class_="mark", d=f"{start} l-3.5,{6 * side} h7 z")


def _dot(x: float, y: float, *, last_is_alarm: bool) -> Markup:
    return element("circle", class_="dot alarm" if last_is_alarm else "dot", cx=number(x), cy=number(y), r="3")


# A bar of several parts, such as where the time of a trial went.


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
