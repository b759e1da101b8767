"""Pieces of SVG: elements whose attributes and texts are escaped, and places in percents of the width.

Wide charts have no viewBox: what is placed in percents keeps the size of its letters and the roundness of its dots on
a phone as on a large screen. Only lines are stretched, in a `stretched` plot within.
"""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from tbench.text import unseen_as

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
