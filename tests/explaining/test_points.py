"""The split of a difference: parts that add up exactly, recomputed pair by pair, and intervals."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbench.explaining.points import Rows, Scored, is_paired, split

KEYS = ("context_full", "request_timeout", None)
trials = st.lists(
    st.tuples(st.sampled_from([Fraction(0), Fraction(1, 3), Fraction(1)]), st.sampled_from(KEYS)),
    min_size=1,
    max_size=6,
)


def a_row(drawn: list[tuple[Fraction, str | None]], first_seed: int) -> list[Scored]:
    return [
        Scored(reward, None if reward == 1 else key or "model", first_seed + at)
        for at, (reward, key) in enumerate(drawn)
    ]


def rest(task: str) -> str:
    return "image" if task == "b" else "model"


def renamed(rows: Rows) -> Rows:
    """Losses without evidence have the key of their task's rest."""
    return {
        task: [Scored(each.reward, rest(task) if each.key == "model" else each.key, each.seed) for each in row]
        for task, row in rows.items()
    }


def by_hand(first: Rows, second: Rows, *, paired: bool) -> dict[str, Fraction]:
    """Each part from every single pair, in fractions."""
    parts: defaultdict[str, Fraction] = defaultdict(Fraction)
    for task in first:
        pairs = [(a, b) for a, b in product(first[task], second[task]) if not paired or a.seed == b.seed]
        for old, new in pairs:
            loser = new if new.reward < old.reward else old
            parts[loser.key or rest(task)] += (new.reward - old.reward) / len(pairs) / len(first)
    return {key: part for key, part in parts.items() if part}


@given(st.lists(st.tuples(trials, trials), min_size=1, max_size=3), st.booleans())
@settings(deadline=None, max_examples=80)
def test_parts_are_what_single_pairs_give_and_add_up_to_the_difference(
    drawn: list[tuple[list[tuple[Fraction, str | None]], list[tuple[Fraction, str | None]]]], paired: bool
) -> None:
    first, second = {}, {}
    for task, (old, new) in zip("abc", drawn, strict=False):
        count = min(len(old), len(new))
        first[task] = a_row(old[:count] if paired else old, 0)
        second[task] = a_row(new[:count] if paired else new, 0 if paired else 100)
    first, second = renamed(first), renamed(second)
    assert is_paired(first, second) is paired
    found = split(first, second, rest, paired=paired)
    assert {part.key: part.difference for part in found.parts if part.difference} == by_hand(
        first, second, paired=paired
    )
    means = [
        sum((sum((each.reward for each in row), Fraction()) / len(row) for row in rows.values()), Fraction())
        / len(rows)
        for rows in (first, second)
    ]
    assert sum((part.difference for part in found.parts), Fraction()) == found.difference == means[1] - means[0]
    for part in found.parts:
        assert sum(part.by_task.values(), Fraction()) / len(first) == part.difference


def solved(count: int, first_seed: int = 0) -> list[Scored]:
    return [Scored(Fraction(1), None, first_seed + at) for at in range(count)]


def lost(key: str, count: int, first_seed: int = 0) -> list[Scored]:
    return [Scored(Fraction(0), key, first_seed + at) for at in range(count)]


def test_failures_with_evidence_are_named_and_those_that_would_fail_anyway_cost_nothing() -> None:
    first = {f"t{at}": solved(4) for at in range(5)} | {"hopeless": lost("model", 4)}
    second = {f"t{at}": [*lost("context_full", 2, 10), *solved(2, 12)] for at in range(5)}
    second["hopeless"] = lost("context_full", 4, 10)
    found = split(first, second, lambda _: "model", paired=False)
    (part,) = found.named
    assert (part.key, part.difference) == ("context_full", Fraction(-5, 12))
    assert part.interval.low < -5 / 12 < part.interval.high
    assert "hopeless" not in part.by_task


def test_two_lost_tasks_are_named_one_by_one() -> None:
    first = {f"t{at}": [*solved(19), *lost("model", 1, 19)] for at in range(10)}
    second = {f"t{at}": lost("model", 5, 50) if at < 2 else solved(5, 50) for at in range(10)}
    (part,) = split(first, second, lambda _: "model", paired=False).named
    assert (part.key, part.tasks) == ("model", ("t0", "t1"))


def test_equal_sides_name_nothing_and_have_a_width() -> None:
    rows = {f"t{at}": solved(3) for at in range(4)}
    found = split(rows, rows, lambda _: "model", paired=True)
    assert (found.difference, found.named) == (0, ())
    assert found.interval.low < 0 < found.interval.high


@pytest.mark.parametrize("count", [1, 2])
def test_a_trial_more_or_less_is_no_finding(count: int) -> None:
    first = {"a": solved(5), "b": solved(5)}
    second = {"a": [*lost("request_timeout", count, 10), *solved(5 - count, 20)], "b": solved(5, 10)}
    assert split(first, second, lambda _: "model", paired=False).named == ()
