"""Export of trajectories in the Agent Trajectory Interchange Format (ATIF), version 1.8."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from harness.protocols.base import Command
from harness.rendering import without_thinking
from harness.trajectory import Compaction, Message, Reply, Step, ToolCall, Trajectory, Usage
from tbench.exchange.contexts import (
    ContextTurn,
    RunProtocol,
    compactions_before,
    json_object,
    load_run_protocol,
    make_contexts,
    opening_messages,
    typed_text,
)
from tbench.exchange.selection import ExportedPart, ExportedTrial, LeftOutTrials, TrialChoice, select_trials
from tbench.files import safe_relative, write_json
from tbench.storage.read_run import StoredRun
from tbench.storage.recording import cast_events, first_action_times, parse_head
from tbench.storage.run_files import RECORDING_NAME, TRAJECTORY_NAME

# Actions of a step as tool calls; for text protocols these are functions that no request offered

TYPED = "bash_command"
"""Function for typed and executed text of text protocols, named as in Harbor's own agents."""
COMPLETED = "mark_task_complete"
"""Function for a claim of completion, named as in Terminus-2."""

Fields = dict[str, Any]


def action_calls(step: Step, protocol: RunProtocol) -> tuple[list[Fields], list[Fields]]:
    """Return the calls that represent a step's actions, and the calls of its reply that were not run."""
    called = step.reply.tool_calls
    if protocol.protocol is None and called:
        return ([], [_raw_call(call) for call in called]) if step.reply.cut else ([*map(_converted_call, called)], [])
    if protocol.tools_offered:
        ran = _executed_calls(step, protocol)
        return [_converted_call(call) for call in ran], [_raw_call(call) for call in called[len(ran) :]]
    return _typed_calls(step, protocol), [_raw_call(call) for call in called]


def _executed_calls(step: Step, protocol: RunProtocol) -> list[ToolCall]:
    """Return the call that was run, as parsed: at most the first call of the reply."""
    if not step.actions:
        return []
    parsed = protocol.parse(step.reply)
    if parsed is None or parsed.tool_call is None:
        return list(step.reply.tool_calls[:1])
    return [parsed.tool_call]


def _typed_calls(step: Step, protocol: RunProtocol) -> list[Fields]:
    calls = [_call(step, number, each) for number, each in enumerate(_arguments(step, protocol), start=1)]
    parsed = protocol.parse(step.reply) if step.format_error is None else None
    if parsed is not None and parsed.complete and not protocol.types_commands:
        calls.append(_call(step, len(calls) + 1, {}, COMPLETED))
    return calls


def _arguments(step: Step, protocol: RunProtocol) -> Iterator[Fields]:
    """Yield the arguments of a call for each action, with durations in seconds if the reply has them."""
    name = "command" if protocol.types_commands else "keystrokes"
    if not (actions := protocol.actions(step)):
        yield from ({name: typed} for typed in step.actions)
    for action in actions:
        duration = {} if isinstance(action, Command) else {"duration": action.duration_sec}
        yield {name: typed_text(action), **duration}


def _call(step: Step, number: int, arguments: Fields, function: str = TYPED) -> Fields:
    return {"tool_call_id": f"call-{step.index}-{number}", "function_name": function, "arguments": arguments}


def _converted_call(call: ToolCall) -> Fields:
    """Convert a call of the model; arguments that are not a JSON object are stored as text in `extra`."""
    fields = {"tool_call_id": call.id, "function_name": call.name}
    arguments = json_object(call.arguments)
    if arguments is None:
        return {**fields, "arguments": {}, "extra": {"arguments": call.arguments}}
    return {**fields, "arguments": arguments}


def _raw_call(call: ToolCall) -> Fields:
    return {"id": call.id, "name": call.name, "arguments": call.arguments}


# Times of the steps' first actions in a recording


@dataclass(frozen=True, slots=True)
class CastTimes:
    """Start of a recording, and seconds from there to the steps' first actions, by step index.

    Steps without actions, and steps whose actions are not found in the recording, are missing.
    """

    began_at: datetime | None = None
    """Start in whole seconds, from the recording's header; None without a recording."""
    by_step_sec: dict[int, float] = field(default_factory=dict)

    def datetime_at(self, seconds: float) -> datetime | None:
        """Return the time `seconds` after the start of the recording."""
        try:
            return None if self.began_at is None else self.began_at + timedelta(seconds=seconds)
        except OverflowError:
            return None


