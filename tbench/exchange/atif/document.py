"""A trajectory of tbench's as an ATIF 1.8 document.

The prompts become steps of `system` and `user`, each reply a step of `agent` with what it typed as tool calls and what
came back as its observation. docs/exchange.md says where everything is.
"""

from __future__ import annotations

from typing import Any

from harness.trajectory import Usage
from tbench.exchange.atif.session_cast import CastTimes, cast_times
from tbench.exchange.atif.steps import context_steps, document_steps, token_counts
from tbench.exchange.chosen import ExportedPart, ExportedTrial
from tbench.exchange.contexts import contexts_of
from tbench.exchange.protocol_of import RunProtocol, protocol_of
from tbench.storage.read_run import StoredRun
from tbench.storage.run_files import TRAJECTORY_NAME

AtifFields = dict[str, Any]

SCHEMA_VERSION = "ATIF-v1.8"
UNKNOWN_VERSION = "unknown"
"""The version of an agent whose run does not say; the format wants one."""


def atif_document(trial: ExportedTrial, part: ExportedPart) -> AtifFields | None:
    """The document of one conversation of a trial; None where nothing was ever said in it."""
    trajectory, protocol = part.trajectory, protocol_of(trial.run, part.trajectory.protocol)
    steps = document_steps(trajectory, protocol, _times(trial, part))
    return _document(trial, part, protocol, steps, trajectory.usage) if steps else None


def linear_documents(trial: ExportedTrial, part: ExportedPart) -> list[AtifFields]:
    """A document for each context of a conversation, of which each names the file of the next.

    What was copied from the context before is marked. Replies that were cut by the context's end are in none.
    """
    protocol, times = protocol_of(trial.run, part.trajectory.protocol), _times(trial, part)
    contexts = contexts_of(part.trajectory, protocol).turns
    made = []
    for number, turns in enumerate(contexts):
        said = [turn.step.reply.usage for turn in turns if turn.step is not None and not turn.is_copied]
        if not (steps := context_steps(turns, protocol, times)):
            continue
        document = _document(trial, part, protocol, steps, sum(said, Usage()))
        document["extra"] |= {"context": number + 1, "contexts": len(contexts)}
        if number:
            document["trajectory_id"] += f"/cont-{number}"
        if number + 1 < len(contexts):
            document["continued_trajectory_ref"] = segment_name(number + 1)
        made.append(document)
    return made


def segment_name(number: int) -> str:
    """The file of a context, counted from 0, as Harbor names them."""
    return f"trajectory.cont-{number}.json" if number else TRAJECTORY_NAME


def _times(trial: ExportedTrial, part: ExportedPart) -> CastTimes:
    return cast_times(part.directory / "session.cast", part.trajectory.steps, trial.result.started_at)


def _document(
    trial: ExportedTrial, part: ExportedPart, protocol: RunProtocol, steps: list[AtifFields], usage: Usage
) -> AtifFields:
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": trial.result.trial,
        "trajectory_id": trajectory_id(trial, part),
        "agent": _agent(trial, part, protocol),
        "steps": steps,
        "final_metrics": {**token_counts(usage, "total_"), "total_steps": len(steps), "extra": _metrics(part)},
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


def _agent(trial: ExportedTrial, part: ExportedPart, protocol: RunProtocol) -> AtifFields:
    result, document = trial.result, trial.run.document
    agent: AtifFields = {"name": result.agent, "version": agent_version(trial.run)}
    if result.model is not None:
        agent["model_name"] = result.model
    if protocol.tools:
        agent["tool_definitions"] = [dict(tool) for tool in protocol.tools]
    extra: AtifFields = {"protocol": part.trajectory.protocol}
    if document is not None:
        locked, model = document.locked, document.config.model
        extra |= {"prompt_hash": locked.prompt_hash, "shell_state": locked.shell_state}
        extra |= {"agent_sha256": locked.agent_sha256} if locked.agent_sha256 else {}
        names = ("temperature", "top_p", "max_tokens", "seed_scheme", "template", "strip_thinking", "send_reasoning")
        extra["sampling"] = {name: getattr(model, name) for name in names}
    return {**agent, "extra": extra}


def _metrics(part: ExportedPart) -> AtifFields:
    trajectory = part.trajectory
    return {
        "outcome": trajectory.outcome,
        "warnings": dict(trajectory.warnings),
        "compactions": len(trajectory.compactions),
    }


def _about(trial: ExportedTrial, part: ExportedPart) -> AtifFields:
    """What the benchmark says of the trial; the reward is that of the step where the task has several."""
    result, step = trial.result, part.task_step
    document = trial.run.document
    hashes = {task.name: task.hash for task in document.tasks} if document is not None else {}
    about: AtifFields = {
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
