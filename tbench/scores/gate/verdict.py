"""The gate's verdict on a night and the tasks that changed: as data, as lines for people, and as JSON."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any, Literal

from tbench.reward import as_fraction, exact_mean, is_solved, mean_text
from tbench.scores.comparing.exact_tests import holm
from tbench.scores.gate.nights import GateRule, Night
from tbench.text import counted, plain

_MAX_SPLITS = 5_000
"""Number of splits up to which all are counted; beyond that, `_DRAWS` random ones."""
_DRAWS = 2_000


@dataclass(frozen=True, slots=True)
class MovedTask:
    """A task's trials in the baseline and since a change."""

    task: str
    base_solved: int
    base_trials: int
    base_mean: float
    since_solved: int
    since_trials: int
    since_mean: float
    share: float
    """This task's part of the change of the score; a fraction."""
    p: float
    """One-sided p of a permutation test: chance of at least this change under a random split of all trials."""
    p_holm: float = 1.0
    """`p` adjusted for all compared tasks (Holm 1979)."""


TaskRewards = tuple[str, Sequence[float], Sequence[float]]
"""A task, its rewards in the baseline, and its rewards since the change."""


def moved_tasks(tasks: Iterable[TaskRewards], *, downwards: bool) -> tuple[MovedTask, ...]:
    """Return the tasks whose mean moved in one direction, lowest p first."""
    tested = list(tasks)
    sign = 1 if downwards else -1
    found = []
    for task, base, since in tested:
        before, after = exact_mean(base), exact_mean(since)
        if sign * (after - before) >= 0:
            continue
        p = permutation_p([sign * r for r in base], [sign * r for r in since])
        solved_before, solved_since = (sum(map(is_solved, rewards)) for rewards in (base, since))
        means, share = (float(before), float(after)), float((after - before) / len(tested))
        found.append(MovedTask(task, solved_before, len(base), means[0], solved_since, len(since), means[1], share, p))
    found.sort(key=lambda change: (change.p, sign * change.share, change.task))
    # The tests that are not listed count with p = 1.
    ps = [*(change.p for change in found), *[1.0] * (len(tested) - len(found))]
    return tuple(replace(change, p_holm=p) for change, p in zip(found, holm(ps), strict=False))


def permutation_p(base: Sequence[float], since: Sequence[float]) -> float:
    """Return the chance that a random sample of all rewards, of the size of `since`, has a sum at most as large.

    For rewards of two values this is Fisher's exact test, one-sided. Otherwise all splits are counted, or, if there are
    too many, 2,000 random ones, which are the same on every machine.
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
    if math.comb(len(both), len(since)) <= _MAX_SPLITS:
        sums = [sum(split) for split in combinations(both, len(since))]
        return sum(each <= observed for each in sums) / len(sums)
    draw = random.Random(0).sample
    low = sum(sum(draw(both, len(since))) <= observed for _ in range(_DRAWS))
    return (low + 1) / (_DRAWS + 1)


def _fisher(solved: int, trials: int, solved_since: int, since: int) -> float:
    """Return P(X <= solved_since) for the hypergeometric X: of `trials`, `solved` are solved and `since` are drawn."""
    ways = sum(math.comb(solved, x) * math.comb(trials - solved, since - x) for x in range(solved_since + 1))
    return ways / math.comb(trials, since)


GATE_SCHEMA_VERSION = 1
_LIKELY = 0.05
"""Level of p below which a task has likely changed; more surely, if the adjusted p is below it, too."""
_TASKS_SHOWN = 10
_MIN_LIKELY = 3

State = Literal["learning", "quiet", "alarm", "uncovered"]
Role = Literal["baseline", "judged", "uncovered"]


@dataclass(frozen=True, slots=True)
class JudgedNight:
    """One night of the series, as judged."""

    name: str
    begun: str
    role: Role
    coverage: float
    score: float | None = None
    """Score over the compared tasks; a fraction."""
    base_mean: float | None = None
    """The baseline's score over the same tasks."""
    sd: float | None = None
    """Standard deviation of score - base_mean if nothing changed."""
    z: float | None = None
    c: float | None = None
    """The CUSUM after this night; None while there is no baseline."""
    alarm: bool = False


