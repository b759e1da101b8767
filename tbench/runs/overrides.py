"""Tasks as a run has them: with the configuration's consent, and its overrides in place of what they say themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tbench.config.overrides import timeout_factors
from tbench.config.settings import OverridesConfig, RunConfig
from tbench.tasks.format import EnvironmentSection, Healthcheck, StepSection, TaskFile, VerifierSection
from tbench.tasks.sources import TaskSet
from tbench.tasks.task import Task


def as_configured(task: Task, config: RunConfig) -> Task:
    """The task as the trials of a configuration have it, however often this is asked."""
    file = _with_metric(overridden(task.written, config.overrides), config.verify.metric)
    return task.allowing(config.sandbox.allow_env, host=config.sandbox.trust).with_file(file)


def _with_metric(file: TaskFile, metric: str | None) -> TaskFile:
    """Copy of task.toml's content in which this metric counts; None is as the task says."""
    if metric is None:
        return file
    return file.model_copy(update={"verifier": file.verifier.model_copy(update={"metric": metric})})


def tasks_as_configured(tasks: TaskSet, config: RunConfig) -> TaskSet:
    return replace(tasks, tasks=tuple(as_configured(task, config) for task in tasks.tasks))


def overridden(file: TaskFile, overrides: OverridesConfig) -> TaskFile:
    """Copy of task.toml's content with other limits. Timeouts, resources and everything else are read from it alone."""
    if overrides == OverridesConfig():
        return file
    factor, agent = timeout_factors(overrides), file.agent
    agent_sec = None if agent.timeout_sec is None else agent.timeout_sec * factor["agent"]
    return file.model_copy(
        update={
            "agent": agent.model_copy(update={"timeout_sec": agent_sec}),
            "verifier": _verifier(file.verifier, overrides, factor),
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
        update["healthcheck"] = _patient(asked.healthcheck, factor["healthcheck"])
    return asked.model_copy(update=update)


def _verifier(asked: VerifierSection, overrides: OverridesConfig, factor: Mapping[str, float]) -> VerifierSection:
    own = asked.environment
    environment = None if own is None else _environment(own, overrides, factor)
    update = {"timeout_sec": asked.timeout_sec * factor["verifier"], "environment": environment}
    return asked.model_copy(update=update)


def _step(step: StepSection, overrides: OverridesConfig, factor: Mapping[str, float]) -> StepSection:
    """A step with other limits, where it has its own."""
    update: dict[str, Any] = {}
    if step.agent.timeout_sec is not None:
        update["agent"] = step.agent.model_copy(update={"timeout_sec": step.agent.timeout_sec * factor["agent"]})
    verifier = _verifier(step.verifier, overrides, factor)
    own = {name: getattr(verifier, name) for name in ("timeout_sec", "environment")}
    update["verifier"] = step.verifier.model_copy(
        update={name: value for name, value in own.items() if name in step.verifier.model_fields_set}
    )
    if step.healthcheck is not None:
        update["healthcheck"] = _patient(step.healthcheck, factor["healthcheck"])
    return step.model_copy(update=update)


def _patient(check: Healthcheck, factor: float) -> Healthcheck:
    patience = {
        "timeout_sec": check.timeout_sec * factor,
        "start_period_sec": check.start_period_sec * factor,
        "retries": math.ceil(check.retries * factor),
    }
    return check.model_copy(update=patience)
