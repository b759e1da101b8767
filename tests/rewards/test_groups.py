"""Group advantages against the formula."""

from __future__ import annotations

import math
from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.rewards import group_advantages

rewards = st.floats(-5, 5).map(lambda value: round(value, 3))


def test_the_advantages_of_a_group_are_deviations_over_the_sample_std() -> None:
    std = stdev([1.7, 0.0, 0.0, 0.3])
    expected = [(reward - 0.5) / (std + 1e-8) for reward in (1.7, 0.0, 0.0, 0.3)]
    assert group_advantages([1.7, 0.0, 0.0, 0.3]) == pytest.approx(expected, rel=1e-12)


def test_the_population_s_std_can_be_asked_for() -> None:
    assert group_advantages([1.0, 0.0], 2, ddof=0) == pytest.approx([1.0, -1.0])
    assert group_advantages([1.0, 0.0], 2) == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])


def test_each_group_is_apart() -> None:
    both = [1.0, 0.0, 0.5, 0.5, 7.0, 7.0, 8.0, 9.0]
    assert group_advantages(both) == group_advantages(both[:4]) + group_advantages(both[4:])


@given(rewards, st.integers(1, 8))
def test_equal_rewards_have_no_advantage_at_all(reward: float, size: int) -> None:
    assert group_advantages([reward + 0.1] * size, size) == [0.0] * size


@given(st.lists(rewards, min_size=4, max_size=4))
def test_advantages_sum_up_to_nothing(group: list[float]) -> None:
    assert sum(group_advantages(group)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([1.0] * 6,), "6 rewards cannot be split into groups of 4"),
        (([1.0], 0), "groups of 0"),
        (([1.0, math.nan], 2), "not a finite number"),
    ],
)
def test_what_cannot_be_grouped_is_refused(arguments: tuple[list[float], int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        group_advantages(*arguments)
    with pytest.raises(ValueError, match="ddof"):
        group_advantages([1.0], 1, ddof=2)
