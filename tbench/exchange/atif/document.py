"""A trajectory of tbench's as an ATIF 1.8 document.

The prompts become steps of `system` and `user`, each reply a step of `agent` with what it typed as tool calls and what
came back as its observation. docs/exchange.md says where everything is.
"""

from __future__ import annotations

from typing import Any

from tbench.exchange.atif.session_cast import cast_times
from tbench.exchange.atif.steps import document_steps, token_counts
from tbench.exchange.chosen import ExportedPart, ExportedTrial
from tbench.exchange.protocol_of import RunProtocol, protocol_of
from tbench.storage.read_run import StoredRun

SCHEMA_VERSION = "ATIF-v1.8"
UNKNOWN_VERSION = "unknown"
"""The version of an agent whose run does not say; the format wants one."""


def atif_document(trial: ExportedTrial, part: ExportedPart) -> dict[str, Any] | None:
    """The document of one conversation of a trial; None where nothing was ever said in it."""
    result, trajectory = trial.result, part.trajectory
    protocol = protocol_of(trial.run, trajectory.protocol)
    times = cast_times(part.directory / "session.cast", trajectory.steps, result.started_at)
    steps = document_steps(trajectory, protocol, times)
    if not steps:
        return None
    totals = token_counts(trajectory.usage, "total_")
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": result.trial,
        "trajectory_id": trajectory_id(trial, part),
        "agent": _agent(trial, part, protocol),
        "steps": steps,
        "final_metrics": {**totals, "total_steps": len(steps), "extra": _metrics(part)},
        "extra": _about(trial, part),
    }


def trajectory_id(trial: ExportedTrial, part: ExportedPart) -> str:
    """What tells this document from all others: run, trial, attempt, step of the task."""
    result = trial.result
    words = [result.run, result.trial]
    if result.attempt > 1:
        words.append(f"attempt-{result.attempt}")
    if part.task_step is not None:
        words.append(part.task_step.name)
    return "/".join(words)


def agent_version(run: StoredRun) -> str:
    """The version of tbench that ran it, where that is known."""
    return (run.document.tbench_version if run.document is not None else "") or UNKNOWN_VERSION


def _agent(trial: ExportedTrial, part: ExportedPart, protocol: RunProtocol) -> dict[str, Any]:
    result, document = trial.result, trial.run.document
    agent: dict[str, Any] = {"name": result.agent, "version": agent_version(trial.run)}
    if result.model is not None:
        agent["model_name"] = result.model
    if protocol.tools:
        agent["tool_definitions"] = [dict(tool) for tool in protocol.tools]
    extra: dict[str, Any] = {"protocol": part.trajectory.protocol}
    if document is not None:
        locked, model = document.locked, document.config.model
        extra |= {"prompt_hash": locked.prompt_hash, "shell_state": locked.shell_state}
        extra |= {"agent_sha256": locked.agent_sha256} if locked.agent_sha256 else {}
        names = ("temperature", "top_p", "max_tokens", "seed_scheme", "template", "strip_thinking", "send_reasoning")
        extra["sampling"] = {name: getattr(model, name) for name in names}
    return {**agent, "extra": extra}


def _metrics(part: ExportedPart) -> dict[str, Any]:
    trajectory = part.trajectory
    return {
        "outcome": trajectory.outcome,
        "warnings": dict(trajectory.warnings),
        "compactions": len(trajectory.compactions),
    }


def _about(trial: ExportedTrial, part: ExportedPart) -> dict[str, Any]:
    """What the benchmark says of the trial; the reward is that of the step where the task has several."""
    result, step = trial.result, part.task_step
    document = trial.run.document
    hashes = {task.name: task.hash for task in document.tasks} if document is not None else {}
    about: dict[str, Any] = {
        "run": result.run,
        "trial": result.trial,
        "task": result.task,
        "task_hash": hashes.get(result.task),
        "seed": result.seed,
        "attempt": result.attempt,
        "reward": result.reward if step is None else step.reward,
        "metrics": dict(result.metrics if step is None else step.metrics),
        "outcome": result.outcome if step is None else step.outcome,
        "error": None if result.error is None else result.error.model_dump(mode="json"),
        "tamper": list(result.integrity.tamper),
        "human_touched": result.human_touched,
        "started_at": result.started_at.isoformat(),
        "finished_at": result.finished_at.isoformat(),
    }
    if step is not None:
        about |= {"task_step": step.name, "trial_reward": result.reward}
    return about
