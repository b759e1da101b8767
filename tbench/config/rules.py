"""Overrides of task settings, and the leaderboard rules that a run of a public benchmark breaks."""

from __future__ import annotations

from collections.abc import Iterator

from tbench.config.document import RunDocument
from tbench.config.settings import RunConfig
from tbench.origin import DatasetOrigin
from tbench.text import counted, names_text


def describe_overrides(config: RunConfig) -> tuple[str, ...]:
    """Describe each override of task settings; empty for a run that changes nothing."""
    overrides = config.overrides
    factors = overrides.timeout_factors
    if len(set(factors.values())) == 1:
        factors = {"every": factors["agent"]}
    words = [f"{kind} timeout x{factor:g}" for kind, factor in factors.items() if factor != 1]
    if overrides.cpus is not None:
        words.append(f"{overrides.cpus:g} cpus instead of each task's")
    if overrides.memory_mb is not None:
        words.append(f"{overrides.memory_mb} MB of memory instead of each task's")
    if overrides.resume_trajectory:
        words.append("one conversation over all steps of a task")
    if config.verify.metric is not None:
        words.append(f"{config.verify.metric!r} counts as the reward")
    return tuple(words)


def broken_rules(document: RunDocument) -> tuple[str, ...]:
    """Describe each leaderboard rule that the run breaks; empty if it breaks none or there is no leaderboard."""
    dataset = document.dataset
    if dataset is None or dataset.trials_per_task is None:
        return ()
    return (
        *_too_few_trials(document, dataset.trials_per_task),
        *_other_tasks(document, dataset),
        *_overridden(document.config),
    )


def _too_few_trials(document: RunDocument, asked_for: int) -> Iterator[str]:
    if (trials := len(document.seeds)) < asked_for:
        yield f"{counted(trials, 'trial')} per task instead of {asked_for}"


def _other_tasks(document: RunDocument, dataset: DatasetOrigin) -> Iterator[str]:
    if len(document.tasks) < dataset.tasks:
        yield f"{len(document.tasks)} of {counted(dataset.tasks, 'task')}"
    if unreadable := tuple(task.name for task in document.tasks if task.invalid):
        yield f"unreadable tasks: {names_text(unreadable)}"
    if dataset.differing:
        yield f"changed tasks: {names_text(dataset.differing)}"
    if dataset.listed_commit and dataset.commit != dataset.listed_commit:
        yield f"tasks not from the listed commit {dataset.listed_commit[:12]}"


def _overridden(config: RunConfig) -> Iterator[str]:
    """Describe settings that change a trial's conditions. Every such setting must be listed here."""
    yield from describe_overrides(config)
    sandbox = config.sandbox
    given = {
        f"--network {sandbox.network}": sandbox.network != "task",
        "--block-host": sandbox.block_host,
        "--no-new-privileges": sandbox.no_new_privileges,
        f"--cap-add {','.join(sandbox.cap_add)}": bool(sandbox.cap_add),
    }
    if flags := [flag for flag, is_given in given.items() if is_given]:
        yield f"container settings changed: {', '.join(flags)}"
    if config.verify.mode == "isolated":
        yield "verifier not in the agent's container: --verify isolated"
