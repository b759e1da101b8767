"""Runs to compare: rewards written down row by row, drawn from known chances, published, or in a run directory."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from run_plans import A_MODEL, a_plan

from tbench.config.document import PlannedTask, RunDocument
from tbench.results import TrialResult
from tbench.scores.comparing.compared_run import ComparedRun
from tbench.scores.statistics import RewardTable
from tbench.storage.run_files import CONFIG_NAME, RESULTS_NAME

PUBLISHED = Path(__file__).parents[2] / "shared" / "data" / "statistics"
TIME = datetime(2026, 1, 1, tzinfo=UTC)
MISSING = object()
"""Stands for a trial without a result."""
Rewards = Mapping[str, Sequence[float | None]]


def a_side(
    rewards: Rewards, name: str = "a", *, first_seed: int = 0, hashes: Mapping[str, str] | None = None
) -> ComparedRun:
    """A run with these rewards, task by task, seed by seed."""
    (count,) = {len(row) for row in rewards.values()}
    seeds = range(first_seed, first_seed + count)
    verdicts = [(task, seed, r) for task, row in rewards.items() for seed, r in zip(seeds, row, strict=True)]
    return ComparedRun(name, RewardTable.from_verdicts(verdicts, list(rewards), seeds), hashes or {})


def single(rewards: Sequence[float | None], name: str = "a") -> ComparedRun:
    """A run of one seed with these rewards of its tasks."""
    return a_side({f"t{number}": (reward,) for number, reward in enumerate(rewards)}, name)


def drawn(chances: Sequence[float], seeds: int, rng: random.Random, name: str = "a") -> ComparedRun:
    """A run over tasks with these chances to be solved."""
    return a_side(
        {f"t{number}": tuple(float(rng.random() < p) for _ in range(seeds)) for number, p in enumerate(chances)}, name
    )


def published(model: str) -> ComparedRun:
    """The published trials of a model; the test is skipped where they are not there."""
    if not (PUBLISHED / "trials.jsonl").exists():
        pytest.skip(f"published trials are not at {PUBLISHED}")
    lines = [json.loads(line) for line in (PUBLISHED / "trials.jsonl").read_text().splitlines()]
    mine = [line for line in lines if line["model"] == model]
    tasks = sorted({line["task"] for line in mine})
    verdicts = [(line["task"], line["seed"], line["reward"]) for line in mine]
    return ComparedRun(model, RewardTable.from_verdicts(verdicts, tasks, sorted({line["seed"] for line in mine})), {})


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
