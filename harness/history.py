"""The conversation as it is sent, its length in tokens, and its compaction when it fills the model's context.

There is no tokenizer here: the server counts every prompt, and newer text is estimated.
"""

from __future__ import annotations

import copy
import math
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import ne
from typing import NamedTuple

from harness.errors import ContextLimitReached
from harness.model_text import TokenGate, strip_thinking
from harness.rendering import without_thinking
from harness.trajectory import Compaction, Message, OnOverflow, Reply, ToolCall, Usage

PROMPT_TRUNCATED = "prompt_truncated"
"""Sign of a reply to a prompt that the server truncated."""
IMPOSSIBLE_USAGE = "impossible_usage"
"""Sign of a reply whose counts contradict its text, each other or the request."""
_TOKENS_PER_BYTE = 0.4
"""High estimate of tokens per byte for text that the server has not counted yet."""
_MAX_TOKENS_PER_BYTE, _TEMPLATE_TOKENS = 2, 10_000
"""Upper bound of a prompt's tokens: the first number for each byte, plus the second for the template with its tools."""
_THINKING_TOKENS_PER_BYTE = 0.5
"""Maximum number of tokens per byte of thinking, which a template may send once and then leave out."""
_NEW_TOKENS_PER_BYTE = 0.6
"""Maximum number of tokens per byte of new messages."""
_SMALLEST_CONTEXT = 256
"""From this count on, an implausibly low count of prompt tokens means truncation; below it, a miscount."""
_SEEN_GROWTH_BYTES = 64
"""If the history has grown by so much, its token count must have grown, too."""
_STALLED_COUNTS = 6
"""After so many counts in a row without growth, dropped thinking no longer explains them."""
_WORD = re.compile(r"[^\W\d_]+")
"""A run of letters, which usual tokenizers turn into at least one token."""
_LEAST_TOKENS_PER_WORD = 0.6
_NOT_ANSWERED = "[The command was ended before its output was read.]"
"""Answer to a tool call that was running when the earlier part of the conversation ended."""


@dataclass(frozen=True)
class _ServerCount:
    """A token count of the server, and the history's size at that time."""

    tokens: int
    size_bytes: int
    thinking_bytes: int


class HistoryCounts(NamedTuple):
    """Counts that a history needs besides its messages."""

    counted_bytes: int = 0
    counted_tokens: int = 0
    counted_messages: int = 0
    last: tuple[int, int, int] | None = None
    stalled: int = 0
    tokens_per_byte: float = 0.0
    instructions: tuple[int, ...] = ()
    """Positions of the messages with the instructions of later task steps."""


def size_bytes(message: Message) -> int:
    """Return the bytes of a message in the prompt, without earlier thinking, which most templates leave out.

    Too low an estimate is safe: the server refuses a prompt that does not fit and says by how much. Too high an
    estimate would leave a reply too little room, and it would be cut.
    """
    content = without_thinking(message.content) if message.role == "assistant" else message.content
    parts = (content, *(f"{call.name}{call.arguments}" for call in message.tool_calls))
    return sum(len(part.encode("utf-8", "replace")) for part in parts)


