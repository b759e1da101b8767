"""Rows of training data: what a model was sent and what it said, a flag on each message that is to be learnt.

A row is one context: a conversation that only ever grew. The format of messages is that of OpenAI's chat completions,
as TRL, axolotl and LLaMA-Factory read it: https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from harness.model import Rendering
from harness.rendering import wire_messages, without_thinking
from harness.text import without_lone_surrogates
from harness.trajectory import Message
from tbench.exchange.chosen import ExportedPart, ExportedTrial
from tbench.exchange.contexts import ContextTurn, contexts_of
from tbench.exchange.protocol_of import RunProtocol, protocol_of
from tbench.exchange.tool_arguments import json_object

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
