"""Judges a series of nights: has the score dropped by more than chance?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from tbench.scores.gate.baseline import Baseline, Cusum, Difference, Tally, change_point, combine
from tbench.scores.gate.nights import GateRule, Night, Series, make_series
from tbench.scores.gate.verdict import GateVerdict, JudgedNight, Role, Shift, State, TaskRewards, moved_tasks
from tbench.text import counted, names_text

_NOTABLE_AUTOCORRELATION = 0.1
"""Autocorrelation from which a note reports it."""
_SAME_SE = 2.0
"""Standard errors below which nights count as equal to the baseline, once they are as many as the baseline's."""


def judge(nights: Sequence[Night], rule: GateRule) -> GateVerdict:
    """Judge the last of `nights`, which are in order, oldest first.

    A night's z is its score minus the baseline's over the tasks of which it has verdicts, in standard deviations of
    that difference: z = sum_t (m_t - b_t) / sqrt(sum_t v_t (1 / S_t + 1 / N_t)), with m_t the mean of the night's S_t
    trials of task t, b_t the mean of the baseline's N_t trials, and v_t their variance (`Baseline`). For S trials of
    every task this is (s - b) / sd with sd^2 = sum_t v_t / S / T^2 * (1 + 1 / nights). z feeds a CUSUM with
    the statistic C (`Cusum`); whenever C is 0, the nights so far join the baseline.

    There is an alarm if C > h and the nights since C was 0 are at least `rule.min_se` standard errors below the
    baseline. The second condition is needed because C treats the baseline's error as independent in each night.

    A night with less coverage than `rule.min_coverage` does not join the baseline and leaves C unchanged. If a night
    would raise the alarm only because of trials without a verdict, these count as solved.

    Raises UsageError for no nights, and for a `rule.base_from` that is neither a night's name nor a date.
    """
    series = make_series(nights, rule)
    tallies = [Tally.from_rows(rows) for rows in series.rows]
    coverages = _coverages(tallies)
    base = [at for at, share in enumerate(coverages) if share >= rule.min_coverage][: rule.base_nights]
    baseline = Baseline([tallies[at] for at in base]) if len(base) == rule.base_nights else None
    if baseline is None or not baseline.tasks:
        return _learning(series, tallies[-1], coverages, base, rule)
    return _SeriesJudge(series, tallies, coverages, base, baseline, rule).verdict()


def _coverages(nights: Sequence[Tally]) -> list[float]:
    """Return each night's fraction of scored trials, over tasks that were ever scored; 0 if there are none."""
    ever = [any(trials) for trials in zip(*(night.trials for night in nights), strict=True)]
    tasks = [at for at, had in enumerate(ever) if had]
    shares = []
    for night in nights:
        planned = sum(night.planned[at] for at in tasks)
        shares.append(sum(night.trials) / planned if planned else 0.0)
    return shares


def _learning(
    series: Series, last: Tally, coverages: Sequence[float], base: Sequence[int], rule: GateRule
) -> GateVerdict:
    notes = series.notes
    if len(base) == rule.base_nights:
        notes = (*notes, "no task has verdicts in half of the baseline nights")
    means = [total / trials for trials, total in zip(last.trials, last.totals, strict=True) if trials]
    path = tuple(
        JudgedNight(night.name, night.begun, "baseline" if at in base else "uncovered", coverages[at])
        for at, night in enumerate(series.nights)
    )
    return GateVerdict(
        state="learning" if coverages[-1] >= rule.min_coverage else "uncovered",
        rule=rule,
        night=series.nights[-1],
        score=fmean(means) if means else None,
        base_nights=len(base),
        path=path,
        notes=notes,
    )


class _Direction:
    """The CUSUM for drops or for rises, and the nights since it was 0."""

    def __init__(self, rule: GateRule, sign: float) -> None:
        self.cusum = Cusum(rule.k, rule.h)
        self.nights: list[int] = []
        self.errors = 0.0
        """Standard errors between `nights` and the baseline, if C exceeds its limit."""
        self._sign, self._min_se = sign, rule.min_se

    def add(self, at: int, z: float, tallies: Sequence[Tally], baseline: Baseline) -> list[int]:
        """Add a night. If C is now 0, return the nights since it was last 0, unless they had an alarm.

        C would grow without limit if the baseline itself had a few good nights. So it is also reset when the
        nights since it was 0 are as many as the baseline's and do not differ from them.
        """
        alarm = self.cusum.alarm
        self.cusum.add(at, self._sign * z)
        self.nights.append(at)
        if self.cusum.since is None:
            ended = self._take_nights()
            return [] if alarm else ended
        confirmed = False
        if self.cusum.exceeds_limit and (found := baseline.compare(combine([tallies[at] for at in self.nights]))):
            self.errors = -self._sign * found.errors
            confirmed = self.errors >= self._min_se
            if not confirmed and len(self.nights) >= baseline.size and self.errors < _SAME_SE:
                self.cusum.reset()
                return self._take_nights()
        self.cusum.update_alarm(confirmed=confirmed)
        return []

    def _take_nights(self) -> list[int]:
        ended, self.nights, self.errors = self.nights, [], 0.0
        return ended


