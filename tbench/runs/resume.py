"""Resuming a run: which results stand, which trials are left to do, which earlier settings it is compared with.

A trial is known by its id, made of task, seed and semantic configuration: the same plan gives the same ids, so
what is left is a set difference. Nothing that was ever measured is deleted; attempts are numbered on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from tbench.config.document import RunDocument
from tbench.config.retrying import ALL_THAT_MAY_HEAL, RetryChoice
from tbench.errors import KINDS, UsageError
from tbench.results import ErrorInfo, TrialResult
from tbench.runs.trial_progress import TrialPlan
from tbench.storage.read_run import read_results, read_run_document
from tbench.storage.run_files import CONFIG_NAME, RESULTS_NAME, attempts, is_run
from tbench.storage.run_store import RunStore


@dataclass(frozen=True)
class RetryErrors:
    """Choice of errors that are tried again: those that another attempt may heal, and these types."""

    types: frozenset[str] = frozenset()
    everything: bool = False
    choice: RetryChoice = ALL_THAT_MAY_HEAL
    """What the run has chosen of those that another attempt may heal."""

    @classmethod
    def parse(cls, text: str | None, choice: RetryChoice = ALL_THAT_MAY_HEAL) -> RetryErrors:
        """Read `all`, or types separated by commas. Raises UsageError for one that does not exist, or is not wanted."""
        if text is None:
            return cls(choice=choice)
        types = frozenset(filter(None, (word.strip() for word in text.split(","))))
        if types == {"all"} or not types:
            return cls(everything=True, choice=choice)
        if unknown := sorted(types - KINDS.keys()):
            raise UsageError(f"--retry-errors {unknown[0]}: no such type of error; known: {', '.join(KINDS)}")
        if both := sorted(types & choice.never):
            raise UsageError(f"--retry-errors {both[0]}: --retry-never names it, too; leave out one or the other")
        return cls(types, choice=choice)

    def wants(self, error: ErrorInfo) -> bool:
        return self.everything or self.choice.wants(error) or error.type in self.types


@dataclass(frozen=True)
class EarlierRun:
    """What a run directory holds of its earlier starts."""

    directory: Path
    document: RunDocument

    @classmethod
    def read(cls, directory: Path) -> EarlierRun:
        """Read run.json in `directory`. Raises UsageError where there is no run to go on with."""
        if not is_run(directory):
            raise UsageError(f"{directory}: no {CONFIG_NAME} in it, so there is no run to go on with; check the path")
        return cls(directory, read_run_document(directory / CONFIG_NAME))


def resume(
    store: RunStore, plans: Sequence[TrialPlan], retry_errors: RetryErrors
) -> tuple[list[TrialPlan], list[TrialResult]]:
    """Split the plan into trials that are left to do and results that stand.

    A verdict whose line was lost with the process is taken from the trial's own result.json. Results that another
    attempt will follow are marked as not final. Raises UsageError for results that cannot be read.
    """
    known = _by_task_and_seed(store.path / RESULTS_NAME)
    left: list[TrialPlan] = []
    standing: list[TrialResult] = []
    superseded: set[str] = set()
    for plan in plans:
        on_disk = store.attempts(plan.task_name, plan.seed)
        results = known.get((plan.task_name, plan.seed), [])
        for found in _lost_lines(plan, on_disk, {result.attempt for result in results}):
            store.append_result(found)
            results.append(found)
        if (last := _standing(plan, results, retry_errors)) is not None:
            standing.append(last)
            continue
        superseded |= {result.trial for result in results if result.final}
        tried = {result.attempt for result in results} | on_disk.keys()
        left.append(replace(plan, attempt=max(tried, default=0) + 1))
    if superseded:
        store.supersede(superseded)
    return left, standing


def left_to_do(directory: Path, plans: Sequence[TrialPlan], retry_errors: RetryErrors) -> list[TrialPlan]:
    """The trials of a plan that `resume` would do, found without writing anything. Raises UsageError."""
    known = _by_task_and_seed(directory / RESULTS_NAME)
    left = []
    for plan in plans:
        results = known.get((plan.task_name, plan.seed), [])
        on_disk = attempts(directory, plan.task_name, plan.seed)
        lost = _lost_lines(plan, on_disk, {result.attempt for result in results})
        if _standing(plan, [*results, *lost], retry_errors) is None:
            left.append(plan)
    return left


def _standing(plan: TrialPlan, results: Sequence[TrialResult], retry_errors: RetryErrors) -> TrialResult | None:
    """The result that a trial keeps; None where it is to be tried (again)."""
    finals = (each for each in results if each.final and each.trial == plan.trial)
    last = max(finals, key=lambda each: each.attempt, default=None)
    return None if last is None or (last.error is not None and retry_errors.wants(last.error)) else last


def _by_task_and_seed(path: Path) -> dict[tuple[str, int], list[TrialResult]]:
    known: dict[tuple[str, int], list[TrialResult]] = {}
    for result in read_results(path) if path.exists() else ():
        known.setdefault((result.task, result.seed), []).append(result)
    return known


def _lost_lines(plan: TrialPlan, on_disk: Mapping[int, Path], known: set[int]) -> Iterator[TrialResult]:
    """Results of this very trial that have a file but no line: the process ended between writing the two."""
    for attempt, directory in sorted(on_disk.items()):
        if attempt in known:
            continue
        try:
            result = TrialResult.model_validate_json((directory / "result.json").read_bytes())
        except (OSError, ValidationError):
            continue
        if (result.trial, result.attempt) == (plan.trial, attempt):
            yield result