class History:
    """The messages, append-only except for `replace`. `opening` holds the first ones, which no policy touches.

    All text but the model's passes the token gate once. The gate handles control tokens and secrets.
    """

    def __init__(self, gate: TokenGate | None = None) -> None:
        self.gate = gate or TokenGate()
        self.messages: list[Message] = []
        self.opening: tuple[Message, ...] = ()
        self.instructions: tuple[int, ...] = ()
        """Positions of messages with later instructions: no policy touches them, either."""
        self._bytes = 0
        """Size of all messages, cached because measuring a long history at each step is slow."""
        self._counted_bytes = 0
        self._counted_tokens = 0
        self._counted_messages = 0
        self._words = 0
        self._thinking = 0
        """Bytes of thinking in all messages; settings and template decide whether they are sent."""
        self._last: _ServerCount | None = None
        """Latest count of this version of the history."""
        self._stalled = 0
        """Number of consecutive counts that have not grown with the history."""
        self._tokens_per_byte = _TOKENS_PER_BYTE

    def open(self, messages: Sequence[Message]) -> None:
        """Start the conversation with `messages`."""
        self.opening = tuple(messages)
        self.messages = list(messages)
        self._measure(messages)

    def go_on(self, instruction: str, gate: TokenGate) -> History:
        """Return a copy of the history, continued with the next instruction, which the gate has passed."""
        other = copy.copy(self)
        other.gate, other.messages = gate, list(self.messages)
        last = other.messages[-1]
        if last.role == "user":
            other._replace_last(last.model_copy(update={"content": _appended_text(last.content, instruction)}))
        else:
            for call in last.tool_calls:
                other._add(Message(role="tool", content=_NOT_ANSWERED, tool_call_id=call.id))
            other._add(Message(role="user", content=instruction))
        other.instructions = (*self.instructions, len(other.messages) - 1)
        return other

    @property
    def whole_opening(self) -> tuple[Message, ...]:
        """The opening, with all later instructions appended."""
        later = [self.messages[at].content for at in self.instructions]
        return tuple(_append_to_last(self.opening, "\n\n".join(later))) if later else self.opening

    @property
    def counts(self) -> HistoryCounts:
        """The counts that `restore` needs besides the messages."""
        last = self._last
        return HistoryCounts(
            counted_bytes=self._counted_bytes,
            counted_tokens=self._counted_tokens,
            counted_messages=self._counted_messages,
            last=None if last is None else (last.tokens, last.size_bytes, last.thinking_bytes),
            stalled=self._stalled,
            tokens_per_byte=self._tokens_per_byte,
            instructions=self.instructions,
        )

    def restore(
        self,
        messages: Sequence[Message],
        opening: tuple[Message, ...],
        counts: HistoryCounts,
        uncounted: Sequence[Message] = (),
        reply: Reply | None = None,
    ) -> None:
        """Continue a conversation that another process has begun.

        The `uncounted` messages, which begin with the last `reply`, are newer than the counts.
        """
        self.opening, self.messages = opening, list(messages)
        self._measure(messages)
        self._counted_bytes, self._counted_tokens = counts.counted_bytes, counts.counted_tokens
        self._counted_messages, self._stalled = counts.counted_messages, counts.stalled
        self._last = None if counts.last is None else _ServerCount(*counts.last)
        self._tokens_per_byte, self.instructions = counts.tokens_per_byte, counts.instructions
        for each in uncounted:
            if each.role == "assistant" and reply is not None:
                self.add_reply(reply, each.tool_calls[0] if each.tool_calls else None)
            else:
                self._add(each)

    def add_observation(self, text: str, call: ToolCall | None = None) -> str:
        """Add a message for the model, as the answer to its `call` if there is one; return the admitted text."""
        admitted = self.gate.admit(text)
        if call is not None:
            # Also if empty: servers refuse a history with an unanswered call.
            self._add(Message(role="tool", content=admitted, tool_call_id=call.id))
        elif admitted:
            self._add(Message(role="user", content=admitted))
        return admitted

    def _add(self, message: Message) -> None:
        self.messages.append(message)
        self._bytes += size_bytes(message)
        self._thinking += _thinking_bytes(message)
        self._words += _words(message)

    def add_to_last(self, text: str) -> None:
        """Append `text` to the last message, unless that is a reply: many templates require alternating roles."""
        last = self.messages[-1]
        if last.role == "assistant":
            self.add_observation(text)
            return
        text = self.gate.admit(text)
        self._replace_last(last.model_copy(update={"content": f"{last.content}\n\n{text}".lstrip()}))
        if len(self.messages) == len(self.opening):
            self.opening = tuple(self.messages)

    def _replace_last(self, longer: Message) -> None:
        last = self.messages[-1]
        self._bytes += size_bytes(longer) - size_bytes(last)
        self._words += _words(longer) - _words(last)
        self.messages[-1] = longer

    @property
    def tokens(self) -> int:
        """Length in tokens: the server's count, plus an estimate for newer messages."""
        return self._counted_tokens + math.ceil((self._bytes - self._counted_bytes) * _TOKENS_PER_BYTE)

    def estimate(self, messages: Iterable[Message]) -> int:
        """Estimate the tokens of another version of this history, from the tokens per byte of the last count."""
        return math.ceil(_bytes(messages) * self._tokens_per_byte)

    def estimate_bytes(self, tokens: int) -> int:
        """Estimate the number of bytes of this history that make up `tokens`."""
        return math.ceil(tokens / self._tokens_per_byte)

    def count(self, usage: Usage) -> str | None:
        """Apply the server's count of all messages so far; 0 means that the server does not count.

        If the number is implausible for this history, apply nothing and return a sign.
        """
        tokens = usage.prompt_tokens
        if not tokens:
            return None
        sign = self._check_count(tokens)
        if sign is None:
            self._set_count(tokens)
            self._last = _ServerCount(tokens, self._bytes, self._thinking)
        return sign

    def _check_count(self, tokens: int) -> str | None:
        """Return the sign of an implausible count of all messages so far; None for a plausible one."""
        if tokens > _MAX_TOKENS_PER_BYTE * (self._bytes + self._thinking) + _TEMPLATE_TOKENS:
            return IMPOSSIBLE_USAGE
        too_few = tokens < self._words * _LEAST_TOKENS_PER_WORD
        if (last := self._last) is not None and (new := self._bytes - last.size_bytes) >= _SEEN_GROWTH_BYTES:
            if tokens < last.tokens / 2 and tokens <= new * _NEW_TOKENS_PER_BYTE:
                return IMPOSSIBLE_USAGE  # counted without the cached tokens
            # A template may have dropped all thinking of the last prompt, but nothing else.
            too_few |= tokens <= last.tokens - last.thinking_bytes * _THINKING_TOKENS_PER_BYTE
            self._stalled = self._stalled + 1 if tokens <= last.tokens else 0
            too_few |= self._stalled >= _STALLED_COUNTS
        if not too_few:
            return None
        return PROMPT_TRUNCATED if tokens >= _SMALLEST_CONTEXT else IMPOSSIBLE_USAGE

    def add_reply(self, reply: Reply, call: ToolCall | None = None) -> None:
        """Add `reply` with `call`, the only tool call that is executed."""
        # Thinking is counted but may not be sent back; then the next prompt is known only up to this reply.
        thinks = bool(reply.reasoning) or without_thinking(reply.content) != reply.content
        is_known = not thinks and reply.usage.completion_tokens > 0 and self._counted_messages == len(self.messages)
        calls = () if call is None else (call,)
        self._add(Message(role="assistant", content=reply.content, reasoning=reply.reasoning, tool_calls=calls))
        if is_known:
            self._counted_tokens += reply.usage.completion_tokens
            self._counted_messages, self._counted_bytes = len(self.messages), self._bytes

    def raise_estimate(self, tokens: int) -> None:
        """Raise the estimate to `tokens`, after the server refused this history as too long."""
        if self.tokens < tokens:
            self._set_count(tokens)

    def replace(self, messages: Sequence[Message], opening: tuple[Message, ...] | None = None) -> None:
        """Continue with another version of this history. A new `opening` has all instructions."""
        if opening is not None:
            self.opening, self.instructions = opening, ()
        tokens = self.estimate(messages)
        self.messages = list(messages)
        self._measure(messages)
        self._counted_bytes, self._last, self._stalled = self._bytes, None, 0
        self._counted_tokens, self._counted_messages = tokens, len(messages)

    def _measure(self, messages: Sequence[Message]) -> None:
        self._bytes = _bytes(messages)
        self._thinking = sum(map(_thinking_bytes, messages))
        self._words = sum(map(_words, messages))

    def _set_count(self, tokens: int) -> None:
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


