"""Plans of runs for tests that say in a few words what matters to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tbench.config.document import Locked, PlannedTask, RunDocument, RunPlan
from tbench.config.setting import iter_settings
from tbench.config.settings import RunConfig, SandboxConfig
from tbench.sandbox.backend import SandboxSettings
from tbench.tasks.task import Task

_SECTIONS = {setting.name: setting.section for setting in iter_settings(RunConfig)}


def a_config(**settings: Any) -> RunConfig:
    """A configuration with these settings, given by their names alone; `verify` is where the verifier runs."""
    if "verify" in settings:
        settings["mode"] = settings.pop("verify")
    values: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        values.setdefault(_SECTIONS[name], {})[name] = value
    return RunConfig.model_validate(values)


def sandboxes_of(run: str, **known: Any) -> SandboxSettings:
    """How the sandboxes of a run are made, with settings and what else is known, both given by their names alone."""
    own = {name: known.pop(name) for name in ("container_proxy", "endpoints", "image_logs") if name in known}
    return SandboxSettings(run, SandboxConfig(**known), **own)


A_MODEL = {"agent": "tbench:keystrokes-json", "model": "m", "prompt_hash": "p"}
"""Resolved names for a model in tbench's own loop; elsewhere its settings have no effect."""


def a_plan(run: str = "r", *, seeds: tuple[int, ...] = (0,), agent: str = "tests", **known: Any) -> RunPlan:
    """A plan with what is locked and with settings, both given by their names alone."""
    locked = {name: known.pop(name) for name in Locked.model_fields.keys() & known.keys()}
    # Without a word, a failed attempt is the last one.
    config = a_config(**{"retries": 0} | known)
    return RunPlan(run=run, config=config, locked=Locked(agent=agent, **locked), seeds=seeds)


def a_document(plan: RunPlan | None = None, tasks: Iterable[Task] = ()) -> RunDocument:
    planned = tuple(PlannedTask(name=task.name, hash=task.hash) for task in tasks)
    return RunDocument(**dict(plan or a_plan()), tasks=planned)
