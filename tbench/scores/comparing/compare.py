"""Compares runs by their paired differences: size, uncertainty, and the tasks that changed.

D_t is the mean over common seeds of r_b[t,s] - r_a[t,s]: differences are the second run minus the first. A trial
without a verdict counts as 0; `worst` and `best` bound the effect of missing verdicts. All scores are fractions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from statistics import fmean, variance
from typing import Literal

from harness.trajectory import Frozen
from tbench.reward import as_fraction, is_solved
from tbench.scores.comparing.compared_run import ComparedRun, LeftOut, PairedBy, Pairing, pair
from tbench.scores.comparing.exact_tests import PMethod, holm, sign_flip_test, sign_test
from tbench.scores.intervals import Interval, IntervalMethod, bootstrap, can_be_resampled, student_t_975
from tbench.scores.statistics import Row, mean_std


@lru_cache(maxsize=128)
def difference_interval_95(differences: tuple[float, ...]) -> Interval | None:
    """Return the 95 % interval of the mean of differences, one per task, over other tasks of the same kind.

    A bootstrap over tasks if they suffice; else `bonett_price_95`, whose width is above 0 even if all differences are
    equal. None for a single task, and for a difference outside -1 to 1 if the tasks do not suffice for a bootstrap.
    """
    if len(differences) < 2:
        return None
    if can_be_resampled(differences):
        resampled = bootstrap(differences)
        return Interval(resampled.low, resampled.high, "bootstrap")
    if max(map(abs, differences)) > 1.0:
        return None
    return bonett_price_95(differences)


def bonett_price_95(differences: Sequence[float]) -> Interval:
    """Return the adjusted Wald interval of a mean of n differences within -1 to 1, with an extra 1 and an extra -1.

    m +- t_{n+1} sqrt(v / (n + 2)), with mean m and variance v of the n + 2 values (Bonett and Price 2012, "Adjusted
    Wald confidence interval for a difference of binomial proportions based on paired data", there with the normal
    quantile). With Student's quantile its simulated coverage is at least 95 % from 2 tasks on.
    """
    count = len(differences) + 2
    mean = math.fsum(differences) / count
    variance = (math.fsum(each * each for each in differences) + 2.0) / count - mean * mean
    half = student_t_975(count - 1) * math.sqrt(variance / count)
    return Interval(max(-1.0, mean - half), min(1.0, mean + half), "bonett-price")


class VarianceParts(Frozen):
    """Variance of the difference between two runs at one seed, in squared fractions.

    SE^2 over other tasks = (between + within / S) / T; over these tasks = within / (S T).
    """

    tasks: int
    seeds: int
    within: float
    """Mean over tasks of the variance over seeds of r_b[t,s] - r_a[t,s]; more seeds help."""
    between: float
    """Variance over tasks of the true difference, var_t(D_t) - within / S, at least 0; only more tasks help."""

    def se(self, seeds: float | None = None, *, between: bool = True) -> float:
        """Return the standard error with `seeds` seeds (default: as many as compared) over other tasks of the same
        kind. Without `between`, over these tasks.
        """
        task_variance = self.between if between else 0.0
        return math.sqrt((task_variance + self.within / (seeds or self.seeds)) / self.tasks)

    @property
    def se_these_tasks(self) -> float:
        """Standard error of a repetition of both runs over these tasks."""
        return self.se(between=False)

    @property
    def se_any_seeds(self) -> float:
        """Standard error over other tasks with infinitely many seeds."""
        return math.sqrt(self.between / self.tasks)

    @property
    def share_within(self) -> float | None:
        """Fraction of the squared error that is noise within tasks; None if there is no error."""
        total = self.se() ** 2
        return self.se_these_tasks**2 / total if total > 0.0 else None


def variance_parts(pairs: Sequence[Sequence[float]]) -> VarianceParts | None:
    """Estimate both variances from the differences of pairs, one row per task; None for a single seed or task."""
    seeds = len(pairs[0])
    if seeds < 2 or len(pairs) < 2:
        return None
    within = fmean(variance(row) for row in pairs)
    between = max(0.0, variance([fmean(row) for row in pairs]) - within / seeds)
    return VarianceParts(tasks=len(pairs), seeds=seeds, within=within, between=between)


Test = Literal["mcnemar", "permutation"]
ExactRows = tuple[tuple[Fraction, ...], ...]


class PairedDifference(Frozen):
    """A difference paired by task, with its standard error and tests."""

    tasks: int
    first_score: float
    second_score: float
    difference: float
    """Mean over tasks of D_t."""
    se: float | None
    """Standard error over tasks: sample sd of D_t / sqrt(T). None for a single task."""
    interval_95: tuple[float, float] | None
    interval_method: IntervalMethod | None
    better: int
    """Tasks with D_t > 0."""
    worse: int
    equal: int
    test: Test
    """Test of `p`: McNemar's for rewards of 0 and 1 at one seed, else a permutation of the signs of D_t."""
    p: float
    """Two-sided p that decides which run is better."""
    p_way: PMethod
    sign_p: float
    """Two-sided p of the exact sign test over tasks, which ignores the sizes of the differences."""
    pairs_p: float
    """Two-sided p over (task, seed) pairs (McNemar's for rewards of 0 and 1), valid for these tasks only."""
    pairs_way: PMethod


