"""Run with: python3 -m pytest"""

from slots import free_slots, merge


def test_an_empty_day_is_one_slot() -> None:
    assert free_slots([], 480, 1020) == [(480, 1020)]


def test_a_meeting_leaves_time_on_both_sides() -> None:
    assert free_slots([(600, 660)], 480, 1020) == [(480, 600), (660, 1020)]


def test_overlapping_meetings_are_joined() -> None:
    assert merge([(600, 660), (630, 700)]) == [(600, 700)]
