"""Intervals: against published and tabled numbers, and by simulation of their coverage."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from fractions import Fraction
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from interval_coverage import coverage

from tbench.scores.intervals import (
    BOOTSTRAP_MIN_TASKS,
    beta_quantile,
    bootstrap,
    bootstrap_mean,
    incomplete_beta,
    interval_95,
    korn_graubard_95,
    quantile,
    student_t_975,
)

Draw = Callable[[random.Random], float]


# -- few tasks -----------------------------------------------------------------------------------


def of_five_seeds(chance: float, rng: random.Random) -> float:
    return sum(rng.random() < chance for _ in range(5)) / 5


KINDS: dict[str, tuple[Draw, float]] = {
    "half of the tasks are solved, always": (lambda rng: float(rng.random() < 0.5), 0.5),
    "one in ten is solved, always": (lambda rng: float(rng.random() < 0.1), 0.1),
    "nine in ten are solved, always": (lambda rng: float(rng.random() < 0.9), 0.9),
    "any chance is as likely": (lambda rng: of_five_seeds(rng.random(), rng), 0.5),
    "most tasks are hard or easy": (lambda rng: of_five_seeds(rng.betavariate(0.3, 0.3), rng), 0.5),
    "most tasks are hard": (lambda rng: of_five_seeds(rng.betavariate(0.2, 0.8), rng), 0.2),
    "nearly all are easy": (lambda rng: of_five_seeds(rng.betavariate(8, 0.5), rng), 8 / 8.5),
    "all are equally hard": (lambda rng: of_five_seeds(0.5, rng), 0.5),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if number % 3 else ()) for number, kind in enumerate(KINDS)]
)
def test_the_coverage_for_few_tasks_is_kept(kind: str) -> None:
    draw, mean = KINDS[kind]
    rng = random.Random(7)
    for tasks in (2, 3, 5, 9):
        drawn = ([draw(rng) for _ in range(tasks)] for _ in range(400))
        intervals = [interval_95(means) for means in drawn]
        covered = fmean(interval.low <= mean <= interval.high for interval in intervals if interval is not None)
        # 93 % less two standard errors of 400 draws.
        assert covered >= 0.93 - 2 * math.sqrt(0.93 * 0.07 / 400), (tasks, covered)


def test_all_solved_is_no_certainty() -> None:
    for tasks in (2, 9, BOOTSTRAP_MIN_TASKS, 200):
        interval = interval_95([1.0] * tasks)
        assert interval is not None
        # Clopper and Pearson's: 0.025 to the power of 1 / n.
        assert (interval.low, interval.high) == (pytest.approx(0.025 ** (1 / tasks)), 1.0)
        none = interval_95([0.0] * tasks)
        assert none is not None and (none.low, none.high) == (0.0, pytest.approx(1 - 0.025 ** (1 / tasks)))


def test_means_that_differ_little_are_certain_only_where_they_are_many() -> None:
    alike, apart = [0.5, 0.5, 0.6, 0.4, 0.5, 0.5], [0.0, 1.0, 1.0, 0.0, 1.0, 0.0]
    for times, most in ((1, 0.6), (15, 0.06)):
        narrow, wide = korn_graubard_95(alike * times), korn_graubard_95(apart * times)
        assert narrow.low < 0.5 < narrow.high and narrow.high - narrow.low < most
        assert narrow.high - narrow.low < 0.75 * (wide.high - wide.low)


@pytest.mark.parametrize("tasks", [2, 20, 20_000])
def test_means_that_differ_by_the_noise_of_floats_are_equal(tasks: int) -> None:
    noisy, equal = korn_graubard_95([0.3, 0.1 + 0.2] * (tasks // 2)), korn_graubard_95([0.3] * tasks)
    assert (noisy.low, noisy.high) == pytest.approx((equal.low, equal.high), abs=1e-9)


@pytest.mark.parametrize(
    ("kind", "mean", "tasks", "seeds"),
    [
        ("as in Terminal-Bench (Beta, ρ = 0.45)", 0.024, 89, 5),
        ("a few certain ones, the rest 1 in 200", 0.024, 50, 10),
        ("a few certain ones, the rest 1 in 200", 0.976, 20, 10),
        ("partial rewards (Beta, ρ = 0.3), any number of seeds", 0.01, 30, 1),
    ],
)
def test_the_coverage_for_weak_and_strong_models_is_kept(kind: str, mean: float, tasks: int, seeds: int) -> None:
    """Cases in which a bootstrap covers 50 to 90 %; `interval_coverage` has more."""
    assert coverage(kind, mean, tasks, seeds, draws=300) >= 0.93 - 2 * math.sqrt(0.93 * 0.07 / 300)


def test_one_task_and_few_with_other_rewards_have_no_interval() -> None:
    assert interval_95([0.5]) is None
    assert interval_95([0.5, 2.5]) is None
    assert interval_95([0.5] * 20 + [-1.0] * 20) is not None
    assert interval_95([0.5] * 40 + [-1.0]) is None  # a single task makes all of the variance


@given(st.lists(st.floats(0, 1), min_size=2, max_size=60))
def test_the_score_is_within(means: list[float]) -> None:
    interval = interval_95(means)
    assert interval is not None
    assert 0.0 <= interval.low <= fmean(means) + 1e-9 and fmean(means) - 1e-9 <= interval.high <= 1.0


@pytest.mark.parametrize(
    ("degrees", "tabled"), [(1, 12.7062), (2, 4.30265), (8, 2.30600), (30, 2.04227), (88, 1.98729)]
)
def test_student_t_is_the_tabled_one(degrees: int, tabled: float) -> None:
    assert student_t_975(degrees) == pytest.approx(tabled, rel=1e-5)


@pytest.mark.parametrize(("n", "k", "chance"), [(10, 3, 0.4), (50, 20, 0.3), (900, 430, 0.5), (7, 7, 0.9)])
def test_the_beta_function_gives_the_tail_of_the_binomial(n: int, k: int, chance: float) -> None:
    tail = math.fsum(math.comb(n, j) * chance**j * (1 - chance) ** (n - j) for j in range(k, n + 1))
    assert incomplete_beta(k, n - k + 1, chance) == pytest.approx(tail, rel=1e-9)
    assert beta_quantile(tail, k, n - k + 1) == pytest.approx(chance, rel=1e-9)


# -- many tasks ----------------------------------------------------------------------------------


def test_rewards_above_1_are_resampled_where_tasks_are_many() -> None:
    rng = random.Random(3)
    means = [2 * rng.random() for _ in range(BOOTSTRAP_MIN_TASKS)]
    interval, resampled = interval_95(means), bootstrap_mean(means)  # as fine as floats are: nothing to count out
    assert interval is not None and interval.method == "bootstrap"
    assert (interval.low, interval.high) == (resampled.low, resampled.high)


def by_counting(values: list[Fraction]) -> tuple[Fraction, Fraction]:
    """The ends of the 95 % of all equally likely resamples."""
    means = sorted(sum(drawn, Fraction(0)) / len(values) for drawn in itertools.product(values, repeat=len(values)))
    low, high = (next(mean for at, mean in enumerate(means, 1) if Fraction(at, len(means)) >= q) for q in TAILS)
    return low, high


TAILS = (Fraction(25, 1000), Fraction(975, 1000))


@given(st.lists(st.fractions(-1, 1, max_denominator=6), min_size=2, max_size=5))
def test_the_exact_bootstrap_equals_all_resamples(values: list[Fraction]) -> None:
    found, (low, high) = bootstrap([float(value) for value in values]), by_counting(values)
    assert (found.low, found.high) == pytest.approx((float(low), float(high)), abs=1e-9)
    mean = sum(values, Fraction(0)) / len(values)
    assert found.se**2 == pytest.approx(float(sum((v - mean) ** 2 for v in values) / len(values) ** 2), abs=1e-12)


@pytest.mark.parametrize("seeds", [1, 2, 3, 5, 10])
def test_the_exact_bootstrap_and_resampling_agree(seeds: int) -> None:
    rng = random.Random(seeds)
    means = [sum(rng.random() < 0.6 for _ in range(seeds)) / seeds for _ in range(89)]
    counted, drawn = bootstrap(means), bootstrap_mean(means)
    assert counted.se == pytest.approx(drawn.se, rel=0.03)
    assert (counted.low, counted.high) == pytest.approx((drawn.low, drawn.high), abs=0.004)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_resampling_is_repeatable_and_stays_within_the_task_means(means: list[float]) -> None:
    first = bootstrap_mean(means, resamples=200)
    assert first == bootstrap_mean(means, resamples=200)
    assert min(means) - 1e-12 <= first.low <= first.high <= max(means) + 1e-12


def test_the_error_by_resampling_agrees_with_the_formula() -> None:
    rng = random.Random(2)
    means = [rng.random() for _ in range(60)]
    formula = math.sqrt(sum((mean - fmean(means)) ** 2 for mean in means) / 59 / 60)
    assert bootstrap_mean(means, resamples=4000).se == pytest.approx(formula, rel=0.05)


def test_a_quantile_is_interpolated() -> None:
    assert [quantile([0.0, 1.0, 4.0], q) for q in (0.0, 0.25, 0.5, 0.75, 1.0)] == [0.0, 0.5, 1.0, 2.5, 4.0]


def test_for_thousands_of_values_the_asymptotic_bootstrap_agrees_with_draws() -> None:
    rng = random.Random(3)
    values = [rng.betavariate(0.1, 1.0) for _ in range(2000)]
    drawn, limit = bootstrap_mean(values, resamples=3000), bootstrap(values)
    assert abs(limit.low - drawn.low) < 0.1 * drawn.se
    assert abs(limit.high - drawn.high) < 0.1 * drawn.se
    assert bootstrap([1.0] * 20_000).se == 0.0
