"""Resumes a run: separates the results that stand from the trials that are left. Also settles results with
calibrations.

A trial's id is made of task, seed and semantic configuration: the same plan gives the same ids, so the remaining trials
are those without a result that stands. No measurement is deleted; the numbers of attempts continue.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from tbench.config.document import PlannedTask, RunDocument
from tbench.errors import UsageError
from tbench.results import TrialResult, is_weak
from tbench.runs.admission import RetryErrors
from tbench.runs.task_steps import reward_fields, verdict_fields
from tbench.runs.trial_progress import TrialPlan
from tbench.storage.read_run import read_results, read_run_document
from tbench.storage.run_files import CONFIG_NAME, RESULTS_NAME, attempts, is_run, step_directory, trial_directory
from tbench.storage.run_store import RunStore, write_trial
from tbench.tasks.task import Task
from tbench.verify.calibration import CalibratingAgent, Calibration, image_identity, load_calibration
from tbench.verify.judging import undo_clearing
from tbench.verify.policy import (
    ALSO_WITH_ORACLE,
    NEEDS_SYSTEM,
    ORACLE_PASSES_FRESH,
    SYSTEM_REPLACED,
    UNLIKE_ORACLE,
    as_unconfirmed,
    compare_pass,
    weigh_verdicts,
)
from tbench.verify.reward import read_metrics
from tbench.verify.tests_shown import logs_in
from tbench.verify.verifier import Verdict

RETRYABLE = RetryErrors()
"""Errors that are retried on resume, by default."""


@dataclass(frozen=True)
class EarlierRun:
    """An earlier start of a run, as stored in its directory."""

    directory: Path
    document: RunDocument
    retry_errors: RetryErrors = RETRYABLE
    """Errors that are retried."""

    @classmethod
    def read(cls, directory: Path, retry_errors: RetryErrors = RETRYABLE) -> EarlierRun:
        """Read run.json in `directory`. Raises UsageError if there is no run."""
        if not is_run(directory):
            raise UsageError(f"{directory}: has no {CONFIG_NAME}, so there is no run to resume; check the path")
        return cls(directory, read_run_document(directory / CONFIG_NAME), retry_errors)


def resume(
    store: RunStore, plans: Sequence[TrialPlan], retry_errors: RetryErrors
) -> tuple[list[TrialPlan], list[TrialResult]]:
    """Split the plan into trials that are left to run, and results that stand.

    A verdict that has no line in the results, because the process was killed, is taken from the trial's own
    result.json. Results that will be superseded by another attempt are marked as not final. Raises UsageError for
    unreadable results.
    """
    known = _by_task_and_seed(store.path / RESULTS_NAME)
    remaining: list[TrialPlan] = []
    standing: list[TrialResult] = []
    superseded: set[str] = set()
    for plan in plans:
        on_disk = store.attempts(plan.task_name, plan.seed)
        results = known.get((plan.task_name, plan.seed), [])
        for found in _missing_lines(plan, on_disk, {result.attempt for result in results}):
            store.append_result(found)
            results.append(found)
        if (last := _standing_result(plan, results, retry_errors)) is not None:
            standing.append(last)
            continue
        superseded |= {result.trial for result in results if result.final}
        tried = {result.attempt for result in results} | on_disk.keys()
        remaining.append(replace(plan, attempt=max(tried, default=0) + 1))
    if superseded:
        store.supersede(superseded)
    return remaining, standing


def remaining_trials(directory: Path, plans: Sequence[TrialPlan], retry_errors: RetryErrors) -> list[TrialPlan]:
    """Return the trials that `resume` would run, without writing anything. Raises UsageError."""
    known = _by_task_and_seed(directory / RESULTS_NAME)
    remaining = []
    for plan in plans:
        results = known.get((plan.task_name, plan.seed), [])
        on_disk = attempts(directory, plan.task_name, plan.seed)
        lost = _missing_lines(plan, on_disk, {result.attempt for result in results})
        if _standing_result(plan, [*results, *lost], retry_errors) is None:
            remaining.append(plan)
    return remaining


def _standing_result(plan: TrialPlan, results: Sequence[TrialResult], retry_errors: RetryErrors) -> TrialResult | None:
    """Return the result that a trial keeps; None if it is to be run (again)."""
    finals = (each for each in results if each.final and each.trial == plan.trial)
    last = max(finals, key=lambda each: each.attempt, default=None)
    return None if last is None or (last.error is not None and retry_errors.wants(last.error)) else last


def _by_task_and_seed(path: Path) -> dict[tuple[str, int], list[TrialResult]]:
    known: dict[tuple[str, int], list[TrialResult]] = {}
    for result in read_results(path) if path.exists() else ():
        known.setdefault((result.task, result.seed), []).append(result)
    return known


def _missing_lines(plan: TrialPlan, on_disk: Mapping[int, Path], known: set[int]) -> Iterator[TrialResult]:
    """Yield results of this trial that have a file but no line: the process was killed between writing the two."""
    for attempt, directory in sorted(on_disk.items()):
        if attempt in known:
            continue
        try:
            result = TrialResult.model_validate_json((directory / "result.json").read_bytes())
        except (OSError, ValidationError):
            continue
        if (result.trial, result.attempt) == (plan.trial, attempt):
            yield result


# Settling: stored verdicts are judged again by calibrations that came later. Nothing is run again.

_VERIFIER_DIRECTORIES = ("verifier", "isolated/verifier")
"""Directories of verifier output within a trial's directory."""


