"""Intervals of a mean difference: what they promise, also where hardly any task differs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import fmean

import pytest

from tbench.scores.comparing.interval import bonett_price_95, difference_interval_95

Draw = Callable[[random.Random], float]


def flips(better: float, worse: float) -> tuple[Draw, float]:
    def draw(rng: random.Random) -> float:
        chance = rng.random()
        return 1.0 if chance < better else -1.0 if chance < better + worse else 0.0

    return draw, better - worse


def of_three_seeds(rng: random.Random) -> float:
    chance = rng.betavariate(0.2, 0.4)
    other = chance if rng.random() < 0.5 else rng.betavariate(0.2, 0.4)
    return sum((rng.random() < other) - (rng.random() < chance) for _ in range(3)) / 3


KINDS: dict[str, tuple[Draw, float]] = {
    "two in a hundred get better": flips(0.02, 0.0),
    "one in ten gets better": flips(0.1, 0.0),
    "some get better and some worse": flips(0.3, 0.1),
    "half of the tasks get better": flips(0.5, 0.0),
    "nearly all flip": flips(0.45, 0.45),
    "nearly all get better": flips(0.95, 0.0),
    "three seeds, hard and easy tasks": (of_three_seeds, 0.0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_95_percent_are_kept_whether_tasks_are_few_or_many(kind: str) -> None:
    draw, mean = KINDS[kind]
    rng = random.Random(5)
    for tasks in (2, 3, 5, 8, 15, 29, 89):
        intervals = [bonett_price_95([draw(rng) for _ in range(tasks)]) for _ in range(300)]
        covered = fmean(each.low <= mean <= each.high for each in intervals)
        assert covered >= 0.95 - 2.5 * math.sqrt(0.95 * 0.05 / 300), (tasks, covered)


def test_equal_runs_are_no_certainty() -> None:
    """Of 29 tasks without a difference, up to 1 in 10 might have one (3 / n)."""
    found = difference_interval_95((0.0,) * 29)
    assert found is not None and (found.low, found.high) == pytest.approx((-0.0933, 0.0933), abs=5e-4)


@pytest.mark.parametrize(
    ("differences", "method"),
    [
        ((1.0,) * 10 + (0.0,) * 20, "bootstrap"),
        ((1.0,) * 8 + (0.0,) * 81, "bonett-price"),
        ((1.0,) * 3 + (0.1, 0.0) * 43, "bonett-price"),  # 46 differ, but the variance comes of three
        ((1.0,) * 14 + (0.0,) * 15, "bonett-price"),
        ((5.0, -3.0) * 20, "bootstrap"),
    ],
)
def test_a_bootstrap_needs_tasks_and_some_that_the_variance_comes_of(
    differences: tuple[float, ...], method: str
) -> None:
    found = difference_interval_95(differences)
    assert found is not None and found.method == method and found.low < fmean(differences) < found.high


def test_there_is_none_for_a_single_task_and_for_few_of_large_rewards() -> None:
    assert difference_interval_95((0.5,)) is None
    assert difference_interval_95((5.0, 0.0, 1.0)) is None


def test_the_published_example_is_near() -> None:
    """Bonett and Price's own interval has the normal quantile; Student's is a little wider."""
    found = bonett_price_95([1.0] * 11 + [-1.0] * 2 + [0.0] * 87)
    shares = (12 / 102, 3 / 102)
    half = 1.959964 * math.sqrt((sum(shares) - (shares[0] - shares[1]) ** 2) / 102)
    assert (found.low, found.high) == pytest.approx((9 / 102 - half, 9 / 102 + half), abs=0.002)
    assert found.high - found.low > 2 * half
