"""Reads recorded conversations from files: trajectories of tbench, ATIF, and lines of chat messages.

Unusable content is returned as a problem with location and reason; the content of a file raises no exception.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from harness.trajectory import TRAJECTORY_SCHEMA_VERSION, Trajectory
from tbench.errors import UsageError
from tbench.files import read_object_or_none, refuse_other_version
from tbench.proxies.datasets.records import RecordedConversation, Turn
from tbench.reward import is_solved
from tbench.storage.record_directory import first_problem
from tbench.text import one_line

# ATIF is the trajectory format of Harbor (`ATIF-v1.0` to `v1.7`; RFC 0001 of that project).
#
# Terminus-2 writes it in two ways. With `raw_content` a step's message is the reply itself. Otherwise the message is
# `Analysis: …` and `Plan: …`, and each command a call of `bash_command`: then the reply is reconstructed as the JSON
# that its prompt asks for. At the first ambiguity the conversation ends, because later turns depend on it.

_PARSE_ERROR = "Previous response had parsing errors:"
_ANALYSIS, _PLAN, _BETWEEN = "Analysis: ", "Plan: ", "\nPlan: "
_COMMAND, _COMPLETE = "bash_command", "mark_task_complete"


class Unusable(Exception):
    """The recording cannot become a dataset. The message is one line with the reason, without the file's name."""


class _Cut(Exception):
    """From this step on, prompts or replies are not known."""


def read_atif(root: dict[str, Any], source: str) -> RecordedConversation:
    """Read an ATIF trajectory. Raises Unusable if its replies were not Terminus-2's JSON."""
    steps = root.get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise Unusable("ATIF without a list of steps")
    is_rebuilt = _is_rebuilt(root, steps)
    turns: list[Turn] = []
    rebuilt, cut = 0, ""
    try:
        for step in steps:
            turns += _turns(step, is_rebuilt)
            rebuilt += is_rebuilt and _is_original_reply(step)
    except _Cut as reason:
        cut = f"step {step.get('step_id', '?')}: {reason}"
    replies = sum(step.get("source") == "agent" for step in steps)
    return RecordedConversation(tuple(turns), source, total_steps=replies, cut=cut, rebuilt=rebuilt)


def _is_original_reply(step: dict[str, Any]) -> bool:
    return step.get("source") == "agent" and not step.get("is_copied_context")


def _is_rebuilt(root: dict[str, Any], steps: list[dict[str, Any]]) -> bool:
    """Whether replies have to be reconstructed from calls. Raises Unusable if that is impossible."""
    agent = root.get("agent")
    agent = agent if isinstance(agent, dict) else {}
    extra = agent.get("extra")
    parser = extra.get("parser") if isinstance(extra, dict) else None
    if parser not in (None, "json"):
        raise Unusable(f"its agent replies in {str(parser)[:40]!r}, but a replay dataset needs JSON")
    calls = [step["tool_calls"] for step in steps if _is_original_reply(step) and step.get("tool_calls")]
    if not calls:
        return False
    if agent.get("name") != "terminus-2":
        raise Unusable(
            f"agent {str(agent.get('name'))[:60]!r} acts by tool calls; only Terminus-2's can be converted to JSON"
        )
    if parser is None and not any('"keystrokes"' in str(step.get("message")) for step in steps[:2]):
        raise Unusable("neither agent.extra.parser nor the prompt shows that replies were JSON")
    return True


def _turns(step: dict[str, Any], is_rebuilt: bool) -> list[Turn]:
    source, text = step.get("source"), step.get("message")
    results = _results(step)
    if any(result.get("subagent_trajectory_ref") for result in results):
        raise _Cut("the context was summarised; the later prompts are not recorded")
    if not isinstance(text, str):
        raise _Cut("the message is not text")
    if source in ("system", "user"):
        return [Turn(source, text)]
    if source != "agent":
        raise _Cut(f"unknown source {str(source)[:40]!r}")
    if step.get("is_copied_context"):
        return [Turn("assistant", text, is_copy=True)]
    observation = _observation(results)
    reply = _rebuilt_reply(step, text, observation) if is_rebuilt else text
    fault = "format_error" if observation.startswith(_PARSE_ERROR) else ""
    return [Turn("assistant", reply, fault=fault), *([Turn("user", observation)] if observation else [])]


