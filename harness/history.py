"""The conversation as it is sent, its length in tokens, and how it is shortened when it fills the model's context.

There is no tokenizer here: the server counts every prompt, and what it has not counted yet is estimated.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import ne

from harness.errors import ContextLimitReached
from harness.rendering import without_thinking
from harness.text import TokenGate, strip_thinking
from harness.trajectory import Compaction, Message, OnOverflow, Reply, ToolCall, Usage

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


# Makes a history that fills the model's context shorter, and says what was done.
#
# `drop-oldest-outputs` replaces the oldest terminal outputs by one line each. `summarize` has the model sum up its
# work and goes on with the first messages, that summary and the last output.

Ask = Callable[[Sequence[Message], int], Awaitable[Reply]]
"""A query without tools, of messages and max_tokens."""

KEPT_SHARE = 0.5
"""Share of the context that the history is to fill, by estimate, once outputs are dropped."""
SUMMARY_TOKENS = 4096
"""Most tokens of a summary, thinking included; never more than a quarter of the context."""
DROPPED = "[Output dropped to save context.]"
_REQUEST = """\
The conversation is about to be shortened because the context is full. Execute nothing now, and do not use the usual \
format: answer in plain text. Write down what somebody who sees only the task and your notes needs to finish it: \
what was done and what came of it, files, commands and values that matter, what failed and why, what remains."""
_NOTES = """\
The conversation so far was shortened. Your notes on it:

{notes}

Go on from there, in the format described above. The last output was:

