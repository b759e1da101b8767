"""Style of a terminal cell: SGR escapes reduced to sixteen colours, as CSS classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

_CUBE = (0, 95, 135, 175, 215, 255)
"""Brightness of the six levels of each channel in the 256-colour cube."""
_BRIGHT = 8
_MAX_STYLES = 4096


class CellStyle(NamedTuple):
    """Style of a cell. Colours are numbers from 0 to 15; None is the terminal's default."""

    foreground: int | None = None
    background: int | None = None
    bold: bool = False
    faint: bool = False
    inverse: bool = False
    italic: bool = False
    underlined: bool = False

    @property
    def classes(self) -> str:
        """Classes of terminal.css; empty for the default style."""
        foreground, background = (
            (self.background, self.foreground) if self.inverse else (self.foreground, self.background)
        )
        words = [] if foreground is None else [f"i{foreground}"]
        words += [f"g{background}"] if background is not None else ["inv-g"] if self.inverse else []
        switches = {"b": self.bold, "d": self.faint, "it": self.italic, "u": self.underlined}
        return " ".join([*words, *(name for name, is_on in switches.items() if is_on)])


PLAIN = CellStyle()
_ON = {1: {"bold": True}, 2: {"faint": True}, 3: {"italic": True}, 4: {"underlined": True}, 7: {"inverse": True}}
_OFF = {22: {"bold": False, "faint": False}, 23: {"italic": False}, 24: {"underlined": False}, 27: {"inverse": False}}


@lru_cache(maxsize=_MAX_STYLES)
def apply_codes(style: CellStyle, codes: tuple[int, ...]) -> CellStyle:
    """Return the style after applying the codes of one `ESC [ … m`."""
    pending = iter(codes or (0,))
    for code in pending:
        style = PLAIN if code == 0 else _apply_code(style, code, pending)
    return style


def _apply_code(style: CellStyle, code: int, rest: Iterator[int]) -> CellStyle:
    if (switch := _ON.get(code) or _OFF.get(code)) is not None:
        return style._replace(**switch)
    if code in (38, 48):
        colour = _parse_extended_colour(rest)
        return style._replace(foreground=colour) if code == 38 else style._replace(background=colour)
    if 30 <= code <= 37 or code == 39:
        return style._replace(foreground=None if code == 39 else code - 30)
    if 40 <= code <= 47 or code == 49:
        return style._replace(background=None if code == 49 else code - 40)
    if 90 <= code <= 97:
        return style._replace(foreground=code - 90 + _BRIGHT)
    if 100 <= code <= 107:
        return style._replace(background=code - 100 + _BRIGHT)
    return style


def _parse_extended_colour(rest: Iterator[int]) -> int | None:
    """Return the colour given by `5;N` or `2;R;G;B`, as the nearest of the sixteen."""
    kind = next(rest, None)
    if kind == 5:
        return _nearest_of_256(next(rest, 0))
    if kind == 2:
        return _nearest([next(rest, 0), next(rest, 0), next(rest, 0)])
    return None


def _nearest_of_256(number: int) -> int:
    if number < 16:
        return number
    if number >= 232:
        return _nearest([8 + 10 * (min(number, 255) - 232)] * 3)
    return _nearest([_CUBE[(number - 16) // step % 6] for step in (36, 6, 1)])


def _nearest(parts: Sequence[int]) -> int:
    """Return the one of the sixteen colours that is nearest to this mix of red, green and blue."""
    high, low = max(parts), min(parts)
    if high - low < 48:  # a grey
        return 0 if high < 64 else _BRIGHT if high < 144 else 7 if high < 224 else 15
    middle = (high + low) / 2
    hue = sum(1 << at for at, part in enumerate(parts) if part > middle)
    return hue + _BRIGHT if high > 192 else hue
