"""How much room there is for a reply: what the model's context, the limits and the conversation so far leave of it."""

from __future__ import annotations

from harness.errors import ContextLimitReached
from harness.history import History
from harness.limits import Limits
from harness.model import Model
from harness.trajectory import Reply, Usage

SMALLEST_REPLY_TOKENS = 64
"""Tokens of the smallest reply that there has to be room for in the context: no protocol's reply fits into less."""


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

    def left_after(self, refusal: ContextLimitReached, asked: int) -> int:
        """What the server's refusal of `asked` tokens leaves. Raises the refusal where that is too little."""
        context = self.context_tokens
        left = 0 if context is None or refusal.prompt_tokens is None else context - refusal.prompt_tokens
        if not SMALLEST_REPLY_TOKENS <= left < asked:
            raise refusal
        return left

    def is_filled_by(self, reply: Reply, cramped: bool) -> bool:
        """Whether the reply filled the context; where a policy can make room, also whether too little room cut it."""
        context = self.context_tokens
        left = None if context is None else context - reply.usage.prompt_tokens - reply.usage.completion_tokens
        if left is not None and (left < 0 or (reply.cut and left < SMALLEST_REPLY_TOKENS)):
            return True
        return reply.cut and cramped and self._limits.on_overflow != "stop"
