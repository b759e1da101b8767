"""The bash protocols: one command per reply, in a fenced block or as a tool call, answered with its output."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self

from harness.errors import FormatError
from harness.limits import OUTPUT_LIMIT_BYTES, ShellMode
from harness.model_text import strip_thinking, without_lone_surrogates
from harness.protocols.base import Action, Command, CommandResult, Parsed, Response, ScreenView, View
from harness.protocols.reply_text import (
    SHELL,
    Block,
    Fields,
    cut_middle,
    decode,
    find_blocks,
    holds_raw_call,
    render_view,
    shown_gap,
    unknown_fields,
    warning_sentences,
    whole_spans,
)
from harness.protocols.templates import PromptedProtocol
from harness.trajectory import Message, Reply, ToolCall

MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SUBMIT_COMMAND = f"echo {MARKER}"

SAMPLES: dict[str, dict[str, object]] = {
    "system": {},
    "task": {"instruction": "Do it.", "screen": "$ ", "limit_bytes": OUTPUT_LIMIT_BYTES, "persistent": True},
    "observation": {
        "exit_code": 0,
        "background": "log line",
        "output": "file",
        "timed_out": False,
        "too_long": True,
        "head": "fi",
        "elided_chars": 1,
        "tail": "e",
        "warnings": ["Sample."],
    },
    "screen": {"heading": "Current terminal screen:", "output": "$ ", "warnings": ["Sample."]},
    "format_error": {"error": "Found 0 bash blocks.", "screen": "$ "},
}


class BashProtocol(PromptedProtocol):
    """A system and a user message, then one command per reply, answered with exit code and output."""

    types_commands = True
    samples = SAMPLES
    _persistent = True

    @abstractmethod
    def parse(self, content: str, tool_calls: Sequence[ToolCall] = ()) -> Parsed:
        """Parse a reply into its command. Raises FormatError."""

    @abstractmethod
    def _write(self, thought: str, command: str) -> Reply:
        """Return a reply with this command."""

    def in_shell(self, mode: ShellMode) -> Self:
        """Return the same protocol with prompts for this shell mode."""
        protocol = copy(self)
        protocol._persistent = mode == "persistent"
        return protocol

    def first_messages(self, instruction: str, screen: str) -> list[Message]:
        """Return a system message and a user message with the task."""
        task = self._prompts.render(
            "task",
            instruction=instruction,
            screen=cut_middle(screen, self._limit).strip(),
            limit_bytes=self._limit,
            persistent=self._persistent,
        )
        return [
            Message(role="system", content=self._prompts.render("system")),
            Message(role="user", content=task),
        ]

    def write(self, analysis: str, plan: str, actions: Sequence[Action], *, complete: bool = False) -> Reply:
        """Return a reply that runs the commands of `actions` together, or submits."""
        commands = [SUBMIT_COMMAND] if complete else [each.command for each in actions if isinstance(each, Command)]
        return self._write(f"{analysis} {plan}", "\n".join(commands))

    def respond(self, parsed: Parsed, view: View, *, claimed: bool) -> Response:
        """Return exit code and output, or the end if the submit command succeeded; needs no confirmation."""
        warnings = warning_sentences(parsed.warnings + view.notes)
        if isinstance(view, ScreenView):
            heading, output = render_view(view, self._limit)
            return Response(self._prompts.render("screen", heading=heading, output=output, warnings=warnings))
        return Response(self._observe(view, warnings), submitted=parsed.complete and _printed_marker(view))

    def complain(self, error_message: str, view: View | None) -> str:
        """Return the error, and the request to answer again in the format."""
        screen = "\n".join(render_view(view, self._limit)) if view is not None else ""
        return self._prompts.render("format_error", error=error_message, screen=screen)

    def _observe(self, result: CommandResult, warnings: list[str]) -> str:
        result = _without_last_line_breaks(result)
        gap = shown_gap(result, self._limit)
        return self._prompts.render(
            "observation",
            exit_code=result.exit_code,
            background=cut_middle(result.background, self._limit // 4).strip("\n"),
            output=gap.text if gap else result.output,
            head=gap.head if gap else result.output,
            elided_chars=gap.elided_chars if gap else 0,
            tail=gap.tail if gap else "",
            timed_out=result.timed_out,
            too_long=gap is not None,
            warnings=warnings,
        )


def one_command(text: str, warnings: list[str]) -> Parsed:
    """Return a parsed reply whose only action is to run `text`, which must not be blank."""
    command = without_lone_surrogates(text)
    if command != text:
        warnings.append("lone_surrogate: Half of a surrogate pair was replaced by U+FFFD.")
    return Parsed(
        actions=(Command(command),),
        complete=command.strip() == SUBMIT_COMMAND,
        warnings=tuple(warnings),
    )


def check_block(block: Block) -> None:
    """Raise FormatError for a block that is not one complete command."""
    if not block.closed:
        raise FormatError(
            "unclosed_block", f"Found 0 complete bash blocks: no line with only {block.fence} ends the block."
        )
    if block.contains_another:
        raise FormatError(
            "nested_fence",
            f"The bash block contains a line that starts another {block.fence} block, so its end is unclear. "
            f"Use {block.fence}` for the outer fences.",
        )
    if not block.command.strip():
        raise FormatError("empty_block", "Found 1 bash block, but it is empty.")


def as_block(command: str) -> str:
    """Return a bash block with this command, in fences longer than any in it."""
    fence = "`" * max([3, *(len(found) + 1 for found in re.findall("`+", command))])
    return f"{fence}bash\n{command}\n{fence}"


def block_oddities(block: Block) -> list[str]:
    """Return warnings about the block's notation."""
    oddities = []
    if block.label != "bash":
        oddities.append(f"block_label: The block is labelled '{block.label}'; label it 'bash'.")
    if not block.alone:
        oddities.append("block_position: The opening fence should stand on a line of its own.")
    return oddities


