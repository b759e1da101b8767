"""How long trials took, a line of dots for each way in which they ended."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from markupsafe import Markup

from reports.charts.stacks import stacked
from reports.charts.svg import class_name, dot, line, number, percents, picture, text, title

_LANE, _TOP, _FOOT = 30.0, 4.0, 20.0
_MOST = 5
_OFFSETS = (0.0, -5.0, 5.0, -2.5, 2.5)
_SIGNS = {"pass": "✓", "partial": "◐", "fail": "✗", "error": "!", "missing": "·"}
_COARSE = (0.1, 1, 10, 60, 600, 3600, 36_000, 360_000)
_FINE = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 18_000, 36_000, 72_000, 180_000)
_LONGEST_SEC = 1e9


def duration_dots(durations: Sequence[tuple[float, str]], *, label: str) -> Markup:
    """The seconds that each trial took, by its status, on one axis whose steps are tenfold; a bar is at the median."""
    known = [(min(sec, _LONGEST_SEC), status) for sec, status in durations if math.isfinite(sec) and sec >= 0]
    words = dict.fromkeys(status for _, status in known)
    lanes = sorted(words, key=lambda status: list(_SIGNS).index(status) if status in _SIGNS else len(_SIGNS))
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
    sign = _SIGNS.get(status, "")
    yield text(f"{sign} {status}".strip()[:12], "0", y + 4, "end", "label lane")
    dots = stacked([_share(sec, low, high) for sec in lane], _MOST)
    for share, height, index in dots:
        words = title(f"{status}: {_seconds_words(lane[index])}")
        yield dot(f"grain s-{class_name(status)}", 100 * share, y + _OFFSETS[height], 3.5, words)
    x = percents(100 * _share(median(lane), low, high))
    yield line("median", x, y - 11, x, y + 11)
