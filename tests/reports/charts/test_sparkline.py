"""A sparkline has a line for each stretch of scores, and a triangle for each alarm."""

from __future__ import annotations

from drawings import HOSTILE, of_class, read_chart, wild
from hypothesis import given
from hypothesis import strategies as st

from reports.charts.sparkline import sparkline


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
