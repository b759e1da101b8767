"""Charts: scales, durations, the seed strip, sparklines and stacked bars."""

from __future__ import annotations

import math

import pytest
from drawings import HOSTILE, of_class, places, read_chart, wild, words
from hypothesis import given
from hypothesis import strategies as st

from reports.charts import BarPart, ChartScale, duration_dots, finite, fit_scale, seed_strip, sparkline, stacked_bar

# Scales fit their numbers, and their ticks are round.


@given(st.lists(wild), st.sampled_from([0.05, 0.1, 0.2]))
def test_every_value_lies_on_its_scale(values: list[float], least: float) -> None:
    known = [value for each in values if (value := finite(each)) is not None]
    scale = fit_scale(known, least=least)
    assert scale.high - scale.low >= least * 0.999
    assert all(scale.low <= value <= scale.high for value in known)
    assert all(0 <= scale.share(value) <= 1 for value in known)
    assert 1 <= len(scale.ticks()) <= 6
    assert len(scale.tick_words()) == len(scale.ticks())


@given(st.lists(st.floats(0, 1), min_size=1))
def test_scores_have_a_scale_from_0_to_1_at_most(scores: list[float]) -> None:
    scale = fit_scale(scores, least=0.1)
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


# Durations are dots in a lane for each status.


@given(st.lists(st.tuples(wild, st.sampled_from(["pass", "fail", HOSTILE])), max_size=30))
def test_any_durations_make_a_chart(durations: list[tuple[float, str]]) -> None:
    assert all(0 <= place <= 100 for place in places(read_chart(duration_dots(durations, label=HOSTILE))))


def test_each_status_has_a_lane_with_its_sign_and_its_median() -> None:
    root = read_chart(duration_dots([(5, "fail"), (10, "pass"), (1000, "pass"), (30, "error")], label="x"))
    assert [each.text for each in of_class(root, "lane")] == ["✓ pass", "✗ fail", "! error"]
    assert len(of_class(root, "median")) == 3
    assert [each.findtext("title") for each in of_class(root, "s-pass")] == ["pass: 10 s", "pass: 17 min"]


def test_the_axis_has_two_ticks_at_least() -> None:
    for durations in ([(12.0, "pass"), (13.0, "pass")], [(0.0, "pass")], [(0.2, "pass"), (9000.0, "fail")]):
        root = read_chart(duration_dots(durations, label="x"))
        assert len(of_class(root, "axis")) >= 2


def test_without_durations_it_says_so() -> None:
    assert "no durations" in words(read_chart(duration_dots([], label="x")))


def test_thousands_of_trials_are_no_more_dots_than_can_be_seen() -> None:
    many = [(float(1 + at % 700), "pass") for at in range(20_000)]
    assert len(of_class(read_chart(duration_dots(many, label="x")), "grain")) <= 161 * 5


# The strip of seeds shows each of them, their mean and their spread.


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


@given(st.lists(wild | st.none(), max_size=40), st.sets(st.integers(0, 50)))
def test_any_scores_make_a_chart_within_its_box(scores: list[float | None], alarms: set[int]) -> None:
    root = read_chart(sparkline(scores, alarms=alarms, label="scores"))
    points = [point.split(",") for each in of_class(root, "line") for point in each.get("points", "").split()]
    assert all(0 <= float(x) <= 120 and 0 <= float(y) <= 28 for x, y in points)


def test_a_gap_parts_the_line() -> None:
    root = read_chart(sparkline([0.5, 0.6, None, 0.4, 0.5], label="scores"))
    assert len(of_class(root, "line")) == 2


def test_the_last_score_has_a_dot_and_an_alarm_a_triangle() -> None:
    root = read_chart(sparkline([0.9, 0.8, 0.2, 0.3], alarms=[2, 3], label="scores"))
    assert len(of_class(root, "mark")) == 2
    assert [each.get("class") for each in of_class(root, "dot")] == ["dot alarm"]


def test_equal_scores_are_a_level_line_and_small_changes_no_mountain() -> None:
    level = of_class(read_chart(sparkline([0.5, 0.5, 0.5], label="x")), "line")[0]
    assert {point.split(",")[1] for point in level.get("points", "").split()} == {"14"}
    small = of_class(read_chart(sparkline([0.50, 0.51], label="x")), "line")[0]
    heights = [float(point.split(",")[1]) for point in small.get("points", "").split()]
    assert abs(heights[0] - heights[1]) < 2


def test_no_score_leaves_an_empty_picture_with_its_label() -> None:
    root = read_chart(sparkline([], label=HOSTILE))
    assert root.get("role") == "img"
    assert "alert(1)" in (root.findtext("title") or "")
    assert not of_class(root, "line")


def test_a_whole_scale_puts_equal_scores_at_equal_heights() -> None:
    charts = [read_chart(sparkline([score] * 2, whole=True, label="x")) for score in (0.0, 0.5, 1.0)]
    lines = [of_class(chart, "line")[0] for chart in charts]
    heights = [float(line.get("points", "").split()[0].split(",")[1]) for line in lines]
    assert heights == [24, 14, 4]


# A stacked bar has a piece for each part that there is something of.


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
