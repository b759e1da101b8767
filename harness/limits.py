"""Limits of an agent: what its user sets, and how much room they and the model's context leave for a reply."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.errors import ContextLimitReached
from harness.history import History
from harness.model import Bounded, Model
from harness.trajectory import Frozen, OnOverflow, Reply, Usage

ShellMode = Literal["persistent", "fresh"]
"""Whether the commands of a bash protocol share one shell, or each has a process of its own."""
Settling = Literal["adaptive", "strict"]
"""Whether a wait ends when the shell has settled, or always takes its whole duration."""
SMALLEST_REPLY_TOKENS = 64
"""Tokens of the smallest reply that there has to be room for: no protocol's reply fits into less."""
OUTPUT_LIMIT_BYTES = 10_000
"""Longer observations lose their middle."""


class LimitSettings(Frozen):
    """The limits that the user decides about. None means no limit."""

    steps: int | None = Field(default=100, ge=1)
    """Most replies of the model per trial."""
    format_errors: int = Field(default=5, ge=1)
    """Most replies in a row that could not be used."""
    completion_tokens: int | None = Field(default=None, ge=1)
    """Most generated tokens over all steps of a trial."""
    context_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of prompt and reply together, where the server allows more."""
    on_overflow: OnOverflow = "stop"
    """In a full context: stop, drop-oldest-outputs or summarize."""
    command_sec: float = Field(default=120.0, gt=0)
    """Longest run of one command in the bash protocols, in seconds."""


class Limits(LimitSettings):
    """All limits of an agent in one trial."""

    timeout_sec: float | None = Field(default=None, gt=0)
    """Longest wall time of the whole agent: the task's own limit."""


# How much room there is for a reply: what the model's context, the limits and the conversation so far leave of it.


class ReplyRoom:
    """The room of one agent's replies."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self._model, self._limits = model, limits

    @property
    def context_tokens(self) -> int | None:
        """Tokens of prompt and reply together; None where nobody says."""
        known = [tokens for tokens in (self._model.context_tokens, self._limits.context_tokens) if tokens is not None]
        return min(known, default=None)

    def wanted(self, used: Usage) -> int:
        """The max_tokens of a query that the context has room enough for."""
        wanted = self._model.sampling.max_tokens
        if isinstance(self._model, Bounded) and self._model.most_tokens is not None:
            wanted = min(wanted, self._model.most_tokens)
        if self._limits.completion_tokens is not None:
            wanted = min(wanted, self._limits.completion_tokens - used.completion_tokens)
        return max(1, wanted)

    def left(self, history: History, used: Usage) -> int:
        """The max_tokens of the next query: what is wanted, or all that the context has. Raises ContextLimitReached."""
        context = self.context_tokens
        if context is None:
            return self.wanted(used)
        left = context - history.tokens
        if left < SMALLEST_REPLY_TOKENS:
            if self._limits.on_overflow != "stop":
                raise ContextLimitReached("no room is left for a reply", history.tokens)
            # The estimate errs on the high side: let the server, which can count, have the last word.
            left = SMALLEST_REPLY_TOKENS
        return min(self.wanted(used), left)

    def is_cramped(self, reply: Reply, asked: int, used: Usage) -> bool:
        """Whether the context left the reply less room than it should have; `asked` is the max_tokens of its query."""
        return min(asked, reply.max_tokens or asked) < self.wanted(used)

    def believes(self, usage: Usage) -> bool:
        """Whether the counts of a reply can be true: no server answers what is longer than its context."""
        served = self._model.context_tokens
        return served is None or usage.prompt_tokens + usage.completion_tokens <= served + SMALLEST_REPLY_TOKENS

    def is_filled_by(self, reply: Reply, cramped: bool) -> bool:
        """Whether the reply filled the context; where a policy can make room, also whether too little room cut it."""
        context, served = self.context_tokens, self._model.context_tokens
        if context is not None and self.believes(reply.usage):
            left = context - reply.usage.prompt_tokens - reply.usage.completion_tokens
            # The server's own limit cannot be behind a whole reply, whatever it counts.
            is_over = left < 0 and context != served
            if is_over or (reply.cut and left < SMALLEST_REPLY_TOKENS):
                return True
        return reply.cut and cramped and self._limits.on_overflow != "stop"
