"""Splits the difference between two sides into parts by cause, which add up to it exactly.

For each task, every trial of the first side is compared with every trial of the second one (or, with common seeds, only
with the trial of the same seed). The difference of a pair goes to the cause of the trial with the lower reward. A part
is the mean over tasks of the mean over pairs. All sums are fractions, so that rounding loses nothing.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tbench.explaining.exact import Stratum, TwoSample, adjusted, sums_test
from tbench.reward import exact_sum
from tbench.scores.intervals import student_t_975

LEVEL = 0.01
"""Maximum chance that a part is named although nothing has changed."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A trial's reward, 0 without a verdict, and the key of the part to which its loss goes."""

    reward: Fraction
    key: str | None
    """None for a solved trial."""
    seed: int = 0


Rows = Mapping[str, Sequence[Scored]]
"""Trials of one side by task."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % interval, as fractions."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the difference, as a fraction of the score."""

    key: str
    difference: Fraction
    interval: Interval
    by_task: Mapping[str, Fraction]
    """The part of each task, before the mean over tasks; tasks without this part are missing."""
    test: TwoSample
    p: float
    """p adjusted for all tests of the split, or the p of the clearest task if it is lower."""
    tasks: tuple[str, ...]
    """Tasks whose own change is beyond chance."""

    @property
    def is_named(self) -> bool:
        """Whether the part is beyond chance."""
        return self.p <= LEVEL


@dataclass(frozen=True, slots=True)
class Split:
    """The difference of two sides and its parts."""

    difference: Fraction
    interval: Interval
    test: TwoSample
    """The test of all rewards."""
    parts: tuple[Part, ...]
    """Named parts first; then the others, largest first."""
    tests: int
    """Number of tests for which the p values are adjusted."""

    @property
    def named(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.is_named)


def is_paired(first: Rows, second: Rows) -> bool:
    """Whether each task has the same seeds on both sides, each of them once."""
    seeds = [[sorted(each.seed for each in row) for row in rows.values()] for rows in (first, second)]
    return seeds[0] == seeds[1] and all(len(set(row)) == len(row) for row in seeds[0])


def split(first: Rows, second: Rows, rest: Callable[[str], str], *, paired: bool) -> Split:
    """Split the difference between two sides with the same tasks; each task has trials on both sides.

    `rest` returns the key of a task's losses without evidence. Such keys are tested by rewards, other keys by how often
    they occur.
    """
    rests = {task: rest(task) for task in first}
    by_task = {
        task: _paired(first[task], second[task], rests[task])
        if paired
        else _crossed(first[task], second[task], rests[task])
        for task in first
    }
    keys = {each.key or rests[task] for rows in (first, second) for task, row in rows.items() for each in row}
    keys |= {key for found in by_task.values() for key in found} | {*rests.values()}
    tests = _Tests(first, second, rests)
    values = {key: tests.adjusted(key) for key in keys}
    parts = [
        Part(
            key=key,
            difference=exact_sum(found[key] for found in by_task.values() if key in found) / len(first),
            interval=_interval(first, second, rests, key, paired=paired),
            by_task={task: found[key] for task, found in by_task.items() if found.get(key)},
            test=values[key][0],
            p=values[key][1],
            tasks=values[key][2],
        )
        for key in sorted(keys)
    ]
    difference = sum((part.difference for part in parts), Fraction())
    sign = -1 if difference < 0 else 1
    parts.sort(
        key=lambda part: (not part.is_named, -sign * part.difference if part.is_named else -abs(part.difference))
    )
    return Split(
        difference=difference,
        interval=_interval(first, second, rests, None, paired=paired),
        test=sums_test(
            Stratum([float(each.reward) for each in first[task]], [float(each.reward) for each in row])
            for task, row in second.items()
        ),
        parts=tuple(parts),
        tests=len(tests.names),
    )


def _owner(old: Scored, new: Scored, rest: str) -> tuple[str, Fraction]:
    """Return the part to which a pair's difference goes, and the difference."""
    difference = new.reward - old.reward
    lower = new if difference < 0 else old
    return lower.key or rest, difference


def _crossed(first: Sequence[Scored], second: Sequence[Scored], rest: str) -> dict[str, Fraction]:
    """Return the parts of one task over all pairs; equal trials are counted once."""
    olds, news = (Counter((each.reward, each.key) for each in row) for row in (first, second))
    found: defaultdict[str, Fraction] = defaultdict(Fraction)
    for (reward, key), count in olds.items():
        for (other, its), number in news.items():
            owner, difference = _owner(Scored(reward, key), Scored(other, its), rest)
            found[owner] += difference * count * number
    return {key: total / (len(first) * len(second)) for key, total in found.items() if total}


def _paired(first: Sequence[Scored], second: Sequence[Scored], rest: str) -> dict[str, Fraction]:
    """Return the parts of one task over the pairs of the same seed."""
    found: defaultdict[str, Fraction] = defaultdict(Fraction)
    for old, new in _pairs(first, second):
        owner, difference = _owner(old, new, rest)
        found[owner] += difference
    return {key: total / len(first) for key, total in found.items() if total}


