"""What a table of rewards (tasks x seeds) says: scores, spreads, intervals, pass@k. Pure functions, no I/O.

Notation: r[t,s] is the reward of task t at seed s, T tasks, S seeds, p_t the mean over seeds of r[t,s].
A trial without a verdict counts as 0 unless a function says otherwise. All scores are fractions, not percent.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev, stdev

from tbench.results import is_reward

BOOTSTRAP_RESAMPLES = 20_000

Row = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class TrialReward:
    """The reward of one task at one seed; None where the verifier gave none."""

    task: str
    seed: int
    reward: float | None


@dataclass(frozen=True, slots=True)
class RewardTable:
    """Planned tasks x planned seeds. `rows[t][s]` is a reward, or None without a verdict."""

    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]

    @classmethod
    def of(cls, verdicts: Iterable[TrialReward], tasks: Sequence[str], seeds: Sequence[int]) -> RewardTable:
        """Lay verdicts out over the plan; what the plan has and the verdicts lack becomes None.

        Raises ValueError for an empty or repeating plan, a verdict outside the plan, two verdicts for the
        same task and seed, and a reward that is no number or too large to be computed with.
        """
        _check_plan(tasks, seeds)
        rewards: dict[tuple[str, int], float | None] = {}
        for verdict in verdicts:
            key = (verdict.task, verdict.seed)
            if key in rewards:
                raise ValueError(f"two verdicts for task {verdict.task!r}, seed {verdict.seed}")
            if verdict.reward is not None and not is_reward(verdict.reward):
                raise ValueError(
                    f"reward of task {verdict.task!r}, seed {verdict.seed} is not a finite number, or too large"
                )
            rewards[key] = verdict.reward
        planned = {(task, seed) for task in tasks for seed in seeds}
        for task, seed in rewards.keys() - planned:
            raise ValueError(f"a verdict for task {task!r}, seed {seed}, which was not planned")
        rows = tuple(tuple(rewards.get((task, seed)) for seed in seeds) for task in tasks)
        return cls(tuple(tasks), tuple(seeds), rows)

    def binarised(self) -> RewardTable:
        """The same table with 1 for solved (reward >= 1) and 0 for any lower reward; None stays None."""
        return self._mapped(lambda reward: None if reward is None else float(reward >= 1.0))

    def filled(self, value: float) -> RewardTable:
        """The same table with `value` for every trial without a verdict."""
        return self._mapped(lambda reward: value if reward is None else reward)

    def scored_rewards(self) -> tuple[float, ...]:
        """Every reward that exists, row by row."""
        return tuple(reward for row in self.rows for reward in row if reward is not None)

    def _mapped(self, change: Callable[[float | None], float | None]) -> RewardTable:
        rows = tuple(tuple(change(reward) for reward in row) for row in self.rows)
        return RewardTable(self.tasks, self.seeds, rows)


@dataclass(frozen=True, slots=True)
class MeanStd:
    """A mean and the standard deviation of the `n` numbers it was taken over; no std for a single one."""

    mean: float
    std: float | None
    n: int
    population: bool = False

    @property
    def sem(self) -> float | None:
        """Standard error of the mean over the n numbers: std / sqrt(n)."""
        return None if self.std is None else self.std / math.sqrt(self.n)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The score if every trial without a verdict had failed, and if every one had passed."""

    worst: float
    best: float


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Standard error and percentile interval of the score under resampling of tasks."""

    se: float
    low: float
    high: float


def per_seed_scores(table: RewardTable) -> tuple[float, ...]:
    """Score of each seed, (1/T) sum_t r[t,s], with 0 for trials without a verdict. Fractions, seed order."""
    return tuple(fmean(column) for column in _columns(table.filled(0.0)))


def per_seed_scores_scored_only(table: RewardTable) -> tuple[float | None, ...]:
    """Score of each seed over its scored trials alone; None for a seed without any. Fractions, seed order."""
    columns = ([r for r in column if r is not None] for column in zip(*table.rows, strict=True))
    return tuple(fmean(column) if column else None for column in columns)


def task_means(table: RewardTable) -> tuple[float, ...]:
    """Mean of each task, p_t = (1/S) sum_s r[t,s], with 0 for trials without a verdict. Fractions, task order."""
    return tuple(fmean(row) for row in _rows(table.filled(0.0)))


def score(table: RewardTable) -> float:
    """Mean of p_t over tasks, equal to the mean of the per-seed scores; unscored = 0. A fraction."""
    return fmean(task_means(table))


def score_scored_only(table: RewardTable) -> float | None:
    """Sum of the rewards that exist / their number: each scored trial weighs the same. None without any."""
    rewards = table.scored_rewards()
    return fmean(rewards) if rewards else None


def mean_std(values: Sequence[float], *, population: bool = False) -> MeanStd:
    """Mean m, and std = sqrt(sum (v - m)^2 / (n - 1)), or / n for `population`. Units of the values.

    Over per-seed scores this is the "mean +- std" of a run. One value has no std. Raises ValueError for none.
    """
    if not values:
        raise ValueError("mean and std of no values")
    std = (pstdev if population else stdev)(values) if len(values) > 1 else None
    return MeanStd(fmean(values), std, len(values), population)


def coverage(table: RewardTable) -> float:
    """Trials with a verdict / planned trials, from 0 to 1."""
    return len(table.scored_rewards()) / (len(table.tasks) * len(table.seeds))


def bounds(table: RewardTable) -> Bounds:
    """The score with 0 and with 1 for every trial without a verdict. Fractions; assumes 0 <= r <= 1."""
    return Bounds(worst=score(table), best=score(table.filled(1.0)))


def expected_std(table: RewardTable) -> float | None:
    """Expected sample std of a seed's score, however seeds are paired across tasks: sqrt(sum_t s_t^2) / T.

    s_t^2 is the variance (n - 1) of task t's rewards over seeds. A fraction; None for a single seed.
    One pairing of seeds into runs is one draw from a wide distribution; this is what it draws around.
    """
    if len(table.seeds) < 2:
        return None
    variances = (stdev(row) ** 2 for row in _rows(table.filled(0.0)))
    return math.sqrt(math.fsum(variances)) / len(table.tasks)


def standard_error_over_tasks(table: RewardTable) -> float | None:
    """Standard error clustered by task: sample sd over tasks of p_t / sqrt(T). A fraction; None for one.

    It says how far another set of tasks of the same kind might move the score, and is usually larger than
    the std over seeds.
    """
    return mean_std(task_means(table)).sem


def bootstrap_over_tasks(
    table: RewardTable, *, resamples: int = BOOTSTRAP_RESAMPLES, seed: int = 0, level: float = 0.95
) -> Bootstrap:
    """Resample the T values p_t with replacement; sample std and percentile interval of the means.

    The same `seed` gives the same interval on every machine. Percentiles interpolate linearly between order
    statistics. Fractions. Raises ValueError for fewer than 2 resamples or a level outside (0, 1).
    """
    if resamples < 2 or not 0.0 < level < 1.0:
        raise ValueError("bootstrap needs at least 2 resamples and a level between 0 and 1")
    means = task_means(table)
    draw = random.Random(seed).choices
    count = len(means)
    scores = sorted(math.fsum(draw(means, k=count)) / count for _ in range(resamples))
    tail = (1.0 - level) / 2.0
    return Bootstrap(se=stdev(scores), low=quantile(scores, tail), high=quantile(scores, 1.0 - tail))


def solve_counts(table: RewardTable) -> tuple[int, ...]:
    """Number of seeds at which each task was solved (reward >= 1). Task order."""
    return tuple(int(sum(row)) for row in _solved_rows(table))


def solve_count_histogram(table: RewardTable) -> dict[int, int]:
    """Number of tasks by the number of seeds at which they were solved; every count from 0 to S is a key."""
    counts = solve_counts(table)
    return {n: counts.count(n) for n in range(len(table.seeds) + 1)}


def solved_per_seed(table: RewardTable) -> tuple[int, ...]:
    """Number of tasks solved (reward >= 1) at each seed. Seed order."""
    return tuple(int(sum(column)) for column in zip(*_solved_rows(table), strict=True))


def solved_rate(table: RewardTable) -> float:
    """Solved trials (reward >= 1) / planned trials. A fraction; below the score where rewards are partial."""
    return sum(solve_counts(table)) / (len(table.tasks) * len(table.seeds))


def pass_at_k(table: RewardTable, k: int) -> float:
    """Chance that at least one of k trials of a task is solved, mean over t of 1 - C(n-c_t, k) / C(n, k).

    n = S, c_t = solved trials of task t (no verdict: not solved). Unbiased (Chen et al. 2021, "Evaluating
    Large Language Models Trained on Code"). pass@1 is the score. Raises ValueError unless 1 <= k <= S and
    every reward is 0 or 1: `table.binarised()` makes it so on purpose.
    """
    n = _check_k(table, k)
    return fmean(1.0 - math.comb(n - c, k) / math.comb(n, k) for c in solve_counts(table))


def pass_hat_k(table: RewardTable, k: int) -> float:
    """Chance that all of k trials of a task are solved, pass^k: mean over t of C(c_t, k) / C(n, k).

    n, c_t and what raises ValueError as in `pass_at_k` (Yao et al. 2024, "tau-bench").
    """
    n = _check_k(table, k)
    return fmean(math.comb(c, k) / math.comb(n, k) for c in solve_counts(table))


def quantile(ordered: Sequence[float], q: float) -> float:
    """The `q`-quantile (0 to 1) of sorted values, interpolated linearly between order statistics."""
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def _check_plan(tasks: Sequence[str], seeds: Sequence[int]) -> None:
    if not tasks or not seeds:
        raise ValueError("a reward table needs at least one task and one seed")
    if len(set(tasks)) < len(tasks) or len(set(seeds)) < len(seeds):
        raise ValueError("a task or a seed is planned twice")


def _check_k(table: RewardTable, k: int) -> int:
    n = len(table.seeds)
    if not 1 <= k <= n:
        raise ValueError(f"k must lie between 1 and the number of seeds ({n}), not be {k}")
    if any(reward not in (0.0, 1.0) for reward in table.scored_rewards()):
        raise ValueError("pass@k and pass^k need rewards of 0 or 1; call binarised() to count reward >= 1 as solved")
    return n


def _rows(filled: RewardTable) -> Iterator[tuple[float, ...]]:
    return (tuple(reward for reward in row if reward is not None) for row in filled.rows)


def _columns(filled: RewardTable) -> Iterator[tuple[float, ...]]:
    return zip(*_rows(filled), strict=True)


def _solved_rows(table: RewardTable) -> Iterator[tuple[float, ...]]:
    return _rows(table.binarised().filled(0.0))
