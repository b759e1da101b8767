"""How much room there is for a reply: what the model's context, the limits and the conversation so far leave of it."""

from __future__ import annotations

from harness.errors import ContextLimitReached
from harness.history import History
from harness.limits import SMALLEST_REPLY_TOKENS, Limits
from harness.model import Bounded, Model
from harness.trajectory import Reply, Usage


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
