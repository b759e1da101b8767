"""Recorded conversations out of files: our own trajectories, ATIF, and lines of chat messages.

Only reads. What cannot be used is a problem with a place and a reason; nothing here raises for what a file holds.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard

from pydantic import ValidationError

from harness.trajectory import TRAJECTORY_SCHEMA_VERSION, Trajectory
from tbench.errors import UsageError
from tbench.files import refuse_other_version
from tbench.proxies.datasets.records import RecordedConversation, Turn
from tbench.proxies.json_files import object_in
from tbench.reward import is_solved
from tbench.storage.record_directory import first_problem
from tbench.text import one_line

# Conversations out of ATIF, the trajectory format of Harbor (`ATIF-v1.0` to `v1.7`; RFC 0001 of that project).
#
# Terminus-2 writes it in two ways. With `raw_content` a step's message is the reply itself. Otherwise the message is
# `Analysis: …` and `Plan: …`, and each command a call of `bash_command`: then the reply is put together again as the
# JSON that its prompt asks for. What cannot be told for certain ends the conversation there: later turns saw it.

_PARSE_ERROR = "Previous response had parsing errors:"
_ANALYSIS, _PLAN, _BETWEEN = "Analysis: ", "Plan: ", "\nPlan: "
_COMMAND, _COMPLETE = "bash_command", "mark_task_complete"


class Refused(Exception):
    """A recording that gives no dataset. The message says why, in one line without the file's name."""


class _Cut(Exception):
    """A step from which on it is not known what the model was shown or answered."""


def is_atif(value: object) -> bool:
    """Whether `value` is the root object of an ATIF file."""
    return isinstance(value, dict) and str(value.get("schema_version", "")).startswith("ATIF")


def read_atif(root: dict[str, Any], source: str) -> RecordedConversation:
    """Read a trajectory. Raises Refused for one whose replies were not Terminus-2's JSON."""
    steps = root.get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise Refused("ATIF without a list of steps")
    is_rebuilt = _is_rebuilt(root, steps)
    turns: list[Turn] = []
    rebuilt, cut = 0, ""
    try:
        for step in steps:
            turns += _turns(step, is_rebuilt)
            rebuilt += is_rebuilt and _is_own_reply(step)
    except _Cut as reason:
        cut = f"step {step.get('step_id', '?')}: {reason}"
    replies = sum(step.get("source") == "agent" for step in steps)
    return RecordedConversation(tuple(turns), source, total_steps=replies, cut=cut, rebuilt=rebuilt)


def _is_own_reply(step: dict[str, Any]) -> bool:
    return step.get("source") == "agent" and not step.get("is_copied_context")


def _is_rebuilt(root: dict[str, Any], steps: list[dict[str, Any]]) -> bool:
    """Whether replies have to be put together from calls. Raises Refused where that is not possible."""
    agent = root.get("agent")
    agent = agent if isinstance(agent, dict) else {}
    extra = agent.get("extra")
    parser = extra.get("parser") if isinstance(extra, dict) else None
    if parser not in (None, "json"):
        raise Refused(f"its agent answers in {str(parser)[:40]!r}, and a replay dataset is answered in JSON")
    calls = [step["tool_calls"] for step in steps if _is_own_reply(step) and step.get("tool_calls")]
    if not calls:
        return False
    if agent.get("name") != "terminus-2":
        raise Refused(
            f"agent {str(agent.get('name'))[:60]!r} acts by tool calls; only Terminus-2's can be turned into JSON"
        )
    if parser is None and not any('"keystrokes"' in str(step.get("message")) for step in steps[:2]):
        raise Refused("neither agent.extra.parser nor the prompt says that replies were JSON")
    return True


def _turns(step: dict[str, Any], is_rebuilt: bool) -> list[Turn]:
    source, text = step.get("source"), step.get("message")
    results = _results(step)
    if any(result.get("subagent_trajectory_ref") for result in results):
        raise _Cut("the context was summarised; what the model was shown after that is not recorded")
    if not isinstance(text, str):
        raise _Cut("the message is not text")
    if source in ("system", "user"):
        return [Turn(source, text)]
    if source != "agent":
        raise _Cut(f"unknown source {str(source)[:40]!r}")
    if step.get("is_copied_context"):
        return [Turn("assistant", text, is_copy=True)]
    shown = _shown(results)
    reply = _rebuilt_reply(step, text, shown) if is_rebuilt else text
    fault = "format_error" if shown.startswith(_PARSE_ERROR) else ""
    return [Turn("assistant", reply, fault=fault), *([Turn("user", shown)] if shown else [])]