{output}"""


async def make_room(
    history: History, policy: OnOverflow, *, step: int, context_tokens: int | None, max_tokens: int, ask: Ask
) -> Compaction | None:
    """Shorten `history` as `policy` says; None where nothing is gained. `max_tokens` bounds the summary.

    Where no usable summary comes, the oldest outputs are dropped instead.
    """
    before, messages_before = history.tokens, len(history.messages)
    context = context_tokens or before
    started = time.monotonic()
    summary = None
    if policy == "summarize":
        summary = await _ask_for_summary(history, context, min(max_tokens, SUMMARY_TOKENS, context // 4), ask)
    model_sec = time.monotonic() - started
    summary = summary and _admitted(summary, history)
    notes = notes_in(summary)
    done: OnOverflow = "summarize" if notes else "drop-oldest-outputs"
    longer = history.messages
    shorter = with_notes(history.opening, longer, notes) if notes else _drop_to(history, int(context * KEPT_SHARE))
    if history.estimate(shorter) < history.estimate(longer):
        history.replace(shorter)
    elif summary is None:
        return None
    return Compaction(
        step=step,
        policy=done,
        outputs_dropped=0 if notes else sum(map(ne, longer, history.messages)),
        messages_before=messages_before,
        messages_after=len(history.messages),
        tokens_before=before,
        tokens_after=history.tokens,
        summary=summary,
        model_sec=model_sec,
    )


def drop_oldest_outputs(messages: Sequence[Message], keep_first: int, bytes_to_save: int) -> list[Message]:
    """`messages` with outputs behind the first `keep_first` replaced, oldest first, never the newest one.

    Roles and call ids stay, so every tool call keeps its answer.
    """
    shorter = list(messages)
    for index, saved in _outputs(messages, keep_first):
        if bytes_to_save <= 0:
            break
        shorter[index] = _dropped(messages[index])
        bytes_to_save -= saved
    return shorter


def drop_number_of_outputs(messages: Sequence[Message], keep_first: int, number: int) -> list[Message]:
    """`messages` with that many outputs replaced, the ones that `drop_oldest_outputs` begins with."""
    shorter = list(messages)
    for index, _ in islice(_outputs(messages, keep_first), number):
        shorter[index] = _dropped(messages[index])
    return shorter


def _outputs(messages: Sequence[Message], keep_first: int) -> Iterator[tuple[int, int]]:
    """The outputs that may be dropped, oldest first: the place of each, and the bytes that this saves."""
    outputs = [index for index, message in enumerate(messages) if message.role in ("user", "tool")]
    for index in outputs[:-1]:
        saved = size_bytes(messages[index]) - len(DROPPED)
        if index >= keep_first and saved > 0:
            yield index, saved


def _dropped(message: Message) -> Message:
    return message.model_copy(update={"content": DROPPED})


def drop_oldest_turns(messages: Sequence[Message], keep_first: int, bytes_to_save: int) -> list[Message]:
    """`messages` without the first replies behind `keep_first` and what answered them; the last turn stays."""
    starts = [index for index, message in enumerate(messages) if message.role == "assistant" and index >= keep_first]
    end = starts[0] if starts else len(messages)
    for after in starts[1:]:
        if bytes_to_save <= 0:
            break
        bytes_to_save -= sum(map(size_bytes, messages[end:after]))
        end = after
    return [*messages[: starts[0] if starts else end], *messages[end:]]


def _drop_to(history: History, tokens: int) -> list[Message]:
    excess = history.bytes_of(history.tokens - tokens)
    return drop_oldest_outputs(history.messages, len(history.opening), excess)


async def _ask_for_summary(history: History, context_tokens: int, max_tokens: int, ask: Ask) -> Reply | None:
    """Ask the model for a summary; None where even a much shorter history leaves no room for one."""
    if max_tokens < 1:
        return None
    for share in (1.0, KEPT_SHARE):
        request = _summary_request(history, int((context_tokens - max_tokens) * share))
        try:
            return await ask(request, max_tokens)
        except ContextLimitReached:
            continue
    return None


def _summary_request(history: History, tokens: int) -> list[Message]:
    """The history with the request at its end, in about `tokens`: the oldest outputs are left out first, then turns."""
    asking = _appended(history.messages, _REQUEST)
    keep_first = len(history.opening)
    estimated = history.tokens + history.estimate([Message(role="user", content=_REQUEST)])
    shorter = drop_oldest_outputs(asking, keep_first, history.bytes_of(estimated - tokens))
    if (rest := history.estimate(shorter) - tokens) > 0:
        shorter = drop_oldest_turns(shorter, keep_first, history.bytes_of(rest))
    return shorter


def _appended(messages: Sequence[Message], text: str) -> list[Message]:
    """`messages` with `text` at the end of the last: templates of several models refuse two user messages in a row."""
    last = messages[-1]
    if last.role == "assistant":
        return [*messages, Message(role="user", content=text)]
    return [*messages[:-1], last.model_copy(update={"content": _appended_text(last.content, text)})]


def _appended_text(content: str, text: str) -> str:
    return f"{content}\n\n{text}"


def with_notes(opening: Sequence[Message], messages: Sequence[Message], notes: str) -> list[Message]:
    """The opening of `messages`, the last of it continued by the summary and the last output."""
    answers = [message for message in messages[len(opening) :] if message.role in ("user", "tool")]
    output = answers[-1].content if answers else "(none)"
    return _appended(opening, _NOTES.format(notes=notes, output=output))


def without_notes(opening: Sequence[Message], notes: str) -> tuple[Message, ...]:
    """The opening as it was before `with_notes`; unchanged where it does not hold these notes."""
    before = _appended_text("", _NOTES.partition("{notes}")[0] + notes)
    last = opening[-1]
    return (*opening[:-1], last.model_copy(update={"content": last.content.partition(before)[0]}))


def _admitted(summary: Reply, history: History) -> Reply:
    """The summary with notes as they may stand in a message of somebody else than the model."""
    notes = notes_in(summary)
    admitted = history.gate.admit(notes)
    return summary.model_copy(update={"content": summary.content.replace(notes, admitted)}) if notes else summary


def notes_in(summary: Reply | None) -> str:
    """The notes that a summary holds; empty where there is none that can be used."""
    return strip_thinking(summary.content).strip() if summary else ""