# Compaction of a history that fills the model's context.
#
# `drop-oldest-outputs` replaces the oldest terminal outputs by one line each. `summarize` asks the model to summarize
# its work and continues with the first messages, the summary and the last output.

Ask = Callable[[Sequence[Message], int], Awaitable[Reply]]
"""Queries the model without tools: messages and max_tokens."""

KEPT_SHARE = 0.5
"""Share of the context that the history should fill, by estimate, after outputs are dropped."""
SUMMARY_TOKENS = 4096
"""Maximum number of tokens of a summary, thinking included; never more than a quarter of the context."""
DROPPED = "[Output dropped to save context.]"
_SUMMARY_REQUEST = """\
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
    """Shorten `history` by `policy`; None if nothing is gained and no summary was made. `max_tokens` bounds the
    summary.

    Without a usable summary, the oldest outputs are dropped instead.
    """
    before, messages_before = history.tokens, len(history.messages)
    context = context_tokens or before
    started = time.monotonic()
    summary = None
    if policy == "summarize":
        summary = await _ask_for_summary(history, context, min(max_tokens, SUMMARY_TOKENS, context // 4), ask)
    model_sec = time.monotonic() - started
    summary = summary and _gate_notes(summary, history)
    notes = extract_notes(summary)
    done: OnOverflow = "summarize" if notes else "drop-oldest-outputs"
    longer = history.messages
    opening = history.whole_opening if notes else None
    shorter = _drop_to(history, int(context * KEPT_SHARE)) if opening is None else with_notes(opening, longer, notes)
    if history.estimate(shorter) < history.estimate(longer):
        history.replace(shorter, opening)
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


def make_room_again(history: History, done: Compaction) -> None:
    """Shorten `history` as in an earlier compaction, even if outputs differ slightly."""
    if done.policy == "summarize":
        opening = history.whole_opening
        history.replace(with_notes(opening, history.messages, extract_notes(done.summary)), opening)
    elif done.outputs_dropped:
        keep_first, kept = len(history.opening), history.instructions
        history.replace(drop_oldest_outputs(history.messages, keep_first, kept, number=done.outputs_dropped))


def drop_oldest_outputs(
    messages: Sequence[Message],
    keep_first: int,
    kept: Collection[int] = (),
    *,
    bytes_to_save: float = math.inf,
    number: float = math.inf,
) -> list[Message]:
    """Return `messages` with at most `number` of the oldest outputs replaced, until `bytes_to_save` are saved.

    Not replaced are the first `keep_first` messages, those at the positions `kept`, and the newest output. Roles and
    call ids stay, so every tool call keeps its answer.
    """
    shorter = list(messages)
    outputs = [index for index, message in enumerate(messages) if message.role in ("user", "tool")]
    for index in outputs[:-1]:
        if bytes_to_save <= 0 or number <= 0:
            break
        saved = size_bytes(messages[index]) - len(DROPPED)
        if index >= keep_first and index not in kept and saved > 0:
            shorter[index] = messages[index].model_copy(update={"content": DROPPED})
            bytes_to_save, number = bytes_to_save - saved, number - 1
    return shorter


def drop_oldest_turns(messages: Sequence[Message], keep_first: int, bytes_to_save: int) -> list[Message]:
    """Return `messages` without the oldest replies after `keep_first` and their answers; the last turn stays."""
    starts = [index for index, message in enumerate(messages) if message.role == "assistant" and index >= keep_first]
    end = starts[0] if starts else len(messages)
    for after in starts[1:]:
        if bytes_to_save <= 0:
            break
        bytes_to_save -= sum(map(size_bytes, messages[end:after]))
        end = after
    return [*messages[: starts[0] if starts else end], *messages[end:]]


def _drop_to(history: History, tokens: int) -> list[Message]:
    excess = history.estimate_bytes(history.tokens - tokens)
    return drop_oldest_outputs(history.messages, len(history.opening), history.instructions, bytes_to_save=excess)


async def _ask_for_summary(history: History, context_tokens: int, max_tokens: int, ask: Ask) -> Reply | None:
    """Ask the model for a summary; None if even a much shorter history leaves no room for one."""
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
    """Return the history with the summary request, shortened to about `tokens`: first by outputs, then by turns."""
    asking = _append_to_last(history.messages, _SUMMARY_REQUEST)
    keep_first = len(history.opening)
    estimated = history.tokens + history.estimate([Message(role="user", content=_SUMMARY_REQUEST)])
    excess = history.estimate_bytes(estimated - tokens)
    shorter = drop_oldest_outputs(asking, keep_first, history.instructions, bytes_to_save=excess)
    if (rest := history.estimate(shorter) - tokens) > 0:
        # An instruction may be in a turn that is left out.
        shorter = [*history.whole_opening, *shorter[keep_first:]]
        shorter = drop_oldest_turns(shorter, keep_first, history.estimate_bytes(rest))
    return shorter


def _append_to_last(messages: Sequence[Message], text: str) -> list[Message]:
    """Append `text` to the last of `messages`: several models' templates refuse two user messages in a row."""
    last = messages[-1]
    if last.role == "assistant":
        return [*messages, Message(role="user", content=text)]
    return [*messages[:-1], last.model_copy(update={"content": _appended_text(last.content, text)})]


