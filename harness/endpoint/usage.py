"""What a server counts of a reply is believed as far as it does not contradict the reply."""

from __future__ import annotations

import re
from typing import Any

from harness.history import IMPOSSIBLE_USAGE
from harness.trajectory import Reply

_SLACK = 16
"""Tokens by which counts may differ from the limit that ended a reply: of templates and of the end itself."""


def believed(reply: Reply, data: object, *, max_tokens: int, context_tokens: int | None) -> Reply:
    """The reply with those of its counts that can be true, 0 for the others, and cut where they show that it was.

    `data` is the answer that it was read from. vLLM's finish_reason hides behind a parsed tool call that max_tokens or
    the context was used up; the counts tell. A text that ends with `stop` may well have just max_tokens tokens.
    """
    wire = data.get("usage") if isinstance(data, dict) else None
    counts: dict[str, Any] = wire if isinstance(wire, dict) else {}
    prompt, completion, cached = reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.cached_tokens
    told = [each for each in counts.values() if isinstance(each, int | float)]
    total = counts.get("total_tokens")
    total = total if isinstance(total, int) and not isinstance(total, bool) else None
    is_wrong = any(each < 0 for each in told) or (total is not None and 0 <= total < prompt + completion)
    prompt, completion = max(0, prompt), max(0, completion)
    if cached is not None and not 0 <= cached <= prompt:
        is_wrong, prompt, cached = True, 0, None  # counted without what the cache had, or nonsense
    if completion > max_tokens:
        is_wrong = True
        completion = completion if completion <= _bytes(reply) else 0
    if context_tokens is not None and prompt + completion > context_tokens + _SLACK:
        is_wrong, prompt = True, 0
    is_dropped = prompt < reply.usage.prompt_tokens or completion < reply.usage.completion_tokens
    filled = prompt + completion if prompt and completion else total or 0
    is_full = context_tokens is not None and context_tokens <= filled <= context_tokens + _SLACK
    return reply.model_copy(
        update={
            "cut": reply.cut or is_full or (completion == max_tokens and not _is_ended_text(reply)),
            "usage": reply.usage.model_copy(
                update={
                    "prompt_tokens": prompt,
                    "completion_tokens": completion,
                    "cached_tokens": cached,
                    "uncounted": 1 if is_dropped else reply.usage.uncounted,
                }
            ),
            "signs": (*reply.signs, IMPOSSIBLE_USAGE) if is_wrong else reply.signs,
        }
    )


def says_nothing(reply: Reply) -> bool:
    """Whether a reply was cut before its first token: then the prompt alone fills the context."""
    speaks = reply.content.strip() or reply.reasoning or reply.tool_calls
    return reply.cut and not speaks and reply.usage.completion_tokens == 0


def _is_ended_text(reply: Reply) -> bool:
    """Whether the server says that the model ended its reply, and no call can hide another end."""
    names_a_call = re.search("tool|call|function", reply.finish_reason or "", re.IGNORECASE)
    return bool(reply.content.strip()) and not reply.tool_calls and not names_a_call


def _bytes(reply: Reply) -> int:
    said = (reply.content, reply.reasoning or "", *(f"{call.name}{call.arguments}" for call in reply.tool_calls))
    return sum(len(each.encode("utf-8", "replace")) for each in said)
