"""What a step did, as tool calls of an ATIF document: text protocols act by functions that no request offered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from harness.protocols.base import Action, Command
from harness.trajectory import Step, ToolCall
from tbench.exchange.protocol_of import RunProtocol
from tbench.exchange.tool_arguments import json_object

TYPED = "bash_command"
"""The function for what text protocols type and run, as Harbor's own agents name it."""
COMPLETED = "mark_task_complete"
"""The function that stands for a claim of completion, as in Terminus-2."""

CallFields = dict[str, Any]


def calls_of(step: Step, protocol: RunProtocol) -> tuple[list[CallFields], list[CallFields]]:
    """The calls that stand for what a step did, and the calls of its reply that were not run."""
    called = step.reply.tool_calls
    if protocol.protocol is None and called:
        return [_of_tool_call(call) for call in called], []
    if protocol.tools_offered:
        ran = _that_ran(step, protocol)
        return [_of_tool_call(call) for call in ran], [_raw(call) for call in called[len(ran) :]]
    return _typed_calls(step, protocol), [_raw(call) for call in called]


def _that_ran(step: Step, protocol: RunProtocol) -> list[ToolCall]:
    """The call whose command was run, as it was understood; only the first of a reply is."""
    if not step.actions:
        return []
    parsed = protocol.parsed(step.reply)
    if parsed is None or parsed.tool_call is None:
        return list(step.reply.tool_calls[:1])
    return [parsed.tool_call]


def _typed_calls(step: Step, protocol: RunProtocol) -> list[CallFields]:
    calls = [_call(step, number, each) for number, each in enumerate(_arguments(step, protocol), start=1)]
    parsed = protocol.parsed(step.reply) if step.format_error is None else None
    if parsed is not None and parsed.complete and not protocol.types_commands:
        calls.append(_call(step, len(calls) + 1, {}, COMPLETED))
    return calls


def _arguments(step: Step, protocol: RunProtocol) -> Iterable[CallFields]:
    """The arguments of a call for each action, with durations in seconds where the reply gave them."""
    if actions := protocol.actions(step):
        return map(_arguments_of, actions)
    return ({"command" if protocol.types_commands else "keystrokes": typed} for typed in step.actions)


def _arguments_of(action: Action) -> CallFields:
    if isinstance(action, Command):
        return {"command": action.command}
    typed = action.key if action.key is not None else action.keystrokes
    return {"keystrokes": typed, "duration": action.duration_sec}


def _call(step: Step, number: int, arguments: CallFields, function: str = TYPED) -> CallFields:
    return {"tool_call_id": f"call-{step.index}-{number}", "function_name": function, "arguments": arguments}


def _of_tool_call(call: ToolCall) -> CallFields:
    """A call of the model's own; arguments that are no JSON object stand as text beside it."""
    fields = {"tool_call_id": call.id, "function_name": call.name}
    arguments = json_object(call.arguments)
    if arguments is None:
        return {**fields, "arguments": {}, "extra": {"arguments": call.arguments}}
    return {**fields, "arguments": arguments}


def _raw(call: ToolCall) -> CallFields:
    return {"id": call.id, "name": call.name, "arguments": call.arguments}
