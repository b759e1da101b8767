"""The chart of a score over runs: line, intervals, baseline, alarms and the change, for few points and for many."""

from __future__ import annotations

from typing import Any

from drawings import HOSTILE, of_class, places, read_chart, wild, words
from hypothesis import given
from hypothesis import strategies as st

from reports.score_history import ScorePoint, score_history


def point(score: float | None, **known: Any) -> ScorePoint:
    return ScorePoint(**({"label": "n", "score": score, "se": 0.02, "href": None, "title": "t"} | known))


def points(count: int, **known: Any) -> list[ScorePoint]:
    return [point(0.5 + 0.01 * (at % 3), label=f"night-{at:03}", **known) for at in range(count)]


wild_points = st.lists(
    st.builds(
        ScorePoint,
        label=st.sampled_from(["a", HOSTILE]),
        score=wild | st.none(),
        se=wild | st.none(),
        href=st.sampled_from([None, "x.html"]),
        title=st.just(HOSTILE),
        alarm=st.booleans(),
        coverage=wild,
    ),
    max_size=50,
)


@given(wild_points, wild | st.none(), wild | st.none(), st.none() | st.integers(-5, 60))
def test_any_points_make_a_chart(
    found: list[ScorePoint], mean: float | None, sd: float | None, change: int | None
) -> None:
    root = read_chart(score_history(found, base_mean=mean, base_sd=sd, change_at=change, label=HOSTILE))
    assert all(0 <= place <= 100.01 for place in places(root))


def test_a_point_has_a_dot_its_interval_and_a_link_that_says_what_it_is() -> None:
    root = read_chart(score_history(points(3, href="r.html", title="night 1: 50 %"), label="scores"))
    assert len(of_class(root, "dot")) == len(of_class(root, "whisker")) == 3
    assert [(link.get("href"), link.get("aria-label")) for link in root.iter("a")] == [("r.html", "night 1: 50 %")] * 3
    assert (root.get("role"), root.get("aria-label")) == ("group", "scores")


def test_without_links_it_is_a_picture() -> None:
    root = read_chart(score_history(points(3), label="scores"))
    assert (root.get("role"), root.findtext("title")) == ("img", "scores")


def test_many_points_have_a_band_few_labels_and_few_dots() -> None:
    root = read_chart(score_history(points(300, href="r.html"), label="x"))
    assert len(of_class(root, "band")) == 1
    assert not of_class(root, "whisker")
    assert len(of_class(root, "dot")) == 1
    assert [each for each in words(root) if each.startswith("night")] == [
        "night-000",
        "night-075",
        "night-150",
        "night-224",
        "night-299",
    ]
    assert {link.get("tabindex") for link in root.iter("a")} == {"-1"}


def test_an_alarm_is_a_triangle_and_a_bar_below() -> None:
    history = [point(0.6), point(0.6), point(0.4, alarm=True), point(0.4, alarm=True), point(0.6)]
    root = read_chart(score_history(history, label="x"))
    assert [(bar.get("x1"), bar.get("x2")) for bar in of_class(root, "wide-mark")] == [("40%", "80%")]
    assert len([mark for mark in of_class(root, "mark") if mark.tag == "path"]) == 2
    assert len(of_class(root, "alarm")) == 2


def test_many_alarms_beside_each_other_have_one_triangle() -> None:
    history = [*points(40), *(point(0.3, alarm=True) for _ in range(20))]
    root = read_chart(score_history(history, label="x"))
    assert len([mark for mark in of_class(root, "mark") if mark.tag == "path"]) == 1


def test_a_run_without_a_score_parts_the_line_and_one_that_is_not_over_is_hollow() -> None:
    history = [point(0.5), point(0.5), point(None), point(0.5), point(0.5, coverage=0.4)]
    root = read_chart(score_history(history, label="x"))
    assert len(of_class(root, "line")) == 2
    assert [dot.get("class") for dot in of_class(root, "dot")][-1] == "dot hollow"


def test_baseline_and_change_are_named() -> None:
    root = read_chart(score_history(points(10), base_mean=0.5, base_sd=0.01, change_at=6, label="x"))
    assert len(of_class(root, "base")) == len(of_class(root, "base-band")) == 1
    assert {"baseline 50.0\u00a0%", "← changed here"} <= set(words(root))
    assert of_class(root, "change")[0].get("x1") == "60%"


def test_long_and_hostile_labels_are_cut_and_stay_text() -> None:
    root = read_chart(score_history([point(0.5, label=HOSTILE, title=HOSTILE, href=HOSTILE)], label=HOSTILE))
    assert all(len(each) <= 20 for each in words(root))
    assert "alert(1)" in (root.get("aria-label") or "")


def test_nothing_to_show_is_said() -> None:
    for history in ([], [point(None)]):
        assert "no scores yet" in words(read_chart(score_history(history, label="x")))


def test_a_whole_scale_is_from_0_to_1() -> None:
    root = read_chart(score_history(points(5), whole=True, label="x"))
    assert {"0\u00a0%", "100\u00a0%"} <= set(words(root))
