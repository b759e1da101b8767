"""Runs to compare: tables of rewards written down row by row, drawn from known chances, or published."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tbench.scores.comparing.side import Side
from tbench.scores.statistics import RewardTable, TrialReward

PUBLISHED = Path(__file__).parents[2] / "shared" / "data" / "statistics"
Rewards = Mapping[str, Sequence[float | None]]


def a_side(rewards: Rewards, name: str = "a", *, first_seed: int = 0, hashes: Mapping[str, str] | None = None) -> Side:
    """A run with these rewards, task by task, seed by seed."""
    (count,) = {len(row) for row in rewards.values()}
    seeds = range(first_seed, first_seed + count)
    verdicts = [TrialReward(task, seed, r) for task, row in rewards.items() for seed, r in zip(seeds, row, strict=True)]
    return Side(name, RewardTable.of(verdicts, list(rewards), seeds), hashes or {})


def single(rewards: Sequence[float | None], name: str = "a") -> Side:
    """A run of one seed with these rewards of its tasks."""
    return a_side({f"t{number}": (reward,) for number, reward in enumerate(rewards)}, name)


def drawn(chances: Sequence[float], seeds: int, rng: random.Random, name: str = "a") -> Side:
    """A run over tasks with these chances to be solved."""
    return a_side(
        {f"t{number}": tuple(float(rng.random() < p) for _ in range(seeds)) for number, p in enumerate(chances)}, name
    )


def published(model: str) -> Side:
    """The published trials of a model; the test is skipped where they are not there."""
    if not (PUBLISHED / "trials.jsonl").exists():
        pytest.skip(f"published trials are not at {PUBLISHED}")
    lines = [json.loads(line) for line in (PUBLISHED / "trials.jsonl").read_text().splitlines()]
    mine = [line for line in lines if line["model"] == model]
    tasks = sorted({line["task"] for line in mine})
    verdicts = [TrialReward(line["task"], line["seed"], line["reward"]) for line in mine]
    return Side(model, RewardTable.of(verdicts, tasks, sorted({line["seed"] for line in mine})), {})