class _SeriesJudge:
    """Judges the nights of a series one after the other."""

    def __init__(
        self,
        series: Series,
        tallies: Sequence[Tally],
        coverages: Sequence[float],
        base: Sequence[int],
        baseline: Baseline,
        rule: GateRule,
    ) -> None:
        self._series, self._coverages, self._baseline, self._rule = series, coverages, baseline, rule
        self._tasks = baseline.tasks
        self._tallies = [tally.select(self._tasks) for tally in tallies]
        self._first = list(base)
        self._base = list(base)
        """Nights of the baseline so far."""
        self._judged: dict[int, float] = {}
        """Each night's difference in standard errors without `Baseline.se_factor`."""
        self._down, self._up = (_Direction(rule, sign) for sign in (1.0, -1.0))
        self._notes: list[str] = []
        self._last = len(tallies) - 1

    def verdict(self) -> GateVerdict:
        path = tuple(self._step(at) for at in range(self._last + 1))
        night = path[-1]
        otherwise: dict[Role, State] = {"baseline": "learning", "judged": "quiet", "uncovered": "uncovered"}
        return GateVerdict(
            state="alarm" if night.alarm else otherwise[night.role],
            rule=self._rule,
            night=self._series.nights[-1],
            score=night.score,
            base_nights=len(self._base),
            base_mean=fmean(self._baseline.means) if night.base_mean is None else night.base_mean,
            sd=night.sd,
            z=night.z,
            c=self._down.cusum.value,
            below_se=self._down.errors,
            autocorrelation=self._baseline.autocorrelation,
            tasks=len(self._tasks),
            drop=self._shift(self._down, downwards=True),
            rise=self._shift(self._up, downwards=False),
            over=len(path) > 1 and path[-2].alarm and not night.alarm,
            path=path,
            notes=(*self._series.notes, *self._left_out(), *self._variance_notes(), *self._notes),
        )

    def _step(self, at: int) -> JudgedNight:
        """Judge one night. Nights of the first baseline and nights with too few verdicts do not feed the CUSUMs."""
        night, tally, coverage = self._series.nights[at], self._tallies[at], self._coverages[at]
        found = self._baseline.compare(tally)
        covered = found is not None and coverage >= self._rule.min_coverage
        role: Role = "baseline" if at in self._first else "judged" if covered else "uncovered"
        z: float | None = None
        if found is not None and role == "judged":
            z = self._z(at, found, tally)
            self._judged[at] = found.errors * self._baseline.se_factor
            self._up.add(at, z, self._tallies, self._baseline)
            if joining := self._down.add(at, z, self._tallies, self._baseline):
                self._baseline.grow([self._tallies[at] for at in joining], [self._judged[at] for at in joining])
                self._base += joining
        score, base, sd = (None, None, None) if found is None else (found.score, found.base, found.se)
        cusum = self._down.cusum
        return JudgedNight(night.name, night.begun, role, coverage, score, base, sd, z, cusum.value, cusum.alarm)

    def _z(self, at: int, found: Difference, tally: Tally) -> float:
        """Return the night's z; with unscored trials as solved, if only they would raise the alarm."""
        cusum, limit = self._down.cusum, self._rule.h
        if cusum.alarm or cusum.value_after(found.errors) <= limit or tally.planned == tally.trials:
            return found.errors
        best = self._baseline.errors_if_solved(tally, found)
        if cusum.value_after(best) > limit:
            return found.errors
        if at == self._last:
            unscored = counted(sum(tally.planned) - sum(tally.trials), "trial")
            self._notes.append(
                f"an alarm (C = {cusum.value_after(found.errors):.1f}) would rest on {unscored} without a verdict, "
                "which count as solved instead"
            )
        return best

    def _shift(self, direction: _Direction, *, downwards: bool) -> Shift | None:
        """Return the evidence for a shift in a direction; None if its C is 0."""
        cusum = direction.cusum
        if cusum.since is None:
            return None
        since = direction.nights[change_point([self._judged[at] for at in direction.nights]) :]
        nights, moved = self._series.nights, self._baseline.compare(combine([self._tallies[at] for at in since]))
        if moved is None:
            return None
        return Shift(
            c=cusum.value,
            beyond=cusum.alarm,
            since=nights[since[0]],
            before=nights[max(at for at in [*self._first, *self._judged] if at < since[0])],
            nights=len(since),
            base=moved.base,
            moved=moved.score - moved.base,
            se=moved.se,
            tasks=moved_tasks(self._task_rewards(since), downwards=downwards),
        )

    def _task_rewards(self, since: Sequence[int]) -> list[TaskRewards]:
        # While the score rises, nights since the change join the baseline.
        base = [at for at in self._base if at < since[0]]
        found = ((self._series.tasks[at], self._rewards(at, base), self._rewards(at, since)) for at in self._tasks)
        return [(task, before, now) for task, before, now in found if before and now]

    def _rewards(self, task: int, nights: Sequence[int]) -> list[float]:
        rows = (self._series.rows[at][task] for at in nights)
        return [reward for row in rows if row is not None for reward in row if reward is not None]

    def _left_out(self) -> list[str]:
        names = [task for at, task in enumerate(self._series.tasks) if at not in set(self._tasks)]
        if not names:
            return []
        why = "new, changed or without verdicts in the baseline"
        return [f"{counted(len(names), 'task')} not compared, {why}: {names_text(names)}"]

    def _variance_notes(self) -> list[str]:
        overdispersion, r = self._baseline.overdispersion, self._baseline.autocorrelation
        notes = []
        if overdispersion > 1.0:
            notes.append(
                f"the baseline's nights differ {overdispersion:.1f} times as much as their tasks explain; "
                "standard errors are increased accordingly"
            )
        if r >= _NOTABLE_AUTOCORRELATION:
            notes.append(
                f"nights resemble the one before (autocorrelation {r:.2f}); standard errors are therefore "
                f"{1.0 + r:.1f} times as large, and drops are detected later"
            )
        return notes
