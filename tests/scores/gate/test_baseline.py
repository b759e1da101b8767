"""The CUSUM on normal nights: run lengths as published, the end of an alarm, the date of a change."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from tbench.scores.gate.baseline import Cusum, change_point


def fed(zs: list[float], h: float = 5.0) -> Cusum:
    cusum = Cusum(0.5, h)
    for number, z in enumerate(zs):
        cusum.add(number, z)
        cusum.update_alarm(confirmed=True)
    return cusum


def nights_to_an_alarm(rng: random.Random, shift: float, h: float) -> int:
    cusum, nights = Cusum(0.5, h), 0
    while not cusum.exceeds_limit:
        cusum.add(nights, rng.gauss(-shift, 1.0))
        nights += 1
    return nights


@pytest.mark.parametrize(("h", "shift", "mean"), [(5.0, 1.0, 10.4), (5.0, 2.0, 4.0), (4.0, 1.0, 8.3), (4.0, 2.0, 3.3)])
def test_the_mean_number_of_nights_to_an_alarm_is_the_published_one(h: float, shift: float, mean: float) -> None:
    rng = random.Random(1)
    assert fmean(nights_to_an_alarm(rng, shift, h) for _ in range(1500)) == pytest.approx(mean, rel=0.05)


@pytest.mark.parametrize(("h", "mean"), [(5.0, 936), (4.0, 334)])
def test_without_a_change_false_alarms_are_as_rare_as_published(h: float, mean: float) -> None:
    rng = random.Random(1)
    assert fmean(nights_to_an_alarm(rng, 0.0, h) for _ in range(200)) == pytest.approx(mean, rel=0.15)


def test_it_adds_up_drops_beyond_the_allowance_and_resets_at_zero() -> None:
    assert fed([-1.0, -2.0]).value == pytest.approx(0.5 + 1.5)
    assert (fed([-1.0, 0.2]).value, fed([-1.0, 0.2]).since) == (0.0, None)
    assert fed([-1.0, 0.2, -1.0]).since == 2


def test_an_alarm_ends_with_equal_evidence_for_the_old_level() -> None:
    lost = [-2.5] * 30
    assert fed(lost).value > 50
    assert fed(lost).alarm
    assert fed([*lost, 0.0, 0.0]).value == 0.0
    assert not fed([*lost, 0.0, 0.0]).alarm


def test_a_single_good_night_does_not_end_a_long_alarm() -> None:
    assert fed([*[-1.5] * 20, 1.0]).alarm


def test_a_drop_that_is_not_confirmed_is_no_alarm() -> None:
    cusum = Cusum(0.5, 5.0)
    for number in range(5):
        cusum.add(number, -3.0)
        cusum.update_alarm(confirmed=False)
    assert (cusum.exceeds_limit, cusum.alarm) == (True, False)


def test_the_first_night_on_another_level_is_found_behind_a_few_low_ones() -> None:
    assert change_point([-0.8, 0.1, -2.4, -2.6, -2.2]) == 2
    assert change_point([-1.0]) == 0
    assert change_point([-1.0, -1.0, -1.0]) == 0
