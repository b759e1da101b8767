"""Assigns each request of an agent with its own loop to the conversation that it extends.

Such an agent also asks for titles or summaries, and replaces a conversation that fills the context by a shorter one.
Only the requests themselves show this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.checkpoint import shared_length
from harness.trajectory import Branch, Message

_SEARCHED = 64
"""Number of newest conversations that a request may extend."""


@dataclass
class _Known:
    messages: tuple[Message, ...]
    """The messages of the last request."""
    answer: Message
    tools: Sequence[Mapping[str, Any]]
    replies: list[int] = field(default_factory=list)

    def is_extended_by(self, messages: Sequence[Message], has_tools: bool) -> bool:
        """Whether a request continues this conversation. Requests with and without tools never share a conversation."""
        size = len(self.messages)
        if len(messages) <= size or messages[size].role != "assistant" or has_tools != bool(self.tools):
            return False
        return shared_length(self.messages, messages, _is_same) == size


class Conversations:
    """All conversations of an agent, in the order of their first replies."""

    def __init__(self) -> None:
        self._all: list[_Known] = []
        self._last: _Known | None = None

    def find(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> int | None:
        """Return the number of the last reply of the conversation that a request extends; None if it begins a new
        one."""
        found = self._extended_by(messages, tools)
        return None if found is None else found.replies[-1]

    def add(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], answer: Message, number: int
    ) -> None:
        """Add a request and its answer, the reply with this number."""
        found = self._extended_by(messages, tools)
        if found is None:
            # Messages that conversations share are kept only once.
            known = (each.messages for each in self._all[-_SEARCHED:])
            shared = max((each[: shared_length(each, messages, _is_same)] for each in known), key=len, default=())
            found = _Known((*shared, *messages[len(shared) :]), answer, tools)
            self._all.append(found)
        else:
            size = len(found.messages)
            found.messages = (*found.messages, *messages[size:])
            found.answer, found.tools = answer, tools
        found.replies.append(number)
        self._last = found

    def amend(self, answer: Message) -> None:
        """Replace the last answer."""
        assert self._last is not None
        self._last.answer = answer

    def _extended_by(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> _Known | None:
        searched = reversed(self._all[-_SEARCHED:])
        return next((each for each in searched if each.is_extended_by(messages, bool(tools))), None)

    @property
    def _main(self) -> _Known | None:
        """The conversation with the newest reply among those with tools; if none has tools, among all."""
        having = [each for each in self._all if each.tools] or self._all
        return max(having, key=lambda each: each.replies[-1], default=None)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The main conversation as it was last sent, with the reply."""
        return () if (main := self._main) is None else (*main.messages, main.answer)

    @property
    def tools(self) -> tuple[dict[str, Any], ...]:
        """The functions that the main conversation's last request offered."""
        return () if (main := self._main) is None else tuple(dict(tool) for tool in main.tools)

    @property
    def branches(self) -> tuple[Branch, ...]:
        """All other conversations."""
        found: list[Branch] = []
        before: tuple[Message, ...] = ()
        main = self._main
        for each in self._all:
            if each is not main:
                messages = (*each.messages, each.answer)
                kept = shared_length(before, messages, _is_same)
                found.append(
                    Branch(replies=tuple(each.replies), has_tools=bool(each.tools), kept=kept, messages=messages[kept:])
                )
                before = messages
        return tuple(found)


def _is_same(one: Message, other: Message) -> bool:
    """Whether two messages are the same apart from thinking, which agents may leave out of earlier replies."""
    return one is other or (
        one.role == other.role
        and one.content == other.content
        and one.tool_calls == other.tool_calls
        and one.tool_call_id == other.tool_call_id
    )
