"""Judge a series of nights: is the benchmark lower than over its first nights, by more than chance?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from tbench.scores.gate.baseline import Baseline, baseline_of, scored
from tbench.scores.gate.cusum import Cusum
from tbench.scores.gate.flips import Pair, TaskChange, changes
from tbench.scores.gate.nights import GateRule, Night
from tbench.scores.gate.series import Cells, Series, series_of
from tbench.scores.gate.verdict import GateVerdict, JudgedNight, Role, Shift
from tbench.text import counted, names_shown


def judge(nights: Sequence[Night], rule: GateRule) -> GateVerdict:
    """The verdict on the last of `nights`, which are given oldest first, with all that speaks for it.

    A night's z is its score minus the baseline's over the tasks that it has verdicts of, in standard deviations of
    that difference: z = sum_t (m_t - b_t) / sqrt(sum_t v_t (1 / S_t + 1 / N_t)), with m_t the mean of the night's S_t
    trials of task t, b_t that of the baseline's N_t trials, and v_t their variance (`baseline_of`). For S trials of
    every task this is (s - b) / sd with sd^2 = sum_t v_t / S / T^2 * (1 + 1 / nights). z feeds a CUSUM (`Cusum`).

    A night with less coverage than `rule.min_coverage` is no part of the baseline, and leaves C as it is. One that
    would raise the alarm only because of trials without a verdict counts as if these had been solved.

    Raises UsageError for no nights, and for a `rule.base_from` that names none.
    """
    series = series_of(nights, rule)
    coverages = _coverages(series.cells)
    base = _base_nights(coverages, rule)
    baseline = baseline_of([series.cells[at] for at in base]) if len(base) == rule.base_nights else None
    if baseline is None:
        return _learning(series, coverages, base, rule)
    return _Walk(series, coverages, base, baseline, rule).verdict()


def _coverages(nights: Sequence[Cells]) -> list[float]:
    """Share of each night's trials that have a verdict, of those tasks that ever had one; 0 where none had."""
    places = range(len(nights[0]))
    ever = [place for place in places if any((row := cells[place]) is not None and scored(row) for cells in nights)]
    shares = []
    for cells in nights:
        rows = [row for place in ever if (row := cells[place]) is not None]
        planned = sum(map(len, rows))
        shares.append(sum(len(scored(row)) for row in rows) / planned if planned else 0.0)
    return shares


def _base_nights(coverages: Sequence[float], rule: GateRule) -> list[int]:
    """The first nights that are covered, as many as the baseline needs or as there are."""
    return [at for at, share in enumerate(coverages) if share >= rule.min_coverage][: rule.base_nights]


def _learning(series: Series, coverages: Sequence[float], base: Sequence[int], rule: GateRule) -> GateVerdict:
    notes = series.notes
    if len(base) == rule.base_nights:
        notes = (*notes, "no task has verdicts in half of the baseline nights")
    last = len(series.nights) - 1
    means = [fmean(rewards) for row in series.cells[last] if row is not None and (rewards := scored(row))]
    path = tuple(
        JudgedNight(night.name, night.begun, _role(at, base, coverages[at], rule), coverages[at])
        for at, night in enumerate(series.nights)
    )
    return GateVerdict(
        state="learning" if last in base or coverages[last] >= rule.min_coverage else "uncovered",
        rule=rule,
        night=series.nights[last],
        score=fmean(means) if means else None,
        base_nights=len(base),
        path=path,
        notes=notes,
    )


def _role(at: int, base: Sequence[int], coverage: float, rule: GateRule) -> Role:
    if at in base:
        return "baseline"
    return "judged" if coverage >= rule.min_coverage else "uncovered"


@dataclass(frozen=True, slots=True)
class _Measured:
    """One night against the baseline, over the tasks that it has verdicts of."""

    score: float
    base: float
    sd: float
    lacking: int
    """Trials of tasks that are compared, without a verdict."""
    z: float
    z_best: float
    """The same with all that lacks a verdict solved."""


