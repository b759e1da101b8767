"""Builds the summary of a run from its results and its plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import NamedTuple

from harness.reply_stats import ReplyStats, run_notes
from harness.trajectory import Usage
from tbench.errors import UsageError
from tbench.origin import DatasetOrigin
from tbench.results import (
    ALONE,
    UNCONFIRMED,
    UNKNOWN_AGENT,
    UNKNOWN_TIME,
    Blame,
    ErrorInfo,
    Stage,
    TrialResult,
    is_tool_failure,
    is_weak,
    went_on_counts,
)
from tbench.reward import canonical, exact_sum, mean
from tbench.scores.cost import Prices, run_cost
from tbench.scores.final_results import FinalResult, FinalResults, count_pressure, exclude_uncounted
from tbench.scores.intervals import Interval, interval_95
from tbench.scores.statistics import (
    MeanStd,
    RewardTable,
    bounds,
    completed_seeds,
    expected_std,
    mean_std,
    pass_rates,
    per_seed_scores,
    per_seed_scores_scored_only,
    score,
    score_scored_only,
    scored_per_seed,
    solved_rate,
    standard_error_over_tasks,
    task_means,
    task_means_scored_only,
)
from tbench.scores.summary import (
    Cell,
    Completed,
    Counts,
    ErrorGroup,
    Flag,
    Metric,
    Score,
    ShardCounts,
    Status,
    Summary,
    TaskRow,
    TimeSplit,
    UnhealthyTasks,
    UnreachedSteps,
    WithoutTags,
)

_NAMES_SHOWN = 5
NO_VERDICT = "NoVerdict"
"""Error type shown for a result with neither a reward nor an error (imported results)."""
TrialTags = Mapping[tuple[str, int], Collection[str]]
"""Tags that people gave trials, by task and seed."""


class ShardTrials(NamedTuple):
    """The trials of a plan that belong to one shard."""

    name: str
    """`I/N`, I counted from 0."""
    trials: Collection[tuple[str, int]]
    """Task and seed of each."""


class KnownAboutRun(NamedTuple):
    """Facts about a run besides its results."""

    overrides: Sequence[str] = ()
    lacking_limits: Sequence[str] = ()
    dataset: DatasetOrigin | None = None
    broken_rules: Sequence[str] = ()
    shard: ShardTrials | None = None
    """With a shard, only its trials are planned, and there is no score."""
    is_bounded: bool = True
    """Whether all rewards are from 0 to 1; if not, there are no bounds."""
    is_sampled: bool = True
    """Whether replies are sampled; if not, equal replies are expected."""
    names: Sequence[str] = ()
    """Requested names of the model."""
    unhealthy: Mapping[str, str] = MappingProxyType({})
    """Reason by task for tasks with doubtful verdicts."""
    tags: TrialTags = MappingProxyType({})
    prices: Prices = Prices()


NOTHING_KNOWN = KnownAboutRun()


class MixedResults(UsageError, ValueError):
    """The results come from several models, agents or runs, so a single score would be meaningless."""


def summarise(
    results: Iterable[TrialResult] | FinalResults,
    planned_tasks: Sequence[str],
    planned_seeds: Sequence[int],
    known: KnownAboutRun = NOTHING_KNOWN,
    *,
    population: bool = False,
    intervals: bool = True,
    without: Sequence[str] = (),
) -> Summary:
    """Sum up the final results of a run over its plan.

    If a trial has several final results (a resumed or regraded run), the highest attempt's counts, or among equal ones
    the last line's. `population` makes the +- a population std. `intervals=False` omits intervals, which take longer
    than all the rest. `without` names tags whose trials a second score leaves out. Raises MixedResults, and ValueError
    for a plan that has a task or a seed twice.
    """
    collected = results if isinstance(results, FinalResults) else FinalResults(results)
    _, model, agent = (_sole_name(field, found) for field, found in collected.names.items())
    finals = collected.by_trial
    planned = {(task, seed) for task in planned_tasks for seed in planned_seeds}
    if len(planned) < len(planned_tasks) * len(planned_seeds):
        raise ValueError("a task or a seed is planned twice")
    counted = {trial: result for trial, result in finals.items() if trial in planned}
    whole, shard = len(planned), known.shard
    if shard is not None:
        planned &= set(shard.trials)
    ended = tuple(counted.values())
    score = None if shard else _score(ended, planned_tasks, planned_seeds, population, intervals, known.is_bounded)
    rows = tuple(_task_row(task, planned_seeds, counted) for task in planned_tasks)
    flags = _flags(ended)
    counts = _counts(rows, len(planned), collected.results - len(finals), len(finals) - len(counted), ended, flags)
    given = Counter(tag for trial, found in known.tags.items() if trial in planned for tag in set(found))
    return Summary(
        model=model,
        agent=agent,
        started_at=_started_at(ended),
        seeds=tuple(planned_seeds),
        overrides=tuple(known.overrides),
        lacking_limits=tuple(known.lacking_limits),
        counts=counts,
        score=score,
        tasks=rows,
        errors=_error_groups(ended),
        outcomes=_outcomes(ended),
        usage=_usage(ended),
        replies_from=_replies_from(ended),
        replies=ReplyStats.sum(result.replies for result in ended).model_copy(update={"first": None}),
        reply_notes=run_notes(
            ((each.task, each.replies) for each in ended if not each.human_touched),
            known.names,
            is_sampled=known.is_sampled,
        ),
        time=time_split(ended),
        pressure=count_pressure(ended),
        repeated=collected.repeated,
        flags=flags,
        dataset=known.dataset,
        broken_rules=tuple(known.broken_rules),
        metrics=_metrics(ended, planned_tasks, planned_seeds, population) if shard is None else (),
        shard=ShardCounts(name=shard.name, trials=len(planned), whole=whole) if shard is not None else None,
        unreached=_unreached(ended, len(planned)),
        unhealthy=_unhealthy(ended, planned_tasks, planned_seeds, known.unhealthy) if shard is None else None,
        tags=dict(sorted(given.items())),
        without=_without(ended, planned_tasks, planned_seeds, known.tags, without, population)
        if without and shard is None
        else None,
        cost=run_cost(collected, known.prices, solved=counts.solved, missing=counts.missing),
    )


def reward_table(
    results: Iterable[TrialResult],
    planned_tasks: Sequence[str],
    planned_seeds: Sequence[int],
    *,
    is_bounded: bool = True,
) -> RewardTable:
    """Return the table over the plan of the rewards that `summarise` counts.

    Raises ValueError like `RewardTable.from_verdicts`.
    """
    planned = {(task, seed) for task in planned_tasks for seed in planned_seeds}
    finals = final_results(results)
    verdicts = ((*trial, finals[trial].reward) for trial in finals.keys() & planned)
    return RewardTable.from_verdicts(verdicts, planned_tasks, planned_seeds, is_bounded=is_bounded)


def sole_model_and_agent(results: Sequence[TrialResult]) -> tuple[str | None, str | None]:
    """Return the model and the agent of all results, None if not recorded. Raises MixedResults for several."""
    names = ({getattr(result, field) for result in results} for field in ("run", "model", "agent"))
    _, model, agent = map(_sole_name, ("run", "model", "agent"), names)
    return model, agent


def time_split(results: Iterable[TrialResult | FinalResult]) -> TimeSplit:
    """Sum the seconds of all results by activity.

    `other_sec` is the agent's time outside model and commands, plus wall time outside sandbox, agent, verifier and
    teardown; never negative.
    """
    model = command = verifier = sandbox = teardown = other = waiting = queue = 0.0
    for timing in (result.timings for result in results):
        model, command = model + timing.model_sec, command + timing.command_sec
        verifier, sandbox = verifier + timing.verifier_sec, sandbox + timing.sandbox_sec
        teardown, queue = teardown + timing.teardown_sec, queue + timing.queue_sec
        agent = max(timing.agent_sec, timing.model_sec + timing.command_sec)
        known = timing.sandbox_sec + agent + timing.verifier_sec + timing.teardown_sec
        other += agent - timing.model_sec - timing.command_sec + max(0.0, timing.wall_sec - known)
        waiting += timing.waited_sec
    # Waits for the endpoint are part of the model's time. If more was waited, keystrokes waited for the engine.
    in_model = min(waiting, model)
    in_command = min(waiting - in_model, command)
    return TimeSplit(
        model_sec=model - in_model,
        waiting_sec=in_model + in_command,
        command_sec=command - in_command,
        verifier_sec=verifier,
        sandbox_sec=sandbox,
        teardown_sec=teardown,
        other_sec=other,
        total_sec=model + command + verifier + sandbox + teardown + other,
        queue_sec=queue,
    )


def final_results(results: Iterable[TrialResult]) -> dict[tuple[str, int], TrialResult]:
    """Return the result that counts for each task and seed: the highest attempt's, or among equal ones the last line's.

    Results that do not count, such as those in which a person intervened, lose their reward (`exclude_uncounted`).
    """
    finals: dict[tuple[str, int], TrialResult] = {}
    for result in results:
        trial = (result.task, result.seed)
        if result.final and (trial not in finals or result.attempt >= finals[trial].attempt):
            finals[trial] = result
    return {trial: exclude_uncounted(result) for trial, result in finals.items()}


def _sole_name(field: str, names: Collection[str | None]) -> str | None:
    """Return the one model, agent or run among `names`; None if not recorded. Raises MixedResults for several."""
    found = sorted({name for name in names if name is not None} - {UNKNOWN_AGENT})
    if len(found) > 1:
        shown = ", ".join(found[:_NAMES_SHOWN]) + (", …" if len(found) > _NAMES_SHOWN else "")
        raise MixedResults(f"results of {len(found)} {field}s ({shown}); keep the results of each in a separate file")
    return found[0] if found else None


def _replies_from(results: Iterable[FinalResult]) -> dict[str, int]:
    """Return the number of replies by server."""
    counts = Counter[str]()
    for result in results:
        if result.replies_from:
            counts.update(result.replies_from)
    return {server: count for server, count in sorted(counts.items()) if count > 0}


def _usage(results: Sequence[FinalResult]) -> Usage:
    if not results:
        return Usage()
    prompt, completion, cached, uncounted = zip(*(result.tokens for result in results), strict=True)
    known = [tokens for tokens in cached if tokens is not None]
    return Usage(
        prompt_tokens=sum(prompt),
        completion_tokens=sum(completion),
        cached_tokens=sum(known) if known else None,
        uncounted=sum(uncounted),
    )


def _started_at(results: Iterable[FinalResult]) -> datetime | None:
    times = (result.started_at for result in results)
    aware = (time if time.tzinfo is not None else time.replace(tzinfo=UTC) for time in times)
    return min((time for time in aware if time != UNKNOWN_TIME), default=None)


def _score(
    results: Iterable[FinalResult],
    tasks: Sequence[str],
    seeds: Sequence[int],
    population: bool,
    intervals: bool,
    is_bounded: bool,
) -> Score | None:
    verdicts = [(result.task, result.seed, result.reward) for result in results]
    if all(reward is None for _, _, reward in verdicts):
        return None
    table = RewardTable.from_verdicts(verdicts, tasks, seeds, is_bounded=is_bounded)
    per_seed, extremes = per_seed_scores(table), bounds(table)
    over_seeds: MeanStd = mean_std(per_seed, population=population)
    scored_only = score_scored_only(table)
    assert scored_only is not None  # a reward exists
    means, scored_only_means = task_means(table), task_means_scored_only(table)
    interval = interval_95(means) if intervals else None
    scored_only_interval = interval if scored_only_means == means or not intervals else interval_95(scored_only_means)
    rates, scored_only_seeds = pass_rates(table), per_seed_scores_scored_only(table)
    return Score(
        mean=score(table),
        std=over_seeds.std,
        std_kind="population" if population else "sample",
        per_seed=per_seed,
        scored_per_seed=scored_per_seed(table),
        completed=_completed(table, per_seed, population),
        scored_only=scored_only,
        scored_only_std=mean_std(scored_only_seeds, population=population).std if scored_only_seeds else None,
        scored_only_interval_95=_ends(scored_only_interval),
        worst=extremes.worst if extremes is not None else None,
        best=extremes.best if extremes is not None else None,
        expected_std=expected_std(table),
        se_over_tasks=standard_error_over_tasks(table),
        interval_95=_ends(interval),
        interval_method=interval.method if interval is not None else None,
        solved_rate=solved_rate(table),
        pass_at_k=rates.pass_at,
        pass_hat_k=rates.pass_hat,
    )


def _metrics(
    results: Sequence[FinalResult], tasks: Sequence[str], seeds: Sequence[int], population: bool
) -> tuple[Metric, ...]:
    """Return all metrics that differ from the reward, each over the tasks for which some trial reported it."""
    reported = [(name, value, each.reward) for each in results for name, value in each.metrics.items()]
    names = sorted({name for name, value, reward in reported if canonical(value) != _canonical(reward)})
    return tuple(_metric(name, results, tasks, seeds, population) for name in names)


def _metric(
    name: str, results: Sequence[FinalResult], tasks: Sequence[str], seeds: Sequence[int], population: bool
) -> Metric:
    reported = [(result.task, result.seed, result.metrics[name]) for result in results if name in result.metrics]
    having = {task for task, _, _ in reported}
    table = RewardTable.from_verdicts(reported, [task for task in tasks if task in having], seeds)
    over_seeds = mean_std(per_seed_scores(table), population=population)
    return Metric(name=name, mean=over_seeds.mean, std=over_seeds.std, tasks=len(having), trials=len(reported))


def _unhealthy(
    results: Iterable[FinalResult], tasks: Sequence[str], seeds: Sequence[int], unhealthy: Mapping[str, str]
) -> UnhealthyTasks | None:
    """Return the planned tasks that are unhealthy and the score without them; None if there are none."""
    found = {task: unhealthy[task] for task in tasks if task in unhealthy}
    if not found:
        return None
    others = [task for task in tasks if task not in found]
    verdicts = [(each.task, each.seed, each.reward) for each in results if each.task not in found]
    if all(reward is None for _, _, reward in verdicts):
        return UnhealthyTasks(tasks=found, score=None)
    table = RewardTable.from_verdicts(verdicts, others, seeds, is_bounded=False)
    return UnhealthyTasks(tasks=found, score=score(table))


def _without(
    results: Sequence[FinalResult],
    tasks: Sequence[str],
    seeds: Sequence[int],
    tags: TrialTags,
    names: Sequence[str],
    population: bool,
) -> WithoutTags:
    """Return the score without the trials that have any of these tags; other trials without a verdict count as 0."""
    planned = [(task, seed) for task in tasks for seed in seeds]
    left = {trial for trial in planned if not set(names).isdisjoint(tags.get(trial, ()))}
    rewards = {trial: each.reward for each in results if (trial := (each.task, each.seed)) not in left}
    verdicts = [(*trial, rewards.get(trial) or 0.0) for trial in planned if trial not in left]
    table = RewardTable.from_verdicts(verdicts, tasks, seeds, is_bounded=False)
    per_seed = per_seed_scores_scored_only(table)
    return WithoutTags(
        tags=tuple(names),
        left_out=len(left),
        planned=len(planned),
        score=None if all(reward is None for reward in rewards.values()) else score_scored_only(table),
        std=mean_std(per_seed, population=population).std if per_seed else None,
    )


def _unreached(results: Iterable[FinalResult], planned: int) -> UnreachedSteps | None:
    scored = [result for result in results if result.reward is not None]
    never = [sum(not step.begun for step in result.task_steps) for result in scored]
    if not any(never):
        return None
    rewards = (result.reward if result.reward_all_steps is None else result.reward_all_steps for result in scored)
    total = exact_sum(reward for reward in rewards if reward is not None)
    return UnreachedSteps(trials=sum(map(bool, never)), steps=sum(never), score=float(total / planned))


def _completed(table: RewardTable, per_seed: Sequence[float], population: bool) -> Completed | None:
    seeds = completed_seeds(table)
    if not seeds:
        return None
    scores = [score for seed, score in zip(table.seeds, per_seed, strict=True) if seed in seeds]
    spread = mean_std(scores, population=population)
    return Completed(seeds=seeds, mean=spread.mean, std=spread.std)


def _ends(interval: Interval | None) -> tuple[float, float] | None:
    return None if interval is None else (interval.low, interval.high)


def _task_row(task: str, seeds: Sequence[int], counted: dict[tuple[str, int], FinalResult]) -> TaskRow:
    cells = tuple(_cell(seed, counted.get((task, seed))) for seed in seeds)
    ended = [counted[task, seed] for seed in seeds if (task, seed) in counted]
    rewards = [cell.reward for cell in cells if cell.reward is not None]
    return TaskRow(
        task=task,
        mean_reward=mean([cell.reward or 0.0 for cell in cells]) if rewards else None,
        solved=sum(cell.status is Status.PASS for cell in cells),
        scored=len(rewards),
        cells=cells,
        outcomes=_outcomes(ended),
        mean_steps=_mean([result.steps for result in ended]),
        mean_wall_sec=_mean([result.timings.wall_sec for result in ended]),
        time=time_split(ended),
    )


def _cell(seed: int, result: FinalResult | None) -> Cell:
    if result is None:
        return Cell(seed=seed, status=Status.MISSING)
    return Cell(
        seed=seed,
        status=trial_status(result),
        reward=_canonical(result.reward),
        error=None if result.reward is not None else result.error.type if result.error else NO_VERDICT,
        outcome=result.outcome,
        steps=result.steps,
        wall_sec=result.timings.wall_sec,
        attempt=result.attempt,
        human_touched=result.human_touched,
        reward_all_steps=_canonical(result.reward_all_steps),
        task_steps=result.task_steps,
    )


def _canonical(reward: float | None) -> float | None:
    return None if reward is None else canonical(reward)


def trial_status(result: TrialResult | FinalResult) -> Status:
    """Return the status of a trial that has a result."""
    if result.reward is None:
        return Status.ERROR
    if result.passed:
        return Status.PASS
    return Status.PARTIAL if canonical(result.reward) > 0 else Status.FAIL


def _flags(results: Iterable[FinalResult]) -> tuple[Flag, ...]:
    flags = [
        Flag(
            trial=f"{result.task} seed {result.seed}",
            reward=result.reward,
            tamper=result.integrity.tamper,
            is_weak=all(map(is_weak, result.integrity.tamper)),
        )
        for result in results
        if not all(sign.startswith(ALONE) for sign in result.integrity.tamper)
    ]
    return tuple(sorted(flags, key=lambda flag: flag.is_weak))


def _counts(
    rows: Iterable[TaskRow],
    planned: int,
    other_attempts: int,
    unplanned: int,
    results: Sequence[FinalResult],
    flags: Sequence[Flag],
) -> Counts:
    cells = [cell for row in rows for cell in row.cells]
    statuses = Counter(cell.status for cell in cells)
    return Counts(
        planned=planned,
        scored=len(cells) - statuses[Status.ERROR] - statuses[Status.MISSING],
        solved=statuses[Status.PASS],
        errors=statuses[Status.ERROR],
        missing=statuses[Status.MISSING] - (len(cells) - planned),
        other_attempts=other_attempts,
        unplanned=unplanned,
        human_touched=sum(cell.human_touched for cell in cells),
        went_on=went_on_counts(result.went_on for result in results),
        flagged=sum(not flag.is_weak for flag in flags),
        weakly_flagged=sum(flag.is_weak for flag in flags),
        unconfirmed=sum(any(sign.startswith(UNCONFIRMED) for sign in result.integrity.tamper) for result in results),
        repaired=sum(bool(result.integrity.repairs) for result in results),
        regraded=sum(result.integrity.regrades > 0 for result in results),
        remarked=sum(any(map(is_tool_failure, result.integrity.remarks)) for result in results),
    )


def _error_groups(results: Iterable[FinalResult]) -> tuple[ErrorGroup, ...]:
    """Group the trials without a verdict by stage, type and blame of their error, the largest group first."""
    groups: dict[tuple[Stage | None, str, Blame | None], list[FinalResult]] = {}
    for result in results:
        if result.reward is None:
            error = result.error
            key = (error.stage, error.type, error.blame) if error else (None, NO_VERDICT, None)
            groups.setdefault(key, []).append(result)
    made = [_error_group(key, members) for key, members in groups.items()]
    return tuple(sorted(made, key=lambda group: (-group.count, group.stage or "", group.type)))


def _error_group(key: tuple[Stage | None, str, Blame | None], members: list[FinalResult]) -> ErrorGroup:
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


def _outcomes(results: Iterable[FinalResult]) -> dict[str, int]:
    counts = Counter(str(result.outcome) for result in results if result.outcome is not None)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
