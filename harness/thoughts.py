"""Texts of a reply apart from its actions: thoughts, analysis, plan, in the format of any protocol.

Every function is about linear in its input and none raises.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from harness.protocols.reply_text import ANY, find_blocks
from harness.trajectory import Reply, Step

_THINKING = re.compile(r"\s*<(think|thinking)>(.*?)(?:</\1>|\Z)", re.DOTALL)
_END_OF_THINKING = re.compile(r"</think(?:ing)?>")
"""End tag, which comes without a start tag if the prompt opened the thinking."""
_OPENING, _CLOSING = re.compile(r"<(\w{1,30})>"), re.compile(r"</(\w{1,30})>")
_TYPED = re.compile(r"<commands>.*?(?:</commands>|\Z)|<keystrokes[^<>]*>.*?(?:</keystrokes>|\Z)", re.DOTALL)
_ACTIONS = {"commands", "keystrokes", "tool_calls", "actions", "action", "command", "response", "task_complete"}
"""Parts that contain what was typed, which is shown separately."""
_LONGEST_CHARS = 2_000_000
"""Longest reply that is split into parts."""
_MAX_PARTS = 12


class ReplyPart(NamedTuple):
    """Part of a reply's text; the label is the key or tag that the model used, empty for text without one."""

    label: str
    text: str


class ReplyTexts(NamedTuple):
    """Texts in a reply apart from its actions."""

    reasoning: str
    """Reasoning, whether sent separately or within the reply."""
    parts: tuple[ReplyPart, ...]

    @property
    def thoughts(self) -> tuple[str, ...]:
        """The reasoning, if any, and the parts, each behind its label if it has one."""
        parts = (f"{part.label}: {part.text}" if part.label else part.text for part in self.parts)
        return (self.reasoning, *parts) if self.reasoning else tuple(parts)


def step_texts(step: Step) -> ReplyTexts:
    """Return the texts of a step's reply."""
    return reply_texts(step.reply, step.actions, is_malformed=step.format_error is not None)


def reply_texts(reply: Reply, actions: Sequence[str], *, is_malformed: bool = False) -> ReplyTexts:
    """Return the texts of a reply apart from the `actions` that it led to; all of it if it could not be parsed.

    A reply in an unknown format is returned as one text, without the lines and blocks that are its actions.
    """
    content = reply.content
    reasoning = [reply.reasoning or ""]
    if (thinking := _THINKING.match(content)) is not None:
        reasoning.append(thinking[2])
        content = content[thinking.end() :]
    elif (end := _END_OF_THINKING.search(content)) is not None:
        reasoning.append(content[: end.start()])
        content = content[end.end() :]
    thoughts = "\n\n".join(text for each in reasoning if (text := each.strip()))
    typed = {action.strip() for action in actions}
    return ReplyTexts(thoughts, tuple(_parts(content.strip(), typed, is_malformed)))


def _parts(content: str, typed: set[str], is_malformed: bool) -> Iterator[ReplyPart]:
    if not content or content in typed:
        return
    if not is_malformed and len(content) <= _LONGEST_CHARS:
        found = _json_texts(content, typed) or _tag_texts(content, typed)
        if found is not None:
            yield from found[:_MAX_PARTS]
            return
        content = _without_actions(content, typed)
    if content:
        yield ReplyPart("", content)


def _json_texts(content: str, typed: set[str]) -> list[ReplyPart] | None:
    """Return the texts of a reply that is a JSON object with actions; None for other replies."""
    begin, end = content.find("{"), content.rfind("}")
    if begin < 0 or end < begin:
        return None
    try:
        value = json.loads(content[begin : end + 1], strict=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    texts = {key: text.strip() for key, text in value.items() if isinstance(text, str)}
    if not _ACTIONS & value.keys() and typed.isdisjoint(texts.values()):
        return None
    parts = [ReplyPart(key, text) for key, text in texts.items() if key not in _ACTIONS and text not in typed]
    before, after = _strip_fence(content[:begin]), _strip_fence(content[end + 1 :])
    return [part for part in (ReplyPart("", before), *parts, ReplyPart("", after)) if part.text]


def _strip_fence(text: str) -> str:
    return re.sub(r"```\w*", "", text).strip()


def _tag_texts(content: str, typed: set[str]) -> list[ReplyPart] | None:
    """Return the texts between tags of a reply whose tags hold actions; None for other replies."""
    inner = _TYPED.sub("", re.sub(r"</?response>", "", content))
    found, rest = _split_tags(inner)
    if inner == content and typed.isdisjoint(part.text for part in found):
        return None
    texts = [part for part in found if part.label not in _ACTIONS and part.text not in typed]
    return [part for part in (*texts, ReplyPart("", rest.strip())) if part.text]


def _split_tags(text: str) -> tuple[list[ReplyPart], str]:
    """Return the texts between opening and closing tags, and the text outside of them."""
    closings: dict[str, list[re.Match[str]]] = {}
    for tag in _CLOSING.finditer(text):
        closings.setdefault(tag[1], []).append(tag)
    found, rest, end = list[ReplyPart](), list[str](), 0
    for tag in _OPENING.finditer(text):
        known = closings.get(tag[1], [])
        at = bisect_left(known, tag.end(), key=lambda closing: closing.start())
        if tag.start() >= end and at < len(known):
            rest.append(text[end : tag.start()])
            found.append(ReplyPart(tag[1], text[tag.end() : known[at].start()].strip()))
            end = known[at].end()
    return found, "".join((*rest, text[end:]))


def _without_actions(content: str, typed: set[str]) -> str:
    """Remove the fenced blocks and the lines that are actions of the reply."""
    kept, end = list[str](), 0
    for block in find_blocks(content, ANY):
        if block.closed and block.command.strip() in typed:
            kept.append(content[end : block.start])
            end = block.end
    lines = "".join((*kept, content[end:])).split("\n")
    return "\n".join(line for line in lines if not line.strip() or line.strip() not in typed).strip()