def _results(step: dict[str, Any]) -> list[dict[str, Any]]:
    observation = step.get("observation")
    results = observation.get("results") if isinstance(observation, dict) else None
    return [result for result in results if isinstance(result, dict)] if isinstance(results, list) else []


def _observation(results: list[dict[str, Any]]) -> str:
    """Return the observation, which is one text for all commands of a reply. Raises _Cut."""
    contents = [result["content"] for result in results if result.get("content") is not None]
    if len(contents) > 1 or not all(isinstance(content, str) for content in contents):
        raise _Cut("several observations, or one that is not text: the model's next message is not recorded")
    return str(contents[0]) if contents else ""


def _rebuilt_reply(step: dict[str, Any], text: str, observation: str) -> str:
    """Reconstruct the reply as JSON according to Terminus-2's prompt. Raises _Cut.

    Durations are the ones used, which are at most 60.
    """
    if observation.startswith(_PARSE_ERROR):
        raise _Cut("a reply that could not be parsed is not recorded")
    analysis, plan = _analysis_and_plan(text)
    commands: list[dict[str, Any]] = []
    complete = False
    calls = step.get("tool_calls") or []
    for call in calls if isinstance(calls, list) else [calls]:
        name = call.get("function_name") if isinstance(call, dict) else None
        arguments = call.get("arguments") if isinstance(call, dict) else None
        if name == _COMPLETE:
            complete = True
        elif name == _COMMAND and isinstance(arguments, dict) and isinstance(arguments.get("keystrokes"), str):
            commands.append({"keystrokes": arguments["keystrokes"], "duration": arguments.get("duration", 1.0)})
        else:
            raise _Cut(f"a call of {str(name)[:40]!r} is not a command of Terminus-2")
    reply = {"analysis": analysis, "plan": plan, "commands": commands, "task_complete": complete}
    return json.dumps(reply, ensure_ascii=False, indent=2)


def _analysis_and_plan(text: str) -> tuple[str, str]:
    if text.count(_BETWEEN) > 1:
        raise _Cut("it is ambiguous where the analysis ends and the plan begins")
    if text.startswith(_ANALYSIS):
        analysis, _, plan = text.removeprefix(_ANALYSIS).partition(_BETWEEN)
        return analysis, plan
    if text.startswith(_PLAN) and _BETWEEN not in text:
        return "", text.removeprefix(_PLAN)
    if not text:
        return "", ""
    raise _Cut("the message is neither a reply nor its analysis and plan")


Only = Literal["passed", "all"]
PROTOCOL = "keystrokes-json"
"""The only protocol of tbench with the reply format of replay datasets."""

_ROLE_NAMES = {"human": "user", "gpt": "assistant"}  # values of ShareGPT's `from`
_TRAJECTORY = re.compile(r"trajectory(\.cont-\d+)?\.json")
_ATTEMPT = re.compile(r"attempt-(\d+)")
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True)
class SourceFile:
    """One file that was read."""

    path: Path
    sha256: str


@dataclass(frozen=True)
class Candidate:
    """A file or line with a conversation, or the reason why there is none."""

    where: str
    """`FILE`, or `FILE:LINE`."""
    conversation: RecordedConversation | None = None
    problem: str = ""
    note: str = ""
    """Tolerated problem, if any."""
    is_filtered: bool = False
    """Whether it was left out because of its verdict, or is an empty line; the file itself is not faulty then."""


def read_all(paths: Iterable[Path], only: Only, sources: list[SourceFile]) -> Iterator[Candidate]:
    """Read all conversations of the files in order, and add the files to `sources` as they are read.

    A JSONL file has one per line; empty lines yield a candidate, too, as line numbers name tasks. Raises UsageError for
    an unreadable path, and for a directory without a trajectory.
    """
    for path in paths:
        for file in _files(path):
            try:
                raw = file.read_bytes()
            except OSError as error:
                raise UsageError(f"{file}: {error.strerror or error}; give recorded conversations") from None
            sources.append(SourceFile(file, hashlib.sha256(raw).hexdigest()))
            yield from _read_file(file, raw, only)


# -- which files -----------------------------------------------------------------------------------


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = [each for each in path.rglob("trajectory*.json") if _TRAJECTORY.fullmatch(each.name)]
    if not found:
        raise UsageError(f"{path}: contains no trajectory.json; give a run directory, or files")
    return _last_attempts(sorted(found, key=_natural_key))


