"""bash-tool: one native call of the function `bash` per reply. The format of mini-swe-agent v2 and Tmax's harness.

Only the first call is run, and only that one stays in the history. A call whose arguments had to be repaired
stays there as it was understood: servers put the arguments into the prompt and fail on what is no object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.errors import FormatError
from harness.protocols.base import Command, Parsed
from harness.protocols.bash import SAMPLES, BashProtocol, one_command
from harness.protocols.json_values import Fields, decode
from harness.protocols.raw_calls import holds_raw_call
from harness.protocols.text import unknown_fields
from harness.trajectory import ToolCall

FUNCTION = "bash"

_ALIASES = ("cmd", "code", "script", "bash")


class BashTool(BashProtocol):
    """The first tool call of a reply is its command."""

    name = "bash-tool"
    samples = SAMPLES | {"tool": {"persistent": True}, "tool_command": {}}

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The one function that is offered; its descriptions are prompts, too."""
        tool = self._prompts.render("tool", persistent=self._persistent)
        return (_function(tool, self._prompts.render("tool_command")),)

    def parse(self, content: str, tool_calls: Sequence[ToolCall] = ()) -> Parsed:
        """The command of the first tool call. Raises FormatError."""
        if not tool_calls:
            raise _without_call(content)
        warnings: list[str] = []
        if len(tool_calls) > 1:
            warnings.append(f"extra_tool_calls: Only the first of {len(tool_calls)} tool calls counts.")
        call = tool_calls[0]
        try:
            return _parse_call(call, warnings)
        except FormatError as error:
            raise FormatError(error.kind, str(error), tuple(warnings)) from error.__cause__


def _function(description: str, command: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"command": {"type": "string", "description": command}},
        "required": ["command"],
    }
    return {
        "type": "function",
        "function": {"name": FUNCTION, "description": description, "parameters": parameters},
    }


def _without_call(content: str) -> FormatError:
    if holds_raw_call(content):
        return FormatError(
            "raw_tool_call", "A tool call was written as text, but it was not recognised as one in that form."
        )
    return FormatError("no_tool_call", "Found 0 tool calls; exactly one is needed.")


def _parse_call(call: ToolCall, warnings: list[str]) -> Parsed:
    if call.name != FUNCTION:
        raise FormatError("unknown_function", f"There is no function {call.name[:60]!r}, only '{FUNCTION}'.")
    already = len(warnings)
    parsed = one_command(_command(_fields(call.arguments, warnings), warnings), warnings)
    if len(parsed.warnings) > already:
        arguments = json.dumps({"command": _only_command(parsed)}, ensure_ascii=False)
        call = call.model_copy(update={"arguments": arguments})
    return replace(parsed, tool_call=call)


def _only_command(parsed: Parsed) -> str:
    (action,) = parsed.actions
    assert isinstance(action, Command)
    return action.command


def _fields(arguments: str, warnings: list[str]) -> Fields:
    """The object that a call's arguments hold. Raises FormatError."""
    value = _first_value(arguments, warnings)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        warnings.append("double_encoding: The arguments were a string that holds the JSON object.")
        value = _first_value(value, warnings)
    if not isinstance(value, Fields):
        raise FormatError("wrong_type", "The arguments must be a JSON object.")
    return value


def _first_value(text: str, warnings: list[str]) -> Any:
    value, end = decode(text := text.strip())
    if end < len(text):
        warnings.append("extra_text: There is extra text after the arguments' object.")
    return value


def _command(fields: Fields, warnings: list[str]) -> str:
    names = ["command"] if "command" in fields else [name for name in _ALIASES if name in fields]
    if len(names) != 1:
        raise FormatError("missing_field", "The arguments need 'command', a string.")
    (name,) = names
    if name != "command":
        warnings.append(f"wrong_key: '{name}' was taken as 'command'.")
    if fields.twice:
        warnings.append("duplicate_field: An argument was given twice; the last one counts.")
    warnings += unknown_fields(fields, [name])
    command = fields[name]
    if not isinstance(command, str):
        raise FormatError("wrong_type", f"'{name}' must be a string.")
    if not command.strip():
        raise FormatError("empty_command", "The command is empty.")
    return command
