"""Converts the trajectory of a Harbor agent to tbench's.

It reads ATIF (`ATIF-v1.0` to `v1.8`: harbor/models/trajectories) with continuations, and lists of OpenAI chat messages,
which custom agents often write. Values that the format lacks (seconds, exit codes) stay 0 or empty.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.trajectory import Message, Reply, Step, ToolCall, Trajectory, Usage
from tbench.exchange.importing.foreign_files import UnusableFile, read_json
from tbench.storage.read_run import text_or_none

NAME = "trajectory.json"
_CONTINUED = "continued_trajectory_ref"
_MAX_PARTS = 100
_TYPED = ("keystrokes", "command", "cmd")
"""Arguments of calls that contain typed text."""
_PARSE_ERROR = "Previous response had parsing errors:"
_COMPLETE_CALL = "mark_task_complete"
_SUBMISSIONS = ("COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", "MINI_SWE_AGENT_FINAL_OUTPUT")
_COMPLETE_TEXT = '"task_complete": true'


def read_trajectory(folder: Path, agent: str) -> Trajectory | None:
    """Read the trajectory in an agent's folder; None if there is none. Raises UnusableFile."""
    file = folder / NAME
    if not file.exists() and not file.is_symlink():
        return None
    value = read_json(file)
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        value = value["messages"]  # mini-swe-agent's format
    if isinstance(value, list):
        return _make_trajectory(agent, _turns_of_chat(value))
    if not isinstance(value, dict) or not isinstance(value.get("steps"), list):
        raise UnusableFile("is neither ATIF nor a list of chat messages")
    return _make_trajectory(agent, _turns_of_atif(value, folder))


def is_submission(step: Step) -> bool:
    """Whether the agent declared with this step that it was done."""
    if any(call.name == _COMPLETE_CALL for call in step.reply.tool_calls):
        return True
    if any(word in action for action in step.actions for word in _SUBMISSIONS):
        return True
    return not step.reply.tool_calls and _COMPLETE_TEXT in step.reply.content


# -- turns ---------------------------------------------------------------------------------------


class _AgentTurn:
    """A reply, the results of its calls, and the messages around it."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.answers: list[tuple[str | None, str]] = []
        """Id of the answered call, and the text."""
        self.messages_before: list[Message] = []
        """Messages before the reply that do not answer a previous reply."""
        self.model_sec = 0.0
        self.command_sec = 0.0
        self.exit_code: int | None = None


def _turns_of_chat(messages: Iterable[object]) -> tuple[list[_AgentTurn], list[Message]]:
    turns: list[_AgentTurn] = []
    pending: list[Message] = []
    for message in messages:
        if not isinstance(message, dict):
            raise UnusableFile("has a message that is not an object")
        role, text = message.get("role"), _text(message.get("content"))
        if role == "assistant":
            reasoning = message.get("reasoning") or message.get("reasoning_content")
            calls = tuple(_chat_call(call) for call in objects_in(message.get("tool_calls")))
            turn = _AgentTurn(Reply(content=text, reasoning=text_or_none(reasoning), tool_calls=calls))
            turn.messages_before, pending = pending, []
            turns.append(turn)
        elif role == "tool" and turns:
            turns[-1].answers.append((text_or_none(message.get("tool_call_id")), text))
        elif role == "system" or not turns:
            pending.append(Message(role="system" if role == "system" else "user", content=text))
        elif role != "exit":  # mini-swe-agent's last message, which is never sent to the model
            turns[-1].answers.append((None, text))
    return turns, pending


def _chat_call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    return _call(call.get("id"), function.get("name"), function.get("arguments"))


def _turns_of_atif(root: Mapping[str, Any], folder: Path) -> tuple[list[_AgentTurn], list[Message]]:
    turns: list[_AgentTurn] = []
    pending: list[Message] = []
    for part in _parts(root, folder):
        for step in objects_in(part["steps"]):
            if step.get("is_copied_context"):
                continue
            if step.get("source") != "agent":
                role: Any = "system" if step.get("source") == "system" else "user"
                pending.append(Message(role=role, content=_text(step.get("message"))))
                continue
            turn = _atif_turn(step)
            turn.messages_before, pending = pending, []
            turns.append(turn)
    return turns, pending


def _parts(root: Mapping[str, Any], folder: Path) -> Iterable[Mapping[str, Any]]:
    """Yield the document and its continuations."""
    seen: set[str] = set()
    while True:
        yield root
        name = root.get(_CONTINUED)
        if not isinstance(name, str) or "/" in name or name in seen or len(seen) >= _MAX_PARTS:
            return
        seen.add(name)
        try:
            root = read_json(folder / name)
        except UnusableFile as problem:
            raise UnusableFile(f"continues in {name[:80]!r}, which {problem}") from None
        if not isinstance(root, dict) or not isinstance(root.get("steps"), list):
            raise UnusableFile(f"continues in {name[:80]!r}, which is not ATIF")


def _atif_turn(step: Mapping[str, Any]) -> _AgentTurn:
    calls = tuple(
        _call(call.get("tool_call_id"), call.get("function_name"), call.get("arguments"))
        for call in objects_in(step.get("tool_calls"))
    )
    metrics = step.get("metrics")
    turn = _AgentTurn(
        Reply(
            content=_text(step.get("message")),
            reasoning=text_or_none(step.get("reasoning_content")),
            tool_calls=calls,
            usage=_usage(metrics if isinstance(metrics, dict) else {}),
            model=text_or_none(step.get("model_name")),
        )
    )
    _read_own_figures(turn, step)
    observation = step.get("observation")
    for result in objects_in(observation.get("results") if isinstance(observation, dict) else None):
        if result.get("content") is not None:
            turn.answers.append((text_or_none(result.get("source_call_id")), _text(result["content"])))
    return turn


def _read_own_figures(turn: _AgentTurn, step: Mapping[str, Any]) -> None:
    """Read the figures that tbench's export stores in `extra`, because ATIF has no fields for them."""
    metrics, extra = step.get("metrics"), step.get("extra")
    own = metrics.get("extra") if isinstance(metrics, dict) else None
    turn.model_sec = _positive(own, "model_sec")
    turn.command_sec = _positive(extra, "command_sec")
    if isinstance(extra, dict) and type(code := extra.get("exit_code")) is int:
        turn.exit_code = code