def _appended_text(content: str, text: str) -> str:
    return f"{content}\n\n{text}"


def with_notes(opening: Sequence[Message], messages: Sequence[Message], notes: str) -> list[Message]:
    """Return the opening of `messages` with the summary and the last output appended to its last message."""
    answers = [message for message in messages[len(opening) :] if message.role in ("user", "tool")]
    output = answers[-1].content if answers else "(none)"
    return _append_to_last(opening, _NOTES.format(notes=notes, output=output))


def without_notes(opening: Sequence[Message], notes: str) -> tuple[Message, ...]:
    """Return the opening as it was before `with_notes`; unchanged if it does not hold these notes."""
    before = _appended_text("", _NOTES.partition("{notes}")[0] + notes)
    last = opening[-1]
    return (*opening[:-1], last.model_copy(update={"content": last.content.partition(before)[0]}))


def _gate_notes(summary: Reply, history: History) -> Reply:
    """Pass the summary's notes through the gate, because they are sent back in a user message."""
    notes = extract_notes(summary)
    admitted = history.gate.admit(notes)
    return summary.model_copy(update={"content": summary.content.replace(notes, admitted)}) if notes else summary


def extract_notes(summary: Reply | None) -> str:
    """Return the notes in a summary; empty if there are none."""
    return strip_thinking(summary.content).strip() if summary else ""