def cast_times(file: Path, steps: Sequence[Step], trial_began_at: datetime) -> CastTimes:
    """Read an asciicast (version 2) and match its input events with the steps' actions, in order.

    A recording starts after its trial, even if the rounded second in its header is earlier. Anything unreadable or
    unmatched is left out, because a recording is only additional evidence.
    """
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            begun_at = parse_head(next(lines, "")).begun_at
            typed = list(cast_events(lines, "i"))
    except OSError:
        return CastTimes()
    began_at = None if begun_at is None else datetime.fromtimestamp(begun_at, UTC)
    if began_at is not None and trial_began_at.tzinfo is not None:
        began_at = max(began_at, trial_began_at)
    return CastTimes(began_at, first_action_times(steps, typed))


# Steps of an ATIF document: opening messages, replies, and compactions of the history
#
# Format: https://www.harborframework.com/docs/agents/trajectory-format (RFC 0001, version 1.8). Only objects named
# `extra` may contain other keys.

_TAGS = ("<think>", "</think>", "<|channel>thought", "<channel|>")


def _context_steps(turns: Sequence[ContextTurn], protocol: RunProtocol, times: CastTimes) -> Iterator[Fields]:
    """Yield the steps of one context, with observations as in the history of that context."""
    is_answered = False
    for turn, following in zip(turns, (*turns[1:], None), strict=False):
        if is_answered:
            is_answered = False
            continue
        fields = _message_fields(turn.message)
        if turn.step is not None:
            answer = following.message if following is not None and following.message.role in ("user", "tool") else None
            is_answered = answer is not None
            observation = "" if answer is None else answer.content
            fields = _step_fields(turn.step.model_copy(update={"observation": observation}), protocol, times)
        yield {**fields, "is_copied_context": True} if turn.is_copied else fields


def _steps(trajectory: Trajectory, protocol: RunProtocol, times: CastTimes) -> Iterator[Fields]:
    left = list(trajectory.compactions)
    for message in opening_messages(trajectory):
        yield _message_fields(message)
    for step in trajectory.steps:
        for _ in range(min(compactions_before(step), len(left))):
            done = left.pop(0)
            yield from _compaction_fields(done)
        yield _step_fields(step, protocol, times)
    for done in left:
        yield from _compaction_fields(done)


def _message_fields(message: Message) -> Fields:
    source = {"system": "system", "assistant": "agent"}.get(message.role, "user")
    return {"source": source, "message": message.content}


def _step_fields(step: Step, protocol: RunProtocol, times: CastTimes) -> Fields:
    reply = step.reply
    calls, not_run = action_calls(step, protocol)
    cast_time = times.by_step_sec.get(step.index)
    moment = None if cast_time is None else times.datetime_at(cast_time)
    return _without_none(
        {
            "timestamp": None if moment is None else moment.isoformat(),
            "source": "agent",
            **_words(reply),
            "tool_calls": calls or None,
            "observation": _observation(step, calls),
            "metrics": _steps_metrics(reply, step.model_sec),
            "llm_call_count": 1,
            "extra": _without_none(
                {
                    "index": step.index,
                    "exit_code": step.exit_code,
                    "format_error": step.format_error,
                    "warnings": list(step.warnings) or None,
                    "finish_reason": reply.finish_reason,
                    "reply_cut": reply.cut or None,
                    "command_sec": finite(step.command_sec),
                    "cast_time_sec": None if cast_time is None else finite(cast_time),
                    "actions": None if protocol.protocol is not None else list(step.actions) or None,
                    "calls_not_run": not_run or None,
                }
            ),
        }
    )


def _words(reply: Reply) -> Fields:
    """Return the fields of a reply, with its thinking separated, in whichever field it was."""
    answer = without_thinking(reply.content)
    within = _without_tags(reply.content.removesuffix(answer)) if answer != reply.content else ""
    thinking = "\n\n".join(filter(None, (reply.reasoning, within)))
    return _without_none({"model_name": reply.model, "message": answer, "reasoning_content": thinking or None})


def _without_tags(thinking: str) -> str:
    text = thinking.strip()
    for tag in _TAGS:
        text = text.removeprefix(tag).removesuffix(tag).strip()
    return text


