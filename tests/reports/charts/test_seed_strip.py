"""The strip of seeds shows each of them, their mean and their spread."""

from __future__ import annotations

from drawings import HOSTILE, of_class, places, read_chart, wild, words
from hypothesis import given
from hypothesis import strategies as st

from reports.charts.seed_strip import seed_strip


@given(st.lists(wild, max_size=30), wild, st.none() | wild)
def test_any_numbers_make_a_strip(per_seed: list[float], mean: float, std: float | None) -> None:
    root = read_chart(seed_strip(per_seed, mean, std, label="seeds"))
    assert all(0 <= place <= 100 for place in places(root))


def test_each_seed_is_a_dot_that_says_its_score() -> None:
    root = read_chart(seed_strip([0.5, 0.52, 0.54], 0.52, 0.02, label=HOSTILE))
    assert [dot.findtext("title") for dot in of_class(root, "dot")] == ["50.0 %", "52.0 %", "54.0 %"]
    assert len(of_class(root, "mean")) == len(of_class(root, "band")) == 1


def test_the_axis_is_zoomed_to_what_there_is() -> None:
    assert words(read_chart(seed_strip([0.5, 0.54], 0.52, 0.02, label="x"))) == ["45 %", "50 %", "55 %", "60 %"]
    assert words(read_chart(seed_strip([0.0, 1.0], 0.5, 0.7, label="x"))) == ["0 %", "50 %", "100 %"]


def test_equal_seeds_stand_on_each_other() -> None:
    dots = of_class(read_chart(seed_strip([0.5] * 4, 0.5, 0.0, label="x")), "dot")
    assert len({dot.get("cy") for dot in dots}) == 4
    assert len({dot.get("cx") for dot in dots}) == 1


def test_many_seeds_are_no_more_than_can_be_seen() -> None:
    assert len(of_class(read_chart(seed_strip([0.5] * 10_000, 0.5, 0.0, label="x")), "dot")) < 10
