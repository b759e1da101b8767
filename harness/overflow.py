"""Makes a history that fills the model's context shorter, and says what was done.

`drop-oldest-outputs` replaces the oldest terminal outputs by one line each. `summarize` has the model sum up its work
and goes on with the first messages, that summary and the last output.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from operator import ne

from harness.errors import ContextLimitReached
from harness.history import History, size_bytes
from harness.text import strip_thinking
from harness.trajectory import Compaction, Message, OnOverflow, Reply

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