def _observation(step: Step, calls: Sequence[Fields]) -> Fields | None:
    """Return the observation, assigned to the call if there is only one."""
    if not step.observation:
        return None
    result: Fields = {"content": step.observation}
    if len(calls) == 1:
        result = {"source_call_id": calls[0]["tool_call_id"], **result}
    return {"results": [result]}


def _steps_metrics(reply: Reply, model_sec: float) -> Fields:
    return {
        **token_counts(reply.usage),
        "extra": _without_none(
            {
                "model_sec": finite(model_sec),
                "latency_sec": finite(reply.latency_sec),
                "waited_sec": finite(reply.waited_sec),
                "attempts": reply.attempts,
            }
        ),
    }


def token_counts(usage: Usage, prefix: str = "") -> Fields:
    """Return the counts reported by the endpoint; unknown counts and incomplete sums are left out."""
    is_reported = not usage.uncounted and (usage.prompt_tokens or usage.completion_tokens)
    return _without_none(
        {
            f"{prefix}prompt_tokens": usage.prompt_tokens if is_reported else None,
            f"{prefix}completion_tokens": usage.completion_tokens if is_reported else None,
            f"{prefix}cached_tokens": usage.cached_tokens,
        }
    )


def _compaction_fields(done: Compaction) -> Iterator[Fields]:
    """Yield the model's summary, if it was asked for one, and a description of the compaction."""
    if done.summary is not None:
        yield {
            "source": "agent",
            **_words(done.summary),
            "metrics": _steps_metrics(done.summary, done.model_sec),
            "llm_call_count": 1,
            "extra": {"context_management": "summary"},
        }
    facts = done.model_dump(mode="json", exclude={"summary", "model_sec"})
    message = (
        f"The context was full: {done.policy} took the history from about {done.tokens_before} to "
        f"{done.tokens_after} tokens."
    )
    yield {"source": "system", "message": message, "extra": {"context_management": "compaction", "compaction": facts}}


def finite(number: float) -> float | None:
    """Round a number to four decimals; None for one that JSON cannot represent."""
    return round(number, 4) if math.isfinite(number) else None


def _without_none(values: Mapping[str, Any]) -> Fields:
    return {name: value for name, value in values.items() if value is not None}


# ATIF documents
#
# Prompts become steps of `system` and `user`, each reply a step of `agent` with its actions as tool calls and its
# observation. docs/reports.md lists the fields.

SCHEMA_VERSION = "ATIF-v1.8"
UNKNOWN_VERSION = "unknown"
"""Version of an agent if it is unknown; the format requires one."""


def atif_document(trial: ExportedTrial, part: ExportedPart) -> Fields | None:
    """Return the document of one conversation of a trial; None if it has no messages."""
    trajectory, protocol = part.trajectory, load_run_protocol(trial.run, part.trajectory)
    steps = list(_steps(trajectory, protocol, _times(trial, part)))
    return _document(trial, part, protocol, steps, trajectory.usage) if steps else None


def linear_documents(trial: ExportedTrial, part: ExportedPart) -> list[Fields]:
    """Return a document for each context of a conversation; each refers to the file of the next.

    Steps copied from the previous context are marked. Replies cut off by the end of a context are left out.
    """
    protocol, times = load_run_protocol(trial.run, part.trajectory), _times(trial, part)
    contexts = make_contexts(part.trajectory, protocol).turns
    made = []
    for number, turns in enumerate(contexts):
        usages = [turn.step.reply.usage for turn in turns if turn.step is not None and not turn.is_copied]
        if not (steps := list(_context_steps(turns, protocol, times))):
            continue
        document = _document(trial, part, protocol, steps, sum(usages, Usage()))
        document["extra"] |= {"context": number + 1, "contexts": len(contexts)}
        if number:
            document["trajectory_id"] += f"/cont-{number}"
        if number + 1 < len(contexts):
            document["continued_trajectory_ref"] = segment_name(number + 1)
        made.append(document)
    return made


def segment_name(number: int) -> str:
    """Return the file name of a context, counted from 0, as in Harbor."""
    return f"trajectory.cont-{number}.json" if number else TRAJECTORY_NAME


def _times(trial: ExportedTrial, part: ExportedPart) -> CastTimes:
    return cast_times(part.directory / RECORDING_NAME, part.trajectory.steps, trial.result.started_at)


