"""Dividing trials among shards: everybody finds the same division, nobody does a trial twice, and loads are even."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.config.shard import Shard, checked_shard
from tbench.shards.division import Weighed, divide, planned_shard

seconds = st.one_of(st.sampled_from([0.0, 900.0, 3600.0]), st.floats(0, 1e5))
trials = st.lists(
    st.tuples(st.text(min_size=1, max_size=5), st.integers(0, 9), seconds), max_size=60, unique_by=lambda each: each[:2]
).map(lambda drawn: [Weighed(*each) for each in drawn])


@given(trials, st.integers(1, 12), st.randoms())
def test_each_trial_is_in_one_part_whatever_the_order_in_which_they_are_given(
    drawn: list[Weighed], count: int, rng: random.Random
) -> None:
    parts = divide(drawn, count)
    assert len(parts) == count
    assert sorted(each for part in parts for each in part) == sorted(drawn)
    shuffled = rng.sample(drawn, len(drawn))
    assert divide(shuffled, count) == parts


@given(trials, st.integers(1, 12))
def test_two_parts_differ_by_no_more_than_one_trial(drawn: list[Weighed], count: int) -> None:
    loads = [sum(each.seconds for each in part) for part in divide(drawn, count)]
    assert max(loads) - min(loads) <= max((each.seconds for each in drawn), default=0.0) + 1e-6


@given(st.integers(1, 20), st.integers(1, 5), st.integers(1, 8))
def test_trials_of_equal_length_are_spread_in_equal_numbers(tasks: int, seeds: int, count: int) -> None:
    for length in (0.0, 900.0):
        drawn = [Weighed(f"t{task}", seed, length) for task in range(tasks) for seed in range(seeds)]
        sizes = [len(part) for part in divide(drawn, count)]
        assert max(sizes) - min(sizes) <= 1


def test_the_seeds_of_a_task_do_not_keep_together() -> None:
    drawn = [Weighed(f"t{task:02}", seed, 900.0) for task in range(89) for seed in range(5)]
    having = [{each.task for each in part} for part in divide(drawn, 5)]
    assert min(map(len, having)) > 50


def test_shards_of_one_division_have_its_digest_and_others_do_not() -> None:
    drawn = [Weighed("a", 0, 5.0), Weighed("a", 1, 5.0), Weighed("b", 0, 7.0)]
    first, second = (planned_shard(drawn, Shard(index, 2)) for index in (0, 1))
    assert first.digest == second.digest == planned_shard(drawn[::-1], Shard(0, 2)).digest
    assert sorted((*first.trials, *second.trials)) == [("a", 0), ("a", 1), ("b", 0)]
    assert planned_shard(drawn, Shard(0, 3)).digest != first.digest
    assert planned_shard([*drawn[:2], Weighed("b", 0, 8.0)], Shard(0, 2)).digest != first.digest


@pytest.mark.parametrize("text", ["4/4", "1", "1/0", "-1/4", "1/4 ", "a/b", "0/1000000", "", "1/2/3", "٠/٤"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be I/N with I from 0 to N-1"):
        checked_shard(text)


def test_a_shard_is_said_in_one_way() -> None:
    assert checked_shard("00/04") == "0/4" and checked_shard(None) is None
