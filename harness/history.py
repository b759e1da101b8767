"""The conversation as it is sent, and its length in tokens, as far as the server has told it.

There is no tokenizer here: the server counts every prompt, and what it has not counted yet is estimated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.rendering import without_thinking
from harness.special_tokens import TokenGate
from harness.trajectory import Message, Reply, ToolCall, Usage

PROMPT_TRUNCATED = "prompt_truncated"
"""The sign of a reply to a prompt of which the server left something out."""
IMPOSSIBLE_USAGE = "impossible_usage"
"""The sign of a reply whose counts contradict it, each other, or what was asked."""
_TOKENS_PER_BYTE = 0.4
"""Rate for text that the server has not counted yet, on the high side."""
_MOST_PER_BYTE, _TEMPLATE_TOKENS = 2, 10_000
"""No prompt has more tokens than so many for each of its bytes, and those of a template with its tools."""
_THINKING_PER_BYTE = 0.5
"""Most tokens for a byte of thinking, which a template may send once and then leave out."""
_NEW_PER_BYTE = 0.6
"""The same for a byte of new messages."""
_SMALLEST_CONTEXT = 256
"""A smaller count is no prompt that was cut to a context."""
_SEEN_GROWTH_BYTES = 64
"""Growth of the history that shows in any count of its tokens."""
_STALLED_COUNTS = 6
"""So many counts in a row that have not grown with the history are no thinking that a template has dropped."""
_WORD = re.compile(r"[^\W\d_]+")
"""Letters in a row, of which usual tokenizers make at least a token."""
_LEAST_PER_WORD = 0.6


@dataclass(frozen=True)
class _Count:
    """What the server counted, and the size of the history then."""

    tokens: int
    size_bytes: int
    thinking_bytes: int


def size_bytes(message: Message) -> int:
    """The bytes of a message that take room in the prompt, without earlier thinking, which most templates leave out.

    Too low an estimate is safe: the server refuses what does not fit and says by how much. Too high a one would leave
    a reply too little room, and it would be cut.
    """
    content = without_thinking(message.content) if message.role == "assistant" else message.content
    parts = (content, *(f"{call.name}{call.arguments}" for call in message.tool_calls))
    return sum(len(part.encode("utf-8", "replace")) for part in parts)


class History:
    """The messages, append-only but for `replace`. `opening` holds the first ones, which no policy touches.

    What others than the model say comes in through a gate, unless it has passed that already.
    """

    def __init__(self, gate: TokenGate | None = None) -> None:
        self.gate = gate or TokenGate()
        self.messages: list[Message] = []
        self.opening: tuple[Message, ...] = ()
        self._bytes = 0
        """Size of all messages, kept so that a long history is not measured anew at each step."""
        self._counted_bytes = 0
        self._counted_tokens = 0
        self._counted_messages = 0
        self._words = 0
        self._thinking = 0
        """Bytes of thinking in all messages: whether they are sent is up to settings and template."""
        self._last: _Count | None = None
        """The latest count of this version of the history."""
        self._stalled = 0
        """Counts in a row that have not grown with it."""
        self._tokens_per_byte = _TOKENS_PER_BYTE

    def open(self, messages: Sequence[Message]) -> None:
        """Begin with `messages`."""
        self.opening = tuple(messages)
        self.messages = list(messages)
        self._measure(messages)

    def tell(self, text: str, call: ToolCall | None = None) -> str:
        """Add what the model is told, as the answer to its `call` where there is one; returns it as it is told."""
        told = self.gate.admit(text)
        if call is not None:
            # Also an empty one: servers refuse a history with a call that nothing answers.
            self._add(Message(role="tool", content=told, tool_call_id=call.id))
        elif told:
            self._add(Message(role="user", content=told))
        return told

    def _add(self, message: Message) -> None:
        self.messages.append(message)
        self._bytes += size_bytes(message)
        self._thinking += _thinking_bytes(message)
        self._words += _words(message)

    def add_to_last(self, text: str) -> None:
        """Put `text` under the last message, where that is no reply: many templates want roles that take turns."""
        last = self.messages[-1]
        if last.role == "assistant":
            self.tell(text)
            return
        text = self.gate.admit(text)
        longer = last.model_copy(update={"content": f"{last.content}\n\n{text}".lstrip()})
        self._bytes += size_bytes(longer) - size_bytes(last)
        self._words += _words(longer) - _words(last)
        self.messages[-1] = longer
        if len(self.messages) == len(self.opening):
            self.opening = tuple(self.messages)

    @property
    def tokens(self) -> int:
        """The length in tokens: what the server has counted, and an estimate for what is newer."""
        return self._counted_tokens + math.ceil((self._bytes - self._counted_bytes) * _TOKENS_PER_BYTE)

    def estimate(self, messages: Iterable[Message]) -> int:
        """The tokens of another version of this history, by the rate at which the server counted this one."""
        return math.ceil(_bytes(messages) * self._tokens_per_byte)

    def bytes_of(self, tokens: int) -> int:
        """The number of bytes of this history that make about so many tokens."""
        return math.ceil(tokens / self._tokens_per_byte)

    def count(self, usage: Usage) -> str | None:
        """Take over what the server counted for all messages so far; 0 where it does not count.

        Returns a sign, and takes nothing over, where so few tokens, or so many, cannot be those of this history.
        """
        tokens = usage.prompt_tokens
        if not tokens:
            return None
        sign = self._sign_of(tokens)
        if sign is None:
            self._learn(tokens)
            self._last = _Count(tokens, self._bytes, self._thinking)
        return sign

    def _sign_of(self, tokens: int) -> str | None:
        """What is odd about a count of all messages so far."""
        if tokens > _MOST_PER_BYTE * (self._bytes + self._thinking) + _TEMPLATE_TOKENS:
            return IMPOSSIBLE_USAGE
        too_few = tokens < self._words * _LEAST_PER_WORD
        if (last := self._last) is not None and (new := self._bytes - last.size_bytes) >= _SEEN_GROWTH_BYTES:
            if tokens < last.tokens / 2 and tokens <= new * _NEW_PER_BYTE:
                return IMPOSSIBLE_USAGE  # counted without what its cache has
            # A template may have dropped all the thinking that was in the last prompt, but nothing else.
            too_few |= tokens <= last.tokens - last.thinking_bytes * _THINKING_PER_BYTE
            self._stalled = self._stalled + 1 if tokens <= last.tokens else 0
            too_few |= self._stalled >= _STALLED_COUNTS
        if not too_few:
            return None
        return PROMPT_TRUNCATED if tokens >= _SMALLEST_CONTEXT else IMPOSSIBLE_USAGE

    def add_reply(self, reply: Reply, call: ToolCall | None = None) -> None:
        """Add `reply`, with only that of its tool calls that is acted on."""
        # Thinking is counted but may not be sent back: then the next prompt is known only up to this reply.
        thinks = bool(reply.reasoning) or without_thinking(reply.content) != reply.content
        is_known = not thinks and reply.usage.completion_tokens > 0 and self._counted_messages == len(self.messages)
        calls = () if call is None else (call,)
        self._add(Message(role="assistant", content=reply.content, reasoning=reply.reasoning, tool_calls=calls))
        if is_known:
            self._counted_tokens += reply.usage.completion_tokens
            self._counted_messages, self._counted_bytes = len(self.messages), self._bytes

    def is_at_least(self, tokens: int) -> None:
        """Note that the server refused this history, which is longer than estimated."""
        if self.tokens < tokens:
            self._learn(tokens)

    def replace(self, messages: Sequence[Message]) -> None:
        """Go on with another version of this history."""
        tokens = self.estimate(messages)
        self.messages = list(messages)
        self._measure(messages)
        self._counted_bytes, self._last, self._stalled = self._bytes, None, 0
        self._counted_tokens, self._counted_messages = tokens, len(messages)

    def _measure(self, messages: Sequence[Message]) -> None:
        self._bytes = _bytes(messages)
        self._thinking = sum(map(_thinking_bytes, messages))
        self._words = sum(map(_words, messages))

    def _learn(self, tokens: int) -> None:
        self._counted_tokens, self._counted_messages = tokens, len(self.messages)
        self._counted_bytes = self._bytes
        self._tokens_per_byte = tokens / max(1, self._bytes)


def _bytes(messages: Iterable[Message]) -> int:
    return sum(size_bytes(message) for message in messages)


def _thinking_bytes(message: Message) -> int:
    whole = len(message.content.encode("utf-8", "replace")) if message.role == "assistant" else 0
    within = whole - len(without_thinking(message.content).encode("utf-8", "replace")) if whole else 0
    return within + len((message.reasoning or "").encode("utf-8", "replace"))


def _words(message: Message) -> int:
    return len(_WORD.findall(without_thinking(message.content) if message.role == "assistant" else message.content))
