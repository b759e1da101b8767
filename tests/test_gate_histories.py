"""The gate on simulated histories: few false alarms, drops seen soon; docs/nightly.md has the figures."""

from __future__ import annotations

import pytest
from gate_histories import Setting, row, rows, seen, steady


def test_a_drop_of_six_points_is_seen_within_six_nights_and_hardly_one_is_where_nothing_changed() -> None:
    found = seen(Setting(points=6.0, nights=45), 40)
    assert found.median_nights <= 6
    assert found.share is not None and found.share > 0.8
    assert found.false_alarms_per_100 <= 1


def test_nights_that_resemble_the_one_before_raise_no_more_alarms() -> None:
    assert seen(Setting(sticky=0.5, nights=45), 40).false_alarms_per_100 <= 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "most"), [(1, (17, 6, 3)), (3, (7, 3, 2))])
def test_drops_are_seen_as_soon_as_the_page_says(seeds: int, most: tuple[int, int, int]) -> None:
    for points, nights in zip((3.0, 6.0, 10.0), most, strict=True):
        found = seen(Setting(points=points, seeds=seeds), 300)
        assert found.median_nights <= nights, points
        assert found.false_alarms_per_100 <= 0.5, points


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in rows() if "the gate" not in name and "the same" not in name])
def test_no_way_of_running_it_has_more_than_one_false_alarm_in_100_nights(name: str) -> None:
    """Other than where all tasks are worse together for some nights, of which few nights tell nothing."""
    assert seen(Setting(**{**rows()[name], "nights": 60, "dropped_at": 30}), 200).false_alarms_per_100 <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", steady())
def test_neither_has_a_benchmark_that_hardly_varies_or_is_small(name: str) -> None:
    assert seen(Setting(**steady()[name]), 200).false_alarms_per_100 <= 1


def test_a_row_of_the_table_has_a_cell_for_no_drop_and_for_each() -> None:
    assert row("few", 1, nights=32, tasks=5).count("|") == 6
