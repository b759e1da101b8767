"""Sums up the results of a run over its plan: which result of a trial counts, and every figure of the summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from harness.trajectory import Usage
from tbench.errors import UsageError
from tbench.results import Blame, ErrorInfo, Stage, TrialResult, is_weak
from tbench.scores.pressure import pressure_of
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
from tbench.scores.summary import Cell, Counts, ErrorGroup, Flag, Score, Status, Summary, TaskRow, TimeSplit

NO_VERDICT = "NoVerdict"
"""The error type shown for a result that has neither a reward nor an error (imported results)."""


class MixedModels(UsageError, ValueError):
    """The results come from several models; one score over them would mean nothing."""


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
