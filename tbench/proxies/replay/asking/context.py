"""Checks that every prompt and its reply fit the model's context, before anything is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.endpoint.chat import ChatModel
from harness.errors import ContextLimitReached, EndpointError
from tbench.errors import UsageError
from tbench.proxies.replay.asking.prompts import Prompt
from tbench.proxies.replay.asking.tokenizer import Tokenizer
from tbench.proxies.workers import work_through

TOO_LONG_TO_COUNT = "the server refuses to count so much"


@dataclass(frozen=True)
class ContextCheck:
    """The prompts' token counts, and the context that they have to fit."""

    max_tokens: int
    max_model_len: int | None
    counts: Mapping[str, int] = field(default_factory=dict)
    counted_by: str | None = None
    """`server` or `tokenizer`; None where nobody could count."""
    refused: frozenset[str] = frozenset()
    """Steps whose prompt the server refused to count because of its length."""
    problem: str | None = None
    """Why some prompts could not be counted."""

    @property
    def overflow(self) -> dict[str, str]:
        """Error by key of each step that does not fit."""
        if self.max_model_len is None:
            return {}
        words = f"+ {self.max_tokens} max_tokens > max_model_len {self.max_model_len}"
        found = {
            key: f"overflow: {count} prompt tokens {words}"
            for key, count in self.counts.items()
            if count + self.max_tokens > self.max_model_len
        }
        return found | dict.fromkeys(self.refused, f"overflow: {TOO_LONG_TO_COUNT}")

    def require_room(self) -> None:
        """Refuse steps that do not fit, as nothing may be cut silently. Raises UsageError."""
        overflow = self.overflow
        if not overflow:
            return
        known = {key: self.counts[key] for key in overflow if key in self.counts}
        longest = f" (longest: {max(known, key=known.__getitem__)}, {max(known.values())} tokens)" if known else ""
        total = len(self.counts) + len(self.refused)
        raise UsageError(
            f"{len(overflow)} of {total} steps do not fit: prompt{longest} and --max-tokens {self.max_tokens} exceed "
            f"the context of {self.max_model_len} tokens; serve the model with a longer one, lower --max-tokens, or "
            "leave these steps without an answer with --allow-overflow"
        )


async def check_context(
    prompts: Mapping[str, Prompt],
    chats: Sequence[ChatModel],
    *,
    max_tokens: int,
    max_model_len: int | None,
    tokenizer: Tokenizer | None = None,
    concurrency: int = 16,
    say: Callable[[str], None] = lambda _: None,
) -> ContextCheck:
    """Count with the first server that can, else with the tokenizer, else not at all.

    Raises UsageError for a `max_tokens` that leaves no room for any prompt.
    """
    if max_model_len is not None and max_tokens >= max_model_len:
        raise UsageError(
            f"--max-tokens {max_tokens}: the whole context has {max_model_len} tokens; nothing is left for a prompt"
        )
    counting = _Counting(prompts, max_tokens, max_model_len)
    for chat in chats:
        if (check := await counting.by_server(chat, concurrency)) is not None:
            return check
    if tokenizer is not None:
        return counting.by_tokenizer(tokenizer)
    say(f"no /tokenize at the server: that prompts fit its context ({max_model_len or 'unknown'}) is not checked")
    return counting.check()


class _Counting:
    """The state of one `check_context`."""

    def __init__(self, prompts: Mapping[str, Prompt], max_tokens: int, max_model_len: int | None) -> None:
        self._prompts = prompts
        self._max_tokens = max_tokens
        self._limit = max_model_len
        self._counts: dict[str, int] = {}
        self._refused: set[str] = set()
        self._problem: str | None = None

    async def by_server(self, chat: ChatModel, concurrency: int) -> ContextCheck | None:
        """Count all prompts with one server; None where it cannot count."""
        keys = list(self._prompts)
        if not keys or not await self._count(chat, keys[0]):
            return None

        async def count(key: str) -> None:
            await self._count(chat, key)

        await work_through(keys[1:], count, concurrency)
        return self.check("server")

    def by_tokenizer(self, tokenizer: Tokenizer) -> ContextCheck:
        self._problem = None
        for key, prompt in self._prompts.items():
            if "prompt" in prompt.fields:
                self._counts[key] = len(tokenizer.encode(prompt.fields["prompt"], add_special_tokens=False))
        return self.check("tokenizer")

    async def _count(self, chat: ChatModel, key: str) -> bool:
        try:
            counted = await chat.count_tokens(self._prompts[key].fields)
        except ContextLimitReached:
            self._refused.add(key)
            return True
        except EndpointError as error:
            self._problem = str(error)
            return False
        if counted is None:
            return False
        self._counts[key] = counted.count
        if counted.max_model_len is not None:
            self._limit = min(self._limit or counted.max_model_len, counted.max_model_len)
        return True

    def check(self, by: str | None = None) -> ContextCheck:
        refused = frozenset(self._refused)
        return ContextCheck(self._max_tokens, self._limit, self._counts, by, refused, self._problem)