def _natural_key(path: Path) -> list[tuple[int, str]]:
    """Return a sort key that puts seed-2 before seed-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(str(path))]


def _result_directory(file: Path) -> Path:
    """Return the directory of a trajectory's result, which is further up for task steps and in Harbor's layout."""
    directory = file.parent.parent if file.parent.name == "agent" else file.parent
    return directory.parent.parent if directory.parent.name == "steps" else directory


def _last_attempts(files: list[Path]) -> list[Path]:
    """Filter out earlier attempts: of each trial of tbench only the last final attempt is kept."""
    last: dict[Path, tuple[int, Path]] = {}
    for file in files:
        directory = _result_directory(file)
        attempt = _ATTEMPT.fullmatch(directory.name)
        trial, number = (directory.parent, int(attempt[1])) if attempt else (directory, 1)
        # Task steps and continuations are separate files to keep.
        trial = trial / file.parent.relative_to(directory) if file.name == "trajectory.json" else file
        result = read_object_or_none(directory / "result.json")
        is_final = result is not None and result.get("final") is not False
        rank = number if is_final else 0
        if trial not in last or rank > last[trial][0]:
            last[trial] = (rank, file)
    return [file for _, file in last.values()]


# -- one file --------------------------------------------------------------------------------------


def _read_file(file: Path, raw: bytes, only: Only) -> Iterator[Candidate]:
    if not raw.strip():
        yield Candidate(str(file), problem="the file is empty")
        return
    if file.suffix != ".jsonl":
        try:
            value = json.loads(_decoded(raw)[0])
        except (ValueError, RecursionError) as error:
            if b"\n{" not in raw.strip():
                yield Candidate(str(file), problem=f"not JSON ({one_line(str(error))})")
                return
        else:
            is_list = isinstance(value, list) and bool(value)
            if is_list and all(
                isinstance(each, dict) and each.keys() & {"messages", "conversations"} for each in value
            ):
                yield from (_conversation(f"{file}[{at}]", each, "", "") for at, each in enumerate(value))
            else:
                yield _read_trial(file, value, only, _decoded(raw)[1])
            return
    lines = raw.removesuffix(b"\n").split(b"\n")
    for number, line in enumerate(lines, start=1):
        yield _read_line(f"{file}:{number}", line)


def _decoded(raw: bytes) -> tuple[str, str]:
    """Decode `raw`; return its text, and a note if it is not UTF-8."""
    try:
        return raw.decode("utf-8-sig"), ""
    except UnicodeDecodeError:
        return raw.decode("utf-8-sig", "replace"), "invalid UTF-8 was replaced by U+FFFD"


def _read_line(where: str, line: bytes) -> Candidate:
    if not line.strip():
        return Candidate(where, is_filtered=True)
    text, note = _decoded(line)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Candidate(where, problem=f"not JSON ({one_line(str(error), 120)})")
    return _conversation(where, value, "", note)


def _read_trial(file: Path, value: object, only: Only, note: str) -> Candidate:
    """Read a trial's file; its result is next to it, or in Harbor's layout one directory above."""
    where = str(file)
    result = read_object_or_none(_result_directory(file) / "result.json") or {}
    if only == "passed":
        reward = _reward(result)
        if reward is None:
            return Candidate(
                where, problem="no result.json with a reward, so it is unknown if it passed", is_filtered=True
            )
        if not is_solved(reward):
            return Candidate(where, problem=f"did not pass (reward {reward:g})", is_filtered=True)
    integrity = result.get("integrity")
    if only == "passed" and isinstance(integrity, dict) and integrity.get("tamper"):
        note = "; ".join([*([note] if note else []), "passed, with signs of tampering (its result's integrity.tamper)"])
    return _conversation(where, value, _source(file, result), note)


def _reward(result: dict[str, Any]) -> float | None:
    """Return the reward of a result.json of tbench, or Harbor's `verifier_result.rewards.reward`; None without one."""
    reward = result.get("reward")
    verifier = result.get("verifier_result")
    if isinstance(verifier, dict) and isinstance(verifier.get("rewards"), dict):
        reward = verifier["rewards"].get("reward")
    return float(reward) if isinstance(reward, int | float) and math.isfinite(reward) else None