def _without_last_line_breaks(result: CommandResult) -> CommandResult:
    """Strip the output's trailing line breaks, as the prompts append one themselves."""
    if result.gap is None:
        return replace(result, output=result.output.rstrip("\n"))
    # A tail of only line breaks stays: for the prompts, an empty tail means that nothing is missing.
    tail = result.gap.tail.rstrip("\n") or result.gap.tail
    return replace(result, gap=replace(result.gap, tail=tail))


def _printed_marker(result: CommandResult) -> bool:
    first_line = result.output.partition("\n")[0]
    return result.exit_code == 0 and not result.timed_out and first_line.strip() == MARKER


# bash-block: reasoning, then exactly one fenced bash block per reply. The format of mini-swe-agent v1.
#
# A block ends at the first line that consists of its fence, so a command with such a line needs longer fences. A block
# that contains the start of another one is refused: it was closed too early, and half a heredoc would hang the shell.


class BashBlock(BashProtocol):
    """Protocol bash-block: the command is the reply's only bash block."""

    name = "bash-block"
    mark = "```bash"

    def parse(self, content: str, tool_calls: Sequence[ToolCall] = ()) -> Parsed:
        """Extract the command of the only bash block. Raises FormatError."""
        answer = strip_thinking(content, whole_spans(find_blocks(content, SHELL)))
        block = _only_block(find_blocks(answer, SHELL))
        check_block(block)
        return one_command(block.command, block_oddities(block))

    def _write(self, thought: str, command: str) -> Reply:
        return Reply(content=f"{thought}\n\n{as_block(command)}")


def _only_block(found: list[Block]) -> Block:
    """Return the only `bash` block, or without one the only block with another shell's label. Raises FormatError."""
    blocks = [block for block in found if block.label == "bash"] or found
    if len(blocks) == 1:
        return blocks[0]
    kind = "several_blocks" if blocks else "no_block"
    raise FormatError(kind, f"Found {len(blocks)} bash blocks; exactly one is needed.")


# bash-tool: one native call of the function `bash` per reply. The format of mini-swe-agent v2 and Tmax's harness.
#
# Only the first call is run and stays in the history. If its arguments had to be repaired, the repaired call stays:
# servers put the arguments into the prompt and fail if they are not an object.

FUNCTION = "bash"

_ALIASES = ("cmd", "code", "script", "bash")


class BashTool(BashProtocol):
    """Protocol bash-tool: the command is the reply's first tool call."""

    name = "bash-tool"
    mark = "calling the function `bash`"
    samples = SAMPLES | {"tool": {"persistent": True}, "tool_command": {}}

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The `bash` function; its descriptions are prompts, too."""
        tool = self._prompts.render("tool", persistent=self._persistent)
        return (_function(tool, self._prompts.render("tool_command")),)

    def parse(self, content: str, tool_calls: Sequence[ToolCall] = ()) -> Parsed:
        """Extract the command of the first tool call. Raises FormatError."""
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

    def _write(self, thought: str, command: str) -> Reply:
        arguments = json.dumps({"command": command}, ensure_ascii=False)
        return Reply(content=thought, tool_calls=(ToolCall(id="call-1", name=FUNCTION, arguments=arguments),))


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
    command = _command(_fields(call.arguments, warnings), warnings)
    parsed = one_command(command, warnings)
    if len(parsed.warnings) > already:
        arguments = json.dumps({"command": without_lone_surrogates(command)}, ensure_ascii=False)
        call = call.model_copy(update={"arguments": arguments})
    return replace(parsed, tool_call=call)


def _fields(arguments: str, warnings: list[str]) -> Fields:
    """Decode the object in a call's arguments. Raises FormatError."""
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
    if fields.has_duplicates:
        warnings.append("duplicate_field: An argument was given twice; the last one counts.")
    warnings += unknown_fields(fields, [name])
    command = fields[name]
    if not isinstance(command, str):
        raise FormatError("wrong_type", f"'{name}' must be a string.")
    if not command.strip():
        raise FormatError("empty_command", "The command is empty.")
    return command