class _Walk:
    """The way through the nights after the baseline."""

    def __init__(
        self, series: Series, coverages: Sequence[float], base: Sequence[int], baseline: Baseline, rule: GateRule
    ) -> None:
        self._series, self._coverages, self._baseline, self._rule = series, coverages, baseline, rule
        self._base = base
        self._down, self._up = Cusum(rule.k, rule.h), Cusum(rule.k, rule.h)
        self._fed: list[int] = []
        self._notes: list[str] = []

    def verdict(self) -> GateVerdict:
        path = [self._step(at) for at in range(len(self._series.nights))]
        last = len(path) - 1
        covered = path[last].role != "uncovered"
        measured = _measured(self._series.cells[last], self._baseline)
        alarm = self._down.alarm
        if self._base[-1] == last:
            self._notes.append("the baseline is complete; from the next night on there is a verdict")
        return GateVerdict(
            state="alarm" if alarm else "quiet" if covered else "uncovered",
            rule=self._rule,
            night=self._series.nights[last],
            score=None if measured is None else measured.score,
            base_nights=len(self._base),
            base_mean=self._baseline.mean if measured is None else measured.base,
            sd=None if measured is None else measured.sd,
            z=path[last].z,
            c=self._down.value,
            tasks=len(self._baseline.tasks),
            drop=self._shift(self._down, downwards=True),
            rise=self._shift(self._up, downwards=False),
            over=self._over(path),
            path=tuple(path),
            notes=(*self._series.notes, *self._left_out(), *self._notes),
        )

    def _step(self, at: int) -> JudgedNight:
        night, coverage = self._series.nights[at], self._coverages[at]
        role = _role(at, self._base, coverage, self._rule)
        measured = _measured(self._series.cells[at], self._baseline)
        if measured is None:
            role = "uncovered"
        # The baseline's own nights are no evidence, nor is one that came in between and was not covered.
        if measured is None or at <= self._base[-1] or role == "uncovered":
            return JudgedNight(
                night.name,
                night.begun,
                role,
                coverage,
                None if measured is None else measured.score,
                c=self._down.value,
                alarm=self._down.alarm,
            )
        z = self._z(measured, last=at == len(self._series.nights) - 1)
        self._down.add(at, z)
        self._up.add(at, -z)
        self._fed.append(at)
        return JudgedNight(
            night.name,
            night.begun,
            role,
            coverage,
            measured.score,
            measured.base,
            z,
            self._down.value,
            self._down.alarm,
        )

    def _z(self, measured: _Measured, *, last: bool) -> float:
        down, limit = self._down, self._rule.h
        if not measured.lacking or down.alarm or not down.after(measured.z) > limit >= down.after(measured.z_best):
            return measured.z
        if last:
            alone = f"C = {down.after(measured.z):.1f}"
            self._notes.append(
                f"the alarm ({alone}) would rest on {counted(measured.lacking, 'trial')} without a verdict, "
                "which count as solved instead"
            )
        return measured.z_best

    def _shift(self, cusum: Cusum, *, downwards: bool) -> Shift | None:
        """What a CUSUM has gathered so far; None where it is 0."""
        if cusum.since is None:
            return None
        since = [at for at in self._fed if at >= cusum.since]
        before = [at for at in [*self._base, *self._fed] if at < cusum.since]
        return Shift(
            c=cusum.value,
            beyond=cusum.alarm,
            since=self._series.nights[since[0]],
            before=self._series.nights[before[-1]],
            nights=len(since),
            moved=self._moved(since),
            tasks=self._changes(since, downwards=downwards),
        )

    def _changes(self, since: Sequence[int], *, downwards: bool) -> tuple[TaskChange, ...]:
        pairs: list[Pair] = []
        for place in self._baseline.tasks:
            now = self._rewards(place, since)
            if now:
                pairs.append((self._series.tasks[place], self._rewards(place, self._base), now))
        return changes(pairs, downwards=downwards)

    def _moved(self, since: Sequence[int]) -> float:
        """The mean over these nights of what the score moved by."""
        measured = [_measured(self._series.cells[at], self._baseline) for at in since]
        return fmean(found.score - found.base for found in measured if found is not None)

    def _rewards(self, place: int, nights: Sequence[int]) -> list[float]:
        rows = (self._series.cells[at][place] for at in nights)
        return [reward for row in rows if row is not None for reward in scored(row)]

    def _left_out(self) -> list[str]:
        names = [task for place, task in enumerate(self._series.tasks) if place not in self._baseline.tasks]
        if not names:
            return []
        return [f"{counted(len(names), 'task')} new or changed since the baseline, not compared: {names_shown(names)}"]

    def _over(self, path: Sequence[JudgedNight]) -> bool:
        judged = [night for night in path if night.c is not None]
        return len(judged) > 1 and judged[-2].alarm and not judged[-1].alarm


def _measured(cells: Cells, baseline: Baseline) -> _Measured | None:
    """A night over the tasks that it has verdicts of; None where there are none."""
    tasks = lacking = 0
    score = base = spread = better = 0.0
    for place, task in baseline.tasks.items():
        row = cells[place]
        if row is None:
            continue
        rewards = scored(row)
        missing = len(row) - len(rewards)
        if missing:
            lacking += missing
            better += (sum(rewards) + missing) / len(row) - (sum(rewards) / len(rewards) if rewards else task.mean)
            if not rewards:
                continue
        tasks += 1
        score += sum(rewards) / len(rewards)
        base += task.mean
        spread += task.variance * (1.0 / len(rewards) + 1.0 / task.trials)
    if not tasks:
        return None
    sd = math.sqrt(spread)
    return _Measured(
        score / tasks, base / tasks, sd / tasks, lacking, (score - base) / sd, (score - base + better) / sd
    )
