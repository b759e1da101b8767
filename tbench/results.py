"""The result of a trial: one line of results.jsonl. Data only."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field, field_validator

from harness.replies import RepliesSeen
from harness.trajectory import Frozen, Outcome, Usage
from tbench.reward import is_solved

RESULT_SCHEMA_VERSION = 2
UNKNOWN_TIME = datetime(1970, 1, 1, tzinfo=UTC)
"""The time that stands for "not recorded" in imported results."""
UNKNOWN_AGENT = "unknown"
"""The agent of imported results that do not say."""
LARGEST_REWARD = 1e9
"""The largest amount of a reward. Sums and squares of such numbers are still numbers."""


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
    AGENT = "agent"
    """The agent broke the rules: what it did kept the verifier from a verdict."""
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
    waited_sec: float = 0.0
    """Part of `agent_sec` that is charged to nobody: failed requests, pauses, outages of engine or endpoint."""
    command_sec: float = 0.0
    verifier_sec: float = 0.0
    tests_sec: float = 0.0
    """Part of `verifier_sec`: its first run alone, which is what the task's limit is about."""
    teardown_sec: float = 0.0
    wall_sec: float = 0.0


class HostSample(Frozen):
    """What the machine went through during a trial; None where this machine does not tell."""

    load_max: float | None = None
    """Highest load average over one minute, divided by the cpus: above 1 some process waited."""
    memory_available_min_mb: float | None = None
    memory_stall_max: float | None = None
    """Highest share of ten seconds in which something waited for memory (Linux PSI, `some avg10` / 100)."""
    clock_jump_sec: float = 0.0
    """Wall time that no process saw: the machine was suspended, or its clock was set."""


class Integrity(Frozen):
    """Evidence for a verdict and against it."""

    verify: Literal["shared", "isolated", "both", "separate"] = "shared"
    """Where the verifier ran: in the agent's own container, in a copy of it, in each, or in one of its own."""
    tamper: tuple[str, ...] = ()
    """Signs that the verdict was tampered with, `kind: what was seen` each. A signal, not a proof."""
    replaced: dict[str, str] = Field(default={})
    """Paths of the image's system that were other than in the image beside a pass, or new and found before it, with the
    begin of their sha256: the first hundred."""
    evidence: tuple[str, ...] = ()
    """Paths that the agent left where tests and reward belong; moved aside before the verifier began."""
    repairs: tuple[str, ...] = ()
    """What was mended before the verifier began, `kind: what was done` each."""
    regrades: int = 0
    """How often the verifier was run again, because no test had run or because somebody asked for it."""
    rewards: dict[str, float] = Field(default={})
    """Reward by where the verifier ran; filled in with `both`, and where a verifier of its own container
    ran with what turns the tests (`separate`) and `without` it."""
    reward_writes: int | None = None
    """How many writes of a reward bash saw in test.sh, up to 20; 0 where another program wrote it, None where bash was
    not watched."""
    remarks: tuple[str, ...] = ()
    """What makes the reward doubtful though it stands, `kind: what was seen` each: a 0 beside a failed download."""


class ImageOrigin(Frozen):
    """Where the image of a sandbox came from."""

    how: Literal["pulled", "built", "present", "snapshot"]
    """What this run did for it: pull it, build it, find it on the engine, or make a snapshot of a trial."""
    reference: str
    """Its name: that which the task gives, or `tbench/TASK:HASH` for one that was built of the task."""
    digest: str | None = None
    """The digest by which a registry knows it; None for one that was never in a registry."""
    built_from: str | None = None
    """Hash of the environment/ of which it was built on this engine; None for one that was published."""


NOTHING_SEEN = Integrity()
_WEAK = """tests-touched git-hook-added verifier-ended needs-system unconfirmed cleared fails-with-work failed-tests
    other-reward unread left-out system-added"""
WEAK_SIGNALS = frozenset(_WEAK.split())
"""Kinds of signs of tampering that are often honest work."""


UNCONFIRMED = "unconfirmed:"
"""Begin of the signs that say why no fresh container has confirmed a pass."""
ALONE = f"{UNCONFIRMED} it passed in the agent's own container alone"
"""Begin of the sign of every pass that no fresh container was asked about."""


def is_weak(signal: str) -> bool:
    """Whether a sign of tampering says little on its own."""
    return signal.partition(":")[0] in WEAK_SIGNALS


def is_tool_failure(remark: str) -> bool:
    """Whether a remark is about a tool that failed where a 0 stands."""
    return remark.startswith("tool-failure:")


def is_reward(number: float) -> bool:
    """Whether a number can be a reward at all: finite, and of an amount that can be computed with."""
    return abs(number) <= LARGEST_REWARD


class TaskStepResult(Frozen):
    """What became of one step of a task that has several. Without a reward there is no verdict about it."""

    name: str
    begun: bool = True
    """Whether it was come to at all."""
    reward: float | None = None
    metrics: dict[str, float] = Field(default={})
    """The numbers of its reward.json by name."""
    outcome: Outcome | None = None
    error: ErrorInfo | None = None
    stopped: str = ""
    """Why no other step followed, where its reward was too low for that."""
    steps: int = 0
    """Replies of the model."""
    usage: Usage = Usage()
    timings: Timings = Timings()


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
    metrics: dict[str, float] = Field(default={})
    """All numbers of a verdict by name, where the verifier wrote more than the reward."""
    outcome: Outcome | None = None
    error: ErrorInfo | None = None
    steps: int = 0
    usage: Usage = Usage()
    replies_from: dict[str, int] = Field(default={})
    """Replies of the model by the URL of the server that gave them; empty where there is one server only."""
    replies: RepliesSeen = RepliesSeen()
    """What the replies of the model say about themselves, counted."""
    timings: Timings = Timings()
    started_at: datetime
    finished_at: datetime
    human_touched: bool = False
    integrity: Integrity = Integrity()
    image_id: str | None = None
    """Id of the image of its sandbox; None where it came to none."""
    image_origin: ImageOrigin | None = None
    verifier_image_id: str | None = None
    """Id of the image of the verifier's own container, where it has one."""
    verifier_image_origin: ImageOrigin | None = None
    out_of_memory: bool = False
    """Whether the kernel ended a process of a container out of memory; False also where the engine does not tell."""
    memory_peak_mb: float | None = None
    """The most memory that its container had in use until the verifier's end, caches of files included; None where
    that is not told."""
    host: HostSample | None = None
    machine: str | None = None
    """Name of the machine that its sandbox was on, where the run has several."""
    task_steps: tuple[TaskStepResult, ...] = ()
    """All steps of the task; empty for a task without steps, and where the trial came to none of them."""
    reward_all_steps: float | None = None
    """The reward with every step of the task that was never begun as 0; None for a task without steps."""

    @field_validator("reward")
    @classmethod
    def _bounded(cls, reward: float | None) -> float | None:
        if reward is not None and not is_reward(reward):
            raise ValueError(f"must be a finite number from {-LARGEST_REWARD:,.0f} to {LARGEST_REWARD:,.0f}")
        return reward

    @field_validator("metrics")
    @classmethod
    def _all_bounded(cls, metrics: dict[str, float]) -> dict[str, float]:
        if not all(map(is_reward, metrics.values())):
            raise ValueError(f"must be finite numbers from {-LARGEST_REWARD:,.0f} to {LARGEST_REWARD:,.0f}")
        return metrics

    @property
    def passed(self) -> bool:
        return self.reward is not None and is_solved(self.reward)
