"""Draws a terminal over time as one SVG that moves by itself and loads nothing from elsewhere."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

CELL_WIDTH, LINE_HEIGHT, BASELINE = 8.4, 18.0, 13.5
MARGIN, BAR = 12.0, 34.0
SHORTEST_SEC, LONGEST_SEC, LAST_SEC = 0.4, 2.5, 3.5
"""For how long a screen is shown: within the first two, and the last one of all."""
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_BACKGROUND, _FOREGROUND = "#292929", "#c5c8c6"


@dataclass(frozen=True)
class Frame:
    """A screen, with the escape sequences of its colours, and how long it stood there."""

    screen: str
    seconds: float


Span = tuple[int, int]
"""Screens from one number to another, the second one excluded."""


def shown_frames(frames: Sequence[Frame]) -> list[Frame]:
    """The screens as they are shown: equal neighbours as one, none too short to be seen or long enough to bore."""
    merged: list[Frame] = []
    for frame in frames:
        if merged and merged[-1].screen == frame.screen:
            merged[-1] = Frame(frame.screen, merged[-1].seconds + frame.seconds)
        else:
            merged.append(frame)
    bounded = [Frame(each.screen, min(LONGEST_SEC, max(SHORTEST_SEC, each.seconds))) for each in merged]
    return [*bounded[:-1], Frame(bounded[-1].screen, LAST_SEC)]


def moving_picture(frames: Sequence[Frame], size: tuple[int, int], title: str) -> str:
    """The picture of a terminal of columns x rows; who wants no motion sees its last screen."""
    shown = shown_frames(frames)
    columns, rows = size
    width, height = columns * CELL_WIDTH + 2 * MARGIN, rows * LINE_HEIGHT + BAR + MARGIN
    timing = _Timing([frame.seconds for frame in shown])
    lines = "".join(_lines(shown, size, timing))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">'
        f"<title>{escape(title)}</title><style>text{{font:14px {_FONT};white-space:pre}}"
        f"{timing.rules()}@media (prefers-reduced-motion:reduce){{g{{animation:none!important}}}}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="{_BACKGROUND}"/>'
        '<circle cx="18" cy="17" r="6" fill="#ff5f57"/><circle cx="38" cy="17" r="6" fill="#febc2e"/>'
        '<circle cx="58" cy="17" r="6" fill="#28c840"/>'
        f'<text x="50%" y="22" text-anchor="middle" fill="{_FOREGROUND}">{escape(title)}</text>{lines}</svg>\n'
    )


class _Timing:
    """When something is to be seen: a rule of CSS for each choice of screens, however many lines have it."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self._total = sum(seconds)
        self._starts = [sum(seconds[:at]) for at in range(len(seconds) + 1)]
        self._names: dict[tuple[Span, ...], str] = {}

    def attributes(self, spans: tuple[Span, ...]) -> str:
        """The attributes of what is seen in those screens."""
        last = len(self._starts) - 1
        if spans == ((0, last),):
            return ""
        name = self._names.setdefault(spans, f"s{len(self._names)}")
        return f' class="{name}"{"" if spans[-1][1] == last else " opacity=" + chr(34) + "0" + chr(34)}'

    def rules(self) -> str:
        """The rules of all of them."""
        return "".join(self._rule(name, spans) for spans, name in self._names.items())

    def _rule(self, name: str, spans: tuple[Span, ...]) -> str:
        points = {0.0: 0}
        for begin, end in spans:
            points[self._percent(begin)] = 1
            if end < len(self._starts) - 1:
                points[self._percent(end)] = 0
        steps = "".join(f"{at:g}%{{opacity:{value}}}" for at, value in sorted(points.items()))
        return f"@keyframes {name}{{{steps}}}.{name}{{animation:{name} {self._total:g}s step-end infinite}}"

    def _percent(self, number: int) -> float:
        return round(100 * self._starts[number] / self._total, 3)


def _lines(frames: Sequence[Frame], size: tuple[int, int], timing: _Timing) -> Iterator[str]:
    """Each different line of each row once, to be seen in the screens that have it."""
    columns, rows = size
    console = Console(file=io.StringIO(), width=columns, force_terminal=True, color_system="truecolor")
    screens = [frame.screen.split("\n") for frame in frames]
    for row in range(rows):
        spans: dict[str, list[Span]] = {}
        for at, screen in enumerate(screens):
            line = screen[row] if row < len(screen) else ""
            of_line = spans.setdefault(line, [])
            if of_line and of_line[-1][1] == at:
                of_line[-1] = (of_line[-1][0], at + 1)
            else:
                of_line.append((at, at + 1))
        for line, seen in spans.items():
            if drawn := "".join(_drawn(Text.from_ansi(line).render(console), BAR + row * LINE_HEIGHT)):
                yield f"<g{timing.attributes(tuple(seen))}>{drawn}</g>"


def _drawn(segments: Iterator[Segment] | Sequence[Segment], top: float) -> Iterator[str]:
    """The pieces of a line, each with its colours."""
    column = 0
    for segment in segments:
        text = segment.text.rstrip("\n")
        left, cells = MARGIN + column * CELL_WIDTH, Segment(text).cell_length
        column += cells
        front, back, weight = _colours(segment.style or Style())
        if back is not None and cells:
            yield (
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{cells * CELL_WIDTH:.1f}" height="{LINE_HEIGHT:.0f}"'
                f' fill="{back}"/>'
            )
        if text.strip():
            lead = len(text) - len(text.lstrip(" "))
            bare = text.strip(" ")
            at, length = left + lead * CELL_WIDTH, Segment(bare).cell_length * CELL_WIDTH
            yield (
                f'<text x="{at:.1f}" y="{top + BASELINE:.1f}" textLength="{length:.1f}" fill="{front}"{weight}>'
                f"{_visible(bare)}</text>"
            )


def _colours(style: Style) -> tuple[str, str | None, str]:
    """The colour of the letters, that behind them where it is another one, and how thick they are."""
    theme = SVG_EXPORT_THEME
    front = _FOREGROUND if style.color is None or style.color.is_default else style.color.get_truecolor(theme).hex
    back = None if style.bgcolor is None or style.bgcolor.is_default else style.bgcolor.get_truecolor(theme).hex
    if style.reverse:
        front, back = back or _BACKGROUND, front
    faint = ' opacity="0.6"' if style.dim else ""
    return front, back, f"{faint}{' font-weight=' + chr(34) + '700' + chr(34) if style.bold else ''}"


def _visible(text: str) -> str:
    return escape("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text))
