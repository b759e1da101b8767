"""The summary of a run as data (score, spread, coverage, tasks, errors, outcomes, time), and its score lines."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from harness.reply_stats import ReplyStats
from harness.trajectory import Frozen, Usage
from tbench.origin import DatasetOrigin
from tbench.results import Blame, Stage, TaskStepResult
from tbench.scores.cost import Cost
from tbench.scores.final_results import Pressure
from tbench.scores.intervals import IntervalMethod
from tbench.text import counted, names_text

SUMMARY_SCHEMA_VERSION = 2


class Status(StrEnum):
    """State of a planned trial."""

    PASS = "pass"
    """Reward of 1 or more."""
    PARTIAL = "partial"
    """Reward between 0 and 1."""
    FAIL = "fail"
    """Reward of 0 or less."""
    ERROR = "error"
    """Ended without a verdict."""
    MISSING = "missing"
    """No final result (yet)."""


class Counts(Frozen):
    """Numbers of planned trials (planned = scored + errors + missing), and of results that do not count."""

    planned: int
    scored: int
    solved: int
    errors: int
    missing: int
    other_attempts: int
    """Results that are not the final attempt of their trial."""
    unplanned: int
    """Final results of tasks or seeds outside the plan."""
    human_touched: int
    went_on: dict[str, int] = Field(default={})
    """Number of continued trials (`trials`), and their numbers by the way in which they continued."""
    flagged: int = 0
    """Trials with a strong sign of tampering."""
    weakly_flagged: int = 0
    """Trials with only weak signs of tampering. A pass that is merely unconfirmed does not count."""
    unconfirmed: int = 0
    """Passes that no fresh container has confirmed."""
    repaired: int = 0
    regraded: int = 0
    remarked: int = 0
    """Trials whose reward counts, but has a remark that makes it doubtful."""


class Completed(Frozen):
    """The score over the seeds at which every task has a verdict, which excludes outages."""

    seeds: tuple[int, ...]
    mean: float
    std: float | None


class Score(Frozen):
    """The score and its spread, as fractions. Unless noted otherwise, a trial without a verdict counts as 0."""

    mean: float
    std: float | None
    """Std of the per-seed scores; None for one seed."""
    std_kind: Literal["sample", "population"]
    per_seed: tuple[float, ...]
    scored_per_seed: tuple[int, ...]
    """Number of verdicts at each seed."""
    completed: Completed | None
    """Score of the seeds at which every task has a verdict; None if there is no such seed."""
    scored_only: float
    """Mean over tasks of the mean over their verdicts; tasks without a verdict are left out."""
    scored_only_std: float | None
    """Std over seeds, from trials with a verdict only; None if fewer than two seeds can be compared."""
    scored_only_interval_95: tuple[float, float] | None
    worst: float | None
    best: float | None
    """`worst` and `best`: the score with 0 or 1 for trials without a verdict; None if rewards may be outside 0 to 1."""
    expected_std: float | None
    """Expected sample std over seeds, for all pairings of seeds across tasks; None for one seed."""
    se_over_tasks: float | None
    """Standard error clustered by task; None for one task."""
    interval_95: tuple[float, float] | None
    """Interval for other tasks of the same kind; None for one task, and for few tasks with rewards outside 0 to 1."""
    interval_method: IntervalMethod | None
    solved_rate: float
    pass_at_k: dict[int, float]
    pass_hat_k: dict[int, float]
    """`pass_at_k` and `pass_hat_k` for each k from 1 to the number of seeds; a reward of 1 or more is solved."""


class Metric(Frozen):
    """A number that verifiers write in addition to the reward, over all trials of the tasks that have it."""

    name: str
    mean: float
    """Mean over trials; a trial without the number or without a verdict counts as 0."""
    std: float | None
    """Std of the per-seed means; None for one seed."""
    tasks: int
    trials: int
    """Number of trials that reported the metric."""


class TimeSplit(Frozen):
    """Seconds by activity. The parts add up to `total_sec`; time in the queue is not part of it."""

    model_sec: float = 0.0
    waiting_sec: float = 0.0
    """Seconds spent waiting for an endpoint or engine that failed or was unreachable; not charged to any agent."""
    command_sec: float = 0.0
    verifier_sec: float = 0.0
    sandbox_sec: float = 0.0
    teardown_sec: float = 0.0
    other_sec: float = 0.0
    total_sec: float = 0.0
    queue_sec: float = 0.0

    def parts(self) -> dict[str, float]:
        """Return the parts of `total_sec` by short name."""
        names = ("model", "waiting", "command", "verifier", "sandbox", "teardown", "other")
        return {name: getattr(self, f"{name}_sec") for name in names}


class UnreachedSteps(Frozen):
    """Task steps that trials with a verdict never began, and the score with 0 for each of them."""

    trials: int
    steps: int
    score: float


class UnhealthyTasks(Frozen):
    """Tasks whose verdicts are doubtful on the run's machine, and the score without them."""

    tasks: dict[str, str]
    """Reason by task."""
    score: float | None
    """Score without these tasks; None if no trial of any other task was scored."""