class TaskChange(Frozen):
    """A task on which two runs differ."""

    task: str
    first_rate: float
    """Mean reward over the compared seeds."""
    second_rate: float
    first_scored: int
    """Number of compared trials with a verdict."""
    second_scored: int


class Comparison(PairedDifference):
    """Two runs compared over their common tasks and seeds; `difference` is the second run minus the first."""

    first: str
    second: str
    seeds: tuple[int, ...]
    paired_by: PairedBy
    first_coverage: float
    """Compared trials with a verdict / compared trials."""
    second_coverage: float
    p_holm: float
    """`p` adjusted for all comparisons made together."""
    worst: float | None
    """The difference if the second run's trials without a verdict had failed, and the first's had passed; None if
    rewards may be outside 0 to 1."""
    best: float | None
    scored_only: PairedDifference | None
    """The difference over the pairs with a verdict in both runs; None if all pairs have both, or none has."""
    variance: VarianceParts | None
    """Both parts of the variance; None for a single seed or task, which does not separate them."""
    newly_solved: tuple[TaskChange, ...]
    """Tasks that the second run solves at some seed, and the first run at none although it has verdicts on them."""
    newly_failed: tuple[TaskChange, ...]
    changes: tuple[TaskChange, ...]
    """All tasks with D_t other than 0, from the largest gain to the largest loss."""
    only_first_unscored: tuple[str, ...]
    """Tasks with verdicts in the second run only."""
    only_second_unscored: tuple[str, ...]
    both_unscored: tuple[str, ...]
    left_out: LeftOut


def compare(first: ComparedRun, second: ComparedRun) -> Comparison:
    """Compare two runs over their common tasks and seeds. Raises NothingInCommon, a ValueError."""
    pairing = pair(first, second)
    old, new = _with_value(pairing.first, 0), _with_value(pairing.second, 0)
    paired = paired_difference(old, new)
    changes = _changes(pairing, old, new)
    trials = len(pairing.tasks) * len(pairing.seeds)
    is_bounded = first.table.is_bounded and second.table.is_bounded
    has_all = all(each is not None for rows in (pairing.first, pairing.second) for row in rows for each in row)
    worst = paired.difference if has_all else _difference(_with_value(pairing.first, 1), new)
    best = paired.difference if has_all else _difference(old, _with_value(pairing.second, 1))
    return Comparison(
        **dict(paired),
        first=first.name,
        second=second.name,
        seeds=pairing.seeds,
        paired_by=pairing.paired_by,
        first_coverage=sum(_scored_counts(pairing.first)) / trials,
        second_coverage=sum(_scored_counts(pairing.second)) / trials,
        p_holm=paired.p,
        worst=worst if is_bounded else None,
        best=best if is_bounded else None,
        scored_only=None if has_all else _scored_only(pairing),
        variance=variance_parts([[float(each) for each in row] for row in _pairs(old, new)])
        if len(pairing.seeds) > 1
        else None,
        newly_solved=_newly_solved(changes, pairing.first, pairing.second, pairing.tasks),
        newly_failed=_newly_solved(changes, pairing.second, pairing.first, pairing.tasks),
        changes=changes,
        only_first_unscored=_tasks_by_verdicts(pairing, lambda a, b: not a and b > 0),
        only_second_unscored=_tasks_by_verdicts(pairing, lambda a, b: not b and a > 0),
        both_unscored=_tasks_by_verdicts(pairing, lambda a, b: not a and not b),
        left_out=pairing.left_out,
    )


def compare_all(sides: Sequence[ComparedRun]) -> tuple[Comparison, ...]:
    """Compare every pair of runs, in their order; `p_holm` is adjusted for all of them. Raises NothingInCommon."""
    comparisons = [compare(first, second) for first, second in combinations(sides, 2)]
    adjusted = holm([each.p for each in comparisons])
    return tuple(each.model_copy(update={"p_holm": p}) for each, p in zip(comparisons, adjusted, strict=True))