def known_calibrations(
    tasks: Iterable[Task], planned: Iterable[PlannedTask], architecture: str
) -> dict[str, Calibration]:
    """Return the calibrations of tasks with the images that a run used, by name."""
    images = {each.name: image_identity(each.image_origin, each.image_id) for each in planned}
    found = {task.name: load_calibration(task, images.get(task.name, ""), architecture) for task in tasks}
    return {name: each for name, each in found.items() if each is not None}


def settle_results(
    store: RunStore, results: Sequence[TrialResult], tasks: Iterable[Task], architecture: str
) -> dict[str, TrialResult]:
    """Settle final results against calibrations; store and return the changed ones, by trial.

    Raises OSError for files that cannot be read or written.
    """
    by_name = {task.name: task for task in tasks}
    records: dict[object, Calibration | None] = {}
    changed: dict[str, TrialResult] = {}
    for result in results:
        task = by_name.get(result.task)
        # Only a pass may change, and a result that lost its pass to an earlier calibration.
        may_change = result.reward or any(ORACLE_PASSES_FRESH in sign for sign in result.integrity.tamper)
        if task is None or not result.final or not may_change:
            continue
        key = task.name, result.image_id, result.image_origin
        if key not in records:
            records[key] = calibration_for(result, task, architecture)
        if (oracle := records[key]) is None:
            continue
        directory = trial_directory(store.path, result.task, result.seed, result.attempt)
        if (after := settle_result(result, oracle, task, directory)) != result:
            write_trial(directory, after, None, {})
            changed[after.trial] = after
    if changed:
        store.supersede(changed, changed.values())
    return changed


def calibration_for(result: TrialResult, task: Task, architecture: str) -> Calibration | None:
    """Return the calibration for a trial's task and image; None if there is none, or the trial's agent calibrates."""
    if result.agent in get_args(CalibratingAgent):
        return None
    return load_calibration(task, image_identity(result.image_origin, result.image_id), architecture)


def settle_result(result: TrialResult, oracle: Calibration, task: Task, directory: Path) -> TrialResult:
    """Return a trial's result after comparison with the oracle's passes. Raises OSError.

    A pass must include the oracle's tests. Signs that the oracle has, too, are cleared. If the oracle passes in a fresh
    container, a lower reward from a fresh container counts. Earlier settling makes no difference.
    """
    if task.steps:
        return _settle_steps(result, oracle, task, directory)
    assert result.reward is not None
    before = Verdict(result.reward, _verifier_files(directory), result.integrity, metrics=result.metrics)
    after = _settle_verdict(before, oracle, task, directory)
    return result.model_copy(update={**verdict_fields(after), "integrity": after.integrity})