def _results(step: dict[str, Any]) -> list[dict[str, Any]]:
    observation = step.get("observation")
    results = observation.get("results") if isinstance(observation, dict) else None
    return [result for result in results if isinstance(result, dict)] if isinstance(results, list) else []


def _shown(results: list[dict[str, Any]]) -> str:
    """The text that went back to the model: one for all commands of a reply. Raises _Cut."""
    contents = [result["content"] for result in results if result.get("content") is not None]
    if len(contents) > 1 or not all(isinstance(content, str) for content in contents):
        raise _Cut("several observations, or one that is not text: the message that the model got is not recorded")
    return str(contents[0]) if contents else ""


def _rebuilt_reply(step: dict[str, Any], text: str, shown: str) -> str:
    """The reply as the JSON of Terminus-2's prompt. Raises _Cut.

    Durations are those that were used, which are 60 at most.
    """
    if shown.startswith(_PARSE_ERROR):
        raise _Cut("a reply that could not be read is not recorded")
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
            raise _Cut(f"a call of {str(name)[:40]!r} is no command of Terminus-2")
    reply = {"analysis": analysis, "plan": plan, "commands": commands, "task_complete": complete}
    return json.dumps(reply, ensure_ascii=False, indent=2)


def _analysis_and_plan(text: str) -> tuple[str, str]:
    if text.count(_BETWEEN) > 1:
        raise _Cut("where the analysis ends and the plan begins cannot be told")
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
"""Our only protocol whose prompt asks for the format that a replay dataset is answered in."""

_ROLE_NAMES = {"human": "user", "gpt": "assistant"}  # as ShareGPT's `from` has them
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
    """A place where a conversation was looked for: the conversation, or why there is none."""

    where: str
    """`FILE`, or `FILE:LINE`."""
    conversation: RecordedConversation | None = None
    problem: str = ""
    note: str = ""
    """What was tolerated; empty for nothing."""
    is_filtered: bool = False
    """It was left out because of its verdict, or is an empty line: the file is not at fault."""


def read_all(paths: Iterable[Path], only: Only, sources: list[SourceFile]) -> Iterator[Candidate]:
    """Read every conversation of the files in order, and add the files to `sources` as they are read.

    A JSONL file holds one per line; empty lines give one, too, as a line's number names its task. Raises UsageError for
    a path that cannot be read at all, and for a directory without a trajectory.
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
        raise UsageError(f"{path}: no trajectory.json in it or below it; give a run directory, or files")
    return _last_attempts(sorted(found, key=_natural_order))


def _natural_order(path: Path) -> list[tuple[int, str]]:
    """A sort key by which seed-2 comes before seed-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(str(path))]


def _home(file: Path) -> Path:
    """Directory of the result that a trajectory belongs to: of steps of a task, and of Harbor's, it lies further up."""
    directory = file.parent.parent if file.parent.name == "agent" else file.parent
    return directory.parent.parent if directory.parent.name == "steps" else directory


def _last_attempts(files: list[Path]) -> list[Path]:
    """The files without earlier attempts: of each of our own trials the last final attempt that came to an end."""
    last: dict[Path, tuple[int, Path]] = {}
    for file in files:
        home = _home(file)
        attempt = _ATTEMPT.fullmatch(home.name)
        trial, number = (home.parent, int(attempt[1])) if attempt else (home, 1)
        # A step of a task stands for itself, and so does a continuation.
        trial = trial / file.parent.relative_to(home) if file.name == "trajectory.json" else file
        result = object_in(home / "result.json")
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
            if _is_list_of_conversations(value):
                yield from (_conversation(f"{file}[{at}]", each, "", "") for at, each in enumerate(value))
            else:
                yield _read_trial(file, value, only, _decoded(raw)[1])
            return
    lines = raw.removesuffix(b"\n").split(b"\n")
    for number, line in enumerate(lines, start=1):
        yield _read_line(f"{file}:{number}", line)


def _is_list_of_conversations(value: object) -> TypeGuard[list[Any]]:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(each, dict) and ("messages" in each or "conversations" in each) for each in value)


