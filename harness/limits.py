"""Limits of an agent, and the room that they and the model's context leave for a reply."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.errors import ContextLimitReached
from harness.history import History
from harness.model import Model, ReportsMaxTokens
from harness.trajectory import Frozen, OnOverflow, Reply, Usage

ShellMode = Literal["persistent", "fresh"]
"""Whether the commands of a bash protocol share one shell, or each has a process of its own."""
Settling = Literal["adaptive", "strict"]
"""Whether a wait ends when the shell has settled, or always takes its whole duration."""
SMALLEST_REPLY_TOKENS = 64
"""Minimum room for a reply, in tokens: no protocol's reply is shorter."""
OUTPUT_LIMIT_BYTES = 10_000
"""Length above which the middle of an observation is cut out."""


class LimitSettings(Frozen):
    """The limits that a user can set. None means no limit."""

    steps: int | None = Field(default=100, ge=1)
    """Maximum number of model replies per trial."""
    format_errors: int = Field(default=5, ge=1)
    """Maximum number of unusable replies in a row."""
    completion_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of generated tokens over all steps of a trial."""
    context_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of prompt and reply together, if the server allows more."""
    on_overflow: OnOverflow = "stop"
    """In a full context: stop, drop-oldest-outputs or summarize."""
    command_sec: float = Field(default=120.0, gt=0)
    """Maximum duration of one command in the bash protocols, in seconds."""


class Limits(LimitSettings):
    """All limits of an agent in one trial."""

    timeout_sec: float | None = Field(default=None, gt=0)
    """Longest wall time of the whole agent: the task's own limit."""


class ReplyRoom:
    """The number of tokens that the context, the limits and the conversation leave for one agent's replies."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self._model, self._limits = model, limits

    @property
    def context_tokens(self) -> int | None:
        """Maximum number of tokens of prompt and reply together; None if unknown."""
        known = [tokens for tokens in (self._model.context_tokens, self._limits.context_tokens) if tokens is not None]
        return min(known, default=None)

    def max_tokens(self, used: Usage) -> int:
        """Return the max_tokens of a query, regardless of the room in the context."""
        wanted = self._model.sampling.max_tokens
        if isinstance(self._model, ReportsMaxTokens) and self._model.most_tokens is not None:
            wanted = min(wanted, self._model.most_tokens)
        if self._limits.completion_tokens is not None:
            wanted = min(wanted, self._limits.completion_tokens - used.completion_tokens)
        return max(1, wanted)

    def left(self, history: History, used: Usage) -> int:
        """Return the max_tokens of the next query, limited by the context's room. Raises ContextLimitReached."""
        context = self.context_tokens
        if context is None:
            return self.max_tokens(used)
        left = context - history.tokens
        if left < SMALLEST_REPLY_TOKENS:
            if self._limits.on_overflow != "stop":
                raise ContextLimitReached("no room is left for a reply", history.tokens)
            # The estimate errs on the high side: let the server decide, which can count.
            left = SMALLEST_REPLY_TOKENS
        return min(self.max_tokens(used), left)

    def is_cramped(self, reply: Reply, asked: int, used: Usage) -> bool:
        """Whether the context left the reply less room than wanted; `asked` is the max_tokens of its query."""
        return min(asked, reply.max_tokens or asked) < self.max_tokens(used)

    def is_plausible(self, usage: Usage) -> bool:
        """Whether a reply's counts are plausible: no server answers a prompt that exceeds its context."""
        served = self._model.context_tokens
        return served is None or usage.prompt_tokens + usage.completion_tokens <= served + SMALLEST_REPLY_TOKENS

    def fills_context(self, reply: Reply, cramped: bool) -> bool:
        """Whether the reply filled the context; or was cut for want of room, if the overflow policy can make room."""
        context, served = self.context_tokens, self._model.context_tokens
        if context is not None and self.is_plausible(reply.usage):
            left = context - reply.usage.prompt_tokens - reply.usage.completion_tokens
            # A whole reply cannot have exceeded the server's own limit, whatever it counts.
            is_over = left < 0 and context != served
            if is_over or (reply.cut and left < SMALLEST_REPLY_TOKENS):
                return True
        return reply.cut and cramped and self._limits.on_overflow != "stop"
