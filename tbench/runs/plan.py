"""Plans the trials of a run: task overrides, trial ids, order and shards."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from harness.endpoint.address import without_password
from tbench.config.document import PlannedShard, RunPlan
from tbench.config.settings import OverridesConfig, RunConfig
from tbench.config.values import Shard
from tbench.datasets.reference import stored_registry, stored_source
from tbench.errors import UsageError
from tbench.runs.trial_progress import TrialPlan
from tbench.sandbox.backend import SandboxSettings
from tbench.sandbox.container_proxy import container_proxy
from tbench.sandbox.package import AgentPackage
from tbench.shards import WeighedTrial, plan_shard
from tbench.storage.comparable import differences, measured_values
from tbench.tasks.format import EnvironmentSection, Healthcheck, SolutionSection, StepSection, TaskFile, VerifierSection
from tbench.tasks.sources import TaskSet
from tbench.tasks.task import Task

if TYPE_CHECKING:
    from tbench.runs.resume import EarlierRun


def as_configured(task: Task, config: RunConfig) -> Task:
    """Return the task with the configuration's consent and overrides. Applying them twice changes nothing."""
    file, sandbox = apply_overrides(task.written, config.overrides), config.sandbox
    if (metric := config.verify.metric) is not None:
        file = file.model_copy(update={"verifier": file.verifier.model_copy(update={"metric": metric})})
    allowed = task.with_access(sandbox.allow_env, host=sandbox.trust, ignored_keys=sandbox.ignore_keys)
    return allowed.with_file(file)


def apply_overrides(file: TaskFile, overrides: OverridesConfig) -> TaskFile:
    """Return task.toml's content with overridden limits: the only source for timeouts and resources."""
    if overrides == OverridesConfig():
        return file
    factor, agent = overrides.timeout_factors, file.agent
    agent_sec = None if agent.timeout_sec is None else agent.timeout_sec * factor["agent"]
    return file.model_copy(
        update={
            "agent": agent.model_copy(update={"timeout_sec": agent_sec}),
            "verifier": _verifier(file.verifier, overrides, factor),
            "solution": _solution(file.solution, factor["agent"]),
            "environment": _environment(file.environment, overrides, factor),
            "steps": [_step(step, overrides, factor) for step in file.steps],
        }
    )


def _environment(
    asked: EnvironmentSection, overrides: OverridesConfig, factor: Mapping[str, float]
) -> EnvironmentSection:
    update: dict[str, Any] = {
        "build_timeout_sec": asked.build_timeout_sec * factor["build"],
        "cpus": asked.cpus if overrides.cpus is None else overrides.cpus,
        "memory_mb": asked.memory_mb if overrides.memory_mb is None else float(overrides.memory_mb),
    }
    if asked.healthcheck is not None:
        update["healthcheck"] = _scale_healthcheck(asked.healthcheck, factor["healthcheck"])
    return asked.model_copy(update=update)


def _solution(asked: SolutionSection, factor: float) -> SolutionSection:
    own_sec = asked.timeout_sec
    return asked if own_sec is None else asked.model_copy(update={"timeout_sec": own_sec * factor})


def _verifier(asked: VerifierSection, overrides: OverridesConfig, factor: Mapping[str, float]) -> VerifierSection:
    own = asked.environment
    environment = None if own is None else _environment(own, overrides, factor)
    update = {"timeout_sec": asked.timeout_sec * factor["verifier"], "environment": environment}
    return asked.model_copy(update=update)


def _step(step: StepSection, overrides: OverridesConfig, factor: Mapping[str, float]) -> StepSection:
    """Return a step with overridden limits, where it has its own."""
    update: dict[str, Any] = {}
    if step.agent.timeout_sec is not None:
        update["agent"] = step.agent.model_copy(update={"timeout_sec": step.agent.timeout_sec * factor["agent"]})
    verifier = _verifier(step.verifier, overrides, factor)
    own = {name: getattr(verifier, name) for name in ("timeout_sec", "environment")}
    update["verifier"] = step.verifier.model_copy(
        update={name: value for name, value in own.items() if name in step.verifier.model_fields_set}
    )
    if overrides.resume_trajectory:
        update["inherit_prior_session"] = True
    if step.healthcheck is not None:
        update["healthcheck"] = _scale_healthcheck(step.healthcheck, factor["healthcheck"])
    return step.model_copy(update=update)


def _scale_healthcheck(check: Healthcheck, factor: float) -> Healthcheck:
    patience = {
        "timeout_sec": check.timeout_sec * factor,
        "start_period_sec": check.start_period_sec * factor,
        "retries": math.ceil(check.retries * factor),
    }
    return check.model_copy(update=patience)


def semantic(plan: RunPlan) -> dict[str, Any]:
    """Return the settings that may affect scores."""
    return {"model": plan.locked.model, **measured_values(plan)}


def sandbox_settings(
    plan: RunPlan, image_logs: Path | None = None, package: AgentPackage | None = None
) -> SandboxSettings:
    """Return the settings of the run's sandboxes; build output goes into `image_logs`. Raises UsageError.

    `package` is the package of a packaged agent.
    """
    if package is not None and plan.config.sandbox.has_no_engine:
        raise UsageError(
            f"--agent {plan.config.agent.name}: its package needs a container engine; leave out --engine oci:"
        )
    return SandboxSettings(
        plan.run,
        plan.config.sandbox,
        container_proxy=container_proxy(plan.config.sandbox.container_proxy),
        endpoints=plan.locked.endpoints or ((plan.locked.base_url,) if plan.locked.base_url else ()),
        image_logs=image_logs,
        package=package,
    )