def paired_difference(first: ExactRows, second: ExactRows) -> PairedDifference:
    """Compare two tables of the same shape, whose rows (tasks) may have different lengths."""
    pairs = _pairs(first, second)
    exact = [_mean(row) for row in pairs]
    differences = list(map(float, exact))
    interval = difference_interval_95(tuple(differences))
    single = all(len(row) == 1 for row in pairs)
    is_binary = all(reward in (0, 1) for rows in (first, second) for row in rows for reward in row)
    over_tasks = sign_flip_test(exact)
    # With one seed, tasks and pairs are the same.
    over_pairs = over_tasks if single else sign_flip_test(each for row in pairs for each in row)
    better, worse = sum(each > 0 for each in exact), sum(each < 0 for each in exact)
    return PairedDifference(
        tasks=len(pairs),
        first_score=float(_mean([_mean(row) for row in first])),
        second_score=float(_mean([_mean(row) for row in second])),
        difference=float(_mean(exact)),
        se=mean_std(differences).sem,
        interval_95=(interval.low, interval.high) if interval is not None else None,
        interval_method=interval.method if interval is not None else None,
        better=better,
        worse=worse,
        equal=len(pairs) - better - worse,
        test="mcnemar" if single and is_binary else "permutation",
        p=over_tasks.p,
        p_way=over_tasks.method,
        sign_p=sign_test(better, worse),
        pairs_p=over_pairs.p,
        pairs_way=over_pairs.method,
    )


def _with_value(rows: Sequence[Row], value: int) -> ExactRows:
    return tuple(tuple(Fraction(value) if each is None else as_fraction(each) for each in row) for row in rows)


def _pairs(first: ExactRows, second: ExactRows) -> list[list[Fraction]]:
    return [[b - a for a, b in zip(old, new, strict=True)] for old, new in zip(first, second, strict=True)]


def _mean(values: Sequence[Fraction]) -> Fraction:
    if len(values) == 1:
        return values[0]
    common = math.lcm(*(each.denominator for each in values))  # much faster than adding fractions one by one
    return Fraction(sum(each.numerator * (common // each.denominator) for each in values), common * len(values))


def _difference(first: ExactRows, second: ExactRows) -> float:
    return float(_mean([_mean(row) for row in _pairs(first, second)]))


def _scored_counts(rows: Sequence[Row]) -> list[int]:
    return [sum(each is not None for each in row) for row in rows]


def _scored_only(pairing: Pairing) -> PairedDifference | None:
    """Compare only pairs with a verdict in both runs; tasks have equal weight. None without any."""
    first, second = [], []
    for old, new in zip(pairing.first, pairing.second, strict=True):
        both = [(a, b) for a, b in zip(old, new, strict=True) if a is not None and b is not None]
        if both:
            first.append(tuple(as_fraction(a) for a, _ in both))
            second.append(tuple(as_fraction(b) for _, b in both))
    if not first:
        return None
    return paired_difference(tuple(first), tuple(second))


def _changes(pairing: Pairing, first: ExactRows, second: ExactRows) -> tuple[TaskChange, ...]:
    changes = {
        TaskChange(
            task=task,
            first_rate=float(_mean(old)),
            second_rate=float(_mean(new)),
            first_scored=a,
            second_scored=b,
        ): _mean(new) - _mean(old)
        for task, old, new, a, b in zip(
            pairing.tasks, first, second, _scored_counts(pairing.first), _scored_counts(pairing.second), strict=True
        )
        if old != new and sum(old) != sum(new)
    }
    return tuple(sorted(changes, key=lambda each: (-changes[each], each.task)))


def _newly_solved(
    changes: Sequence[TaskChange], first: Sequence[Row], second: Sequence[Row], tasks: Sequence[str]
) -> tuple[TaskChange, ...]:
    """Return the tasks solved at a seed of `second`, and at none of `first` although `first` has a verdict on them."""
    found = []
    for change in changes:
        at = tasks.index(change.task)
        before, after = ([is_solved(each) for each in rows[at] if each is not None] for rows in (first, second))
        if before and not any(before) and any(after):
            found.append(change)
    return tuple(found)


def _tasks_by_verdicts(pairing: Pairing, is_wanted: Callable[[int, int], bool]) -> tuple[str, ...]:
    """Return the tasks whose numbers of verdicts in the two runs satisfy `is_wanted`."""
    scored = zip(pairing.tasks, _scored_counts(pairing.first), _scored_counts(pairing.second), strict=True)
    return tuple(task for task, old, new in scored if is_wanted(old, new))
