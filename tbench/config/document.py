"""The content of run.json: the configuration, the agent, model and tasks that it resolved to, and the run's status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, ValidationError

from harness.model import ServedModel
from harness.reply_stats import ReplyStats, run_notes
from harness.trajectory import Frozen
from tbench.config.settings import RunConfig
from tbench.config.values import Shard
from tbench.files import refuse_other_version
from tbench.origin import DatasetOrigin
from tbench.results import ImageOrigin, TrialResult, went_on_counts

RUN_SCHEMA_VERSION = 3
Purpose = Literal["score", "debug", "fork"]
"""Purpose of a run: a score, debugging one trial, or forks of a trial. Only the first has a score."""
Status = Literal["running", "finished", "interrupted", "stopped", "failed"]


class PlannedTask(Frozen):
    """A task of a run: its name and, if it could be read, the hash of its content."""

    name: str
    hash: str | None = None
    reward_range: tuple[float, float] | None = None
    """Lowest and highest reward that the task can give, if not 0 and 1."""
    image_id: str | None = None
    """Id of the image that its trials used; None if no trial was started."""
    image_origin: ImageOrigin | None = None
    """Origin of the image when it was first used."""
    invalid: str | None = None
    """Why the task could not be read."""


class Locked(Frozen):
    """The agent and model that the configuration's names stood for when the run began. With another
    agent or model it would be another run."""

    agent: str
    """Name of the agent in results: `tbench:` and the protocol, oracle, nop, or module:Class."""
    agent_sha256: str | None = None
    """sha256 of the file that defines a custom agent, or of a packaged agent's recipe and package."""
    agent_contains: dict[str, str] = Field(default={})
    """Versions of everything in a packaged agent's package, by name."""
    model: str | None = None
    """Id of the model; None without a model."""
    base_url: str | None = None
    endpoints: tuple[str, ...] = ()
    """URLs of all servers, if there are several."""
    served: ServedModel | None = None
    """The model as the endpoint's /v1/models describes it."""
    prompt_hash: str | None = None
    """Hash of the prompts; None for agents other than tbench's own."""
    shell_state: str | None = None
    """Whether commands share a shell; None for protocols without this choice, such as keystrokes."""
    approval: str | None = None
    """Approver of actions, with rules named by their hash; None if no approval is needed."""


class PlannedShard(Frozen):
    """The trials of one shard. Every shard computes the same division by itself."""

    index: int
    """Counted from 0."""
    count: int
    digest: str
    """sha256 over all trials of the run and the durations by which they were divided."""
    trials: tuple[tuple[str, int], ...]
    """Task and seed of each trial."""

    @property
    def name(self) -> str:
        """`I/N`, I counted from 0."""
        return str(Shard(self.index, self.count))


class PacedConcurrency(Frozen):
    """Concurrent trials under `--concurrency auto`, sampled every 5 s."""

    first: int
    min: int
    median: int
    max: int


class RunPlan(Frozen):
    """Plan of a run; together with the tasks it determines the id of every trial."""

    run: str
    config: RunConfig
    locked: Locked
    seeds: tuple[int, ...]
    shard: PlannedShard | None = None
    """The trials of this run; None for all tasks and seeds."""
    purpose: Purpose = "score"


class RunDocument(RunPlan):
    """The content of run.json."""

    schema_version: int = RUN_SCHEMA_VERSION
    status: Status = "running"
    stopped: str | None = None
    """Why the run stopped itself, or the planned stop that interrupted it."""
    created_at: str = ""
    resumed_at: tuple[str, ...] = ()
    ended_at: str | None = None
    tbench_version: str = ""
    python_version: str = ""
    engine: dict[str, Any] = Field(default={})
    paced: PacedConcurrency | None = None
    """The concurrency that `--concurrency auto` chose since the run was last started or resumed."""
    replies: ReplyStats | None = None
    """Metadata of the model's replies, summed over all trials; None until the run has ended."""
    went_on: dict[str, int] = Field(default={})
    """Number of continued trials (`trials`), and their numbers by the way in which they continued."""
    reply_notes: tuple[str, ...] = ()
    """Suspicious observations about the replies, one per line."""
    unhealthy: dict[str, str] | None = None
    """Reason by task for tasks whose verdicts cannot be trusted on this machine; None if no such task is known and not
    all were calibrated."""
    dataset: DatasetOrigin | None = None
    """The dataset of the tasks; None for bundled tasks and for a directory of tasks."""
    tasks: tuple[PlannedTask, ...]


def replies_fields(plan: RunPlan, results: Sequence[TrialResult]) -> dict[str, Any]:
    """Return the fields of run.json that summarise the replies of all trials."""
    served, trials = plan.locked.served, [(each.task, each.replies) for each in results if each.final]
    asked = served.all_names if served is not None else ()
    return {
        "replies": ReplyStats.sum(seen for _, seen in trials).model_copy(update={"first": None}),
        "went_on": went_on_counts(each.went_on for each in results if each.final),
        "reply_notes": run_notes(trials, asked, is_sampled=plan.config.model.temperature > 0),
    }


class ForeignRunDocument(ValueError):
    """A run.json without a configuration of tbench, such as that of imported results."""


def read_document(content: Mapping[str, Any]) -> RunDocument:
    """Validate the content of run.json.

    Raises ForeignRunDocument for a plan without a configuration, and ValueError, in one line, for invalid content.
    """
    if "schema_version" not in content:
        raise ForeignRunDocument("no schema_version")
    refuse_other_version(content, RUN_SCHEMA_VERSION)
    try:
        return RunDocument.model_validate(content)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        message = problem["msg"].removeprefix("Value error, ")
        raise ValueError(f"{'.'.join(map(str, problem['loc']))}: {message}") from None
