"""A run in numbers, as data: score with spread and coverage, tasks, errors, outcomes, time; its score lines."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from harness.trajectory import Frozen, Usage
from tbench.results import Blame, Stage
from tbench.scores.pressure import Pressure

SUMMARY_SCHEMA_VERSION = 1


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
    """Trials with none but weak signs of tampering."""
    repaired: int = 0
    regraded: int = 0
    remarked: int = 0
    """Trials whose reward stands, with a remark that makes it doubtful."""


class Score(Frozen):
    """The score and its spread, as fractions (for rewards in 0..1). A trial without a verdict counts 0 unless said."""

    mean: float
    std: float | None
    """Std over the per-seed scores; None for one seed."""
    std_kind: Literal["sample", "population"]
    per_seed: tuple[float, ...]
    scored_only: float
    """The mean over the trials with a verdict, each weighing the same."""
    worst: float
    best: float
    """`worst` and `best` are the scores if every trial without a verdict were 0, and 1."""
    expected_std: float | None
    """Sample std over seeds that any pairing of seeds across tasks has on average; None for one seed."""
    se_over_tasks: float | None
    """Standard error clustered by task; None for one task."""
    interval_95: tuple[float, float] | None
    """Percentile interval of a bootstrap over tasks; None for one task."""
    solved_rate: float
    pass_at_k: dict[int, float]
    pass_hat_k: dict[int, float]
    """Both by k, from 1 to the number of seeds; a trial is solved with a reward of 1 or more."""


class TimeSplit(Frozen):
    """Seconds by what they were spent on: the parts of `total_sec`, and apart from them the queue."""

    model_sec: float = 0.0
    command_sec: float = 0.0
    verifier_sec: float = 0.0
    sandbox_sec: float = 0.0
    teardown_sec: float = 0.0
    other_sec: float = 0.0
    total_sec: float = 0.0
    queue_sec: float = 0.0

    def parts(self) -> dict[str, float]:
        """The parts of `total_sec` by short name."""
        names = ("model", "command", "verifier", "sandbox", "teardown", "other")
        return {name: getattr(self, f"{name}_sec") for name in names}


class Cell(Frozen):
    """One planned trial in the task x seed grid."""

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


class Summary(Frozen):
    """Everything `tbench` says about a run. `as_json` is its stable form."""

    schema_version: int = SUMMARY_SCHEMA_VERSION
    model: str | None
    seeds: tuple[int, ...]
    counts: Counts
    score: Score | None
    """None when no trial was scored."""
    tasks: tuple[TaskRow, ...]
    errors: tuple[ErrorGroup, ...]
    outcomes: dict[str, int]
    usage: Usage
    time: TimeSplit
    pressure: Pressure | None = None
    """None when no time limit was hit on a machine under pressure."""
    flags: tuple[Flag, ...] = ()
    """Trials with signs of tampering, strong ones first."""

    @property
    def coverage(self) -> float:
        """Share of the planned trials that were scored; 0 for an empty plan."""
        return self.counts.scored / self.counts.planned if self.counts.planned else 0.0

    @property
    def score_line(self) -> str:
        """The score in one line, with what the +- is and the coverage; unscored trials count 0."""
        covered = f"coverage {self.counts.scored}/{self.counts.planned}"
        if self.score is None:
            return f"score not available ({covered})"
        if self.counts.scored < self.counts.planned:
            covered += "; unscored = 0"
        if self.score.std is None:
            return f"score {_percent(self.score.mean)} % (1 seed, no std; {covered})"
        spread = f"{self.score.std_kind} std over {len(self.seeds)} seeds"
        return f"score {_percent(self.score.mean)} ± {_percent(self.score.std)} % ({spread}; {covered})"

    @property
    def score_lines(self) -> tuple[str, ...]:
        """The score by both conventions, `score_line` and over scored trials only, with bounds below full coverage."""
        if self.score is None:
            return (self.score_line,)
        unscored = self.counts.planned - self.counts.scored
        scored_only = f"score over scored trials only {_percent(self.score.scored_only)} %"
        if not unscored:
            which = "the only trial" if self.counts.planned == 1 else f"all {self.counts.planned} trials"
            return (self.score_line, f"{scored_only} ({which}, so the same)")
        return (
            self.score_line,
            f"{scored_only} ({self.counts.scored} of {self.counts.planned} trials)",
            f"score bounds {_percent(self.score.worst)} to {_percent(self.score.best)} % "
            f"({unscored} unscored {'trial' if unscored == 1 else 'trials'} as 0, as 1)",
        )

    def as_json(self) -> dict[str, Any]:
        """A plain dict for `--json`. Scores and rewards are fractions; keys stay the same over releases.

        schema_version, model, seeds, score_line, score_lines, coverage;
        counts {planned, scored, solved, errors, missing, other_attempts, unplanned, human_touched,
            flagged, weakly_flagged, repaired, regraded, remarked};
        score null or {mean, std, std_kind, per_seed, scored_only, worst, best, expected_std, se_over_tasks,
        interval_95, solved_rate, pass_at_k, pass_hat_k} (the last two keyed by k as a string);
        tasks [{task, mean_reward, solved, scored, cells [{seed, status, reward, error, outcome, steps,
        wall_sec, attempt, human_touched}], outcomes, mean_steps, mean_wall_sec, time}];
        errors [{stage, type, blame, count, retryable, example_message, example_trial}];
        outcomes {name: count}; usage {prompt_tokens, completion_tokens, cached_tokens};
        time {model_sec, command_sec, verifier_sec, sandbox_sec, teardown_sec, other_sec, total_sec,
        queue_sec}, here and per task;
        pressure null or {timeouts, under_pressure, load_max, memory_stall_max, clock_jump_sec}.
        """
        lines = {
            "score_line": self.score_line,
            "score_lines": list(self.score_lines),
            "coverage": self.coverage,
        }
        return _with_string_keys({**self.model_dump(mode="json"), **lines})


def _percent(fraction: float) -> str:
    return f"{fraction * 100:.1f}"


def _with_string_keys(data: dict[str, Any]) -> dict[str, Any]:
    """`data` with strings for keys, as JSON has them: what comes back from its JSON is equal to it."""
    score = data["score"]
    if score is not None:
        for name in ("pass_at_k", "pass_hat_k"):
            score[name] = {str(k): value for k, value in score[name].items()}
    return data
