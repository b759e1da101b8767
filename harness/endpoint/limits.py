"""The limits of one server that its refusals have told, and how a request is made smaller to fit them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.endpoint.refusals import LEAST_LENGTH, Reason, Refusal
from harness.errors import ContextLimitReached, RequestRefused
from harness.limits import SMALLEST_REPLY_TOKENS
from harness.trajectory import Usage

_MOST_LOWERINGS = 10
"""Most times that one query is asked again with less max_tokens; halving the default to the smallest takes eight."""
_MOST_GUESSES = 3
"""Most of them where the words of the refusal do not say that it is about this."""
_TOKENS_PER_BYTE = 0.25
"""Rate for a prompt that the server has not counted: a request that is still too large is refused once more."""
_MEASURED_BYTES = 1000
"""Least size of a request whose tokens per byte say something of others."""
_SPREAD = 4
"""Factor by which the tokens per byte of two requests to one server may differ."""


class TooManyTokens(ContextLimitReached):
    """A refusal for the size of prompt and reply, with what it tells."""

    def __init__(self, message: str, refusal: Refusal, sent_bytes: int, refused: RequestRefused) -> None:
        super().__init__(message, refusal.prompt_tokens)
        self.refusal = refusal
        self.sent_bytes = sent_bytes
        self.refused = refused
        """The same as a refusal for a reason that is not known."""


@dataclass
class ServerLimits:
    """What is known of one server's limits. Shared by all who ask it, so that the first trial pays for the others."""

    say: Callable[[str], None]
    listed_tokens: int | None = None
    """The context that its list of models tells."""
    learned_tokens: int | None = None
    """The context by a refusal."""
    most_tokens: int | None = None
    """The largest max_tokens that it takes."""
    taken_tokens: int = 0
    """The largest max_tokens that it has taken."""
    longest_tokens: int = 0
    """Prompt and reply that it has answered: no refusal tells a context that is shorter."""
    longest_bytes: int = 0
    """Size of the largest request that it has answered."""
    _taken_once: set[int] = field(default_factory=set)
    """What it has taken beside one prompt, where that is no round number."""
    tokens_per_byte: float = _TOKENS_PER_BYTE
    """Prompt by size of the last answered request that was not short."""

    @property
    def context_tokens(self) -> int | None:
        known = [each for each in (self.listed_tokens, self.learned_tokens) if each is not None]
        return min(known, default=None)

    def answered(self, usage: Usage, sent_bytes: int) -> None:
        """Note the length of a prompt and its reply, for which there was room, and the size of the request."""
        self.longest_tokens = max(self.longest_tokens, usage.prompt_tokens + usage.completion_tokens)
        self.longest_bytes = max(self.longest_bytes, sent_bytes)
        # Counts above a context are not believed: what was sent says whether the refusal told something else, such as
        # the room that a prompt leaves.
        if self.learned_tokens is not None and 2 * self.learned_tokens < sent_bytes * self.tokens_per_byte:
            self.learned_tokens = None
        if sent_bytes >= _MEASURED_BYTES and usage.prompt_tokens > 0:
            self.tokens_per_byte = min(1.0, usage.prompt_tokens / sent_bytes)

    def contradict(self, refusal: Refusal, sent_bytes: int) -> bool:
        """Whether the server has answered what it calls too long now."""
        told = refusal.context_tokens
        if told is not None and refusal.reason is not Reason.REPLY:
            return LEAST_LENGTH <= told < self.longest_tokens
        return refusal.reason is Reason.PROMPT and sent_bytes * _SPREAD < self.longest_bytes

    def learn_context(self, refusal: Refusal) -> None:
        """Take over the context's length from a refusal that tells a shorter one than is known."""
        told, known = refusal.context_tokens, self.context_tokens
        if told is None or told <= max(self.longest_tokens, SMALLEST_REPLY_TOKENS) or (known and known <= told):
            return
        self.learned_tokens = told
        self.say(
            f"takes {told:,} tokens of prompt and reply together, by its refusal: replies get at most what that leaves "
            "(--context-tokens sets it)"
        )

    def learn_most(self, tokens: int, refused: int) -> None:
        """Note that the server takes `tokens` as max_tokens, and refuses `refused` whatever the prompt is.

        A number that is not round may be the room that one prompt leaves: it is believed when another leaves the same.
        """
        if self.most_tokens is not None and self.most_tokens <= tokens:
            return
        if not _is_round(tokens) and tokens not in self._taken_once:
            self._taken_once.add(tokens)
            return
        self.most_tokens = tokens
        if self.context_tokens is None or tokens < self.context_tokens:  # else the context says it all
            self.say(
                f"refuses max_tokens {refused:,} and takes {tokens:,}: that is asked for now (--max-tokens sets it)"
            )


