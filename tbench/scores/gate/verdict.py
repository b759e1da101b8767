"""The gate's verdict on a night, with the tasks that changed: as data, in lines for people, and as JSON."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any, Literal

from tbench.reward import as_fraction, exact_mean, is_solved, mean_text
from tbench.scores.comparing.exact import holm
from tbench.scores.gate.nights import GateRule, Night
from tbench.text import counted, plain

# Which tasks changed: each task's rewards since the change against those of the baseline, by exact tests.

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


GATE_SCHEMA_VERSION = 1
_LIKELY = 0.05
"""A task is likely to have changed where p is below it; it is certain where the p adjusted for all tasks is."""
_TASKS_SHOWN = 10
_FEWEST_SHOWN = 3

State = Literal["learning", "quiet", "alarm", "uncovered"]
Role = Literal["baseline", "judged", "uncovered"]


@dataclass(frozen=True, slots=True)
class JudgedNight:
    """One night of the series."""

    name: str
    begun: str
    role: Role
    coverage: float
    score: float | None = None
    """Over the tasks that are compared; a fraction."""
    base_mean: float | None = None
    """The baseline's score over the same tasks."""
    sd: float | None = None
    """Standard deviation of their difference, where nothing changed."""
    z: float | None = None
    c: float | None = None
    """The CUSUM after this night; None while there is no baseline."""
    alarm: bool = False


@dataclass(frozen=True, slots=True)
class Shift:
    """What speaks for a level that is not the baseline's."""

    c: float
    beyond: bool
    """Whether c is beyond the rule's limit."""
    since: Night
    """The likeliest first night of the change."""
    before: Night
    """The last night before it that counts."""
    nights: int
    """Nights since the change that count."""
    base: float
    """The baseline's score over the same tasks; a fraction."""
    moved: float
    """What the score of these nights together differs from it by."""
    se: float
    """Standard error of that, where nothing changed."""
    tasks: tuple[MovedTask, ...]
    """All tasks that moved in this direction, the least likely to do so by chance first."""

    @property
    def likely(self) -> tuple[MovedTask, ...]:
        """The tasks that are likely to be the ones: p below 0.05, or the three with the lowest p."""
        by_chance = sum(change.p < _LIKELY for change in self.tasks)
        return self.tasks[: max(by_chance, _FEWEST_SHOWN)]


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """The verdict on the last night of a series, with what it rests on. Scores are fractions."""

    state: State
    """learning: too few nights for a baseline; uncovered: too few verdicts in this night to be judged."""
    rule: GateRule
    night: Night
    score: float | None
    """Over the tasks that are compared; while learning, over all that have a verdict."""
    base_nights: int
    path: tuple[JudgedNight, ...]
    """All nights that can be compared with this one, oldest first."""
    notes: tuple[str, ...]
    base_mean: float | None = None
    sd: float | None = None
    """Standard deviation of a night's score minus the baseline's, where nothing changes."""
    z: float | None = None
    c: float = 0.0
    below_se: float = 0.0
    """Standard errors by which the nights since C was 0 are below the baseline, where C is beyond its limit."""
    autocorrelation: float = 0.0
    """Of the baseline's nights with the one before; 0 where it may be chance."""
    tasks: int = 0
    """Tasks that are compared."""
    drop: Shift | None = None
    rise: Shift | None = None
    over: bool = False
    """Whether an alarm ended with this night."""

    @property
    def alarm(self) -> bool:
        """Whether there is a drop beyond chance."""
        return self.state == "alarm"

    @property
    def since(self) -> Night | None:
        """The night at which the drop began that there is an alarm for."""
        return self.drop.since if self.alarm and self.drop is not None else None

    def lines(self) -> tuple[str, ...]:
        """The verdict for people: one line for a quiet night; an alarm with all its evidence."""
        return (self._headline(), *self._evidence(), *self._good_news(), *(f"note: {plain(n)}" for n in self.notes))

    def as_json(self) -> dict[str, Any]:
        """The verdict as JSON, described in docs/nightly.md."""
        return {
            "schema_version": GATE_SCHEMA_VERSION,
            "state": self.state,
            "night": self.night.name,
            "begun": self.night.begun,
            "rule": asdict(self.rule),
            "base_nights": self.base_nights,
            "score": self.score,
            "base_mean": self.base_mean,
            "sd": self.sd,
            "z": self.z,
            "c": self.c,
            "below_se": self.below_se,
            "autocorrelation": self.autocorrelation,
            "tasks": self.tasks,
            "drop": _shift_json(self.drop),
            "rise": _shift_json(self.rise),
            "over": self.over,
            "nights": [asdict(night) for night in self.path],
            "notes": list(self.notes),
        }

    def _headline(self) -> str:
        return "; ".join(filter(None, (f"gate: {self.state}{self._reason()}", self._score())))

    def _reason(self) -> str:
        needed = counted(self.rule.base_nights, "night")
        if self.state == "learning" or self.base_mean is None:
            return f": {self.base_nights} of {needed}{' have enough verdicts' * (self.state == 'uncovered')}"
        if self.state == "uncovered":
            covered = f"{100 * self.path[-1].coverage:.0f} % of its trials have a verdict"
            return f": {covered}, so C stays {self.c:.1f}"
        if self.drop is not None and self.alarm:
            return f": C = {self.c:.1f} > {self.rule.h:g} since {self.drop.since.when}"
        if self.c > self.rule.h:
            sure = f"{self.below_se:.1f} of {self.rule.min_se:g} standard errors below the baseline"
            return f": C = {self.c:.1f} > {self.rule.h:g}, but the nights since are {sure}"
        return f": C = {self.c:.1f} of {self.rule.h:g}"

    def _score(self) -> str:
        if self.score is None:
            return ""
        score = f"score {_percent(self.score)} %"
        if self.base_mean is None or self.sd is None:
            return score
        base = f"baseline {_percent(self.base_mean)} %, a night ± {_percent(self.sd)}"
        return f"{score} ({base}); {counted(self.tasks, 'task')}"

    def _evidence(self) -> tuple[str, ...]:
        if self.drop is None or not self.alarm:
            return ()
        drop = self.drop
        lines = [
            f"between {_called(drop.before)} and {_called(drop.since)}, "
            f"{counted(drop.nights, 'night')} since, {_points(drop)} points"
        ]
        if self.path[-1].role == "uncovered":
            lines.append("this night has too few verdicts to be judged: the alarm stands")
        lines += [f"  {_task_line(change)}" for change in drop.likely[:_TASKS_SHOWN]]
        more = len(drop.tasks) - min(len(drop.likely), _TASKS_SHOWN)
        if more > 0:
            lines.append(f"  and {counted(more, 'task')} lower than before by no more than chance")
        return tuple(lines)

    def _good_news(self) -> tuple[str, ...]:
        lines = []
        if self.over:
            why = "no more than chance" if self.c else "the score is back at the baseline's level"
            lines.append(f"the alarm is over: {why}")
        if self.rise is not None and self.rise.beyond:
            since = self.rise.since
            lines.append(
                f"better since {_called(since)}, by {_points(self.rise)} points: a drop from there would not be seen; "
                f"let the baseline begin there (base_from = {since.name})"
            )
        return tuple(lines)


