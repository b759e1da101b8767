"""Simulated coverage of the score's 95 % interval, whatever tasks a benchmark is made of.

`PYTHONPATH=tests:. nice python tests/interval_coverage.py` prints the table of docs/results.md.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from statistics import fmean

from tbench.scores.intervals import interval_95

Chance = Callable[[random.Random, float], float]
"""How often a task is solved, drawn so that the mean over tasks is the second argument."""


def beta(rho: float) -> Chance:
    """Chances that vary: rho is the share of the variance of a trial that lies between tasks."""
    scale = 1.0 / rho - 1.0
    return lambda rng, mean: rng.betavariate(mean * scale, (1.0 - mean) * scale)


def mixed(low: float, high: float) -> Chance:
    """A few tasks at `high` among many at `low`, or the same turned round."""

    def draw(rng: random.Random, mean: float) -> float:
        if mean > 0.5:
            return 1.0 - draw(rng, 1.0 - mean)
        return high if rng.random() < (mean - low) / (high - low) else low

    return draw


KINDS: dict[str, Chance] = {
    "all tasks alike": lambda _, mean: mean,
    "nearly alike (Beta, ρ = 0.1)": beta(0.1),
    "as in Terminal-Bench (Beta, ρ = 0.45)": beta(0.45),
    "all or nothing": mixed(0.0, 1.0),
    "a few easy ones, the rest impossible": mixed(0.0, 0.9),
    "a few certain ones, the rest 1 in 200": mixed(0.005, 1.0),
    "partial rewards (Beta, ρ = 0.3), any number of seeds": beta(0.3),
}
MEANS = (0.01, 0.024, 0.1, 0.5, 0.9, 0.99)
TASKS = (2, 5, 11, 30, 89, 500)
SEEDS = (1, 3, 10)


def task_means(kind: str, mean: float, tasks: int, seeds: int, rng: random.Random) -> list[float]:
    """Draw tasks, and trials of each."""
    chances = [KINDS[kind](rng, mean) for _ in range(tasks)]
    if "partial" in kind:
        return chances
    return [sum(rng.random() < chance for _ in range(seeds)) / seeds for chance in chances]


def coverage(kind: str, mean: float, tasks: int, seeds: int, draws: int, seed: int = 0) -> float:
    """The share of so many draws in which the interval holds the mean that was drawn around."""
    rng = random.Random(seed)
    found = (interval_95(task_means(kind, mean, tasks, seeds, rng)) for _ in range(draws))
    return fmean(each is not None and each.low <= mean <= each.high for each in found)


def lowest(kind: str, tasks: int, draws: int) -> tuple[float, float, int]:
    """The lowest coverage over all means and numbers of seeds, and where it is."""
    return min(
        (coverage(kind, mean, tasks, seeds, draws), mean, seeds)
        for mean in MEANS
        for seeds in (SEEDS if "partial" not in kind else SEEDS[:1])
    )


def lines(draws: int, kinds: Iterable[str] = KINDS) -> Iterator[str]:
    """The table: a row for each kind of tasks, a column for each number of them."""
    yield f"| tasks | {' | '.join(map(str, TASKS))} |\n|---|{'---|' * len(TASKS)}"
    for kind in kinds:
        yield f"| {kind} | {' | '.join(f'{100 * lowest(kind, tasks, draws)[0]:.1f}' for tasks in TASKS)} |"


if __name__ == "__main__":
    for line in lines(int(sys.argv[1]) if len(sys.argv) > 1 else 1000):
        print(line, flush=True)
