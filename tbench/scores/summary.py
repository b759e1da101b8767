"""A run in numbers: score with spread and coverage, tasks, errors, outcomes, time. Data only, no printing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any, Literal

from harness.trajectory import Frozen, Usage
from tbench.errors import UsageError
from tbench.results import Blame, ErrorInfo, Stage, TrialResult, is_weak
from tbench.scores.pressure import Pressure, pressure_of
from tbench.scores.statistics import (
    MeanStd,
    RewardTable,
    TrialReward,
    bootstrap_over_tasks,
    bounds,
    expected_std,
    mean_std,
    pass_at_k,
    pass_hat_k,
    per_seed_scores,
    score_scored_only,
    solved_rate,
    standard_error_over_tasks,
)

SUMMARY_SCHEMA_VERSION = 1
NO_VERDICT = "NoVerdict"
"""The error type shown for a result that has neither a reward nor an error (imported results)."""


class MixedModels(UsageError, ValueError):
    """The results come from several models; one score over them would mean nothing."""


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


def summarise(
    results: Iterable[TrialResult],
    planned_tasks: Sequence[str],
    planned_seeds: Sequence[int],
    *,
    population: bool = False,
) -> Summary:
    """Sum up the final results of a run over its plan. `population` makes the +- a population std.

    Of several final results of one trial (a resumed or regraded run) the highest attempt counts, then the
    last line. Raises MixedModels, and ValueError for a plan that names a task or a seed twice.
    """
    everything = list(results)
    finals = _finals(everything)
    planned = {(task, seed) for task in planned_tasks for seed in planned_seeds}
    if len(planned) < len(planned_tasks) * len(planned_seeds):
        raise ValueError("a task or a seed is planned twice")
    counted = {trial: result for trial, result in finals.items() if trial in planned}
    rows = tuple(_task_row(task, planned_seeds, counted) for task in planned_tasks)
    ended = tuple(counted.values())
    return Summary(
        model=_only_model(ended),
        seeds=tuple(planned_seeds),
        counts=_counts(rows, len(everything) - len(finals), len(finals) - len(counted), ended),
        score=_score(ended, planned_tasks, planned_seeds, population),
        tasks=rows,
        errors=_error_groups(ended),
        outcomes=_outcomes(ended),
        usage=sum((result.usage for result in ended), Usage()),
        time=time_split(ended),
        pressure=pressure_of(ended),
        flags=_flags(ended),
    )


def reward_table(
    results: Iterable[TrialResult], planned_tasks: Sequence[str], planned_seeds: Sequence[int]
) -> RewardTable:
    """The rewards that `summarise` counts, laid out over the plan. Raises ValueError as `RewardTable.of` does."""
    planned = {(task, seed) for task in planned_tasks for seed in planned_seeds}
    finals = _finals(results)
    verdicts = [TrialReward(*trial, finals[trial].reward) for trial in finals.keys() & planned]
    return RewardTable.of(verdicts, planned_tasks, planned_seeds)


def time_split(results: Iterable[TrialResult]) -> TimeSplit:
    """Seconds of all results by what they were spent on.

    Other is the agent's time outside model and commands, and wall time outside sandbox, agent, verifier and
    teardown; never negative.
    """
    timings = [result.timings for result in results]
    named = {
        part: sum((getattr(timing, part) for timing in timings), 0.0)
        for part in ("model_sec", "command_sec", "verifier_sec", "sandbox_sec", "teardown_sec")
    }
    other = 0.0
    for timing in timings:
        agent_sec = max(timing.agent_sec, timing.model_sec + timing.command_sec)
        known_sec = timing.sandbox_sec + agent_sec + timing.verifier_sec + timing.teardown_sec
        other += agent_sec - timing.model_sec - timing.command_sec + max(0.0, timing.wall_sec - known_sec)
    queue_sec = sum((timing.queue_sec for timing in timings), 0.0)
    return TimeSplit(**named, other_sec=other, total_sec=sum(named.values()) + other, queue_sec=queue_sec)


def _finals(results: Iterable[TrialResult]) -> dict[tuple[str, int], TrialResult]:
    finals: dict[tuple[str, int], TrialResult] = {}
    for result in results:
        trial = (result.task, result.seed)
        if result.final and (trial not in finals or result.attempt >= finals[trial].attempt):
            finals[trial] = result
    return finals


def _only_model(results: Iterable[TrialResult]) -> str | None:
    models = sorted({result.model for result in results if result.model is not None})
    if len(models) > 1:
        raise MixedModels(f"results of {len(models)} models ({', '.join(models)}); summarise one model at a time")
    return models[0] if models else None


def _score(
    results: Iterable[TrialResult], tasks: Sequence[str], seeds: Sequence[int], population: bool
) -> Score | None:
    verdicts = [TrialReward(result.task, result.seed, result.reward) for result in results]
    if all(verdict.reward is None for verdict in verdicts):
        return None
    table = RewardTable.of(verdicts, tasks, seeds)
    over_seeds: MeanStd = mean_std(per_seed_scores(table), population=population)
    extremes = bounds(table)
    scored_only = score_scored_only(table)
    assert scored_only is not None  # some reward exists, or we had returned
    return Score(
        mean=over_seeds.mean,
        std=over_seeds.std,
        std_kind="population" if population else "sample",
        per_seed=per_seed_scores(table),
        scored_only=scored_only,
        worst=extremes.worst,
        best=extremes.best,
        expected_std=expected_std(table),
        se_over_tasks=standard_error_over_tasks(table),
        interval_95=_interval(table),
        solved_rate=solved_rate(table),
        pass_at_k=_for_each_k(pass_at_k, table),
        pass_hat_k=_for_each_k(pass_hat_k, table),
    )


def _interval(table: RewardTable) -> tuple[float, float] | None:
    if len(table.tasks) < 2:
        return None
    bootstrap = bootstrap_over_tasks(table)
    return bootstrap.low, bootstrap.high


def _for_each_k(chance: Callable[[RewardTable, int], float], table: RewardTable) -> dict[int, float]:
    solved = table.binarised()
    return {k: chance(solved, k) for k in range(1, len(table.seeds) + 1)}


def _task_row(task: str, seeds: Sequence[int], counted: dict[tuple[str, int], TrialResult]) -> TaskRow:
    cells = tuple(_cell(seed, counted.get((task, seed))) for seed in seeds)
    ended = [counted[task, seed] for seed in seeds if (task, seed) in counted]
    rewards = [cell.reward for cell in cells if cell.reward is not None]
    return TaskRow(
        task=task,
        mean_reward=sum(rewards) / len(cells) if rewards else None,
        solved=sum(cell.status is Status.PASS for cell in cells),
        scored=len(rewards),
        cells=cells,
        outcomes=_outcomes(ended),
        mean_steps=_mean([result.steps for result in ended]),
        mean_wall_sec=_mean([result.timings.wall_sec for result in ended]),
        time=time_split(ended),
    )


def _cell(seed: int, result: TrialResult | None) -> Cell:
    if result is None:
        return Cell(seed=seed, status=Status.MISSING)
    return Cell(
        seed=seed,
        status=_status(result),
        reward=result.reward,
        error=_error_type(result) if result.reward is None else None,
        outcome=result.outcome,
        steps=result.steps,
        wall_sec=result.timings.wall_sec,
        attempt=result.attempt,
        human_touched=result.human_touched,
    )


def _status(result: TrialResult) -> Status:
    if result.reward is None:
        return Status.ERROR
    if result.passed:
        return Status.PASS
    return Status.PARTIAL if result.reward > 0 else Status.FAIL


def _error_type(result: TrialResult) -> str:
    return result.error.type if result.error else NO_VERDICT


def _flags(results: Iterable[TrialResult]) -> tuple[Flag, ...]:
    flags = [
        Flag(
            trial=f"{result.task} seed {result.seed}",
            reward=result.reward,
            tamper=result.integrity.tamper,
            is_weak=all(map(is_weak, result.integrity.tamper)),
        )
        for result in results
        if result.integrity.tamper
    ]
    return tuple(sorted(flags, key=lambda flag: flag.is_weak))


def _counts(rows: Iterable[TaskRow], other_attempts: int, unplanned: int, results: Sequence[TrialResult]) -> Counts:
    cells = [cell for row in rows for cell in row.cells]
    statuses = Counter(cell.status for cell in cells)
    return Counts(
        planned=len(cells),
        scored=len(cells) - statuses[Status.ERROR] - statuses[Status.MISSING],
        solved=statuses[Status.PASS],
        errors=statuses[Status.ERROR],
        missing=statuses[Status.MISSING],
        other_attempts=other_attempts,
        unplanned=unplanned,
        human_touched=sum(cell.human_touched for cell in cells),
        flagged=sum(not flag.is_weak for flag in _flags(results)),
        weakly_flagged=sum(flag.is_weak for flag in _flags(results)),
        repaired=sum(bool(result.integrity.repairs) for result in results),
        regraded=sum(result.integrity.regrades > 0 for result in results),
        remarked=sum(bool(result.integrity.remarks) for result in results),
    )


def _error_groups(results: Iterable[TrialResult]) -> tuple[ErrorGroup, ...]:
    """Group the trials without a verdict by what went wrong, the largest group first."""
    groups: dict[tuple[Stage | None, str, Blame | None], list[TrialResult]] = {}
    for result in results:
        if result.reward is None:
            error = result.error
            key = (error.stage, error.type, error.blame) if error else (None, NO_VERDICT, None)
            groups.setdefault(key, []).append(result)
    made = [_error_group(key, members) for key, members in groups.items()]
    return tuple(sorted(made, key=lambda group: (-group.count, group.stage or "", group.type)))


def _error_group(key: tuple[Stage | None, str, Blame | None], members: list[TrialResult]) -> ErrorGroup:
    stage, type_, blame = key
    errors: list[ErrorInfo] = [member.error for member in members if member.error]
    return ErrorGroup(
        stage=stage,
        type=type_,
        blame=blame,
        count=len(members),
        retryable=sum(error.retryable for error in errors),
        example_message=errors[0].message if errors else "the result has neither a reward nor an error",
        example_trial=f"{members[0].task} seed {members[0].seed}",
    )


def _outcomes(results: Iterable[TrialResult]) -> dict[str, int]:
    counts = Counter(str(result.outcome) for result in results if result.outcome is not None)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _percent(fraction: float) -> str:
    return f"{fraction * 100:.1f}"


def _with_string_keys(data: dict[str, Any]) -> dict[str, Any]:
    """`data` with strings for keys, as JSON has them: what comes back from its JSON is equal to it."""
    score = data["score"]
    if score is not None:
        for name in ("pass_at_k", "pass_hat_k"):
            score[name] = {str(k): value for k, value in score[name].items()}
    return data
