"""The result of a trial: one line of results.jsonl. Data only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Literal

from pydantic import Field, field_validator

from harness.reply_stats import ReplyStats
from harness.trajectory import Frozen, Outcome, Usage
from tbench.errors import Blame as Blame
from tbench.errors import Stage as Stage
from tbench.errors import TrialError
from tbench.reward import is_solved
from tbench.text import one_line

RESULT_SCHEMA_VERSION = 2
UNKNOWN_TIME = datetime(1970, 1, 1, tzinfo=UTC)
"""Placeholder for a missing time in imported results."""
UNKNOWN_AGENT = "unknown"
"""Placeholder for a missing agent in imported results."""
LARGEST_REWARD = 1e9
"""Largest absolute value of a reward, so that sums and squares of rewards stay finite."""


class ErrorInfo(Frozen):
    """The error that prevented a trial's verdict."""

    stage: Stage
    type: str
    blame: Blame
    retryable: bool
    message: str

    @classmethod
    def of(cls, error: TrialError) -> ErrorInfo:
        """Return the record of an error; its message is one line."""
        kind, message = error.kind, one_line(str(error))
        return cls(stage=error.stage, type=error.type, blame=kind.blame, retryable=kind.retryable, message=message)


class Timings(Frozen):
    """Wall-clock seconds per part of a trial. During `teardown_sec` the trial no longer occupies a concurrency slot."""

    queue_sec: float = 0.0
    sandbox_sec: float = 0.0
    agent_sec: float = 0.0
    model_sec: float = 0.0
    waited_sec: float = 0.0
    """Part of `agent_sec` that does not count towards the time limit: failed requests, pauses, outages."""
    command_sec: float = 0.0
    verifier_sec: float = 0.0
    tests_sec: float = 0.0
    """Part of `verifier_sec`: the verifier's first run. The task's limit applies to it."""
    teardown_sec: float = 0.0
    wall_sec: float = 0.0


class HostSample(Frozen):
    """Load of the machine during a trial; None for values that this machine does not report."""

    load_max: float | None = None
    """Highest one-minute load average per CPU; above 1, processes waited."""
    memory_available_min_mb: float | None = None
    memory_stall_max: float | None = None
    """Highest share of ten seconds in which processes waited for memory (Linux PSI, `some avg10` / 100)."""
    clock_jump_sec: float = 0.0
    """Wall-clock time without running processes: the machine was suspended, or its clock was set."""


class Integrity(Frozen):
    """Evidence for and against a verdict."""

    verify: Literal["shared", "isolated", "both", "separate"] = "shared"
    """Container of the verifier: the agent's, a fresh one, both, or a separate one that the task defines."""
    tamper: tuple[str, ...] = ()
    """Signs of tampering with the verdict, each `kind: observation`. Signals, not proofs."""
    replaced: dict[str, str] = Field(default={})
    """For a pass, the first hundred system paths, with the start of their sha256, that differ from the image, or that
    are new and found before its files by a path search."""
    evidence: tuple[str, ...] = ()
    """Paths that the agent created where tests and reward belong; moved aside before the verifier began."""
    repairs: tuple[str, ...] = ()
    """Repairs made before the verifier began, each `kind: action`."""
    regrades: int = 0
    """Number of further verifier runs, because no test had run or because a user asked for it."""
    rewards: dict[str, float] = Field(default={})
    """Rewards of a verifier that ran several times. `shared` and `isolated`: in both containers. `separate` and
    `without`: with and without files that can affect the tests. Others: control tests (`is_control`)."""
    reward_writes: int | None = None
    """Number of reward writes by bash in test.sh, at most 20; 0 if another program wrote the reward, None if bash was
    not traced."""
    remarks: tuple[str, ...] = ()
    """Doubts about a reward that stands, each `kind: observation`, such as a failed download with a 0."""


class ImageOrigin(Frozen):
    """Origin of a sandbox's image."""

    how: Literal["pulled", "built", "present", "snapshot"]
    """Source of the image in this run: pulled, built, already on the engine, or a snapshot of a trial."""
    reference: str
    """Name of the image: the task's, or `tbench/TASK:HASH` if it was built from the task."""
    digest: str | None = None
    """Digest of the image in its registry; None if it was never in one."""
    built_from: str | None = None
    """Hash of the environment/ from which the image was built on this engine; None for a published image."""


NOTHING_SEEN = Integrity()
_WEAK = """tests-touched verifier-ended needs-system unconfirmed cleared fails-with-work failed-tests
    other-reward unread left-out system-added"""
WEAK_SIGNALS = frozenset(_WEAK.split())
"""Kinds of signs of tampering that honest work often causes."""


AGENTS_WITHOUT_MODEL = frozenset({"oracle", "nop"})
"""Agents that ask no model."""
UNCONFIRMED = "unconfirmed:"
"""Prefix of signs with the reason why no fresh container confirmed a pass."""
ALONE = f"{UNCONFIRMED} it passed in the agent's own container alone"
"""Prefix of the sign of every pass that was not checked in a fresh container."""


CONTROL = "control"
"""Key of the control tests' reward in `Integrity.rewards`; for the oracle with their kind, `control-KIND`."""
INTACT = "intact"
"""Key of the reward of tests with hidden but unchanged values, in `Integrity.rewards`."""
NO_CONTROL_VERDICT = f"{UNCONFIRMED} tests that must fail give no verdict with the work in place"
"""Prefix of the sign of a pass whose control tests gave no verdict."""
DISARMED = "tests-disarmed"
"""Kind of the sign of a pass whose control tests passed."""


