"""Export of conversations as training data: OpenAI's `messages`, one JSON object per line, with training flags."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import IO, Any, Literal

from harness.model import Rendering
from harness.model_text import without_lone_surrogates
from harness.rendering import wire_messages, without_thinking
from harness.trajectory import Message
from tbench.exchange.contexts import ContextTurn, RunProtocol, json_object, load_run_protocol, make_contexts
from tbench.exchange.selection import ExportedPart, ExportedTrial
from tbench.files import write_json
from tbench.text import counted, escape_invisible

# Rows of training data: messages to and from a model, with a flag on each message to train on
#
# A row is one context, a conversation without compaction. Messages have the format of OpenAI's chat completions, which
# TRL, axolotl and LLaMA-Factory read: https://platform.openai.com/docs/api-reference/chat/create

Thinking = Literal["keep", "inline", "drop"]
"""Thinking stays in its field (`keep`), goes into `<think>` tags before the text (`inline`), or is removed (`drop`)."""
_AS_STORED = Rendering(strip_thinking="off", send_reasoning="on")

Fields = dict[str, Any]


def training_rows(trial: ExportedTrial, thinking: Thinking) -> Iterator[Fields]:
    """Yield a row for each context of a trial that has messages to train on."""
    for part in trial.parts:
        run_protocol = load_run_protocol(trial.run, part.trajectory)
        contexts = make_contexts(part.trajectory, run_protocol)
        for number, turns in enumerate(contexts.turns, start=1):
            is_bare = number - 1 in contexts.without_tools
            protocol = replace(run_protocol, agents_own=()) if is_bare else run_protocol
            replies = [n for n, turn in enumerate(turns, start=1) if turn.message.role == "assistant"]
            messages = _messages(turns[: max(replies, default=0)], protocol, thinking)
            if any(message["train"] for message in messages):
                about = {"context": number, "contexts": len(contexts.turns), "is_whole": contexts.is_whole}
                tools = {"tools": [dict(tool) for tool in protocol.tools]} if protocol.tools else {}
                yield {"messages": messages, **tools, **_metadata(trial, part), **about}


def _metadata(trial: ExportedTrial, part: ExportedPart) -> Fields:
    result, step = trial.result, part.task_step
    return {
        "run": result.run,
        "trial": result.trial,
        "task": result.task,
        "task_step": None if step is None else step.name,
        "seed": result.seed,
        "attempt": result.attempt,
        "reward": result.reward,
        "outcome": result.outcome if step is None else step.outcome,
        "agent": result.agent,
        "model": result.model,
        "went_on": [each.how for each in result.went_on],
        "tags": sorted({tag for note in trial.notes for tag in note.tags}),
    }


def _messages(turns: Sequence[ContextTurn], protocol: RunProtocol, thinking: Thinking) -> list[Fields]:
    """Convert turns to messages; consecutive user messages are merged, because templates require alternating roles."""
    messages: list[Fields] = []
    for is_said_by_user, group in groupby(turns, key=lambda turn: turn.message.role == "user"):
        if is_said_by_user:
            content = "\n\n".join(without_lone_surrogates(turn.message.content) for turn in group)
            messages.append({"role": "user", "content": content, "train": False})
        else:
            messages += (_message(turn, protocol, thinking) for turn in group)
    return messages


def _message(turn: ContextTurn, protocol: RunProtocol, thinking: Thinking) -> Fields:
    (message,) = wire_messages([_with_thinking(turn.message, thinking)], _AS_STORED)
    if "tool_calls" in message and protocol.tools_offered:
        message["tool_calls"] = [_with_decoded_arguments(call) for call in message["tool_calls"]]
    elif message["role"] == "assistant" and protocol.tools_offered:
        message["tool_calls"] = []
    # To train on: usable replies of this trial that are not in an earlier row.
    return {**message, "train": turn.step is not None and turn.step.format_error is None and not turn.is_copied}


def _with_thinking(message: Message, thinking: Thinking) -> Message:
    if message.role != "assistant" or thinking == "keep":
        return message
    if thinking == "drop":
        return message.model_copy(update={"content": without_thinking(message.content), "reasoning": None})
    if not message.reasoning:
        return message
    content = f"<think>\n{message.reasoning.strip()}\n</think>\n\n{message.content}"
    return message.model_copy(update={"content": content, "reasoning": None})


def _with_decoded_arguments(call: Mapping[str, Any]) -> Fields:
    """Return a call with its arguments as an object, because most chat templates would quote text."""
    function = call["function"]
    arguments = json_object(function["arguments"])
    return {**call, "function": {**function, "arguments": function["arguments"] if arguments is None else arguments}}


# Files of training data, with a description for LLaMA-Factory

DATASET_INFO = "dataset_info.json"
_TAGS = {
    "role_tag": "role",
    "content_tag": "content",
    "user_tag": "user",
    "assistant_tag": "assistant",
    "observation_tag": "tool",
    "function_tag": "function_call",
    "system_tag": "system",
}
_COLUMNS: dict[str, dict[str, Any]] = {
    "messages": {"formatting": "sharegpt", "columns": {"messages": "messages"}},
    # LLaMA-Factory's only format with function calls
    "messages-with-tools": {"formatting": "openai", "columns": {"messages": "messages", "tools": "tools"}},
}


class TrainingData:
    """Files of rows in a directory. Rows with function calls have other columns and go into a separate file."""

    def __init__(self, directory: Path, thinking: Thinking) -> None:
        self._directory = directory
        self._thinking = thinking
        self._files: dict[str, IO[bytes]] = {}
        self.trials = 0
        self.rows = 0
        self.replies = 0
        """Number of replies to train on."""
        self._partial = self._uneven = self._without_functions = 0

    def add(self, trial: ExportedTrial) -> bool:
        """Write the rows of a trial, and return whether there are any. Raises OSError."""
        rows = list(training_rows(trial, self._thinking))
        for row in rows:
            self._write(row)
        self.trials += bool(rows)
        self._partial += any(not row["is_whole"] for row in rows)
        self._without_functions += any(_calls(row) and "tools" not in row for row in rows)
        return bool(rows)

    def close(self) -> None:
        """Close the files and write dataset_info.json. Raises OSError."""
        for file in self._files.values():
            file.close()
        info = {
            f"tbench-{name}": {"file_name": f"{name}.jsonl", **_COLUMNS[name], "tags": _TAGS} for name in self._files
        }
        if info:
            write_json(self._directory / DATASET_INFO, info)

    def notes(self) -> list[str]:
        """Return notes about limitations of the data, one line each."""
        notes = []
        if self._partial:
            notes.append(f"note: only the last context is known for {counted(self._partial, 'trial')}")
        if self._without_functions:
            trials = counted(self._without_functions, "trial")
            notes.append(f"note: the definitions of called functions are unknown for {trials}")
        if self._uneven:
            notes.append(f"note: roles do not alternate in {counted(self._uneven, 'row')}, so LLaMA-Factory skips them")
        return notes

    def _write(self, row: Mapping[str, Any]) -> None:
        name = "messages-with-tools" if "tools" in row or _calls(row) else "messages"
        if name not in self._files:
            self._files[name] = (self._directory / f"{name}.jsonl").open("wb")
        line = escape_invisible(json.dumps(row, ensure_ascii=False, separators=(",", ":")))
        self._files[name].write(line.encode("utf-8", "replace") + b"\n")
        self.rows += 1
        self.replies += sum(message["train"] for message in row["messages"])
        self._uneven += not _alternates([message["role"] for message in row["messages"]])


def _calls(row: Mapping[str, Any]) -> bool:
    return any(message.get("tool_calls") for message in row["messages"])


def _alternates(roles: list[str]) -> bool:
    """Whether user (or tool) and assistant alternate after a system message, as LLaMA-Factory requires."""
    alternating = roles[1:] if roles[:1] == ["system"] else roles
    return all((role == "assistant") == bool(n % 2) for n, role in enumerate(alternating)) and len(alternating) % 2 == 0
