"""A stacked bar has a piece for each part that there is something of."""

from __future__ import annotations

import pytest
from drawings import HOSTILE, of_class, places, read_chart, wild
from hypothesis import given
from hypothesis import strategies as st

from reports.charts.stacked_bar import BarPart, stacked_bar


@given(st.lists(wild, max_size=8), st.none() | wild)
def test_any_amounts_make_a_bar_that_is_no_wider_than_its_chart(amounts: list[float], full: float | None) -> None:
    parts = [BarPart("model", amount, "words") for amount in amounts]
    root = read_chart(stacked_bar(parts, full=full, label="time"))
    assert all(0 <= place <= 100 for place in places(root))
    assert sum(float(each.get("width", "")[:-1]) for each in of_class(root, "part")) <= 100.1


def test_parts_are_as_wide_as_their_share() -> None:
    root = read_chart(stacked_bar([BarPart("model", 3, "a"), BarPart("command", 1, "b")], label="time"))
    assert [(each.get("class"), each.get("x"), each.get("width")) for each in of_class(root, "part")] == [
        ("part model", "0%", "75%"),
        ("part command", "75%", "25%"),
    ]


def test_a_bar_of_less_than_the_full_amount_is_shorter() -> None:
    (part,) = of_class(read_chart(stacked_bar([BarPart("model", 3, "a")], full=12, label="time")), "part")
    assert part.get("width") == "25%"


@pytest.mark.parametrize("name", ["a b", '"><script>', "", "Ä"])
def test_a_name_that_can_be_no_class_is_other(name: str) -> None:
    (part,) = of_class(read_chart(stacked_bar([BarPart(name, 1, HOSTILE)], label=HOSTILE)), "part")
    assert part.get("class") == "part other"
    assert "alert(1)" in (part.findtext("title") or "")