def _decoded(raw: bytes) -> tuple[str, str]:
    """The text of `raw`, and a note where it was not UTF-8."""
    try:
        return raw.decode("utf-8-sig"), ""
    except UnicodeDecodeError:
        return raw.decode("utf-8-sig", "replace"), "bytes that are not UTF-8 became U+FFFD"


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
    """Read a trial's file, whose verdict lies beside it, or in Harbor's layout one directory above."""
    where = str(file)
    result = object_in(_home(file) / "result.json") or {}
    if only == "passed":
        reward = _reward(result)
        if reward is None:
            return Candidate(
                where, problem="no result.json with a reward, so nothing says that it passed", is_filtered=True
            )
        if not is_solved(reward):
            return Candidate(where, problem=f"did not pass (reward {reward:g})", is_filtered=True)
    integrity = result.get("integrity")
    if only == "passed" and isinstance(integrity, dict) and integrity.get("tamper"):
        note = "; ".join([*([note] if note else []), "passed, with signs of tampering (its result's integrity.tamper)"])
    return _conversation(where, value, _source(file, result), note)


def _reward(result: dict[str, Any]) -> float | None:
    """The reward in our result.json, or Harbor's `verifier_result.rewards.reward`; None without one."""
    reward = result.get("reward")
    verifier = result.get("verifier_result")
    if isinstance(verifier, dict) and isinstance(verifier.get("rewards"), dict):
        reward = verifier["rewards"].get("reward")
    return float(reward) if isinstance(reward, int | float) and math.isfinite(reward) else None


def _source(file: Path, result: dict[str, Any]) -> str:
    """The source `RUN/seed-N/TASK`, or Harbor's `DATASET/TASK`: the task comes last, as it is the group."""
    home = _home(file)
    directory = home.parent if _ATTEMPT.fullmatch(home.name) else home
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
    except Refused as reason:
        return Candidate(where, problem=str(reason))


def _read(value: object, source: str) -> RecordedConversation:
    if isinstance(value, list):
        value = {"messages": value}
    if not isinstance(value, dict):
        raise Refused("not a conversation: neither an object nor a list of messages")
    source = source or _named_source(value)
    if is_atif(value):
        return read_atif(value, source)
    if "protocol" in value:
        return _read_own(value, source)
    return _read_chat(value, source)


def _named_source(value: dict[str, Any]) -> str:
    found = (value.get(key) for key in ("_source_file", "source"))
    return next((each for each in found if isinstance(each, str) and each), "")


def _read_chat(value: dict[str, Any], source: str) -> RecordedConversation:
    """Read `messages` or `conversations`, of `role` and `content` or `from` and `value`. Raises Refused."""
    messages = value.get("messages", value.get("conversations"))
    if not isinstance(messages, list) or not messages:
        raise Refused("no messages: neither `messages` nor `conversations` is a list with something in it")
    turns = []
    for message in messages:
        message = message if isinstance(message, dict) else {}
        if message.get("role") == "assistant" and message.get("tool_calls"):
            raise Refused("its replies are tool calls; a replay dataset is answered in the JSON of Terminus-2")
        role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
        turns.append(Turn(_ROLE_NAMES.get(role, role) if isinstance(role, str) else role, content))
    return RecordedConversation(tuple(turns), source)


def _read_own(value: dict[str, Any], source: str) -> RecordedConversation:
    try:
        refuse_other_version(value, TRAJECTORY_SCHEMA_VERSION)
        trajectory = Trajectory.model_validate(value)
    except ValidationError as error:
        raise Refused(first_problem(error, "trajectory")) from None
    except ValueError as error:
        raise Refused(str(error)) from None
    if trajectory.protocol != PROTOCOL:
        raise Refused(
            f"protocol {trajectory.protocol}: its prompt does not ask for the JSON that a replay is scored by, "
            f"and another prompt would be a conversation that never was; record with --protocol {PROTOCOL}"
        )
    if not trajectory.messages:
        raise Refused("no messages: the trial ended before its first request")
    return _own_turns(trajectory, source)


def _own_turns(trajectory: Trajectory, source: str) -> RecordedConversation:
    """What the model was shown, up to the first time that the history was made shorter. Raises Refused."""
    cut, steps = "", trajectory.steps
    if trajectory.compactions:
        first = trajectory.compactions[0].step
        steps = tuple(step for step in steps if step.index < first)
        cut = f"step {first}: the context was full; what the model was shown after that is not recorded"
    # The protocol opens with one message; every reply and what answered it is in the steps.
    turns = [Turn(trajectory.messages[0].role, trajectory.messages[0].content)]
    for step in steps:
        turns.append(Turn("assistant", step.reply.content, fault="format_error" if step.format_error else ""))
        if step.observation:
            turns.append(Turn("user", step.observation))
    if not cut:
        told = [(message.role, message.content) for message in trajectory.messages]
        if told != [(turn.role, turn.content) for turn in turns]:
            raise Refused("messages and steps do not tell the same conversation")
    return RecordedConversation(tuple(turns), source, total_steps=len(trajectory.steps), cut=cut)
