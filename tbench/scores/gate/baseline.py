"""The baseline (means and variances of tasks while nothing changes), and the CUSUM that detects a lower level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from tbench.reward import exact_sum
from tbench.scores.gate.nights import NightRows


@dataclass(frozen=True, slots=True)
class Tally:
    """Planned trials, scored trials and sum of rewards of a night, per task; 0 for tasks that the night lacks."""

    planned: list[int]
    trials: list[int]
    totals: list[float]

    @classmethod
    def from_rows(cls, rows: NightRows) -> Tally:
        planned = [0 if row is None else len(row) for row in rows]
        rewards = [() if row is None else [reward for reward in row if reward is not None] for row in rows]
        return cls(planned, list(map(len, rewards)), [float(exact_sum(of_task)) for of_task in rewards])

    def select(self, tasks: Sequence[int]) -> Tally:
        """Return the tally of the tasks with these indices."""
        planned, trials, totals = self.planned, self.trials, self.totals
        return Tally([planned[at] for at in tasks], [trials[at] for at in tasks], [totals[at] for at in tasks])


def combine(nights: Sequence[Tally]) -> Tally:
    """Add up several nights."""
    columns = (
        zip(*(getattr(night, name) for night in nights), strict=True) for name in ("planned", "trials", "totals")
    )
    planned, trials, totals = ([sum(of_task) for of_task in column] for column in columns)
    return Tally(planned, trials, totals)


_PRIOR_FLIPS = 3.0
"""Number of flips (changes of a task's result between nights) that is assumed in addition to the observed ones:
the 95 % upper bound if none was observed (rule of three)."""
_NORMAL_99 = 2.3263478740408408
_NORMAL_95 = 1.6448536269514722


@dataclass(frozen=True, slots=True)
class Difference:
    """Nights compared with the baseline, over the tasks of which they have verdicts. Scores are fractions."""

    score: float
    base: float
    se: float
    """Standard error of score - base if nothing changed."""

    @property
    def errors(self) -> float:
        """The difference in standard errors."""
        return (self.score - self.base) / self.se


class Baseline:
    """Means and variances of the compared tasks.

    The variance of a trial of a task is taken between nights: sum_n S_n (m_n - m)^2 / (N - 1), with m_n the mean of
    night n over its S_n trials and m the mean over all of them. Divided by the trials of a night it is the variance of
    that night's mean, even if the seeds of one night are not independent. A task that never flipped may flip later;
    each task therefore gets its share of `_PRIOR_FLIPS` (the rule of three: Hanley and Lippman-Hand 1983).

    These variances do not include effects on all tasks of a night, such as a busy machine. If nights differ
    significantly more (p < 0.01), all standard errors are multiplied by `overdispersion` (after Laney 2002, "Improved
    control charts for attributes").

    Autocorrelated nights carry less information than independent ones. `autocorrelation` is the larger of two: of the
    tasks' means, for which few nights suffice, and of the scores. If it is significant (p < 0.05), all standard errors
    are multiplied by 1 + r, which is right for a mean over some five nights.
    """

    def __init__(self, nights: Sequence[Tally]) -> None:
        """Start from the first nights; tasks with verdicts in fewer than half of them are not compared."""
        enough = max(2, (len(nights) + 1) // 2)
        had = [sum(map(bool, of_task)) for of_task in zip(*(night.trials for night in nights), strict=True)]
        self.tasks = [at for at, count in enumerate(had) if count >= enough]
        """Indices of the compared tasks among those of the nights."""
        zeros = [0.0] * len(self.tasks)
        self._nights, self._trials, self._totals, self._squares = ([*zeros] for _ in range(4))
        self.size = 0
        self.overdispersion = 1.0
        self.autocorrelation = 0.0
        """Autocorrelation of consecutive nights; 0 if not significant."""
        self._errors_squared, self._degrees = 0.0, 0
        self._task_correlation, self._score_correlation = _LagCorrelation(), _LagCorrelation()
        own = [night.select(self.tasks) for night in nights]
        self._add(own)
        # A night differs from a mean that includes it with 1 - 1/n of its variance; `compare` assumes 1 + 1/n.
        factor = (len(own) + 1) / (len(own) - 1)
        errors = [found.errors * math.sqrt(factor) for night in own if (found := self.compare(night)) is not None]
        self._test(errors, len(errors) - 1)

    def grow(self, nights: Sequence[Tally], errors: Sequence[float]) -> None:
        """Add further nights, over the compared tasks, with each night's difference in uninflated standard errors."""
        self._add(nights)
        self._test(errors, len(errors))

    @property
    def se_factor(self) -> float:
        """Factor by which standard errors are inflated for overdispersion and autocorrelation."""
        return self.overdispersion * (1.0 + self.autocorrelation)

    def _test(self, errors: Sequence[float], degrees: int) -> None:
        """Test the nights' differences for overdispersion (chi squared by Wilson and Hilferty 1931) and correlation."""
        for each in errors:
            self._score_correlation.add(Tally([1], [1], [each]))
        self._errors_squared += sum(each**2 for each in errors)
        self._degrees += degrees
        if self._degrees < 1:
            return
        ratio, spread = self._errors_squared / self._degrees, 2.0 / (9.0 * self._degrees)
        exceeds = (ratio ** (1.0 / 3.0) - (1.0 - spread)) / math.sqrt(spread) > _NORMAL_99
        self.overdispersion = math.sqrt(ratio) if exceeds else 1.0
        varying = sum(self._variances) ** 2 / sum(each * each for each in self._variances)
        self.autocorrelation = max(self._task_correlation.value(varying), self._score_correlation.value(1.0))

    def _add(self, nights: Sequence[Tally]) -> None:
        self.size += len(nights)
        for night in nights:
            self._task_correlation.add(night)
            for at, (trials, total) in enumerate(zip(night.trials, night.totals, strict=True)):
                if trials:
                    self._nights[at] += 1
                    self._trials[at] += trials
                    self._totals[at] += total
                    self._squares[at] += total * total / trials
        share = _PRIOR_FLIPS / max(1, len(self.tasks))
        self.means = [total / trials for total, trials in zip(self._totals, self._trials, strict=True)]
        self._variances = [
            max(0.0, squares - total * mean) / (nights - 1) + share / trials
            for nights, trials, total, squares, mean in zip(
                self._nights, self._trials, self._totals, self._squares, self.means, strict=True
            )
        ]
        self._of_mean = [variance / trials for variance, trials in zip(self._variances, self._trials, strict=True)]

    def compare(self, night: Tally) -> Difference | None:
        """Compare one night, or several combined, with the baseline; None if no task has a verdict."""
        tasks = 0
        score = base = spread = 0.0
        for trials, total, mean, variance, of_mean in zip(
            night.trials, night.totals, self.means, self._variances, self._of_mean, strict=True
        ):
            if trials:
                tasks += 1
                score += total / trials
                base += mean
                spread += variance / trials + of_mean
        return Difference(score / tasks, base / tasks, self.se_factor * math.sqrt(spread) / tasks) if tasks else None

    def errors_if_solved(self, night: Tally, found: Difference) -> float:
        """Return the night's difference in standard errors if all trials without a verdict had been solved."""
        gain, tasks = 0.0, 0
        for planned, trials, total, mean in zip(night.planned, night.trials, night.totals, self.means, strict=True):
            tasks += trials > 0
            if planned > trials:
                gain += (total + planned - trials) / planned - (total / trials if trials else mean)
        return found.errors + gain / (tasks * found.se)


class _LagCorrelation:
    """Estimates the autocorrelation r of nights from the squared changes of tasks' means over one and two nights.

    These are proportional to 1 - r and 1 - r^2. Unlike products of deviations from a mean, they hardly depend on
    changes of the level.
    """

    def __init__(self) -> None:
        self._nights = 0
        self._latest: list[Tally] = []
        self._squares = [0.0, 0.0]

    def add(self, night: Tally) -> None:
        self._nights += 1
        for lag, before in enumerate(self._latest):
            columns = zip(night.trials, night.totals, before.trials, before.totals, strict=True)
            self._squares[lag] += sum(
                (total / trials - total_before / trials_before) ** 2 / (1.0 / trials + 1.0 / trials_before)
                for trials, total, trials_before, total_before in columns
                if trials and trials_before
            )
        self._latest = [night, *self._latest[:1]]

    def value(self, varying: float) -> float:
        """Return r, given the effective number of varying tasks; 0 if it is not significant."""
        one, two = self._squares[0], self._squares[1] * (self._nights - 1) / max(1, self._nights - 2)
        found = (two + _PRIOR_FLIPS) / (one + _PRIOR_FLIPS) - 1.0
        return min(found, 1.0) if found > _NORMAL_95 * math.sqrt(2.0 / (self._nights * varying)) else 0.0


class Cusum:
    """One-sided CUSUM: C = max(0, C - z - k) exceeds its limit if C > h (Page 1954, "Continuous inspection schemes").

    `since` is the number of the first night after C was last 0. After a long alarm C would stay above h for weeks
    although the score has recovered. An alarm therefore also ends, and C is set to 0, when the same evidence, 2 k h of
    log likelihood, favours the baseline's level over the level of the nights since the change.
    """

    def __init__(self, k: float, h: float) -> None:
        self.value = 0.0
        self.since: int | None = None
        self.alarm = False
        self._k, self._h = k, h
        self._drops: list[float] = []
        self._drop = self._recovery = 0.0

    def value_after(self, z: float) -> float:
        """Return what C would be after a night with `z`."""
        return max(0.0, self.value - z - self._k)

    def add(self, number: int, z: float) -> None:
        """Add night `number`, whose score is `z` standard deviations above the baseline."""
        if self.alarm:
            self._recovery = max(0.0, self._recovery + z + self._drop / 2.0)
            if self._drop * self._recovery > 2.0 * self._k * self._h:
                self.reset()
                return
        self.value = self.value_after(z)
        if self.value == 0.0:
            self.reset()
            return
        if self.since is None:
            self.since = number
        self._drops.append(-z)

    def update_alarm(self, *, confirmed: bool) -> None:
        """Raise, keep or end the alarm; C above its limit is an alarm only if confirmed."""
        alarm = confirmed and self.value > self._h
        if alarm and not self.alarm:
            self._drop, self._recovery = fmean(self._drops), 0.0
        self.alarm = alarm

    @property
    def exceeds_limit(self) -> bool:
        return self.value > self._h

    def reset(self) -> None:
        """Set C to 0 and end any alarm."""
        self.value, self.since, self.alarm = 0.0, None, False
        self._drops.clear()


def change_point(zs: Sequence[float]) -> int:
    """Return the index of the likeliest first night on another level, among the nights after C was last 0.

    For a change of unknown size, (sum z)^2 / nights from that night on is largest (Hinkley 1970,
    "Inference about the change-point in a sequence of random variables").
    """
    best, found, total = -1.0, 0, 0.0
    for nights, at in enumerate(range(len(zs) - 1, -1, -1), start=1):
        total += zs[at]
        if total * total / nights >= best:
            best, found = total * total / nights, at
    return found
