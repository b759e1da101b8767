"""Run directories written as a run writes them, with verdicts given task by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from run_plans import A_MODEL, a_plan

from tbench.config.document import PlannedTask, RunDocument
from tbench.results import TrialResult
from tbench.storage.run_files import CONFIG_NAME, RESULTS_NAME

TIME = datetime(2026, 1, 1, tzinfo=UTC)
MISSING = object()
"""Stands for a trial without a result."""


def store_run(
    path: Path,
    rewards: Mapping[str, Sequence[Any]],
    *,
    hashes: Mapping[str, str] | None = None,
    first_seed: int = 0,
    status: str = "finished",
    **known: Any,
) -> Path:
    """A run directory with these rewards, task by task, seed by seed; `known` as for `a_plan`."""
    (count,) = {len(row) for row in rewards.values()}
    seeds = tuple(range(first_seed, first_seed + count))
    plan = a_plan(path.name, seeds=seeds, **{**A_MODEL, **known})
    digests = {task: f"hash of {task}" for task in rewards} | dict(hashes or {})
    tasks = tuple(PlannedTask(name=task, hash=digests[task]) for task in rewards)
    document = RunDocument(**dict(plan), status=status, tbench_version="0.1.0", tasks=tasks)
    results = [
        TrialResult(
            run=path.name,
            trial=f"{task}.s{seed}",
            task=task,
            seed=seed,
            agent=plan.locked.agent,
            model=plan.locked.model,
            reward=reward,
            started_at=TIME,
            finished_at=TIME,
        )
        for task, row in rewards.items()
        for seed, reward in zip(seeds, row, strict=True)
        if reward is not MISSING
    ]
    path.mkdir(parents=True)
    (path / CONFIG_NAME).write_text(document.model_dump_json())
    (path / RESULTS_NAME).write_text("".join(f"{result.model_dump_json()}\n" for result in results))
    return path
