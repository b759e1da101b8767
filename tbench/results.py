"""The result of a trial: one line of results.jsonl. Data only."""

from __future__ import annotations

import math
from datetime import datetime
from enum import StrEnum

from pydantic import field_validator

from harness.trajectory import Frozen, Outcome, Usage

RESULT_SCHEMA_VERSION = 1


class Stage(StrEnum):
    """Where in a trial's life an error happened."""

    PLAN = "plan"
    IMAGE = "image"
    SANDBOX = "sandbox"
    TERMINAL = "terminal"
    AGENT = "agent"
    VERIFIER = "verifier"
    RESULT = "result"


class Blame(StrEnum):
    """Whose fault an error is."""

    USER = "user"
    INFRA = "infra"
    ENDPOINT = "endpoint"
    TASK = "task"
    HARNESS = "harness"


class ErrorInfo(Frozen):
    """What kept a trial from getting a verdict."""

    stage: Stage
    type: str
    blame: Blame
    retryable: bool
    message: str


class Timings(Frozen):
    """Wall seconds per part of a trial. `teardown_sec` runs off the concurrency slot."""

    queue_sec: float = 0.0
    sandbox_sec: float = 0.0
    agent_sec: float = 0.0
    model_sec: float = 0.0
    command_sec: float = 0.0
    verifier_sec: float = 0.0
    teardown_sec: float = 0.0
    wall_sec: float = 0.0


class TrialResult(Frozen):
    """One attempt at one trial. A verdict is a reward; without one there is an error."""

    schema_version: int = RESULT_SCHEMA_VERSION
    run: str
    trial: str
    task: str
    seed: int
    attempt: int = 1
    final: bool = True
    agent: str
    model: str | None = None
    reward: float | None = None
    outcome: Outcome | None = None
    error: ErrorInfo | None = None
    steps: int = 0
    usage: Usage = Usage()
    timings: Timings = Timings()
    started_at: datetime
    finished_at: datetime
    human_touched: bool = False

    @field_validator("reward")
    @classmethod
    def _finite(cls, reward: float | None) -> float | None:
        if reward is not None and not math.isfinite(reward):
            raise ValueError("reward must be a finite number")
        return reward

    @property
    def passed(self) -> bool:
        return self.reward is not None and self.reward >= 1.0
