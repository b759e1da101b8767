"""Float noise changes nothing: figures of noisy rewards equal those of the exact fractions."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from tbench.scores.comparing.compare import Comparison, compare
from tbench.scores.comparing.compared_run import ComparedRun
from tbench.scores.comparing.exact_tests import sign_flip_test, sign_test
from tbench.scores.comparing.noise import task_solve_rates
from tbench.scores.gate.judge import judge
from tbench.scores.gate.nights import GateRule, Night
from tbench.scores.gate.verdict import moved_tasks
from tbench.scores.statistics import (
    RewardTable,
    mean_std,
    pass_rates,
    per_seed_scores,
    per_seed_scores_scored_only,
    score,
    solve_counts,
    standard_error_over_tasks,
    task_means,
)

Rows = Sequence[Sequence[Fraction]]
REWARDS = st.sampled_from([*(Fraction(tenths, 10) for tenths in range(11)), Fraction(1, 3), Fraction(2, 3)])


def tables(tasks: int, seeds: int) -> st.SearchStrategy[Rows]:
    return st.lists(st.lists(REWARDS, min_size=seeds, max_size=seeds), min_size=tasks, max_size=tasks)


def as_written(number: Fraction, at: int) -> float:
    """Return a reward with the float noise of some program."""
    exact = float(number)
    tenths = sum([0.1] * int(number * 10)) if (number * 10).denominator == 1 else exact
    single: float = struct.unpack("f", struct.pack("f", exact))[0]
    return (exact, tenths, single, exact + 0.3 - 0.1 - 0.2, 1.0 - (1.0 - exact))[at % 5]


def table(rows: Rows, noise: int) -> RewardTable:
    names, seeds = [f"t{at}" for at in range(len(rows))], range(len(rows[0]))
    verdicts = [
        (names[task], seed, as_written(number, task * 7 + seed * 3 + noise) if noise else float(number))
        for task, row in enumerate(rows)
        for seed, number in enumerate(row)
    ]
    return RewardTable.from_verdicts(verdicts, names, seeds)


def exact_mean(numbers: Sequence[Fraction]) -> Fraction:
    return sum(numbers, Fraction()) / len(numbers)


@given(tables(4, 3), st.integers(1, 4))
def test_the_figures_of_a_run_are_those_of_its_fractions(rows: Rows, noise: int) -> None:
    found = table(rows, noise)
    columns = list(zip(*rows, strict=True))
    assert task_means(found) == tuple(float(exact_mean(row)) for row in rows)
    assert per_seed_scores(found) == per_seed_scores_scored_only(found)
    assert per_seed_scores(found) == tuple(float(exact_mean(column)) for column in columns)
    assert score(found) == float(exact_mean([number for row in rows for number in row]))
    assert (mean_std(per_seed_scores(found)).std == 0) == (len({sum(column) for column in columns}) == 1)
    assert (standard_error_over_tasks(found) == 0) == (len({sum(row) for row in rows}) == 1)
    solved = [sum(number >= 1 for number in row) for row in rows]
    assert solve_counts(found) == tuple(solved)
    for k in (1, 2, 3):
        at = [1 - Fraction(math.comb(3 - count, k), math.comb(3, k)) for count in solved]
        hat = [Fraction(math.comb(count, k), math.comb(3, k)) for count in solved]
        assert (pass_rates(found).pass_at[k], pass_rates(found).pass_hat[k]) == (
            float(exact_mean(at)),
            float(exact_mean(hat)),
        )
    (first, *_) = task_solve_rates([ComparedRun("a", found, {})])
    assert sum(number >= 1 for number in rows[int(first.task[1:])]) == first.solved


@given(tables(6, 3), tables(6, 3), st.integers(1, 4))
def test_a_comparison_is_that_of_the_fractions(old: Rows, new: Rows, noise: int) -> None:
    found = compare(ComparedRun("a", table(old, noise), {}), ComparedRun("b", table(new, noise + 1), {}))
    gains = [exact_mean(b) - exact_mean(a) for a, b in zip(old, new, strict=True)]
    better, worse = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    assert (found.better, found.worse, found.equal) == (better, worse, 6 - better - worse)
    assert (found.difference, found.sign_p) == (float(exact_mean(gains)), sign_test(better, worse))
    assert found.p == sign_flip_test(gains).p
    assert (
        found.pairs_p
        == sign_flip_test(y - x for a, b in zip(old, new, strict=True) for x, y in zip(a, b, strict=True)).p
    )
    moved = sorted((-gain, f"t{at}") for at, gain in enumerate(gains) if gain)
    assert [each.task for each in found.changes] == [task for _, task in moved]
    newly = [f"t{at}" for at, (a, b) in enumerate(zip(old, new, strict=True)) if max(a) < 1 <= max(b) and gains[at]]
    assert sorted(each.task for each in found.newly_solved) == newly
    clean = compare(ComparedRun("a", table(old, 0), {}), ComparedRun("b", table(new, 0), {}))
    assert Comparison.model_dump(found) == Comparison.model_dump(clean)


@given(tables(4, 4), tables(4, 3), st.integers(1, 4))
def test_the_tasks_that_moved_are_those_of_the_fractions(base: Rows, since: Rows, noise: int) -> None:
    pairs = [(f"t{at}", table(base, noise).rows[at], table(since, noise + 1).rows[at]) for at in range(4)]
    found = {change.task: change for change in moved_tasks(pairs, downwards=True)}  # type: ignore[arg-type]
    lower = {f"t{at}" for at in range(4) if exact_mean(since[at]) < exact_mean(base[at])}
    assert found.keys() == lower
    for task, change in found.items():
        at = int(task[1:])
        both, drawn = [*base[at], *since[at]], sum(since[at])
        splits = [sum(split) <= drawn for split in combinations(both, 3)]
        assert math.isclose(change.p, sum(splits) / len(splits), rel_tol=1e-12)


@settings(max_examples=20)
@given(st.lists(tables(3, 2), min_size=9, max_size=9), st.integers(1, 4))
def test_float_noise_does_not_change_the_gates_verdict(nights: Sequence[Rows], noise: int) -> None:
    rule = GateRule(base_nights=4, h=1.0, min_se=0.0)
    noisy, clean = (
        judge([Night(f"n{at}", f"2026-11-{at + 1:02}", table(rows, kind), {}) for at, rows in enumerate(nights)], rule)
        for kind in (noise, 0)
    )
    assert noisy.as_json() == clean.as_json()


def test_noise_at_the_end_of_the_range_leaves_a_score_its_bounds() -> None:
    rewards = [("a", 0, 0.1 + 0.7 + 0.2 + 2**-52), ("b", 0, -1e-17)]
    assert RewardTable.from_verdicts(rewards, ["a", "b"], [0, 1]).is_bounded
    assert not RewardTable.from_verdicts([*rewards, ("b", 1, 1.5)], ["a", "b"], [0, 1]).is_bounded
    assert not RewardTable.from_verdicts(rewards, ["a", "b"], [0], is_bounded=False).is_bounded
