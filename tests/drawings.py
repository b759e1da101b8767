"""Parses charts for tests: well-formed XML without NaN or infinite numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree.ElementTree import Element, fromstring

from hypothesis import strategies as st
from markupsafe import Markup

HOSTILE = "</title><script>alert(1)</script>\" onload='x' \u202e\x00\ud800 𝔘 &amp;"
wild = st.floats(allow_nan=True, allow_infinity=True, width=64) | st.floats(0, 1) | st.sampled_from([0.0, 1.0, 1e9])
"""Numbers as an untrusted verifier may write them."""


def read_chart(chart: Markup) -> Element:
    """Parse a chart, and check that it has no NaN, no infinity, no script and no inline style."""
    assert not re.search(r"\b(nan|inf)\b", chart.lower().replace("&", " "))
    root = fromstring(chart)
    assert not [each for each in root.iter() if each.tag in ("script", "style", "foreignObject", "image", "use")]
    assert not [name for each in root.iter() for name in each.attrib if name == "style" or name.startswith("on")]
    return root


def of_class(root: Element, name: str) -> list[Element]:
    """Return all elements of a class, in drawing order."""
    return [each for each in root.iter() if name in each.get("class", "").split()]


def words(root: Element) -> list[str]:
    """Return the visible texts of a chart, without titles."""
    return [each.text or "" for each in root.iter("text")]


def places(root: Element) -> Iterator[float]:
    """Return all horizontal positions given in percent."""
    for each in root.iter():
        for name in ("x", "x1", "x2", "cx", "width"):
            if (said := each.get(name, "")).endswith("%"):
                yield float(said[:-1])