def stored_config(config: RunConfig) -> RunConfig:
    """Return a copy for run.json: with absolute paths, but without passwords, run directory or a forced refresh."""
    tasks, prompt, base_url = config.tasks, config.agent.prompt, config.model.base_url
    return config.with_values(
        tasks={
            "source": stored_source(tasks.source),
            "registry": stored_registry(tasks.registry) if tasks.registry else None,
            "refresh": False,
        },
        agent={"prompt": str(Path(prompt).resolve()) if prompt else None},
        model={
            "base_url": without_password(base_url) if base_url else None,
            "endpoints": [
                {"base_url": without_password(each.base_url), "weight": each.weight} for each in config.model.endpoints
            ],
        },
        schedule={"durations": [str(Path(each).resolve()) for each in config.schedule.durations]},
        output={"directory": None},
    )


def check_same_run(earlier: EarlierRun, plan: RunPlan, tasks: TaskSet) -> None:
    """Check that a plan continues an earlier run; more tasks or seeds are fine. Raises UsageError if not."""
    where = f"{earlier.directory}: cannot be resumed"
    if changes := differences(semantic(earlier.document), semantic(plan)):
        raise UsageError(f"{where} with another configuration: {changes}; start a new run")
    if earlier.document.config.schedule.shard != plan.config.schedule.shard:
        was = f"as shard {earlier.document.shard.name}" if earlier.document.shard else "without --shard"
        raise UsageError(f"{where} as another shard: it was started {was}")
    now = {task.name: task.hash for task in tasks.tasks} | dict.fromkeys(tasks.invalid)
    hashes = {task.name: task.hash for task in earlier.document.tasks}
    if missing := sorted(hashes.keys() - now.keys()):
        raise UsageError(f"{where} without its tasks {', '.join(missing)}; add the tasks that it was started with")
    if changed := sorted(name for name, digest in hashes.items() if digest not in (None, now[name])):
        raise UsageError(
            f"{where}: these tasks have changed since: {', '.join(changed)}; restore them, or start a new run"
        )
    if lacking := sorted(set(earlier.document.seeds) - set(plan.seeds)):
        raise UsageError(
            f"{where} without its seeds {', '.join(map(str, lacking))}; give --seeds and --first-seed again"
        )
    if plan.shard is not None and (hashes.keys() < now.keys() or len(earlier.document.seeds) < len(plan.seeds)):
        raise UsageError(f"{where} with more tasks or seeds, because it is a shard; start a new run")


def plan_trials(
    tasks: TaskSet, plan: RunPlan, expected_sec: Mapping[str, float] = MappingProxyType({})
) -> list[TrialPlan]:
    """Return the trials of tasks × seeds, seed by seed: a run cut short has whole seeds first. Ids are stable.

    The tasks are as configured. A shard has only its own trials, under the same ids. Within a seed, trials are ordered
    by task name, or as shuffled with `--shuffle`. With the order `longest`, the longest come first by `expected_sec`,
    the known seconds per task. Ids do not depend on the order.
    """
    by_name = {task.name: task for task in tasks.tasks}
    measured, plans = _identity(plan), []
    own = None if plan.shard is None else set(plan.shard.trials)
    for seed in plan.seeds:
        names = tasks.names
        if (shuffle := plan.config.tasks.shuffle) is not None:
            names = random.Random(f"{shuffle}/{seed}").sample(names, len(names))
        for name in names:
            if own is not None and (name, seed) not in own:
                continue
            task = by_name.get(name)
            plans.append(
                TrialPlan(
                    trial=_trial_id(name, task.hash if task else "", seed, measured),
                    task_name=name,
                    seed=seed,
                    task=task,
                    invalid=tasks.invalid.get(name, ""),
                )
            )
    return longest_first(plans, expected_sec) if plan.config.schedule.order == "longest" else plans


def longest_first(plans: Sequence[TrialPlan], expected_sec: Mapping[str, float]) -> list[TrialPlan]:
    """Return trials by expected duration, the longest first; equal ones keep their order."""
    return sorted(plans, key=lambda each: _seconds(each.task_name, each.task, expected_sec), reverse=True)


def own_shard(
    tasks: TaskSet, seeds: Sequence[int], shard: str | None, durations: Mapping[str, float]
) -> PlannedShard | None:
    """Return shard I/N of the trials of tasks, which are as configured; None if no shard is wanted.

    Every machine computes the same division: it depends only on the tasks, the seeds, and `durations`, the seconds per
    task in the runs given with --durations.
    """
    if shard is None:
        return None
    by_name = {task.name: task for task in tasks.tasks}
    seconds = {name: _seconds(name, by_name.get(name), durations) for name in tasks.names}
    trials = [WeighedTrial(name, seed, seconds[name]) for name in tasks.names for seed in seeds]
    return plan_shard(trials, Shard.parse(shard))


def _seconds(name: str, task: Task | None, known: Mapping[str, float]) -> float:
    """Return the expected seconds of a trial; if unknown, its agent's time limit."""
    limit = (task.file.agent.timeout_sec or 0.0) if task is not None else 0.0
    return known.get(name, limit)


def trial_id(name: str, task_hash: str, seed: int, plan: RunPlan) -> str:
    """Return the trial id `<task>.s<seed>.<hash>`: the same plan gives the same id."""
    return _trial_id(name, task_hash, seed, _identity(plan))


def _identity(plan: RunPlan) -> dict[str, Any]:
    """Return the values that make up ids. Defaults are left out, so that new settings do not change old ids."""
    return {"model": plan.locked.model, **measured_values(plan, apart_from_defaults=True)}


def _trial_id(name: str, task_hash: str, seed: int, measured: dict[str, Any]) -> str:
    identity = json.dumps([task_hash, seed, measured], sort_keys=True)
    return f"{name}.s{seed}.{hashlib.sha256(identity.encode()).hexdigest()[:10]}"
