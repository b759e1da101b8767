"""Conversations as training data: OpenAI's `messages`, one JSON object per line, and who may learn from what."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO, Any, Literal

from harness.model import Rendering
from harness.rendering import wire_messages, without_thinking
from harness.text import without_lone_surrogates
from harness.trajectory import Message
from tbench.exchange.chosen import ExportedPart, ExportedTrial
from tbench.exchange.contexts import ContextTurn, RunProtocol, contexts_of, json_object, protocol_of
from tbench.files import write_json
from tbench.text import counted, visible

# Rows of training data: what a model was sent and what it said, a flag on each message that is to be learnt.
#
# A row is one context: a conversation that only ever grew. The format of messages is that of OpenAI's chat
# completions, as TRL, axolotl and LLaMA-Factory read it: https://platform.openai.com/docs/api-reference/chat/create

Thinking = Literal["keep", "inline", "drop"]
"""Thinking stays where it came (`keep`), stands in `<think>` tags in front of the text (`inline`), or goes (`drop`)."""
_AS_STORED = Rendering(strip_thinking="off", send_reasoning="on")

Fields = dict[str, Any]


def training_rows(trial: ExportedTrial, thinking: Thinking) -> Iterator[Fields]:
    """A row for each context of a trial in which there is something to learn."""
    for part in trial.parts:
        protocol = protocol_of(trial.run, part.trajectory.protocol)
        contexts = contexts_of(part.trajectory, protocol)
        for number, turns in enumerate(contexts.turns, start=1):
            messages = _messages(_up_to_last_reply(turns), protocol, thinking)
            if any(message["train"] for message in messages):
                about = {"context": number, "contexts": len(contexts.turns), "is_whole": contexts.is_whole}
                tools = {"tools": [dict(tool) for tool in protocol.tools]} if protocol.tools else {}
                yield {"messages": messages, **tools, **_about(trial, part), **about}


def _about(trial: ExportedTrial, part: ExportedPart) -> Fields:
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
    }


def _up_to_last_reply(turns: Sequence[ContextTurn]) -> Sequence[ContextTurn]:
    replies = [n for n, turn in enumerate(turns) if turn.message.role == "assistant"]
    return turns[: replies[-1] + 1] if replies else ()


def _messages(turns: Sequence[ContextTurn], protocol: RunProtocol, thinking: Thinking) -> list[Fields]:
    """The turns as messages; what other roles say in a row is one message, as templates want turns to alternate."""
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
        message["tool_calls"] = [_decoded(call) for call in message["tool_calls"]]
    elif message["role"] == "assistant" and protocol.tools_offered:
        message["tool_calls"] = []
    return {**message, "train": _is_learnt(turn)}


def _with_thinking(message: Message, thinking: Thinking) -> Message:
    if message.role != "assistant" or thinking == "keep":
        return message
    if thinking == "drop":
        return message.model_copy(update={"content": without_thinking(message.content), "reasoning": None})
    if not message.reasoning:
        return message
    content = f"<think>\n{message.reasoning.strip()}\n</think>\n\n{message.content}"
    return message.model_copy(update={"content": content, "reasoning": None})


def _decoded(call: Mapping[str, Any]) -> Fields:
    """A call with its arguments as an object: as text, most chat templates would put them between quotes."""
    function = call["function"]
    arguments = json_object(function["arguments"])
    return {**call, "function": {**function, "arguments": function["arguments"] if arguments is None else arguments}}


def _is_learnt(turn: ContextTurn) -> bool:
    """Whether a message is a reply of this trial that could be used, and is not in an earlier row."""
    return turn.step is not None and turn.step.format_error is None and not turn.is_copied


# Writes conversations of a run as training data, and beside them what LLaMA-Factory has to know about the files.

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
    # Only this of LLaMA-Factory's forms knows calls of functions.
    "messages-with-tools": {"formatting": "openai", "columns": {"messages": "messages", "tools": "tools"}},
}


class TrainingData:
    """Files of rows in a directory. Rows with calls of functions have a file of their own: they have other columns."""

    def __init__(self, directory: Path, thinking: Thinking) -> None:
        self._directory = directory
        self._thinking = thinking
        self._files: dict[str, IO[bytes]] = {}
        self.trials = 0
        self.rows = 0
        self.replies = 0
        """Replies that are to be learnt."""
        self._partial = self._uneven = self._without_functions = 0

    def add(self, trial: ExportedTrial) -> bool:
        """Write the rows of a trial; whether there is anything to learn from it. Raises OSError."""
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
        """What a reader of the files has to know, a line each."""
        notes = []
        if self._partial:
            notes.append(f"note: of {counted(self._partial, 'trial')} only the last context is known")
        if self._without_functions:
            of = counted(self._without_functions, "trial")
            notes.append(f"note: of {of} with calls of functions it is not known how these were described")
        if self._uneven:
            notes.append(f"note: {counted(self._uneven, 'row')} without taking turns: LLaMA-Factory skips them")
        return notes

    def _write(self, row: Mapping[str, Any]) -> None:
        name = "messages-with-tools" if "tools" in row or _calls(row) else "messages"
        if name not in self._files:
            self._files[name] = (self._directory / f"{name}.jsonl").open("wb")
        line = visible(json.dumps(row, ensure_ascii=False, separators=(",", ":")))
        self._files[name].write(line.encode("utf-8", "replace") + b"\n")
        self.rows += 1
        self.replies += sum(message["train"] for message in row["messages"])
        self._uneven += not _takes_turns([message["role"] for message in row["messages"]])


def _calls(row: Mapping[str, Any]) -> bool:
    return any(message.get("tool_calls") for message in row["messages"])


def _takes_turns(roles: list[str]) -> bool:
    """Whether user or tool, and assistant, take turns behind a system message, as LLaMA-Factory demands."""
    said = roles[1:] if roles[:1] == ["system"] else roles
    return all((role == "assistant") == bool(n % 2) for n, role in enumerate(said)) and len(said) % 2 == 0