def is_control(mode: str) -> bool:
    """Whether a key of `Integrity.rewards` stands for control tests; it may begin with a task step's name."""
    name = mode.rpartition("/")[2]
    return name in (CONTROL, INTACT) or name.startswith(f"{CONTROL}-")


def control_lines(integrity: Integrity) -> Iterator[str]:
    """Yield a line for each kind of control tests that ran with the agent's work, with the result."""
    recorded = {mode: reward for mode, reward in integrity.rewards.items() if is_control(mode)}
    for mode, reward in recorded.items():
        step, _, name = mode.rpartition("/")
        kind = name.removeprefix(CONTROL).removeprefix("-")
        of_step = f"step {step}: " if step else ""
        if name == INTACT:
            yield f"{of_step}the tests with hidden expected values: reward {reward:g}"
            continue
        which = f"{of_step}the tests with other expected values{f' ({kind})' if kind else ''}"
        became = "pass, although they must fail" if is_solved(reward) else "fail, as they must"
        yield f"{which} {became}: reward {reward:g}"
    if any(sign.startswith(NO_CONTROL_VERDICT) for sign in integrity.tamper):
        yield "the tests with other expected values gave no verdict, so the pass is unconfirmed"
    elif not recorded and any(sign.startswith(DISARMED) for sign in integrity.tamper):
        yield "the tests pass although a test that always fails was added"


def is_weak(signal: str) -> bool:
    """Whether a sign of tampering is weak evidence on its own."""
    return signal.partition(":")[0] in WEAK_SIGNALS


def is_tool_failure(remark: str) -> bool:
    """Whether a remark is about a failed tool of the verifier."""
    return remark.startswith("tool-failure:")


def is_reward(number: float) -> bool:
    """Whether a number can be a reward: finite and at most LARGEST_REWARD in absolute value."""
    return abs(number) <= LARGEST_REWARD


class TaskStepResult(Frozen):
    """Result of one task step. Without a reward it has no verdict."""

    name: str
    begun: bool = True
    """Whether the trial reached the task step."""
    reward: float | None = None
    metrics: dict[str, float] = Field(default={})
    """Numbers in the task step's reward.json by name."""
    outcome: Outcome | None = None
    error: ErrorInfo | None = None
    stopped: str = ""
    """Why no further task step followed, if the reward was too low."""
    steps: int = 0
    """Number of replies of the model."""
    usage: Usage = Usage()
    timings: Timings = Timings()


class WentOn(Frozen):
    """An interruption of a trial, after which another process continued it."""

    at_step: int
    """Step at which the agent continued; 0 if it had ended."""
    how: Literal["attached", "replayed", "verifier"]
    """Attached to its container; replayed in a new one; or only the verifier ran again."""
    differs: str = ""
    """First difference of a replay's terminal from the original's; empty for none."""
    counts: bool = True
    """Whether the trial's reward counts nevertheless."""

    @property
    def words(self) -> str:
        """Describe how the trial continued."""
        if self.how == "verifier":
            return "the verifier ran again"
        differs = f", which differs at {self.differs}" if self.differs else ""
        return (
            f"attached at step {self.at_step}"
            if self.how == "attached"
            else f"replayed to step {self.at_step}{differs}"
        )


def went_on_counts(trials: Iterable[tuple[WentOn, ...]]) -> dict[str, int]:
    """Return the number of continued trials (`trials`), and the number by each `how`."""
    found = [[each.how for each in cuts] for cuts in trials if cuts]
    ways = ("attached", "replayed", "verifier")
    return {"trials": len(found), **{how: sum(how in cuts for cuts in found) for how in ways}} if found else {}


class TrialResult(Frozen):
    """Result of one attempt at a trial: a reward, or else an error."""

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
    """All numbers of the verdict by name, if the verifier wrote more than the reward."""
    outcome: Outcome | None = None
    error: ErrorInfo | None = None
    steps: int = 0
    usage: Usage = Usage()
    replies_from: dict[str, int] = Field(default={})
    """Number of replies by URL of the server; empty if there is only one server."""
    replies: ReplyStats = ReplyStats()
    """Counted metadata of the model's replies."""
    timings: Timings = Timings()
    started_at: datetime
    finished_at: datetime
    human_touched: bool = False
    integrity: Integrity = Integrity()
    image_id: str | None = None
    """Id of the sandbox's image; None if there was no sandbox."""
    image_origin: ImageOrigin | None = None
    verifier_image_id: str | None = None
    """Id of the image of the separate verifier's container, if any."""
    verifier_image_origin: ImageOrigin | None = None
    out_of_memory: bool = False
    """Whether the kernel killed a process of a container because memory ran out; also False if the engine does not
    say."""
    memory_peak_mb: float | None = None
    """Peak memory of the trial's container until the verifier's end, including file caches; None if unknown."""
    host: HostSample | None = None
    machine: str | None = None
    """Name of the sandbox's machine, if the run has several."""
    went_on: tuple[WentOn, ...] = ()
    """Interruptions after which the trial continued."""
    task_steps: tuple[TaskStepResult, ...] = ()
    """Results of all task steps; empty for a task without steps, and if the trial reached none."""
    reward_all_steps: float | None = None
    """Reward with every task step that was not reached counted as 0; None for a task without steps."""

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
