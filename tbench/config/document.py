"""The content of run.json: the configuration of a run, what it stood for that day, and how the run went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, ValidationError

from harness.model import ServedModel
from harness.replies import RepliesSeen, run_notes
from harness.trajectory import Frozen
from tbench.config.settings import RunConfig
from tbench.config.shard import Shard
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
    """The document in the content of run.json, of this version or of an earlier one.

    Raises NotOurs for a plan without a configuration, and ValueError with a line for what cannot be read.
    """
    version = content.get("schema_version")
    if version is None:
        raise NotOurs("without a schema_version")
    refuse_newer(content)
    try:
        return RunDocument.model_validate(_as_now(content))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        words = problem["msg"].removeprefix("Value error, ")
        raise ValueError(f"{'.'.join(map(str, problem['loc']))}: {words}") from None


def refuse_newer(content: Mapping[str, Any]) -> None:
    """Check that the content of a run.json is not of a later version. Raises ValueError with a line."""
    version = content.get("schema_version")
    if type(version) is int and version > RUN_SCHEMA_VERSION:
        raise ValueError(
            f"schema_version {version} was written by a newer tbench (this one reads up to {RUN_SCHEMA_VERSION}); "
            "upgrade tbench"
        )


def _as_now(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The content as this version writes it. Version 2 sent the seed itself, and could do nothing else."""
    version = content["schema_version"]
    if version == 1:
        return _of_version_1(content)
    config = content.get("config")
    if version != 2 or not isinstance(config, Mapping) or not isinstance(config.get("model"), Mapping):
        return content
    model = {"seed_scheme": "bare", "send_reasoning": "off", **config["model"]}
    return {**content, "schema_version": RUN_SCHEMA_VERSION, "config": {**config, "model": model}}


# -- version 1 -----------------------------------------------------------------------------------

_UNCHANGED = (
    *("run", "status", "stopped", "created_at", "resumed_at", "ended_at", "seeds", "tasks", "engine"),
    *("tbench_version", "python_version"),
)
_LOCKED = ("agent", "agent_sha256", "model", "base_url", "served", "prompt_hash")
_SANDBOX = ("build", "keep", "snapshot", "network", "block_host", "no_new_privileges")
_SCHEDULE = ("concurrency", "retries", "cpu_overcommit", "max_load")
_TIMES = ("request_timeout_sec", "retry_budget_sec", "max_outage_sec")
_AGENT = ("preset", "protocol", "observation_bytes", "settling", "neutralise_special_tokens")


def _of_version_1(old: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a run.json of version 1 as this version writes it.

    Version 1 stored the settings that held, and beside them, under `options`, what the user had given. Settings that
    came late are missing in the oldest; every one is spelled out here, so that today's presets have no say.
    """
    options = old.get("options") or {}
    wanted = options.get("model") or {}
    seeds = list(old.get("seeds") or ())
    shell_state = old.get("shell_state") or _shell_state_of_1(old)
    held: dict[str, dict[str, Any]] = {
        "tasks": {
            "source": options.get("source") or old.get("source"),
            "include": options.get("patterns"),
            "seeds": len(seeds) or None,
            "first_seed": min(seeds, default=None),
        },
        "model": {
            "base_url": wanted.get("base_url") or old.get("base_url"),
            "name": wanted.get("model") or old.get("model"),
            **_taken(wanted, _TIMES),
            "request_timeout_sec": wanted.get("request_timeout_sec") or 600.0,
            **(old.get("sampling") or {}),
            "send_reasoning": "off",
            **(old.get("rendering") or {}),
            "seed_scheme": "bare",
        },
        "agent": {
            **_taken(old, _AGENT),
            "name": options.get("agent") or _agent_of_1(old),
            "prompt": wanted.get("prompt"),
            "shell_state": shell_state,
        },
        "sandbox": _taken(old, _SANDBOX),
        "verify": {"mode": old.get("verify") or "shared"},
        "schedule": _taken(old, _SCHEDULE),
    }
    config = RunConfig().model_dump(mode="json")
    for section, values in held.items():
        config[section] |= _known(_given(values), config[section])
    config["limits"] |= _known(old.get("limits") or {}, config["limits"])  # a null is no limit there
    return {
        **_given(_taken(old, _UNCHANGED)),
        "config": config,
        "run": old.get("run") or "",
        "locked": {**_taken(old, _LOCKED), "agent": old.get("agent") or "unknown", "shell_state": shell_state},
    }


def _taken(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: values.get(name) for name in names}


def _known(values: Mapping[str, Any], section: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are settings: two were stored that nobody sets, the sampling's seed and the task's own time."""
    return {name: value for name, value in values.items() if name in section}


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _agent_of_1(old: Mapping[str, Any]) -> str:
    name = str(old.get("agent", "model"))
    return "model" if name.startswith("tbench:") else name


def _shell_state_of_1(old: Mapping[str, Any]) -> str | None:
    """The shell state of a run from before there was a choice."""
    from harness.protocols import PROTOCOLS, load_protocol  # who reads a summary needs no prompts

    protocol = old.get("protocol")
    has_shell = protocol in PROTOCOLS and load_protocol(protocol).types_commands
    return "persistent" if has_shell else None
