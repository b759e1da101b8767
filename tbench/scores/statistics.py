"""Scores, spreads and pass@k of a table of rewards (tasks x seeds). Pure functions, no I/O.

Notation: r[t,s] is the reward of task t at seed s, T tasks, S seeds, p_t the mean over seeds of r[t,s].
A trial without a verdict counts as 0 unless a function says otherwise. All scores are fractions, not percent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean, pstdev, stdev

from tbench.results import is_reward
from tbench.reward import canonical, exact_mean, exact_sum, is_solved, mean
from tbench.scores.intervals import incomplete_beta

Row = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class RewardTable:
    """Rewards of planned tasks x planned seeds: `rows[t][s]` has no float noise, and is None without a verdict."""

    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    is_bounded: bool = True
    """Whether all rewards, including those of trials without a verdict, can only be from 0 to 1."""

    @classmethod
    def from_verdicts(
        cls,
        verdicts: Iterable[tuple[str, int, float | None]],
        tasks: Sequence[str],
        seeds: Sequence[int],
        *,
        is_bounded: bool = True,
    ) -> RewardTable:
        """Build the table of a plan from verdicts (task, seed, reward or None); planned trials without one become None.

        Raises ValueError for an empty plan or one with duplicates, a verdict outside the plan, two verdicts for the
        same task and seed, and a reward that is not a finite number or too large to compute with.
        """
        if not tasks or not seeds:
            raise ValueError("a reward table needs at least one task and one seed")
        if len(set(tasks)) < len(tasks) or len(set(seeds)) < len(seeds):
            raise ValueError("a task or a seed is planned twice")
        rewards: dict[tuple[str, int], float | None] = {}
        for task, seed, reward in verdicts:
            if (task, seed) in rewards:
                raise ValueError(f"two verdicts for task {task!r}, seed {seed}")
            if reward is not None and not is_reward(reward):
                raise ValueError(f"reward of task {task!r}, seed {seed} is not a finite number, or too large")
            rewards[task, seed] = None if reward is None else canonical(reward)
        planned = {(task, seed) for task in tasks for seed in seeds}
        for task, seed in rewards.keys() - planned:
            raise ValueError(f"a verdict for task {task!r}, seed {seed}, which was not planned")
        rows = tuple(tuple(rewards.get((task, seed)) for seed in seeds) for task in tasks)
        is_bounded = is_bounded and all(reward is None or 0.0 <= reward <= 1.0 for reward in rewards.values())
        return cls(tuple(tasks), tuple(seeds), rows, is_bounded)

    def scored_rewards(self) -> tuple[float, ...]:
        """Return the rewards of all trials with a verdict, row by row."""
        return tuple(reward for row in self.rows for reward in row if reward is not None)


@dataclass(frozen=True, slots=True)
class MeanStd:
    """Mean and standard deviation of `n` numbers; std is None for a single one."""

    mean: float
    std: float | None
    n: int

    @property
    def sem(self) -> float | None:
        """Standard error of the mean: std / sqrt(n)."""
        return None if self.std is None else self.std / math.sqrt(self.n)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The score if every trial without a verdict had failed, and if each had passed."""

    worst: float
    best: float


def per_seed_scores(table: RewardTable) -> tuple[float, ...]:
    """Return the score of each seed, (1/T) sum_t r[t,s], with 0 for trials without a verdict, in seed order."""
    return tuple(mean(column) for column in zip(*_filled(table), strict=True))


def task_means(table: RewardTable) -> tuple[float, ...]:
    """Return the mean of each task, p_t = (1/S) sum_s r[t,s], with 0 for trials without a verdict, in task order."""
    return tuple(mean(row) for row in _filled(table))


def score(table: RewardTable) -> float:
    """Return the mean of p_t over tasks, which equals the mean of the per-seed scores; unscored = 0."""
    return _score(table, 0.0)


def _score(table: RewardTable, unscored: float) -> float:
    return mean([reward for row in _filled(table, unscored) for reward in row])


def task_means_scored_only(table: RewardTable) -> tuple[float, ...]:
    """Return the mean of each task over its seeds with a verdict, in task order; tasks without any are left out."""
    return tuple(mean(scored) for row in table.rows if (scored := [r for r in row if r is not None]))


def score_scored_only(table: RewardTable) -> float | None:
    """Return the mean of `task_means_scored_only`: each task with a verdict has the same weight. None without any."""
    means = _means_of_scored(table.rows)
    return float(exact_sum(means) / len(means)) if means else None


def per_seed_scores_scored_only(table: RewardTable) -> tuple[float, ...]:
    """Estimate the score of each seed from its verdicts only: m + mean of (r[t,s] - p_t) over its tasks t.

    m is `score_scored_only`, p_t the mean over task t's verdicts. Without the p_t, a seed that lacks the hard tasks
    would look better than the others. Tasks with a single verdict carry no information about seeds and are left out; so
    are seeds with only such tasks. At full coverage the result equals `per_seed_scores`.
    """
    several = [row for row in table.rows if sum(r is not None for r in row) > 1]
    centred = list(zip(several, _means_of_scored(several), strict=True))
    means = _means_of_scored(table.rows)
    found = []
    for seed in range(len(table.seeds)):
        here = [(r, middle) for row, middle in centred if (r := row[seed]) is not None]
        if here:
            deviation = (exact_sum(r for r, _ in here) - exact_sum(middle for _, middle in here)) / len(here)
            found.append(float(exact_sum(means) / len(means) + deviation))
    return tuple(found)


