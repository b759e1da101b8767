"""A run in numbers, as data: score with spread and coverage, tasks, errors, outcomes, time; its score lines."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from harness.replies import RepliesSeen
from harness.trajectory import Frozen, Usage
from tbench.origin import DatasetOrigin
from tbench.results import Blame, Stage, TaskStepResult
from tbench.scores.finals import Pressure
from tbench.scores.intervals import IntervalMethod
from tbench.text import counted, names_shown

SUMMARY_SCHEMA_VERSION = 2


class Status(StrEnum):
    """What became of a planned trial."""

    PASS = "pass"
    """Its reward is 1 or more."""
    PARTIAL = "partial"
    """Its reward is between 0 and 1."""
    FAIL = "fail"
    """Its reward is 0 or less."""
    ERROR = "error"
    """It ended without a verdict."""
    MISSING = "missing"
    """It has no final result (yet)."""


class Counts(Frozen):
    """Trials of the plan (planned = scored + errors + missing), and results that are not counted."""

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
    flagged: int = 0
    """Trials with a sign of tampering that is not weak."""
    weakly_flagged: int = 0
    """Trials with none but weak signs of tampering, but for passes that were asked about nowhere else."""
    unconfirmed: int = 0
    """Passes that no fresh container has confirmed."""
    repaired: int = 0
    regraded: int = 0
    remarked: int = 0
    """Trials whose reward stands, with a remark that makes it doubtful."""


class Completed(Frozen):
    """The score over those seeds at which every task has a verdict: an outage is not in it."""

    seeds: tuple[int, ...]
    mean: float
    std: float | None


class Score(Frozen):
    """The score and its spread, as fractions (for rewards in 0..1). A trial without a verdict counts 0 unless said."""

    mean: float
    std: float | None
    """Std over the per-seed scores; None for one seed."""
    std_kind: Literal["sample", "population"]
    per_seed: tuple[float, ...]
    scored_per_seed: tuple[int, ...]
    """Verdicts at each seed."""
    completed: Completed | None
    """The seeds at which every task has a verdict; None where that is none."""
    scored_only: float
    """The mean over tasks of the mean over their verdicts; tasks without a verdict are left out."""
    scored_only_std: float | None
    """Std over seeds by their verdicts alone; None where fewer than two seeds can be compared."""
    scored_only_interval_95: tuple[float, float] | None
    worst: float | None
    best: float | None
    """`worst` and `best` are the scores if every trial without a verdict were 0, and 1; None for other rewards."""
    expected_std: float | None
    """Sample std over seeds that any pairing of seeds across tasks has on average; None for one seed."""
    se_over_tasks: float | None
    """Standard error clustered by task; None for one task."""
    interval_95: tuple[float, float] | None
    """For other tasks of the same kind; None for one task, and for few with rewards outside of 0 to 1."""
    interval_method: IntervalMethod | None
    solved_rate: float
    pass_at_k: dict[int, float]
    pass_hat_k: dict[int, float]
    """Both by k, from 1 to the number of seeds; a trial is solved with a reward of 1 or more."""


class Metric(Frozen):
    """One of the numbers that verifiers write beside the reward, over all trials of the tasks that have it."""

    name: str
    mean: float
    """A trial without the number counts 0, as one without a verdict."""
    std: float | None
    """Std over the per-seed means; None for one seed."""
    tasks: int
    trials: int
    """Trials that told it."""


class TimeSplit(Frozen):
    """Seconds by what they were spent on: the parts of `total_sec`, and apart from them the queue."""

    model_sec: float = 0.0
    waiting_sec: float = 0.0
    """For an endpoint (or an engine) that failed or was away; it is charged to no agent."""
    command_sec: float = 0.0
    verifier_sec: float = 0.0
    sandbox_sec: float = 0.0
    teardown_sec: float = 0.0
    other_sec: float = 0.0
    total_sec: float = 0.0
    queue_sec: float = 0.0

    def parts(self) -> dict[str, float]:
        """The parts of `total_sec` by short name."""
        names = ("model", "waiting", "command", "verifier", "sandbox", "teardown", "other")
        return {name: getattr(self, f"{name}_sec") for name in names}


class UnreachedSteps(Frozen):
    """Steps of tasks that trials with a verdict never came to, and what the score is with a 0 for each of them."""

    trials: int
    steps: int
    score: float


class UnhealthyTasks(Frozen):
    """Tasks whose verdicts are doubtful on the run's machine, and what the score is without them."""

    tasks: dict[str, str]
    """Why, by task."""
    score: float | None
    """None where no trial of another task was scored."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One planned trial in the task x seed grid; no model, as there are many, and a model takes four times as much."""

    seed: int
    status: Status
    reward: float | None = None
    error: str | None = None
    """Error type, for status error."""
    outcome: str | None = None
    steps: int = 0
    wall_sec: float = 0.0
    attempt: int = 1
    human_touched: bool = False
    reward_all_steps: float | None = None
    """The reward with 0 for steps of the task that were never begun; None for a task without steps."""
    task_steps: tuple[TaskStepResult, ...] = ()