class WithoutTags(Frozen):
    """A second score, without the trials that people tagged; the score itself always has all trials."""

    tags: tuple[str, ...]
    left_out: int
    """Number of planned trials with any of the tags."""
    planned: int
    score: float | None
    """Mean over tasks of the mean over their other trials, unscored = 0; None if none of these is scored."""
    std: float | None
    """Std of the per-seed scores; None if fewer than two seeds can be compared."""

    @property
    def line(self) -> str:
        """The second score in one line, with its name."""
        score = "no score" if self.score is None else _with_std(self.score, self.std)
        trials = f"{self.left_out:,} of {counted(self.planned, 'trial')} left out"
        return f"without trials tagged {' or '.join(self.tags)}: {score}, {trials}"


@dataclass(frozen=True, slots=True)
class Cell:
    """One planned trial in the task x seed grid. Not a pydantic model, which would take four times the memory."""

    seed: int
    status: Status
    reward: float | None = None
    error: str | None = None
    """Error type, if the status is error."""
    outcome: str | None = None
    steps: int = 0
    wall_sec: float = 0.0
    attempt: int = 1
    human_touched: bool = False
    reward_all_steps: float | None = None
    """The reward with 0 for task steps that were never begun; None for a task without steps."""
    task_steps: tuple[TaskStepResult, ...] = ()


class TaskRow(Frozen):
    """One task over all seeds."""

    task: str
    mean_reward: float | None
    """Mean over all planned seeds, unscored = 0; None if no trial of the task was scored."""
    solved: int
    scored: int
    cells: tuple[Cell, ...]
    outcomes: dict[str, int]
    mean_steps: float | None
    mean_wall_sec: float | None
    """`mean_steps` and `mean_wall_sec`: means over trials with a final result, including errors; None without any."""
    time: TimeSplit


class ErrorGroup(Frozen):
    """Trials without a verdict that have the same stage, type and blame of error."""

    stage: Stage | None
    type: str
    blame: Blame | None
    count: int
    retryable: int
    """Number of trials in which another attempt may succeed."""
    example_message: str
    example_trial: str


class Flag(Frozen):
    """A trial whose verdict has signs of tampering."""

    trial: str
    reward: float | None
    tamper: tuple[str, ...]
    is_weak: bool


class ShardCounts(Frozen):
    """A shard of a run: `Counts` covers only its trials. It has no score, as its tasks differ from the run's."""

    name: str
    """`I/N`, counted from 0."""
    trials: int
    whole: int
    """Number of trials of all shards."""