def _is_round(tokens: int) -> bool:
    """Whether a limit is one that somebody has chosen: a round number, or the next one to it."""
    return any((tokens + each) % 256 == 0 or (tokens + each) % 500 == 0 for each in (-1, 0, 1))


class Lowering:
    """The max_tokens of one query, lowered with each refusal until the server takes it."""

    def __init__(self, limits: ServerLimits, max_tokens: int) -> None:
        self._limits = limits
        self._asked = max_tokens
        self._last: Refusal | None = None
        self._times = self._refused = 0
        self.max_tokens = min(max_tokens, limits.most_tokens or max_tokens)

    def lower(self, error: TooManyTokens) -> None:
        """Take what the refusal leaves, or half where it does not say. Raises it where that is too little; as one for a
        reason that is not known where it does not speak of the context."""
        refusal, before = error.refusal, self._last
        if refusal.is_sure:
            self._limits.learn_context(refusal)
        # The same numbers for less max_tokens: these are those of the prompt alone.
        is_same = before is not None and refusal.prompt_tokens is not None and refusal.words == before.words
        self._last, self._refused = refusal, self.max_tokens
        self._times += 1
        left = self._left(error)
        if is_same or (refusal.is_sure and refusal.reason is Reason.PROMPT):
            raise error
        if not refusal.is_sure and refusal.reason is Reason.REPLY and self._times > _MOST_GUESSES:
            raise error.refused
        if self._times > _MOST_LOWERINGS or left < SMALLEST_REPLY_TOKENS:
            about_context = refusal.reason is not Reason.REPLY or refusal.context_tokens is not None or self._is_room
            raise error if about_context else error.refused
        self.max_tokens = left

    def _left(self, error: TooManyTokens) -> int:
        refusal, context = error.refusal, self._limits.context_tokens
        context = context if refusal.is_sure else refusal.context_tokens
        known = [] if refusal.most_tokens is None else [refusal.most_tokens]
        if context is not None:
            prompt = refusal.prompt_tokens
            known.append(
                context - (math.ceil(error.sent_bytes * self._limits.tokens_per_byte) if prompt is None else prompt)
            )
        left = min(known, default=self.max_tokens)
        if refusal.prompt_tokens is None and left < SMALLEST_REPLY_TOKENS:
            left = self.max_tokens  # the estimate errs, let the server have the last word
        return left if left < self.max_tokens else self.max_tokens // 2

    @property
    def _is_room(self) -> bool:
        """Whether more was taken beside another prompt, so that this one's room decides and no limit of its own."""
        return self.max_tokens < self._limits.taken_tokens

    def accepted(self) -> None:
        """Note what the server took in the end."""
        is_room = self._is_room
        self._limits.taken_tokens = max(self._limits.taken_tokens, self.max_tokens)
        if self._last is None:
            return
        if self._last.reason is Reason.REPLY and not is_room:
            most = self._last.most_tokens
            self._limits.learn_most(self.max_tokens if most is None or most >= self._refused else most, self._asked)
        elif self._last.reason is not Reason.REPLY and not self._last.is_sure:
            self._limits.learn_context(self._last)