class TaskRow(Frozen):
    """One task over all seeds."""

    task: str
    mean_reward: float | None
    """The mean over all planned seeds, unscored = 0; None when no trial of the task was scored."""
    solved: int
    scored: int
    cells: tuple[Cell, ...]
    outcomes: dict[str, int]
    mean_steps: float | None
    mean_wall_sec: float | None
    """Both are means over trials with a final result, errors included; None without any."""
    time: TimeSplit


class ErrorGroup(Frozen):
    """Trials without a verdict that failed in the same way."""

    stage: Stage | None
    type: str
    blame: Blame | None
    count: int
    retryable: int
    """Number of them that a further attempt might heal."""
    example_message: str
    example_trial: str


class Flag(Frozen):
    """A trial whose verdict has signs of tampering."""

    trial: str
    reward: float | None
    tamper: tuple[str, ...]
    is_weak: bool


class ShardCounts(Frozen):
    """A shard of a run, whose own trials `Counts` are about. Its mean would be of other tasks than the run's."""

    name: str
    """`I/N`, counted from 0."""
    trials: int
    whole: int
    """Trials of all shards."""


class Summary(Frozen):
    """Everything `tbench` says about a run. `as_json` is its stable form."""

    schema_version: int = SUMMARY_SCHEMA_VERSION
    model: str | None
    agent: str | None = None
    started_at: datetime | None = None
    """When the first trial began; None where that is not recorded."""
    seeds: tuple[int, ...]
    overrides: tuple[str, ...] = ()
    """What the run did otherwise than its tasks say, a few words each."""
    lacking_limits: tuple[str, ...] = ()
    """Limits of the tasks that were not in force, or could not be seen, a few words for each machine."""
    counts: Counts
    score: Score | None
    """None when no trial was scored, and for a shard."""
    tasks: tuple[TaskRow, ...]
    errors: tuple[ErrorGroup, ...]
    outcomes: dict[str, int]
    usage: Usage
    replies_from: dict[str, int] = Field(default={})
    """Replies of the model by the URL of the server that gave them; empty where there was one server only."""
    replies: RepliesSeen = RepliesSeen()
    """What the replies say about themselves, over all trials that count."""
    reply_notes: tuple[str, ...] = ()
    """What is odd about the replies, a line each: it may say more of the server than of the model."""
    time: TimeSplit
    pressure: Pressure | None = None
    """None where no trial failed on a machine under pressure."""
    repeated: tuple[str, ...] = ()
    """Trials with a second final result, and the rewards of all of them; the last attempt's last line counts."""
    flags: tuple[Flag, ...] = ()
    """Trials with signs of tampering, strong ones first."""
    dataset: DatasetOrigin | None = None
    """The dataset that the tasks are of; None for bundled tasks, those of a path, and imported results."""
    broken_rules: tuple[str, ...] = ()
    """Rules of the dataset's leaderboard that the run breaks; none also where it has no leaderboard."""
    metrics: tuple[Metric, ...] = ()
    """By name; empty where verifiers write nothing but the reward."""
    shard: ShardCounts | None = None
    """None for a whole run."""
    unreached: UnreachedSteps | None = None
    """None where every trial with a verdict came to the last step of its task."""
    unhealthy: UnhealthyTasks | None = None
    """None where no planned task is known not to be healthy."""

    @property
    def coverage(self) -> float:
        """Share of the planned trials that were scored; 0 for an empty plan."""
        return self.counts.scored / self.counts.planned if self.counts.planned else 0.0

    @property
    def dataset_lines(self) -> tuple[str, ...]:
        """The dataset with its digests, and what sets the run apart from its leaderboard; empty without a dataset."""
        if self.dataset is None:
            return ()
        rules = f"not by the rules of its leaderboard: {'; '.join(self.broken_rules)}" if self.broken_rules else ""
        return tuple(filter(None, (f"dataset {self.dataset.words}", rules)))

    @property
    def score_line(self) -> str:
        """The score in one line, with what the +- is and the coverage; unscored trials count 0."""
        counts = self.counts
        covered = f"coverage {counts.scored}/{counts.planned}"
        if self.shard is not None:
            share = f"shard {self.shard.name} has {self.shard.trials} of {counted(self.shard.whole, 'trial')}"
            return (
                f"no score of its own: {share}, {counts.solved} solved ({covered}); tbench merge puts shards together"
            )
        if counts.missing:
            covered = f"incomplete: {counted(counts.missing, 'trial')} not run; {covered}"
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
        """The score by both conventions, `score_line` and over scored trials only, with bounds below full coverage.

        Where steps of tasks were never begun, also that with a 0 for them; where tasks are not healthy, that without.
        """
        return (*self._lines_of_trials, *self._line_of_steps, *filter(None, [self.unhealthy_line]))

    @property
    def unhealthy_line(self) -> str:
        """The tasks that are not healthy, and the score without them; empty without any."""
        if (found := self.unhealthy) is None:
            return ""
        are = "is" if len(found.tasks) == 1 else "are"
        named = names_shown(f"{task} ({why})" for task, why in found.tasks.items())
        rest = "" if found.score is None else f"; without {'it' if are == 'is' else 'them'} {percent(found.score)} %"
        return f"{len(found.tasks)} of {counted(len(self.tasks), 'task')} {are} not healthy here: {named}{rest}"

    @property
    def _line_of_steps(self) -> tuple[str, ...]:
        if (unreached := self.unreached) is None:
            return ()
        which = f"the {counted(unreached.steps, 'task step')} that {counted(unreached.trials, 'trial')} never began"
        return (f"score {percent(unreached.score)} % with 0 for {which}; above, they are left out as in Harbor",)

    @property
    def _lines_of_trials(self) -> tuple[str, ...]:
        score, counts = self.score, self.counts
        if score is None:
            return (self.score_line,)
        unscored = counts.planned - counts.scored
        if not unscored:
            which = "the only trial" if counts.planned == 1 else f"all {counts.planned} trials"
            same = f"score over scored trials only {percent(score.scored_only)} % ({which}, so the same)"
            return (self.score_line, same)
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
        """A line for each metric beside the reward."""
        return tuple(
            f"metric {each.name} {each.mean:.4g}{'' if each.std is None else f' ± {each.std:.2g}'} "
            f"({counted(each.tasks, 'task')}, {counted(each.trials, 'trial')} told it)"
            for each in self.metrics
        )

    def _among_completed(self, score: Score) -> str:
        """The score without the seeds that an outage has cut."""
        done = score.completed
        if done is None:
            return ", none completed"
        if len(done.seeds) == len(self.seeds):
            return ""
        return f"; {_with_std(done.mean, done.std)} over the {len(done.seeds)} completed"

    def as_json(self) -> dict[str, Any]:
        """A plain dict for `--json`. Scores and rewards are fractions; keys stay the same over releases.

        schema_version, model, agent, started_at, seeds, overrides [text], lacking_limits [text], score_line,
        score_lines, coverage;
        counts {planned, scored, solved, errors, missing, other_attempts, unplanned, human_touched,
            flagged, weakly_flagged, unconfirmed, repaired, regraded, remarked};
        score null or {mean, std, std_kind, per_seed, scored_per_seed, completed null or {seeds, mean, std},
        scored_only, scored_only_std, scored_only_interval_95, worst, best, expected_std, se_over_tasks,
        interval_95, interval_method, solved_rate, pass_at_k, pass_hat_k} (the last two keyed by k as a string);
        tasks [{task, mean_reward, solved, scored, cells [{seed, status, reward, error, outcome, steps,
        wall_sec, attempt, human_touched, reward_all_steps, task_steps}], outcomes, mean_steps, mean_wall_sec, time}];
        errors [{stage, type, blame, count, retryable, example_message, example_trial}];
        outcomes {name: count}; usage {prompt_tokens, completion_tokens, cached_tokens, uncounted};
        replies_from {url: count}; replies {total, models, fingerprints, weights,
        signs, first} ({name: count} but for total and first, which is null); reply_notes [text];
        time {model_sec, waiting_sec, command_sec, verifier_sec, sandbox_sec, teardown_sec, other_sec, total_sec,
        queue_sec}, here and per task;
        pressure null or {timeouts, under_pressure, failed, failed_under_pressure, load_max, memory_stall_max,
        clock_jump_sec};
        repeated [text]; flags [{trial, reward, tamper, is_weak}];
        dataset null or {name, version, source, url, commit, path, entry, tasks, digest, verified, compared, differing,
        listed_commit, trials_per_task}; broken_rules [text]; metrics [{name, mean, std, tasks, trials}];
        unreached null or {trials, steps, score}; shard null or {name, trials, whole};
        unhealthy null or {tasks {task: why}, score}.
        """
        lines = {
            "score_line": self.score_line,
            "score_lines": list(self.score_lines),
            "coverage": self.coverage,
        }
        return _with_string_keys({**self.model_dump(mode="json"), **lines})


def percent(fraction: float) -> str:
    """A fraction in percent, with one decimal; with more where it would look like none or all of them."""
    for digits in (1, 2, 3):
        text = f"{fraction * 100:.{digits}f}"
        if fraction in (0.0, 1.0) or float(text) not in (0.0, 100.0):
            return text
    return f"{fraction * 100:.4g}" if fraction < 0.5 else "99.999"


def range_text(low: float, high: float) -> str:
    """The ends of an interval in percent; as they are bounds, they may be rounded to none and all."""
    return f"{low * 100:.1f} to {high * 100:.1f} %"


def _with_std(mean: float, std: float | None) -> str:
    return f"{percent(mean)} %" if std is None else f"{percent(mean)} ± {percent(std)} %"


def _interval(score: Score) -> str:
    if score.scored_only_interval_95 is None:
        return ""
    return f"; 95 % interval {range_text(*score.scored_only_interval_95)}"


def _with_string_keys(data: dict[str, Any]) -> dict[str, Any]:
    """`data` with strings for keys, as JSON has them: what comes back from its JSON is equal to it."""
    score = data["score"]
    if score is not None:
        for name in ("pass_at_k", "pass_hat_k"):
            score[name] = {str(k): value for k, value in score[name].items()}
    return data
