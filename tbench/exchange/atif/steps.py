"""Steps of an ATIF document: messages that opened a conversation, replies, and what shortened the history.

The format: https://www.harborframework.com/docs/agents/trajectory-format (RFC 0001, version 1.8). No object of it may
hold a key of ours, but for those named `extra`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from harness.rendering import without_thinking
from harness.trajectory import Compaction, Message, Reply, Step, Trajectory, Usage
from tbench.exchange.atif.calls import calls_of
from tbench.exchange.atif.session_cast import CastTimes
from tbench.exchange.contexts import ContextTurn, compactions_before, opening_of
from tbench.exchange.protocol_of import RunProtocol

_TAGS = ("<think>", "</think>", "<|channel>thought", "<channel|>")

Fields = dict[str, Any]


def document_steps(trajectory: Trajectory, protocol: RunProtocol, times: CastTimes) -> list[Fields]:
    """All steps of a trajectory in order, numbered from 1."""
    return _numbered(_steps(trajectory, protocol, times))


def context_steps(turns: Sequence[ContextTurn], protocol: RunProtocol, times: CastTimes) -> list[Fields]:
    """The steps of one context, numbered from 1: what came back is what the history had for it then."""
    return _numbered(_of_turns(turns, protocol, times))


def _numbered(steps: Iterable[Fields]) -> list[Fields]:
    return [{"step_id": number, **fields} for number, fields in enumerate(steps, start=1)]


def _of_turns(turns: Sequence[ContextTurn], protocol: RunProtocol, times: CastTimes) -> Iterator[Fields]:
    is_answered = False
    for turn, following in zip(turns, (*turns[1:], None), strict=False):
        if is_answered:
            is_answered = False
            continue
        fields = _of_message(turn.message)
        if turn.step is not None:
            answer = following.message if following is not None and following.message.role in ("user", "tool") else None
            is_answered = answer is not None
            observation = "" if answer is None else answer.content
            fields = _of_step(turn.step.model_copy(update={"observation": observation}), protocol, times)
        yield {**fields, "is_copied_context": True} if turn.is_copied else fields


def _steps(trajectory: Trajectory, protocol: RunProtocol, times: CastTimes) -> Iterator[Fields]:
    left = list(trajectory.compactions)
    for message in opening_of(trajectory):
        yield _of_message(message)
    for step in trajectory.steps:
        for _ in range(min(compactions_before(step), len(left))):
            done = left.pop(0)
            yield from _of_compaction(done)
        yield _of_step(step, protocol, times)
    for done in left:
        yield from _of_compaction(done)


def _of_message(message: Message) -> Fields:
    source = {"system": "system", "assistant": "agent"}.get(message.role, "user")
    return {"source": source, "message": message.content}


def _of_step(step: Step, protocol: RunProtocol, times: CastTimes) -> Fields:
    reply = step.reply
    calls, not_run = calls_of(step, protocol)
    cast_time = times.of(step)
    moment = None if cast_time is None else times.at(cast_time)
    return _given(
        {
            "timestamp": None if moment is None else moment.isoformat(),
            "source": "agent",
            **_words(reply),
            "tool_calls": calls or None,
            "observation": _observation(step, calls),
            "metrics": _metrics(reply, step.model_sec),
            "llm_call_count": 1,
            "extra": _given(
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
    """What a reply says, its thinking apart from it wherever it came."""
    answer = without_thinking(reply.content)
    within = _without_tags(reply.content.removesuffix(answer)) if answer != reply.content else ""
    thinking = "\n\n".join(filter(None, (reply.reasoning, within)))
    return _given({"model_name": reply.model, "message": answer, "reasoning_content": thinking or None})


def _without_tags(thinking: str) -> str:
    text = thinking.strip()
    for tag in _TAGS:
        text = text.removeprefix(tag).removesuffix(tag).strip()
    return text


def _observation(step: Step, calls: Sequence[Fields]) -> Fields | None:
    """What went back to the model: of the only call there was, or of all actions together."""
    if not step.observation:
        return None
    result: Fields = {"content": step.observation}
    if len(calls) == 1:
        result = {"source_call_id": calls[0]["tool_call_id"], **result}
    return {"results": [result]}


def _metrics(reply: Reply, model_sec: float) -> Fields:
    return {
        **token_counts(reply.usage),
        "extra": _given(
            {
                "model_sec": finite(model_sec),
                "latency_sec": finite(reply.latency_sec),
                "waited_sec": finite(reply.waited_sec),
                "attempts": reply.attempts,
            }
        ),
    }


def token_counts(usage: Usage, prefix: str = "") -> Fields:
    """The counts as the endpoint told them; those that it did not tell, and sums that lack some, are left out."""
    told = not usage.uncounted and (usage.prompt_tokens or usage.completion_tokens)
    return _given(
        {
            f"{prefix}prompt_tokens": usage.prompt_tokens if told else None,
            f"{prefix}completion_tokens": usage.completion_tokens if told else None,
            f"{prefix}cached_tokens": usage.cached_tokens,
        }
    )


def _of_compaction(done: Compaction) -> Iterator[Fields]:
    """The model's summary, where it was asked for one, and what was done."""
    if done.summary is not None:
        yield {
            "source": "agent",
            **_words(done.summary),
            "metrics": _metrics(done.summary, done.model_sec),
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
    """A number that JSON can hold, to a tenth of a millisecond; None for any other."""
    return round(number, 4) if math.isfinite(number) else None


def _given(values: Mapping[str, Any]) -> Fields:
    return {name: value for name, value in values.items() if value is not None}
