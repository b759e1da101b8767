"""Scales fit their numbers, and their ticks are round."""

from __future__ import annotations

import math

import pytest
from drawings import wild
from hypothesis import given
from hypothesis import strategies as st

from reports.charts.scale import ChartScale, finite, scale_of


@given(st.lists(wild), st.sampled_from([0.05, 0.1, 0.2]))
def test_every_value_lies_on_its_scale(values: list[float], least: float) -> None:
    known = [value for each in values if (value := finite(each)) is not None]
    scale = scale_of(known, least=least)
    assert scale.high - scale.low >= least * 0.999
    assert all(scale.low <= value <= scale.high for value in known)
    assert all(0 <= scale.share(value) <= 1 for value in known)
    assert 1 <= len(scale.ticks()) <= 6
    assert len(scale.tick_words()) == len(scale.ticks())


@given(st.lists(st.floats(0, 1), min_size=1))
def test_scores_have_a_scale_from_0_to_1_at_most(scores: list[float]) -> None:
    scale = scale_of(scores, least=0.1)
    assert scale.low >= 0
    assert scale.high <= 1


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.0, 1.0, ("0", "50", "100")),
        (0.45, 0.68, ("50", "60")),
        (0.5, 0.6, ("50", "55", "60")),
        (0.5, 0.504, ("50.0", "50.1", "50.2", "50.3", "50.4")),
        (-0.4, 0.4, ("−40", "−20", "0", "20", "40")),
        (0.0, 1e9, ("0", "5e+10", "1e+11")),
    ],
)
def test_ticks_are_round_and_say_as_much_as_is_needed(low: float, high: float, words: tuple[str, ...]) -> None:
    assert ChartScale(low, high).tick_words() == words


def test_what_is_no_number_is_none() -> None:
    assert [finite(value) for value in (None, math.nan, math.inf, -math.inf)] == [None] * 4
    assert finite(1e300) == 1e9
