"""A run's configuration and the trials that it makes: which settings decide the measurement, and trial ids."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from harness.model import Rendering
from harness.protocols.base import ShellMode
from harness.protocols.text import OUTPUT_LIMIT_BYTES
from harness.trajectory import Frozen
from tbench.errors import UsageError
from tbench.runs.resume import EarlierRun
from tbench.runs.trial import TrialPlan
from tbench.sandbox.backend import NetworkChoice, SandboxSettings
from tbench.storage.differences import differences
from tbench.tasks.sources import TaskSet
from tbench.text import one_line
from tbench.verify.policy import Keep, Verify

_SEMANTIC = {
    *("agent", "agent_sha256", "model", "protocol", "prompt_hash", "observation_bytes", "neutralise_special_tokens"),
    *("settling", "shell_state", "sampling", "rendering", "limits", "verify"),
    *("network", "block_host", "no_new_privileges"),
}
# Settings that came later, with the value that held before: with that value, trial ids stay what they were.
_LATER = {
    "agent_sha256": None,
    "observation_bytes": OUTPUT_LIMIT_BYTES,
    "neutralise_special_tokens": False,
    "shell_state": "persistent",
    "rendering": Rendering().model_dump(mode="json"),
    "verify": "shared",
    "network": "task",
    "block_host": False,
    "no_new_privileges": False,
}
_LATER_LIMITS = {"context_tokens": None, "on_overflow": "stop"}


class RunConfig(Frozen):
    """The resolved configuration of a run, as run.json stores it. It holds no secrets."""

    run: str
    source: str
    seeds: tuple[int, ...]
    agent: str
    agent_sha256: str | None = None
    """sha256 of the file of a user's own agent."""
    concurrency: int = Field(ge=1)
    cpu_overcommit: float = Field(default=1.0, gt=0)
    """The cpus that all trials under way may use, as a multiple of the machine's.

    Above 1 timed tests and timeouts may be decided by the machine's load; where trials mostly wait for the model that
    is a fair price. Memory is never overcommitted.
    """
    retries: int = Field(default=0, ge=0)
    """Further attempts at a trial whose error another one may heal."""
    max_load: float | None = None
    """Load average over one minute / cpus above which no trial starts while another is under way."""
    build: bool = False
    verify: Verify = "shared"
    keep: Keep = "none"
    snapshot: bool = False
    network: NetworkChoice = "task"
    block_host: bool = False
    """Whether the engine's host and the endpoint are closed to the trials."""
    no_new_privileges: bool = False
    model: str | None = None
    base_url: str | None = None
    served: dict[str, Any] | None = None
    """Model as the endpoint's /v1/models describes it: id, root, context_tokens."""
    preset: str | None = None
    """The preset that gave the values which the user did not; the values themselves stand below."""
    protocol: str | None = None
    prompt_hash: str | None = None
    observation_bytes: int | None = None
    neutralise_special_tokens: bool | None = None
    settling: str | None = None
    shell_state: ShellMode | None = None
    """Whether commands share a shell; None for protocols without one, such as keystrokes."""
    sampling: dict[str, Any] | None = None
    rendering: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    """The options that the user gave, from which `tbench resume` begins."""

    def sandbox_settings(self, image_logs: Path | None = None) -> SandboxSettings:
        """Settings of the run's sandboxes; the output of builds goes into the directory `image_logs`."""
        return SandboxSettings(
            run=self.run,
            build=self.build,
            network=self.network,
            block_host=self.block_host,
            no_new_privileges=self.no_new_privileges,
            base_url=self.base_url,
            image_logs=image_logs,
        )

    def semantic(self) -> dict[str, Any]:
        """The settings that decide what is measured; where and how fast the run goes is not among them."""
        parts = self.model_dump(mode="json", include=_SEMANTIC)
        if self.limits is not None:
            parts["limits"] = _without_defaults(parts["limits"], _LATER_LIMITS)
        return _without_defaults(parts, _LATER)


_FIELDS = frozenset(RunConfig.model_fields)


def _without_defaults(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in values.items()
        if name not in defaults or (value is not None and value != defaults[name])
    }


def check_same_run(earlier: EarlierRun, config: RunConfig, tasks: TaskSet) -> None:
    """Compare with the run that is to go on; more tasks or seeds are fine. Raises UsageError naming what differs."""
    where = f"{earlier.directory}: cannot be resumed"
    try:
        before = RunConfig.model_validate(
            {key: earlier.document.get(key) for key in earlier.document if key in _FIELDS}
        )
    except ValidationError as error:
        raise UsageError(f"{where}: its run.json is not of this version: {one_line(str(error))}") from None
    if before.semantic() != config.semantic():
        old, new = (each.model_dump(mode="json", include=_SEMANTIC) for each in (before, config))
        raise UsageError(f"{where} with another configuration: {differences(old, new)}; start a new run")
    now = {task.name: task.hash for task in tasks.tasks} | dict.fromkeys(tasks.invalid)
    if missing := sorted(earlier.hashes.keys() - now.keys()):
        raise UsageError(f"{where} without its tasks {', '.join(missing)}; give the tasks that it was started with")
    if changed := sorted(name for name, digest in earlier.hashes.items() if digest not in (None, now[name])):
        raise UsageError(f"{where}: changed since then: {', '.join(changed)}; put the tasks back, or start a new run")
    if lacking := sorted(set(earlier.seeds) - set(config.seeds)):
        raise UsageError(
            f"{where} without its seeds {', '.join(map(str, lacking))}; give --seeds and --first-seed again"
        )


def plan_trials(tasks: TaskSet, config: RunConfig) -> list[TrialPlan]:
    """The trials of tasks × seeds, seed by seed, so that a run cut short has whole seeds first. Ids are stable."""
    by_name = {task.name: task for task in tasks.tasks}
    plans = []
    for seed in config.seeds:
        for name in tasks.names:
            task = by_name.get(name)
            plans.append(
                TrialPlan(
                    trial=trial_id(name, task.hash if task else "", seed, config),
                    task_name=name,
                    seed=seed,
                    task=task,
                    invalid=tasks.invalid.get(name, ""),
                )
            )
    return plans


def trial_id(name: str, task_hash: str, seed: int, config: RunConfig) -> str:
    """The id `<task>.s<seed>.<hash>` of a trial: the same plan gives the same id."""
    identity = json.dumps([task_hash, seed, config.semantic()], sort_keys=True)
    return f"{name}.s{seed}.{hashlib.sha256(identity.encode()).hexdigest()[:10]}"