def _shift_json(shift: Shift | None) -> dict[str, Any] | None:
    if shift is None:
        return None
    return {
        "c": shift.c,
        "beyond": shift.beyond,
        "since": shift.since.name,
        "since_begun": shift.since.begun,
        "before": shift.before.name,
        "before_begun": shift.before.begun,
        "nights": shift.nights,
        "moved": shift.moved,
        "se": shift.se,
        "likely": [change.task for change in shift.likely],
        "tasks": [asdict(change) for change in shift.tasks],
    }


def _called(night: Night) -> str:
    return f"{plain(night.name)} ({night.when})" if night.day is not None else plain(night.name)


def _points(shift: Shift) -> str:
    return f"{100 * shift.moved:+.1f} ± {_percent(shift.se)}"


def _task_line(change: MovedTask) -> str:
    sure = "" if change.p_holm < _LIKELY else ", may be chance"
    return f"{plain(change.task)}: {_rates(change)}, p {change.p:.2g} (Holm {change.p_holm:.2g}){sure}"


def _rates(change: MovedTask) -> str:
    """Solved trials before and since; means where rewards are partial."""
    solved = (change.base_solved / change.base_trials, change.since_solved / change.since_trials)
    if solved == (change.base_mean, change.since_mean):
        return (
            f"solved {change.since_solved} of {change.since_trials}, "
            f"baseline {change.base_solved} of {change.base_trials}"
        )
    since = f"mean {mean_text(change.since_mean)} of {change.since_trials}"
    return f"{since}, baseline {mean_text(change.base_mean)} of {change.base_trials}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
