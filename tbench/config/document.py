"""The content of run.json: the configuration of a run, what it stood for that day, and how the run went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, ValidationError

from harness.model import ServedModel
from harness.replies import RepliesSeen, run_notes
from harness.trajectory import Frozen
from tbench.config.settings import RunConfig
from tbench.config.values import Shard
from tbench.files import refuse_other_version
from tbench.origin import DatasetOrigin
from tbench.results import ImageOrigin, TrialResult

RUN_SCHEMA_VERSION = 3
Status = Literal["running", "finished", "interrupted", "stopped", "failed"]


class PlannedTask(Frozen):
    """A task of a run: its name and, where it could be read, the content that the name stands for."""

    name: str
    hash: str | None = None
    reward_range: tuple[float, float] | None = None
    """The least and the largest reward that it may give, where that is not 0 and 1."""
    image_id: str | None = None
    """Id of the image that its trials used; None where none was started."""
    image_origin: ImageOrigin | None = None
    """Where that image came from when it was first used."""
    invalid: str | None = None
    """Why it could not be read."""


class Locked(Frozen):
    """What names in the configuration stood for when the run began: other code or another model is another run."""

    agent: str
    """Name of the agent in every result: `tbench:` and the protocol, oracle, nop, or module:Class."""
    agent_sha256: str | None = None
    """sha256 of the file of a user's own agent."""
    model: str | None = None
    """Id of the model; None without a model."""
    base_url: str | None = None
    endpoints: tuple[str, ...] = ()
    """The URLs of all servers, where there are several."""
    served: ServedModel | None = None
    """The model as the endpoint's /v1/models describes it."""
    prompt_hash: str | None = None
    """Hash of the prompts; None where the agent is not tbench's own."""
    shell_state: str | None = None
    """Whether commands share a shell; None for protocols without one, such as keystrokes."""
    approval: str | None = None
    """Who approves actions, the rules by their hash; None where nobody has to."""


class PlannedShard(Frozen):
    """The part of a run's trials that one process does, of a division that all of them find by themselves."""

    index: int
    """Counted from 0."""
    count: int
    digest: str
    """sha256 over all trials of the run and the seconds that decided which shard has them."""
    trials: tuple[tuple[str, int], ...]
    """Task and seed of each."""

    @property
    def name(self) -> str:
        """`I/N`."""
        return str(Shard(self.index, self.count))


class PacedConcurrency(Frozen):
    """The numbers of trials at once at which a run went that found them by itself, at looks 5 s apart."""

    first: int
    min: int
    median: int
    max: int


class RunPlan(Frozen):
    """What a run is to do: with the tasks and these seeds, it gives every trial its id."""

    run: str
    config: RunConfig
    locked: Locked
    seeds: tuple[int, ...]
    shard: PlannedShard | None = None
    """The trials that are this run's own; None where all of tasks × seeds are."""


class RunDocument(RunPlan):
    """The content of run.json."""

    schema_version: int = RUN_SCHEMA_VERSION
    status: Status = "running"
    stopped: str | None = None
    """Why the run stopped by itself, if it did."""
    created_at: str = ""
    resumed_at: tuple[str, ...] = ()
    ended_at: str | None = None
    tbench_version: str = ""
    python_version: str = ""
    engine: dict[str, Any] = Field(default={})
    paced: PacedConcurrency | None = None
    """With `--concurrency auto`: what that was, in the last start."""
    replies: RepliesSeen | None = None
    """What the replies of all trials say about themselves; None until the run has come to an end."""
    reply_notes: tuple[str, ...] = ()
    """What is odd about them, a line each."""
    unhealthy: dict[str, str] | None = None
    """Tasks whose verdicts are doubtful on this machine, by name with why; None where none is known to be, and not all
    were calibrated."""
    dataset: DatasetOrigin | None = None
    """The dataset that the tasks are of; None for bundled tasks and those of a path."""
    tasks: tuple[PlannedTask, ...]


def about_replies(plan: RunPlan, results: Sequence[TrialResult]) -> dict[str, Any]:
    """What run.json says of the replies of all trials."""
    served, trials = plan.locked.served, [(each.task, each.replies) for each in results if each.final]
    asked = served.all_names if served is not None else ()
    return {
        "replies": RepliesSeen.sum(seen for _, seen in trials).model_copy(update={"first": None}),
        "reply_notes": run_notes(trials, asked, is_sampled=plan.config.model.temperature > 0),
    }


class NotOurs(ValueError):
    """A document that is none of tbench's own, such as a plan beside imported results."""


def read_document(content: Mapping[str, Any]) -> RunDocument:
    """The document in the content of run.json.

    Raises NotOurs for a plan without a configuration, and ValueError with a line for what cannot be read.
    """
    if "schema_version" not in content:
        raise NotOurs("without a schema_version")
    refuse_other_version(content, RUN_SCHEMA_VERSION)
    try:
        return RunDocument.model_validate(content)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        words = problem["msg"].removeprefix("Value error, ")
        raise ValueError(f"{'.'.join(map(str, problem['loc']))}: {words}") from None