class Summary(Frozen):
    """Everything that `tbench` reports about a run. `as_json` is its stable form."""

    schema_version: int = SUMMARY_SCHEMA_VERSION
    model: str | None
    agent: str | None = None
    started_at: datetime | None = None
    """Time at which the first trial began; None if not recorded."""
    seeds: tuple[int, ...]
    overrides: tuple[str, ...] = ()
    """Settings with which the run overrode its tasks, a few words each."""
    lacking_limits: tuple[str, ...] = ()
    """Limits of the tasks that were not in force or not verified, a few words for each machine."""
    counts: Counts
    score: Score | None
    """The score; None if no trial was scored, and for a shard."""
    tasks: tuple[TaskRow, ...]
    errors: tuple[ErrorGroup, ...]
    outcomes: dict[str, int]
    usage: Usage
    replies_from: dict[str, int] = Field(default={})
    """Number of model replies by URL of the server; empty if there was only one server."""
    replies: ReplyStats = ReplyStats()
    """Models, fingerprints and other facts that replies report, over all trials that count."""
    reply_notes: tuple[str, ...] = ()
    """Anomalies of the replies, one line each; the server may be their cause rather than the model."""
    time: TimeSplit
    pressure: Pressure | None = None
    """Failures on a machine under pressure; None if there were none."""
    repeated: tuple[str, ...] = ()
    """Trials with several final results, each with all its rewards; the last line of the last attempt counts."""
    flags: tuple[Flag, ...] = ()
    """Trials with signs of tampering, strong ones first."""
    dataset: DatasetOrigin | None = None
    """The dataset of the tasks; None for bundled tasks, tasks from a path, and imported results."""
    broken_rules: tuple[str, ...] = ()
    """Rules of the dataset's leaderboard that the run breaks; empty if there is no leaderboard."""
    metrics: tuple[Metric, ...] = ()
    """Metrics by name; empty if verifiers write only the reward."""
    shard: ShardCounts | None = None
    """The shard; None for a whole run."""
    unreached: UnreachedSteps | None = None
    """Task steps that were never begun; None if every trial with a verdict reached its last one."""
    unhealthy: UnhealthyTasks | None = None
    """Planned tasks known to be unhealthy; None if there are none."""
    tags: dict[str, int] = Field(default={})
    """Number of planned trials by tag that people gave them."""
    without: WithoutTags | None = None
    """The score without tagged trials; None unless it was asked for."""
    cost: Cost | None = None
    """The cost of all attempts; None without prices or without a model."""

    @property
    def coverage(self) -> float:
        """Fraction of planned trials that were scored; 0 for an empty plan."""
        return self.counts.scored / self.counts.planned if self.counts.planned else 0.0

    @property
    def dataset_lines(self) -> tuple[str, ...]:
        """Lines on the dataset with its digests and on broken rules of its leaderboard; empty without a dataset."""
        if self.dataset is None:
            return ()
        rules = f"not by the rules of its leaderboard: {'; '.join(self.broken_rules)}" if self.broken_rules else ""
        return tuple(filter(None, (f"dataset {self.dataset.words}", rules)))

    @property
    def score_line(self) -> str:
        """The score in one line, with the kind of the +- and the coverage; unscored trials count as 0."""
        counts = self.counts
        covered = f"coverage {counts.scored}/{counts.planned}"
        if counts.missing:
            covered = f"incomplete: {counted(counts.missing, 'trial')} not run; {covered}"
        if self.shard is not None:
            share = f"shard {self.shard.name} has {self.shard.trials} of {counted(self.shard.whole, 'trial')}"
            return (
                f"no score of its own: {share}, {counts.solved} solved ({covered}); tbench merge puts shards together"
            )
        if self.score is None:
            return f"score not available ({covered})"
        if counts.scored < counts.planned:
            covered += "; unscored = 0"
        what = "score so far" if counts.missing else "score"
        if self.score.std is None:
            return f"{what} {percent(self.score.mean)} % (1 seed, no std; {covered})"
        spread = f"{self.score.std_kind} std over {len(self.seeds)} seeds{self._among_completed(self.score)}"
        return f"{what} {_with_std(self.score.mean, self.score.std)} ({spread}; {covered})"

    @property
    def score_lines(self) -> tuple[str, ...]:
        """The `score_line`; below full coverage, also the score over scored trials only, and bounds.

        If task steps were never begun, also the score with 0 for them; if tasks are unhealthy, the score without them.
        The score without tagged trials comes last.
        """
        without = "" if self.without is None else self.without.line
        return (*self._trial_lines, *self._step_lines, *filter(None, [self.unhealthy_line, without]))

    @property
    def cost_lines(self) -> tuple[str, ...]:
        """The cost in one line; empty without prices."""
        return () if self.cost is None else (self.cost.line,)

    @property
    def tags_line(self) -> str:
        """The tags that people gave in one line; empty if there are none."""
        each = (f"{counted(n, 'trial')} {'is' if n == 1 else 'are'} tagged {tag}" for tag, n in self.tags.items())
        return ", ".join(each)

    @property
    def failures(self) -> list[tuple[str, int]]:
        """Task and seed of each trial that has not passed, worst first.

        The lowest reward comes first and, at equal rewards, the task with the lowest mean. Trials without a verdict
        come last.
        """
        failed = {
            (row.task, cell.seed): (cell.status is Status.ERROR, cell.reward or 0.0, row.mean_reward or 0.0)
            for row in self.tasks
            for cell in row.cells
            if cell.status in (Status.FAIL, Status.PARTIAL, Status.ERROR)
        }
        return sorted(failed, key=failed.__getitem__)

    @property
    def unhealthy_line(self) -> str:
        """The unhealthy tasks and the score without them in one line; empty if there are none."""
        if (found := self.unhealthy) is None:
            return ""
        are = "is" if len(found.tasks) == 1 else "are"
        named = names_text(f"{task} ({why})" for task, why in found.tasks.items())
        rest = "" if found.score is None else f"; without {'it' if are == 'is' else 'them'} {percent(found.score)} %"
        return f"{len(found.tasks)} of {counted(len(self.tasks), 'task')} {are} not healthy here: {named}{rest}"

    @property
    def _step_lines(self) -> tuple[str, ...]:
        if (unreached := self.unreached) is None:
            return ()
        which = f"the {counted(unreached.steps, 'task step')} that {counted(unreached.trials, 'trial')} never began"
        return (f"score {percent(unreached.score)} % with 0 for {which}; above, they are left out as in Harbor",)

    @property
    def _trial_lines(self) -> tuple[str, ...]:
        score, counts = self.score, self.counts
        unscored = counts.planned - counts.scored
        if score is None or not unscored:
            return (self.score_line,)
        lines = (
            self.score_line,
            f"score over scored trials only {_with_std(score.scored_only, score.scored_only_std)} "
            f"({counts.scored} of {counts.planned} trials; every task weighs the same{_interval(score)})",
        )
        if score.worst is None or score.best is None:
            return lines
        ends = f"{percent(score.worst)} to {percent(score.best)} %"
        return (*lines, f"score bounds {ends} ({counted(unscored, 'unscored trial')} as 0, as 1)")

    @property
    def metric_lines(self) -> tuple[str, ...]:
        """One line for each metric."""
        return tuple(
            f"metric {each.name} {each.mean:.4g}{'' if each.std is None else f' ± {each.std:.2g}'} "
            f"({counted(each.tasks, 'task')}, {counted(each.trials, 'trial')})"
            for each in self.metrics
        )

    def _among_completed(self, score: Score) -> str:
        """Return the score over completed seeds, if not all are completed."""
        done = score.completed
        if done is None:
            return ", none completed"
        if len(done.seeds) == len(self.seeds):
            return ""
        return f"; {_with_std(done.mean, done.std)} over the {len(done.seeds)} completed"

    def as_json(self) -> dict[str, Any]:
        """Return a plain dict for `--json`: the fields of this class and three properties; docs/results.md lists them.

        Scores and rewards are fractions; keys stay the same over releases.
        """
        return {
            **self.model_dump(mode="json"),
            "score_line": self.score_line,
            "score_lines": list(self.score_lines),
            "coverage": self.coverage,
        }


def percent(fraction: float) -> str:
    """Format a fraction in percent with one decimal, or with more if it would be rounded to 0 or 100."""
    for digits in (1, 2, 3):
        text = f"{fraction * 100:.{digits}f}"
        if fraction in (0.0, 1.0) or float(text) not in (0.0, 100.0):
            return text
    return f"{fraction * 100:.4g}" if fraction < 0.5 else "99.999"


def range_text(low: float, high: float) -> str:
    """Format an interval in percent; unlike in `percent`, its ends may be rounded to 0 and 100."""
    return f"{low * 100:.1f} to {high * 100:.1f} %"


def _with_std(mean: float, std: float | None) -> str:
    return f"{percent(mean)} %" if std is None else f"{percent(mean)} ± {percent(std)} %"


def _interval(score: Score) -> str:
    if score.scored_only_interval_95 is None:
        return ""
    return f"; 95 % interval {range_text(*score.scored_only_interval_95)}"
