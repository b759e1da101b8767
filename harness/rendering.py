"""Renders a history for the model: messages for the chat endpoint, or a prompt for `/v1/completions`.

Pure and append-only: a rendered history is a prefix of the longer history's rendering (for `gemma`, once the first
user message is there). Turn marks inside a content are not escaped: harness.model_text handles them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.model import Rendering
from harness.model_text import without_lone_surrogates
from harness.trajectory import Message, ToolCall

_THINKING = (("<think>", "</think>"), ("<|channel>thought", "<channel|>"))  # Qwen and many others; Gemma 4
_NO_REASONING = " "
"""Placeholder for servers that require reasoning in every reply; some refuse an empty text."""
# If the template opens <think> in the prompt, the reply has only the closing tag. Elsewhere in a line it is text.
_BARE_END = re.compile(r"</think>[ \t\r]*(?:\n|\Z)")
# The order matters: an escaped backslash starts no other escape, and a pair does not count as lone surrogates.
_JSON_ESCAPES = re.compile(
    r"\\\\|(?P<pair>\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2})|(?P<lone>\\ud[89a-f][0-9a-f]{2})", re.IGNORECASE
)


class _TurnFormat(NamedTuple):
    """A template's format of each role's turn. The reply's opening also ends every prompt."""

    marks: Mapping[str, tuple[str, str]]
    """Text before and after a content, by role."""
    stop: tuple[str, ...]
    """Strings that end a reply: base models run on into the next turn."""
    strips: bool = False
    """Whether contents lose the white space around them."""
    folds_system: bool = False
    """Whether the system message is prepended to the first user message, because the format has no system turn."""


class ReasoningFormat(NamedTuple):
    """The form in which the reasoning of earlier replies is sent back."""

    field: str = "reasoning_content"
    """Field of a message in which it is sent; `content` sends it as a part of the content."""
    always: bool = False
    """Whether replies without reasoning get the field as well, for servers that require it in each."""


_DEFAULT_REASONING = ReasoningFormat()


def _turn_format(opening: str, closing: str, roles: Mapping[str, str], **more: Any) -> _TurnFormat:
    marks = {role: (f"{opening}{name}\n", f"{closing}\n") for role, name in roles.items()}
    return _TurnFormat(marks, (closing, opening), **more)


_CHATML_ROLES = {"system": "system", "user": "user", "tool": "user", "assistant": "assistant"}
_GEMMA_ROLES = {"system": "user", "user": "user", "tool": "user", "assistant": "model"}
_TEMPLATES: dict[str, _TurnFormat] = {
    "chatml": _turn_format("<|im_start|>", "<|im_end|>", _CHATML_ROLES),
    "gemma": _turn_format("<start_of_turn>", "<end_of_turn>", _GEMMA_ROLES, strips=True, folds_system=True),
    "gemma4": _turn_format("<|turn>", "<turn|>", _GEMMA_ROLES | {"system": "system"}, strips=True),
    "contract": _TurnFormat(
        {
            "system": ("### System: ", "\n"),
            "user": ("### Instruction: ", "\n"),
            "tool": ("### Instruction: ", "\n"),
            "assistant": ("### Output:\n", "\n"),
        },
        stop=("### Instruction:", "### System:"),
        strips=True,
    ),
}


def wire_messages(
    messages: Sequence[Message], rendering: Rendering, sent: ReasoningFormat | None = _DEFAULT_REASONING
) -> list[dict[str, Any]]:
    """Return the history in the format of `/v1/chat/completions`, always encodable.

    `sent` is the form of the reasoning, if the rendering sends any; None leaves it out.
    """
    strips = _strips_thinking(rendering)
    sent = sent if rendering.sends_reasoning else None
    return [_wire(message, strips, sent) for message in messages]


def render_prompt(messages: Sequence[Message], rendering: Rendering) -> str:
    """Return the history as a prompt for `/v1/completions`, always encodable.

    It has no `<bos>`, which servers add themselves. Not for the template `server`.
    """
    turns, strips = _TEMPLATES[rendering.template], _strips_thinking(rendering)
    spoken = [(message.role, _content(message, strips)) for message in messages]
    if turns.folds_system and [role for role, _ in spoken[:2]] == ["system", "user"]:
        spoken[:2] = [("user", f"{spoken[0][1].strip()}\n\n{spoken[1][1].strip()}")]
    parts = []
    for role, content in spoken:
        before, after = turns.marks[role]
        parts += [before, content.strip() if turns.strips else content, after]
    return "".join(parts) + turns.marks["assistant"][0]


def stop_strings(rendering: Rendering) -> tuple[str, ...]:
    """Return the strings that end a reply to a prompt of `render_prompt`. Not for the template `server`."""
    return _TEMPLATES[rendering.template].stop


def without_thinking(reply: str) -> str:
    """Return a reply without the thinking at its front; after an opening tag that is never closed, all is thinking.

    The first closing tag counts, unlike for parsers: some thinking in a history is better than a lost command.
    """
    text = reply.lstrip()
    for opening, end in _THINKING:
        if text.startswith(opening):
            return text.partition(end)[2].lstrip()
    bare = _BARE_END.search(text)
    return text[bare.end() :].lstrip() if bare else reply


def _strips_thinking(rendering: Rendering) -> bool:
    if rendering.strip_thinking == "auto":
        # A chat template knows its model's rule (Qwen3's drops thinking before the last user message, others keep
        # it), and its rendering is what the model was trained on.
        return rendering.template != "server"
    return rendering.strip_thinking == "on"


def _content(message: Message, strips_thinking: bool) -> str:
    text = without_lone_surrogates(message.content)
    return without_thinking(text) if strips_thinking and message.role == "assistant" else text


def _wire(message: Message, strips_thinking: bool, sent: ReasoningFormat | None) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": message.role, "content": _content(message, strips_thinking)}
    if sent is not None and message.role == "assistant" and (message.reasoning or sent.always):
        reasoning = without_lone_surrogates(message.reasoning or _NO_REASONING)
        if sent.field == "content":
            thinking = {"type": "thinking", "thinking": [{"type": "text", "text": reasoning}]}
            wire["content"] = [thinking, {"type": "text", "text": wire["content"]}]
        else:
            wire[sent.field] = reasoning
    if message.tool_calls:
        wire["tool_calls"] = [_wire_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        wire["tool_call_id"] = without_lone_surrogates(message.tool_call_id)
    return wire


def _wire_call(call: ToolCall) -> dict[str, Any]:
    arguments = without_lone_surrogates(call.arguments)
    # Escapes such as \ud800 as well: the server would decode them to fill its template.
    arguments = _JSON_ESCAPES.sub(lambda found: r"\ufffd" if found["lone"] else found[0], arguments)
    function = {"name": without_lone_surrogates(call.name), "arguments": arguments}
    return {"id": without_lone_surrogates(call.id), "type": "function", "function": function}