def _settle_steps(result: TrialResult, oracle: Calibration, task: Task, directory: Path) -> TrialResult:
    """Settle the result of a task with several steps. Which steps were begun stays as it was."""
    views, judged = {view.step_name: view for view in task.steps}, dict[str, Verdict]()
    signs = list(result.integrity.tamper)
    for step in result.task_steps:
        if not step.begun or step.reward is None or step.name not in views:
            continue
        of_step = f" (step {step.name})"
        own = [sign for sign in signs if sign.endswith(of_step)]
        signs = [sign for sign in signs if sign not in own]
        prefix = f"{step.name}/"
        rewards = {where.removeprefix(prefix): reward for where, reward in result.integrity.rewards.items()
                   if where.startswith(prefix)}  # fmt: skip
        tamper = tuple(sign.removesuffix(of_step) for sign in own)
        integrity = result.integrity.model_copy(update={"tamper": tamper, "rewards": rewards})
        where = step_directory(directory, step.name)
        before = Verdict(step.reward, _verifier_files(where), integrity, metrics=step.metrics)
        after = judged[step.name] = _settle_verdict(before, oracle, views[step.name], where)
        signs += [f"{sign}{of_step}" for sign in after.integrity.tamper]
    steps = tuple(step.model_copy(update=verdict_fields(judged.get(step.name))) for step in result.task_steps)
    if steps == result.task_steps and signs == list(result.integrity.tamper):
        return result
    update = {
        **reward_fields(task, [*judged.values()]),
        "task_steps": steps,
        "integrity": result.integrity.model_copy(update={"tamper": tuple(signs)}),
    }
    return result.model_copy(update=update)


def _settle_verdict(verdict: Verdict, oracle: Calibration, task: Task, directory: Path) -> Verdict:
    rewards = verdict.integrity.rewards
    signs = [as_unconfirmed(undo_clearing(sign, ALSO_WITH_ORACLE)) for sign in verdict.integrity.tamper]
    if verdict.files:  # they show the tests again
        signs = [sign for sign in signs if not sign.startswith(UNLIKE_ORACLE)]
    system = (NEEDS_SYSTEM, SYSTEM_REPLACED)
    lower = [sign for sign in signs if sign.startswith(system) or sign.endswith(ORACLE_PASSES_FRESH)]
    if lower and oracle.passes_fresh is not None and {"shared", "isolated"} <= rewards.keys():
        signs = [sign for sign in signs if sign not in lower]
        stands = any(sign.startswith(NEEDS_SYSTEM) for sign in lower)
        metrics = verdict.metrics if stands else _metrics(directory / _VERIFIER_DIRECTORIES[0])
        shared = dataclasses.replace(verdict.with_integrity(tamper=signs), reward=rewards["shared"], metrics=metrics)
        isolated = Verdict(rewards["isolated"], {}, metrics=_metrics(directory / _VERIFIER_DIRECTORIES[1]))
        needs_system = stands or all(map(is_weak, signs))
        verdict = weigh_verdicts(shared, isolated, oracle, needs_system=needs_system)
    else:
        verdict = verdict.with_integrity(tamper=signs)
    return compare_pass(verdict, oracle, task)


def _verifier_files(directory: Path) -> dict[str, bytes]:
    folders = _VERIFIER_DIRECTORIES
    return {f"{folder}/{name}": data for folder in folders for name, data in logs_in(directory / folder).items()}


def _metrics(logs: Path) -> dict[str, float]:
    """Read the metrics that a verifier wrote beside its reward."""
    path = logs / "reward.json"
    return read_metrics({"reward.json": path.read_bytes()}) if path.is_file() else {}