def _pairs(first: Sequence[Scored], second: Sequence[Scored]) -> Iterator[tuple[Scored, Scored]]:
    by_seed = {each.seed: each for each in second}
    return ((each, by_seed[each.seed]) for each in first)


# Intervals. The mean over pairs varies with the trials of both sides; each trial's influence is its own mean over the
# other side's trials of the task. Tasks are fixed: this is the uncertainty of the part on these tasks.


class _Weighted:
    """Weighted values; the weights add up to 1."""

    def __init__(self) -> None:
        self.total = self.squares = self.weight_squares = 0.0
        self.largest = 1.0

    def add(self, value: float, weight: float) -> None:
        self.total += weight * value
        self.squares += weight * value * value
        self.weight_squares += weight * weight
        self.largest = max(self.largest, abs(value))

    @property
    def count(self) -> float:
        """Effective number of values, if weights differ."""
        return 1.0 / self.weight_squares


def _interval(first: Rows, second: Rows, rests: Mapping[str, str], key: str | None, *, paired: bool) -> Interval:
    """Return the interval of a part, or of the whole difference without a key.

    m +- t sqrt(v / n) with the values of the second side and two more, +1 and -1 (as in Bonett and Price 2012), so that
    its width is above 0 even if all values are equal; the variance of the first side is added.
    """
    news, olds = _Weighted(), _Weighted()
    for task, row in second.items():
        rest, others = rests[task], first[task]
        if paired:
            for old, new in _pairs(others, row):
                owner, difference = _owner(old, new, rest)
                news.add(float(difference) if key in (None, owner) else 0.0, 1 / (len(row) * len(second)))
            continue
        for side, mine, theirs in ((news, row, others), (olds, others, row)):
            for value, count in _influences(mine, theirs, rest, key, is_new=side is news):
                for _ in range(count):
                    side.add(value, 1 / (len(mine) * len(second)))
    size = news.count
    mean = size * news.total / (size + 2)
    variance = (size * news.squares + 2 * news.largest**2) / (size + 2) - mean * mean
    error = variance / (size + 2)
    if olds.weight_squares:
        error += max(0.0, olds.squares - olds.total**2) / olds.count
    half, most = student_t_975(int(size) + 1) * math.sqrt(error), max(news.largest, olds.largest)
    return Interval(max(mean - half, -most), min(mean + half, most))


def _influences(
    mine: Sequence[Scored], theirs: Sequence[Scored], rest: str, key: str | None, *, is_new: bool
) -> Iterator[tuple[float, int]]:
    """Yield each trial's mean over its pairs, with the number of equal trials."""
    others = Counter((each.reward, each.key) for each in theirs)
    for (reward, cause), count in Counter((each.reward, each.key) for each in mine).items():
        own, total = Scored(reward, cause), 0.0
        for (other_reward, other_cause), number in others.items():
            other = Scored(other_reward, other_cause)
            owner, difference = _owner(other, own, rest) if is_new else _owner(own, other, rest)
            total += float(difference) * number if key in (None, owner) else 0.0
        yield total / len(theirs), count


class _Tests:
    """All tests of a split, whose p values are adjusted together."""

    def __init__(self, first: Rows, second: Rows, rests: Mapping[str, str]) -> None:
        self._first, self._second, self._rests = first, second, rests
        self.names: list[tuple[str, str | None]] = []
        """Key of each test, and its task for tests of one task."""
        self._tests: list[TwoSample] = []
        keys = {each.key for rows in (first, second) for row in rows.values() for each in row if each.key}
        for key in sorted(keys - {*rests.values()}):
            occurrences = [
                [[float(each.key == key) for each in rows[task]] for rows in (first, second)] for task in first
            ]
            self._add(key, None, (Stratum(*both) for both in occurrences))
        for key in sorted({*rests.values()}):
            tasks = [task for task in first if rests[task] == key]
            self._add(key, None, (self._rewards(task) for task in tasks))
            for task in tasks if len(tasks) > 1 else ():
                self._add(key, task, [self._rewards(task)])
        self._adjusted = adjusted(self._tests, LEVEL)

    def _add(self, key: str, task: str | None, strata: Iterable[Stratum]) -> None:
        self.names.append((key, task))
        self._tests.append(sums_test(strata))

    def _rewards(self, task: str) -> Stratum:
        """Return the rewards of the trials without evidence of a cause."""
        known = (None, self._rests[task])
        first, second = (
            [float(each.reward) for each in rows[task] if each.key in known] for rows in (self._first, self._second)
        )
        return Stratum(first, second)

    def adjusted(self, key: str) -> tuple[TwoSample, float, tuple[str, ...]]:
        """Return a part's test, the lowest adjusted p of this test and of its tasks', and the tasks beyond chance."""
        found = [(at, task) for at, (name, task) in enumerate(self.names) if name == key]
        if not found:
            return TwoSample(1.0, 1.0), 1.0, ()
        whole = next((self._tests[at] for at, task in found if task is None), TwoSample(1.0, 1.0))
        sure = [(self._adjusted[at], task) for at, task in found if task is not None and self._adjusted[at] <= LEVEL]
        return whole, min(self._adjusted[at] for at, _ in found), tuple(task for _, task in sorted(sure))
