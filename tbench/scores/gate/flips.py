"""Which tasks changed: each task's rewards since the change against those of the baseline, by exact tests."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from tbench.reward import as_fraction, exact_mean, is_solved
from tbench.scores.comparing.exact import holm

_MOST_SPLITS = 5_000
"""Splits up to which all are counted; beyond, as many are drawn as `_DRAWS` says."""
_DRAWS = 2_000


@dataclass(frozen=True, slots=True)
class MovedTask:
    """One task before and since a change."""

    task: str
    base_solved: int
    base_trials: int
    base_mean: float
    since_solved: int
    since_trials: int
    since_mean: float
    share: float
    """What the change of this task moved the score by, as a fraction."""
    p: float
    """Chance that trials of one kind, split by chance, differ in this direction as much."""
    p_holm: float = 1.0
    """The same, held against all the tasks that are compared (Holm 1979)."""


Pair = tuple[str, Sequence[float], Sequence[float]]
"""A task with its rewards in the baseline and since the change."""


def changes(pairs: Iterable[Pair], *, downwards: bool) -> tuple[MovedTask, ...]:
    """The tasks whose mean moved in one direction, the least likely first."""
    tested = list(pairs)
    sign = 1 if downwards else -1
    found = []
    for task, base, since in tested:
        before, after = exact_mean(base), exact_mean(since)
        if sign * (after - before) >= 0:
            continue
        p = split_p([sign * r for r in base], [sign * r for r in since])
        solved_before, solved_since = (sum(map(is_solved, rewards)) for rewards in (base, since))
        means, share = (float(before), float(after)), float((after - before) / len(tested))
        found.append(MovedTask(task, solved_before, len(base), means[0], solved_since, len(since), means[1], share, p))
    found.sort(key=lambda change: (change.p, sign * change.share, change.task))
    return _with_holm(found, len(tested))


def split_p(base: Sequence[float], since: Sequence[float]) -> float:
    """Chance that `since`, drawn without replacement from all rewards, has a sum as low as it has.

    Where rewards have two values this is Fisher's exact test, one-sided. Otherwise all splits are counted, or where
    they are too many 2,000 of them, drawn the same on every machine.
    """
    exact = [as_fraction(reward) for reward in (*base, *since)]
    common = math.lcm(*(each.denominator for each in exact))
    both = [each.numerator * (common // each.denominator) for each in exact]
    drawn, values = both[len(base) :], sorted(set(both))
    if len(values) == 1:
        return 1.0
    if len(values) == 2:
        return _fisher(both.count(values[1]), len(both), drawn.count(values[1]), len(drawn))
    observed = sum(drawn)
    if math.comb(len(both), len(since)) <= _MOST_SPLITS:
        sums = [sum(split) for split in combinations(both, len(since))]
        return sum(each <= observed for each in sums) / len(sums)
    draw = random.Random(0).sample
    low = sum(sum(draw(both, len(since))) <= observed for _ in range(_DRAWS))
    return (low + 1) / (_DRAWS + 1)


def _fisher(solved: int, trials: int, solved_since: int, since: int) -> float:
    """P(X <= solved_since) for the hypergeometric X: of `trials`, `solved` are solved and `since` are drawn."""
    ways = sum(math.comb(solved, x) * math.comb(trials - solved, since - x) for x in range(solved_since + 1))
    return ways / math.comb(trials, since)


def _with_holm(ordered: Sequence[MovedTask], tests: int) -> tuple[MovedTask, ...]:
    """The changes with p adjusted for `tests` tests, of which the others have nothing to say in this direction."""
    ps = [*(change.p for change in ordered), *[1.0] * (tests - len(ordered))]
    return tuple(replace(change, p_holm=p) for change, p in zip(ordered, holm(ps), strict=False))
