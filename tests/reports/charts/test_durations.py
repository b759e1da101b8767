"""Durations are dots in a lane for each status."""

from __future__ import annotations

from drawings import HOSTILE, of_class, places, read_chart, wild, words
from hypothesis import given
from hypothesis import strategies as st

from reports.charts.durations import duration_dots


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
