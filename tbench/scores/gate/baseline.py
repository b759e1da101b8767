"""The baseline: what each task does while nothing changes, and how much speaks for a lower level, by CUSUM."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from tbench.reward import exact_sum
from tbench.scores.gate.nights import Cells

# Rewards of nights, added up task by task; every list has one entry for each task.


@dataclass(frozen=True, slots=True)
class Tally:
    """One night: planned trials, those with a verdict and the sum of their rewards; 0 for a task that it has not."""

    planned: list[int]
    trials: list[int]
    totals: list[float]

    @classmethod
    def of(cls, cells: Cells) -> Tally:
        """Count each row."""
        planned = [0 if row is None else len(row) for row in cells]
        rewards = [() if row is None else [reward for reward in row if reward is not None] for row in cells]
        return cls(planned, list(map(len, rewards)), [float(exact_sum(of_task)) for of_task in rewards])

    def at(self, places: Sequence[int]) -> Tally:
        """The same over some of the tasks."""
        planned, trials, totals = self.planned, self.trials, self.totals
        return Tally([planned[at] for at in places], [trials[at] for at in places], [totals[at] for at in places])


def together(nights: Sequence[Tally]) -> Tally:
    """Several nights as one."""
    columns = (
        zip(*(getattr(night, name) for night in nights), strict=True) for name in ("planned", "trials", "totals")
    )
    planned, trials, totals = ([sum(of_task) for of_task in column] for column in columns)
    return Tally(planned, trials, totals)


_PRIOR_FLIPS = 3.0
"""Flips that are added to those of the baseline nights: as many as there may be, at 95 %, where none was seen."""
_NORMAL_99 = 2.3263478740408408
_NORMAL_95 = 1.6448536269514722


@dataclass(frozen=True, slots=True)
class Difference:
    """Nights against the baseline, over the tasks that they have verdicts of. Scores are fractions."""

    score: float
    base: float
    se: float
    """Standard error of score - base, where nothing changed."""

    @property
    def errors(self) -> float:
        """The difference in standard errors."""
        return (self.score - self.base) / self.se


class Baseline:
    """Means and variances of the tasks that are compared.

    The variance of a trial of a task is taken between nights: sum_n S_n (m_n - m)^2 / (N - 1), with m_n the mean of
    night n over its S_n trials and m the mean over all of them. Divided by the trials of a night it is the variance of
    that night's mean, also where the seeds of one night are not independent. As a task that was never seen to flip may
    do so, each has its share of `_PRIOR_FLIPS` besides (the rule of three: Hanley and Lippman-Hand 1983).

    These variances know nothing of what moves all tasks of a night at once, such as a busy machine. Where the nights
    differ by more than they allow, at 1 in 100, all standard errors are `unrest` times as large (after Laney 2002,
    "Improved control charts for attributes").

    Where nights resemble the one before, several say less than as many that are independent. `autocorrelation` is that
    of the tasks' means, of which few nights tell much, or that of the scores, whichever is larger. Where it is more
    than chance, at 1 in 20, all standard errors are 1 + r times as large, as is that of a mean over some five nights.
    """

    def __init__(self, nights: Sequence[Tally]) -> None:
        """Begin with some nights; the tasks that are compared have a verdict in half of them, or are none."""
        enough = max(2, (len(nights) + 1) // 2)
        had = [sum(map(bool, of_task)) for of_task in zip(*(night.trials for night in nights), strict=True)]
        self.places = [at for at, count in enumerate(had) if count >= enough]
        """The tasks that are compared, by their place among those of the nights."""
        zeros = [0.0] * len(self.places)
        self._nights, self._trials, self._totals, self._squares = ([*zeros] for _ in range(4))
        self.size = 0
        self.unrest = 1.0
        self.autocorrelation = 0.0
        """Of a night with the one before; 0 where it may be chance."""
        self._errors_squared, self._degrees = 0.0, 0
        self._of_tasks, self._of_scores = _Strides(), _Strides()
        own = [night.at(self.places) for night in nights]
        self._add(own)
        # One of the n nights of a mean differs from it with 1 - 1/n of its own variance; `against` says 1 + 1/n.
        wider = (len(own) + 1) / (len(own) - 1)
        errors = [found.errors * math.sqrt(wider) for night in own if (found := self.against(night)) is not None]
        self._test(errors, len(errors) - 1)

    def grow(self, nights: Sequence[Tally], errors: Sequence[float]) -> None:
        """Take in further nights, over the tasks that are compared, with what `against` had to say of each."""
        self._add(nights)
        self._test(errors, len(errors))

    @property
    def wider(self) -> float:
        """How many times as large standard errors are for what their tasks do not explain."""
        return self.unrest * (1.0 + self.autocorrelation)

    def _test(self, errors: Sequence[float], degrees: int) -> None:
        """Hold the nights' differences so far against chi squared (the cube root of which Wilson and Hilferty 1931)."""
        for each in errors:
            self._of_scores.add(Tally([1], [1], [each]))
        self._errors_squared += sum(each**2 for each in errors)
        self._degrees += degrees
        if self._degrees < 1:
            return
        ratio, spread = self._errors_squared / self._degrees, 2.0 / (9.0 * self._degrees)
        exceeds = (ratio ** (1.0 / 3.0) - (1.0 - spread)) / math.sqrt(spread) > _NORMAL_99
        self.unrest = math.sqrt(ratio) if exceeds else 1.0
        varying = sum(self._variances) ** 2 / sum(each * each for each in self._variances)
        self.autocorrelation = max(self._of_tasks.correlation(varying), self._of_scores.correlation(1.0))

    def _add(self, nights: Sequence[Tally]) -> None:
        self.size += len(nights)
        for night in nights:
            self._of_tasks.add(night)
            for at, (trials, total) in enumerate(zip(night.trials, night.totals, strict=True)):
                if trials:
                    self._nights[at] += 1
                    self._trials[at] += trials
                    self._totals[at] += total
                    self._squares[at] += total * total / trials
        share = _PRIOR_FLIPS / max(1, len(self.places))
        self.means = [total / trials for total, trials in zip(self._totals, self._trials, strict=True)]
        self._variances = [
            max(0.0, squares - total * mean) / (nights - 1) + share / trials
            for nights, trials, total, squares, mean in zip(
                self._nights, self._trials, self._totals, self._squares, self.means, strict=True
            )
        ]
        self._of_mean = [variance / trials for variance, trials in zip(self._variances, self._trials, strict=True)]

    def against(self, night: Tally) -> Difference | None:
        """Compare one night, or several together; None where no task has a verdict."""
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
        return Difference(score / tasks, base / tasks, self.wider * math.sqrt(spread) / tasks) if tasks else None

    def if_solved(self, night: Tally, found: Difference) -> float:
        """The night's difference in standard errors if every trial without a verdict had been solved."""
        gain, tasks = 0.0, 0
        for planned, trials, total, mean in zip(night.planned, night.trials, night.totals, self.means, strict=True):
            tasks += trials > 0
            if planned > trials:
                gain += (total + planned - trials) / planned - (total / trials if trials else mean)
        return found.errors + gain / (tasks * found.se)