def _document(
    trial: ExportedTrial, part: ExportedPart, protocol: RunProtocol, steps: list[Fields], usage: Usage
) -> Fields:
    trajectory = part.trajectory
    of_agent = {
        "outcome": trajectory.outcome,
        "warnings": dict(trajectory.warnings),
        "compactions": len(trajectory.compactions),
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": trial.result.trial,
        "trajectory_id": trajectory_id(trial, part),
        "agent": _agent(trial, part, protocol),
        "steps": [{"step_id": number, **fields} for number, fields in enumerate(steps, start=1)],
        "final_metrics": {**token_counts(usage, "total_"), "total_steps": len(steps), "extra": of_agent},
        "extra": _benchmark_data(trial, part),
    }


def trajectory_id(trial: ExportedTrial, part: ExportedPart) -> str:
    """Return a unique id of the document: run, trial, attempt, task step."""
    result = trial.result
    words = [result.run, result.trial]
    if result.attempt > 1:
        words.append(f"attempt-{result.attempt}")
    if part.task_step is not None:
        words.append(part.task_step.name)
    return "/".join(words)


def agent_and_version(agent: str, run: StoredRun) -> Fields:
    """Return an agent's name and version. Without a version of its own, it has tbench's version, if known."""
    name, _, version = agent.partition("@")
    tbench_version = run.document.tbench_version if run.document is not None else ""
    return {"name": name, "version": version or tbench_version or UNKNOWN_VERSION}


def _agent(trial: ExportedTrial, part: ExportedPart, protocol: RunProtocol) -> Fields:
    result, document = trial.result, trial.run.document
    agent = agent_and_version(result.agent, trial.run)
    if result.model is not None:
        agent["model_name"] = result.model
    if protocol.tools:
        agent["tool_definitions"] = [dict(tool) for tool in protocol.tools]
    extra: Fields = {"protocol": part.trajectory.protocol}
    if document is not None:
        locked, model = document.locked, document.config.model
        extra |= {"prompt_hash": locked.prompt_hash, "shell_state": locked.shell_state}
        extra |= {"agent_sha256": locked.agent_sha256} if locked.agent_sha256 else {}
        names = ("temperature", "top_p", "max_tokens", "seed_scheme", "template", "strip_thinking", "send_reasoning")
        extra["sampling"] = {name: getattr(model, name) for name in names}
    return {**agent, "extra": extra}


def _benchmark_data(trial: ExportedTrial, part: ExportedPart) -> Fields:
    """Return the benchmark's data about the trial; for a task with several steps, the reward is the step's."""
    result, step = trial.result, part.task_step
    about: Fields = {
        "run": result.run,
        "trial": result.trial,
        "task": result.task,
        "task_hash": trial.run.task_hashes.get(result.task),
        "seed": result.seed,
        "attempt": result.attempt,
        "reward": result.reward if step is None else step.reward,
        "metrics": dict(result.metrics if step is None else step.metrics),
        "outcome": result.outcome if step is None else step.outcome,
        "error": None if result.error is None else result.error.model_dump(mode="json"),
        "tamper": list(result.integrity.tamper),
        "human_touched": result.human_touched,
        **({"went_on": [each.model_dump(mode="json") for each in result.went_on]} if result.went_on else {}),
        "started_at": result.started_at.isoformat(),
        "finished_at": result.finished_at.isoformat(),
    }
    if trial.notes:
        kept = {"time", "author", "tags", "text"}
        about["notes"] = [note.model_dump(mode="json", include=kept) for note in trial.notes]
    if step is not None:
        about |= {"task_step": step.name, "trial_reward": result.reward}
    return about


# Files with ATIF documents, one for each conversation


def write_atif(
    run: StoredRun, choice: TrialChoice, directory: Path, left_out: LeftOutTrials, *, linear: bool = False
) -> int:
    """Write the chosen trials below `directory`, with the same paths as in the run, and return their number.

    A task with several steps has a file for each step; with `linear`, each context has one. Raises OSError.
    """
    written = 0
    for trial in select_trials(run, choice, left_out):
        documents = 0
        for part in trial.parts:
            place = directory / safe_relative(str(part.directory.relative_to(run.path)))
            made = linear_documents(trial, part) if linear else [atif_document(trial, part)]
            for number, document in enumerate(filter(None, made)):
                write_json(place / segment_name(number), document)
                documents += 1
        written += bool(documents)
        if not documents:
            left_out.add("without any message")
    return written