def _source(file: Path, result: dict[str, Any]) -> str:
    """Return the source `RUN/seed-N/TASK`, or Harbor's `DATASET/TASK`; its last part, the task, is the group."""
    directory = _result_directory(file)
    directory = directory.parent if _ATTEMPT.fullmatch(directory.name) else directory
    task = result.get("task", result.get("task_name"))
    if not isinstance(task, str) or not task:
        is_ours = directory.name.startswith("seed-")
        task = directory.parent.name if is_ours else directory.resolve().name.partition("__")[0]
    head = [str(result[key]) for key in ("run", "source") if isinstance(result.get(key), str)]
    seed = [f"seed-{result['seed']}"] if isinstance(result.get("seed"), int) else []
    return "/".join([*head, *seed, task.rpartition("/")[2]])


# -- one conversation ------------------------------------------------------------------------------


def _conversation(where: str, value: object, source: str, note: str) -> Candidate:
    try:
        return Candidate(where, _read(value, source), note=note)
    except Unusable as reason:
        return Candidate(where, problem=str(reason))


def _read(value: object, source: str) -> RecordedConversation:
    if isinstance(value, list):
        value = {"messages": value}
    if not isinstance(value, dict):
        raise Unusable("not a conversation: must be an object or a list of messages")
    named = (value.get(key) for key in ("_source_file", "source"))
    source = source or next((each for each in named if isinstance(each, str) and each), "")
    if str(value.get("schema_version", "")).startswith("ATIF"):
        return read_atif(value, source)
    if "protocol" in value:
        return _read_trajectory(value, source)
    return _read_chat(value, source)


def _read_chat(value: dict[str, Any], source: str) -> RecordedConversation:
    """Read `messages` or `conversations`, of `role` and `content` or `from` and `value`. Raises Unusable."""
    messages = value.get("messages", value.get("conversations"))
    if not isinstance(messages, list) or not messages:
        raise Unusable("no messages: neither `messages` nor `conversations` is a non-empty list")
    turns = []
    for message in messages:
        message = message if isinstance(message, dict) else {}
        if message.get("role") == "assistant" and message.get("tool_calls"):
            raise Unusable("its replies are tool calls, but a replay dataset needs the JSON of Terminus-2")
        role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
        turns.append(Turn(_ROLE_NAMES.get(role, role) if isinstance(role, str) else role, content))
    return RecordedConversation(tuple(turns), source)


def _read_trajectory(value: dict[str, Any], source: str) -> RecordedConversation:
    try:
        refuse_other_version(value, TRAJECTORY_SCHEMA_VERSION)
        trajectory = Trajectory.model_validate(value)
    except ValidationError as error:
        raise Unusable(first_problem(error, "trajectory")) from None
    except ValueError as error:
        raise Unusable(str(error)) from None
    if trajectory.protocol != PROTOCOL:
        raise Unusable(
            f"protocol {trajectory.protocol}: its replies are not the JSON that a replay scores; "
            f"record with --protocol {PROTOCOL}"
        )
    if not trajectory.messages:
        raise Unusable("no messages: the trial ended before its first request")
    return _trajectory_turns(trajectory, source)


def _trajectory_turns(trajectory: Trajectory, source: str) -> RecordedConversation:
    """Return the conversation up to the first time that the history was shortened. Raises Unusable."""
    cut, steps = "", trajectory.steps
    if trajectory.inherited and trajectory.compactions:
        raise Unusable("it continues an earlier conversation, which was shortened")
    if trajectory.compactions:
        first = trajectory.compactions[0].step
        steps = tuple(step for step in steps if step.index < first)
        cut = f"step {first}: the context was full; the later prompts are not recorded"
    # The protocol begins with one message; steps contain all replies and observations.
    before = trajectory.messages[: trajectory.inherited or 1]
    turns = [Turn(each.role, each.content, fault="earlier_step" * (each.role == "assistant")) for each in before]
    for step in steps:
        turns.append(Turn("assistant", step.reply.content, fault="format_error" if step.format_error else ""))
        if step.observation:
            turns.append(Turn("user", step.observation))
    if not cut:
        messages = [(message.role, message.content) for message in trajectory.messages]
        if messages != [(turn.role, turn.content) for turn in turns]:
            raise Unusable("messages and steps are different conversations")
    return RecordedConversation(tuple(turns), source, total_steps=len(trajectory.steps), cut=cut)