@dataclass(frozen=True, slots=True)
class Shift:
    """Evidence for a level other than the baseline's."""

    c: float
    beyond: bool
    """Whether c exceeds the rule's limit, and the nights confirm it."""
    since: Night
    """The likeliest first night of the change."""
    before: Night
    """The last night before `since` that counts."""
    nights: int
    """Number of nights since the change that count."""
    base: float
    """The baseline's score over the same tasks; a fraction."""
    moved: float
    """Score of these nights together minus `base`."""
    se: float
    """Standard error of `moved` if nothing changed."""
    tasks: tuple[MovedTask, ...]
    """All tasks that moved in this direction, lowest p first."""

    @property
    def now(self) -> float:
        """Score of the nights of the change together, over the same tasks as `base`."""
        return self.base + self.moved

    @property
    def points(self) -> str:
        """The change in points with its standard error, the one figure that every page and message gives."""
        return f"{100 * self.moved:+.1f} ± {_percent(self.se)}"

    @property
    def likely(self) -> tuple[MovedTask, ...]:
        """The tasks that likely changed: those with p below 0.05, at least the three with the lowest p."""
        significant = sum(change.p < _LIKELY for change in self.tasks)
        return self.tasks[: max(significant, _MIN_LIKELY)]


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """The verdict on the last night of a series, with its evidence. Scores are fractions."""

    state: State
    """learning: too few nights for a baseline; uncovered: this night has too few verdicts to be judged."""
    rule: GateRule
    night: Night
    score: float | None
    """Score over the compared tasks; while learning, over all tasks with a verdict."""
    base_nights: int
    path: tuple[JudgedNight, ...]
    """All nights comparable with this one, oldest first."""
    notes: tuple[str, ...]
    base_mean: float | None = None
    sd: float | None = None
    """Standard deviation of a night's score minus the baseline's if nothing changes."""
    z: float | None = None
    c: float = 0.0
    below_se: float = 0.0
    """Standard errors by which the nights since C was 0 are below the baseline, if C exceeds its limit."""
    autocorrelation: float = 0.0
    """Autocorrelation of the baseline's nights; 0 if not significant."""
    tasks: int = 0
    """Number of compared tasks."""
    drop: Shift | None = None
    rise: Shift | None = None
    over: bool = False
    """Whether an alarm ended with this night."""

    @property
    def alarm(self) -> bool:
        """Whether the score has dropped by more than chance."""
        return self.state == "alarm"

    @property
    def since(self) -> Night | None:
        """The night at which the drop of an alarm began; None without an alarm."""
        return self.drop.since if self.alarm and self.drop is not None else None

    def lines(self) -> tuple[str, ...]:
        """Return the verdict for people: one line for a quiet night, and the evidence for an alarm."""
        return (self._headline(), *self._evidence(), *self._improvements(), *(f"note: {plain(n)}" for n in self.notes))

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as JSON, described in docs/nightly.md."""
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
        if self.drop is not None and self.alarm:
            drop = self.drop
            size = f"{100 * abs(drop.moved):.1f} ± {_percent(drop.se)} points"
            scores = f"{_percent(drop.now)} % over {counted(drop.nights, 'night')}, usually {_percent(drop.base)} %"
            return f"gate: alarm: the score dropped by {size} since {drop.since.when}: {scores}"
        return "; ".join(filter(None, (f"gate: {self.state}{self._reason()}", self._score())))

    def _reason(self) -> str:
        needed = counted(self.rule.base_nights, "night")
        if self.state == "learning" or self.base_mean is None:
            return f": {self.base_nights} of {needed}{' have enough verdicts' * (self.state == 'uncovered')}"
        if self.state == "uncovered":
            covered = f"{100 * self.path[-1].coverage:.0f} % of its trials have a verdict"
            return f": {covered}, so C stays {self.c:.1f}"
        if self.c > self.rule.h:
            sure = f"{self.below_se:.1f} standard errors below the baseline (an alarm needs {self.rule.min_se:g})"
            return f": C = {self.c:.1f} > {self.rule.h:g}, but the nights since are only {sure}"
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
            f"it began between {_night_text(drop.before)} and {_night_text(drop.since)}",
            f"this night: {'; '.join(filter(None, (f'C = {self.c:.1f} > {self.rule.h:g}', self._score())))}",
        ]
        if self.path[-1].role == "uncovered":
            lines.append("this night has too few verdicts to be judged: the alarm stands")
        lines += [f"  {_task_line(change)}" for change in drop.likely[:_TASKS_SHOWN]]
        more = len(drop.tasks) - min(len(drop.likely), _TASKS_SHOWN)
        if more > 0:
            lines.append(f"  and {counted(more, 'task')} lower than before, but by no more than chance")
        return tuple(lines)

    def _improvements(self) -> tuple[str, ...]:
        lines = []
        if self.over:
            why = "the remaining difference is within chance" if self.c else "the score is back at the baseline's level"
            lines.append(f"the alarm is over: {why}")
        if self.rise is not None and self.rise.beyond:
            since = self.rise.since
            lines.append(
                f"better since {_night_text(since)}, by {self.rise.points} points: a drop from this level would not "
                f"be detected; start the baseline there (base_from = {since.name})"
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


def _night_text(night: Night) -> str:
    return f"{plain(night.name)} ({night.when})" if night.day is not None else plain(night.name)


def _task_line(change: MovedTask) -> str:
    sure = "" if change.p_holm < _LIKELY else ", may be chance"
    return f"{plain(change.task)}: {_rates(change)}, p {change.p:.2g} (Holm {change.p_holm:.2g}){sure}"


def _rates(change: MovedTask) -> str:
    """Return solved trials before and since, or means if there are partial rewards."""
    solved = (change.base_solved / change.base_trials, change.since_solved / change.since_trials)
    if solved == (change.base_mean, change.since_mean):
        return (
            f"solved {change.since_solved} of {change.since_trials}, "
            f"baseline {change.base_solved} of {change.base_trials}"
        )
    since = f"mean {mean_text(change.since_mean)} over {counted(change.since_trials, 'trial')}"
    return f"{since}, baseline {mean_text(change.base_mean)} over {change.base_trials}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