class _Strides:
    """How far one step and two steps lead in a series of nights: the squared changes of its tasks' means.

    With r the correlation of a night with the one before, they come to 1 - r and 1 - r^2. Unlike products of
    deviations from a mean, they are hardly larger where the level has changed on the way.
    """

    def __init__(self) -> None:
        self._nights = 0
        self._latest: list[Tally] = []
        self._squares = [0.0, 0.0]

    def add(self, night: Tally) -> None:
        """Take in a night."""
        self._nights += 1
        for lag, before in enumerate(self._latest):
            columns = zip(night.trials, night.totals, before.trials, before.totals, strict=True)
            self._squares[lag] += sum(
                (total / trials - total_before / trials_before) ** 2 / (1.0 / trials + 1.0 / trials_before)
                for trials, total, trials_before, total_before in columns
                if trials and trials_before
            )
        self._latest = [night, *self._latest[:1]]

    def correlation(self, varying: float) -> float:
        """r, with so many tasks that vary; 0 where that may be chance. What hardly varies has no say."""
        one, two = self._squares[0], self._squares[1] * (self._nights - 1) / max(1, self._nights - 2)
        found = (two + _PRIOR_FLIPS) / (one + _PRIOR_FLIPS) - 1.0
        return min(found, 1.0) if found > _NORMAL_95 * math.sqrt(2.0 / (self._nights * varying)) else 0.0


# One-sided CUSUM: how much speaks for a level below the baseline's, night by night.


class Cusum:
    """C = max(0, C - z - k), beyond its limit where C > h (Page 1954, "Continuous inspection schemes").

    `since` is the number of the first night after C was last 0. C is measured against the baseline, so after a long
    alarm it would stay above h for weeks although all is well again. An alarm therefore ends also when the same
    evidence, 2 k h of log likelihood, speaks for the baseline's level and against that of the nights since the change;
    C is 0 then.
    """

    def __init__(self, k: float, h: float) -> None:
        self.value = 0.0
        self.since: int | None = None
        self.alarm = False
        self._k, self._h = k, h
        self._drops: list[float] = []
        self._drop = self._recovery = 0.0

    def after(self, z: float) -> float:
        """What C would be after a night with `z`."""
        return max(0.0, self.value - z - self._k)

    def add(self, number: int, z: float) -> None:
        """Take in night `number`, whose score is `z` standard deviations above the baseline."""
        if self.alarm:
            self._recovery = max(0.0, self._recovery + z + self._drop / 2.0)
            if self._drop * self._recovery > 2.0 * self._k * self._h:
                self.forget()
                return
        self.value = self.after(z)
        if self.value == 0.0:
            self.forget()
            return
        if self.since is None:
            self.since = number
        self._drops.append(-z)

    def settle(self, *, confirmed: bool) -> None:
        """Raise, keep or end the alarm; beyond the limit it needs to be confirmed."""
        alarm = confirmed and self.value > self._h
        if alarm and not self.alarm:
            self._drop, self._recovery = fmean(self._drops), 0.0
        self.alarm = alarm

    @property
    def beyond(self) -> bool:
        """Whether C is above its limit."""
        return self.value > self._h

    def forget(self) -> None:
        """Begin anew."""
        self.value, self.since, self.alarm = 0.0, None, False
        self._drops.clear()


def first_changed(zs: Sequence[float]) -> int:
    """Which of the nights after C was last 0 is the likeliest to be the first on another level, counted from 0.

    With the size of the change unknown, that is the one from which on (sum z)^2 / nights is largest (Hinkley 1970,
    "Inference about the change-point in a sequence of random variables").
    """
    best, found, total = -1.0, 0, 0.0
    for nights, at in enumerate(range(len(zs) - 1, -1, -1), start=1):
        total += zs[at]
        if total * total / nights >= best:
            best, found = total * total / nights, at
    return found
