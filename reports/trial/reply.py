"""What a reply says beside its actions: thoughts, analysis, plan, in whatever form its protocol has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from harness.trajectory import Step

_THINKING = re.compile(r"\s*<(think|thinking)>(.*?)(?:</\1>|\Z)", re.DOTALL)
_END_OF_THINKING = re.compile(r"</think(?:ing)?>")
"""Alone where the prompt has begun the thinking."""
_PART = re.compile(r"<(\w{1,30})>(.*?)</\1>", re.DOTALL)
_FENCE = re.compile(r"^```[\w-]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_ACTIONS = {"commands", "keystrokes", "tool_calls", "actions", "action", "command", "response", "task_complete"}
"""Parts that hold what was typed, which a page shows as such."""
_LONGEST_CHARS = 2_000_000
"""Longer replies are not taken apart."""
_MOST_PARTS = 12


class Said(NamedTuple):
    """A part of what a reply says; the label is the model's own word for it, empty for text without one."""

    label: str
    text: str


class ReplyWords(NamedTuple):
    """What a reply says beside its actions."""

    reasoning: str
    """Thinking, whether it came apart from the reply or in it."""
    parts: tuple[Said, ...]


def words_of(step: Step) -> ReplyWords:
    """What the reply of a step says; all of it where it could not be used, or where nothing was typed."""
    content = step.reply.content
    reasoning = [step.reply.reasoning or ""]
    if (thinking := _THINKING.match(content)) is not None:
        reasoning.append(thinking[2])
        content = content[thinking.end() :]
    elif (end := _END_OF_THINKING.search(content)) is not None:
        reasoning.append(content[: end.start()])
        content = content[end.end() :]
    thoughts = "\n\n".join(text for each in reasoning if (text := each.strip()))
    return ReplyWords(thoughts, tuple(_said(content, step)))


def _said(content: str, step: Step) -> Iterator[Said]:
    content = content.strip()
    if not content or content in {action.strip() for action in step.actions}:
        return
    if step.format_error is None and len(content) <= _LONGEST_CHARS:
        found = _of_json(content) or _of_tags(content)
        if found is not None:
            yield from found[:_MOST_PARTS]
            return
        content = _without_commands(content, step)
    if content:
        yield Said("", content)


def _of_json(content: str) -> list[Said] | None:
    """The texts in the JSON object that a reply is; None where it is none."""
    begin, end = content.find("{"), content.rfind("}")
    if begin < 0 or end < begin:
        return None
    try:
        value = json.loads(content[begin : end + 1], strict=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not _ACTIONS & value.keys():
        return None
    before, after = _unfenced(content[:begin]), _unfenced(content[end + 1 :])
    return [said for said in (Said("", before), *_texts(value), Said("", after)) if said.text]


def _texts(value: dict[str, Any]) -> Iterator[Said]:
    for key, text in value.items():
        if key not in _ACTIONS and isinstance(text, str) and text.strip():
            yield Said(key, text.strip())


def _unfenced(text: str) -> str:
    return re.sub(r"```\w*", "", text).strip()


def _of_tags(content: str) -> list[Said] | None:
    """The texts between tags, of a reply that consists of them; None for another."""
    inner = re.sub(r"</?response>", "", content)
    inner = re.sub(r"<commands>.*?(</commands>|\Z)|<keystrokes[^>]*>.*?(</keystrokes>|\Z)", "", inner, flags=re.DOTALL)
    if inner == content:
        return None
    found = [Said(part[1], part[2].strip()) for part in _PART.finditer(inner) if part[1] not in _ACTIONS]
    rest = _PART.sub("", inner).strip()
    return [each for each in [*found, Said("", rest)] if each.text]


def _without_commands(content: str, step: Step) -> str:
    """The reply without the fenced blocks that are its actions."""
    typed = {action.strip() for action in step.actions}
    return _FENCE.sub(lambda block: "" if block[1].strip() in typed else block[0], content).strip()
