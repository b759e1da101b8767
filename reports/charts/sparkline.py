"""A line as high as a word: how a score went over the last runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from markupsafe import Markup

from reports.charts.scale import ChartScale, finite, scale_of
from reports.charts.svg import element, number, picture

_WIDTH, _HEIGHT, _EDGE = 120.0, 28.0, 4.0
_LEAST = 0.2
"""The least that a sparkline is high, as a difference of scores: noise of a point or two is no mountain."""


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
    return picture("spark", label, *_lines(places), *marks, *last, viewBox=f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}")


def _place(at: int, score: float | None, count: int, scale: ChartScale) -> tuple[float, float] | None:
    if score is None:
        return None
    share = at / (count - 1) if count > 1 else 0.5
    x = _EDGE + share * (_WIDTH - 2 * _EDGE)
    return x, _EDGE + (1 - scale.share(score)) * (_HEIGHT - 2 * _EDGE)


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