def scored_per_seed(table: RewardTable) -> tuple[int, ...]:
    """Return the number of verdicts at each seed, in seed order."""
    return tuple(sum(r is not None for r in column) for column in zip(*table.rows, strict=True))


def completed_seeds(table: RewardTable) -> tuple[int, ...]:
    """Return the seeds at which every task has a verdict."""
    scored = scored_per_seed(table)
    return tuple(seed for seed, count in zip(table.seeds, scored, strict=True) if count == len(table.tasks))


def mean_std(values: Sequence[float], *, population: bool = False) -> MeanStd:
    """Return the mean m and std = sqrt(sum (v - m)^2 / (n - 1)), or / n for `population`, in units of the values.

    Over per-seed scores this is the "mean +- std" of a run. The std of a single value is None. Raises ValueError for no
    values.
    """
    if not values:
        raise ValueError("mean and std of no values")
    std = (pstdev if population else stdev)(values) if len(values) > 1 else None
    return MeanStd(fmean(values), std, len(values))


def coverage(table: RewardTable) -> float:
    """Return trials with a verdict / planned trials, from 0 to 1."""
    return len(table.scored_rewards()) / (len(table.tasks) * len(table.seeds))


def bounds(table: RewardTable) -> Bounds | None:
    """Return the score with 0 and with 1 for every trial without a verdict; None if rewards may be outside 0 to 1."""
    if not table.is_bounded:
        return None
    return Bounds(worst=score(table), best=_score(table, 1.0))


def expected_std(table: RewardTable) -> float | None:
    """Return the sample std of a seed's score expected over all pairings of seeds across tasks: sqrt(sum_t s_t^2) / T.

    s_t^2 is the variance (n - 1) of task t's rewards over seeds. None for a single seed. The observed std is one draw
    from a wide distribution around this value.
    """
    if len(table.seeds) < 2:
        return None
    variances = (stdev(row) ** 2 for row in _filled(table))
    return math.sqrt(math.fsum(variances)) / len(table.tasks)


def standard_error_over_tasks(table: RewardTable) -> float | None:
    """Return the standard error clustered by task: sample sd over tasks of p_t / sqrt(T); None for a single task.

    It estimates how much the score would vary over other sets of similar tasks, and is usually larger than the std
    over seeds.
    """
    return mean_std(task_means(table)).sem


def solve_counts(table: RewardTable) -> tuple[int, ...]:
    """Return the number of seeds at which each task was solved (reward >= 1), in task order."""
    return tuple(sum(reward is not None and is_solved(reward) for reward in row) for row in table.rows)


def solve_count_histogram(table: RewardTable) -> dict[int, int]:
    """Return the number of tasks by the number of seeds at which they were solved; every count from 0 to S is a key."""
    counts = Counter(solve_counts(table))
    return {n: counts[n] for n in range(len(table.seeds) + 1)}


def solved_rate(table: RewardTable) -> float:
    """Return solved trials (reward >= 1) / planned trials; below the score if there are partial rewards."""
    return sum(solve_counts(table)) / (len(table.tasks) * len(table.seeds))


@dataclass(frozen=True, slots=True)
class PassRates:
    """pass@k and pass^k for each k from 1 to the number of seeds."""

    pass_at: dict[int, float]
    """Chance that at least one of k trials of a task is solved: mean over t of 1 - C(n-c_t, k) / C(n, k).

    n = S, c_t = solved trials of task t (no verdict: not solved). Unbiased (Chen et al. 2021, "Evaluating Large
    Language Models Trained on Code").
    """
    pass_hat: dict[int, float]
    """Chance that all of k trials of a task are solved: mean over t of C(c_t, k) / C(n, k) (Yao et al. 2024,
    "tau-bench")."""


def pass_rates(table: RewardTable) -> PassRates:
    """Return pass@k and pass^k for every k, with reward >= 1 as solved."""
    n, histogram = len(table.seeds), solve_count_histogram(table)
    at, hat = {}, {}
    for k in range(1, n + 1):
        chances = [Fraction(math.comb(c, k), math.comb(n, k)) for c in range(n + 1)]
        at[k] = _mean_by_count(histogram, [1 - chances[n - c] for c in range(n + 1)])
        hat[k] = _mean_by_count(histogram, chances)
    return PassRates(at, hat)


def _mean_by_count(histogram: Mapping[int, int], values: Sequence[Fraction]) -> float:
    """Return the mean over tasks of the value at the task's number of solved trials."""
    total = exact_sum(tasks * values[count] for count, tasks in histogram.items() if tasks)
    return float(total / sum(histogram.values()))


def average_ranks(values: Sequence[float]) -> list[float]:
    """Return ranks from 1; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for position in order[start:end]:
            ranks[position] = (start + 1 + end) / 2
        start = end
    return ranks


def is_uneven(most: int, total: int, bins: int) -> bool:
    """Whether a bin with `most` of `total` uniformly distributed items is unlikely: p < 0.05.

    p is the binomial tail times the number of bins (Bonferroni).
    """
    if bins < 2 or most < 1:
        return False
    return bins * incomplete_beta(most, total - most + 1, 1.0 / bins) < 0.05


def _means_of_scored(rows: Iterable[Row]) -> list[Fraction]:
    return [exact_mean(scored) for row in rows if (scored := [r for r in row if r is not None])]


def _filled(table: RewardTable, value: float = 0.0) -> list[tuple[float, ...]]:
    """Return the rows with `value` for every trial without a verdict."""
    return [tuple([value if reward is None else reward for reward in row]) for row in table.rows]