def _positive(values: object, name: str) -> float:
    value = values.get(name) if isinstance(values, dict) else None
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e9 else 0.0


# -- tbench's trajectory -------------------------------------------------------------------------


def _make_trajectory(agent: str, found: tuple[list[_AgentTurn], list[Message]]) -> Trajectory:
    turns, unanswered = found
    has_calls = any(turn.reply.tool_calls for turn in turns)
    messages: list[Message] = []
    steps = []
    for number, turn in enumerate(turns, start=1):
        messages += turn.messages_before
        step = _step(number, turn, has_calls=has_calls, is_last=number == len(turns))
        steps.append(step)
        messages += _messages(turn)
    counts = Counter(warning.partition(":")[0] for step in steps for warning in step.warnings)
    counts.update(f"format_error:{step.format_error}" for step in steps if step.format_error)
    return Trajectory(
        protocol=agent,
        messages=(*messages, *unanswered),
        steps=tuple(steps),
        usage=sum((step.reply.usage for step in steps), Usage()),
        warnings=dict(counts),
        model_sec=sum(step.model_sec for step in steps),
        command_sec=sum(step.command_sec for step in steps),
    )


def _step(number: int, turn: _AgentTurn, *, has_calls: bool, is_last: bool) -> Step:
    calls, warnings = _calls_made(turn, is_last=is_last)
    observation = "\n".join(text for _, text in turn.answers)
    return Step(
        index=number,
        reply=turn.reply,
        actions=tuple(_typed_text(call) for call in calls if call.name != _COMPLETE_CALL),
        format_error=_format_error(turn, observation, has_calls=has_calls),
        warnings=warnings,
        observation=observation,
        exit_code=turn.exit_code,
        model_sec=turn.model_sec,
        command_sec=turn.command_sec,
    )


def _calls_made(turn: _AgentTurn, *, is_last: bool) -> tuple[list[ToolCall], tuple[str, ...]]:
    """Return the calls that were run. If answers name their calls, calls without an answer were not run."""
    calls = list(turn.reply.tool_calls)
    answered = {call_id for call_id, _ in turn.answers if call_id is not None}
    if len(calls) < 2 or not answered or any(call_id is None for call_id, _ in turn.answers):
        return calls if turn.answers or is_last else [], ()
    if any(call.name == _COMPLETE_CALL for call in calls):  # Terminus-2, whose commands share one answer
        return calls, ()
    made = [call for call in calls if call.id in answered]
    left = len(calls) - len(made)
    return made, (f"calls_not_run: {left} of {len(calls)} calls got no answer",) if left else ()


def _format_error(turn: _AgentTurn, observation: str, *, has_calls: bool) -> str | None:
    if observation.startswith(_PARSE_ERROR):
        return "unreadable_reply"
    if has_calls and not turn.reply.tool_calls and turn.answers:
        return "no_tool_call"
    return None


def _messages(turn: _AgentTurn) -> list[Message]:
    reply, names = turn.reply, {call.id for call in turn.reply.tool_calls}
    own = Message(role="assistant", content=reply.content, reasoning=reply.reasoning, tool_calls=reply.tool_calls)
    answers = (
        Message(role="tool", content=text, tool_call_id=call_id)
        if call_id in names
        else Message(role="user", content=text)
        for call_id, text in turn.answers
    )
    return [own, *answers]


def _typed_text(call: ToolCall) -> str:
    """Return the text that a call typed, or the call itself if it is not a command."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, dict):
        for name in _TYPED:
            if isinstance(text := arguments.get(name), str):
                return text
    return f"{call.name} {call.arguments}"


def _call(call_id: object, name: object, arguments: object) -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(id=text_or_none(call_id) or "", name=text_or_none(name) or "", arguments=text)


def _usage(metrics: Mapping[str, Any]) -> Usage:
    prompt, completion, cached = (
        value if type(value := metrics.get(f"{kind}_tokens")) is int and value >= 0 else None
        for kind in ("prompt", "completion", "cached")
    )
    return Usage(prompt_tokens=prompt or 0, completion_tokens=completion or 0, cached_tokens=cached)


def objects_in(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list; empty for any other type."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(content: object) -> str:
    """Return a message's content as text: the string, or its parts joined; a part without text becomes its type."""
    if isinstance(content, str):
        return content
    parts = objects_in(content)
    return "\n".join(str(part.get("text", f"[{part.get('type', 'part')}]")) for part in parts)
