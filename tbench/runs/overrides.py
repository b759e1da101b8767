"""Tasks as a run has them: with the configuration's consent, and its overrides in place of what they say themselves."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tbench.config.overrides import timeout_factors
from tbench.config.settings import OverridesConfig, RunConfig
from tbench.tasks.format import TaskFile
from tbench.tasks.sources import TaskSet
from tbench.tasks.task import Task


def as_configured(task: Task, config: RunConfig) -> Task:
    """The task as the trials of a configuration have it, however often this is asked."""
    return task.allowing(config.sandbox.allow_env).with_file(overridden(task.written, config.overrides))


def tasks_as_configured(tasks: TaskSet, config: RunConfig) -> TaskSet:
    return replace(tasks, tasks=tuple(as_configured(task, config) for task in tasks.tasks))


def overridden(file: TaskFile, overrides: OverridesConfig) -> TaskFile:
    """Copy of task.toml's content with other limits. Timeouts, resources and everything else are read from it alone."""
    if overrides == OverridesConfig():
        return file
    factor, agent, asked = timeout_factors(overrides), file.agent, file.environment
    environment: dict[str, Any] = {
        "build_timeout_sec": asked.build_timeout_sec * factor["build"],
        "cpus": asked.cpus if overrides.cpus is None else overrides.cpus,
        "memory_mb": asked.memory_mb if overrides.memory_mb is None else float(overrides.memory_mb),
    }
    if (check := asked.healthcheck) is not None:
        patience = {
            "timeout_sec": check.timeout_sec * factor["healthcheck"],
            "start_period_sec": check.start_period_sec * factor["healthcheck"],
            "retries": math.ceil(check.retries * factor["healthcheck"]),
        }
        environment["healthcheck"] = check.model_copy(update=patience)
    timeout_sec = None if agent.timeout_sec is None else agent.timeout_sec * factor["agent"]
    verifier = {"timeout_sec": file.verifier.timeout_sec * factor["verifier"]}
    return file.model_copy(
        update={
            "agent": agent.model_copy(update={"timeout_sec": timeout_sec}),
            "verifier": file.verifier.model_copy(update=verifier),
            "environment": asked.model_copy(update=environment),
        }
    )
