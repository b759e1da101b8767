"""State of one server, learned from its answers: its limits, speed, handling of reasoning, and weights."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import quantiles

from harness.endpoint.refusals import LEAST_LENGTH, Reason, Refusal
from harness.errors import ContextLimitReached, RequestRefused
from harness.limits import SMALLEST_REPLY_TOKENS
from harness.model import Rendering, ServedModel
from harness.rendering import ReasoningFormat
from harness.trajectory import Reply, Usage

# Limits of one server, learned from its refusals, and the reduction of requests to fit them.

_MAX_LOWERINGS = 10
"""Maximum number of retries of one query with a smaller max_tokens; halving the default to the smallest takes eight."""
_MAX_GUESSES = 3
"""Maximum number of retries if the refusal does not say that it is about max_tokens."""
_TOKENS_PER_BYTE = 0.25
"""Estimate for a prompt that the server has not counted: a request that is still too large is refused once more."""
_MEASURED_BYTES = 1000
"""Minimum size of a request whose tokens per byte are representative."""
_SPREAD = 4
"""Factor by which the tokens per byte of two requests to one server may differ."""


class TooManyTokensError(ContextLimitReached):
    """A classified refusal because the prompt, max_tokens or both together are too large."""

    def __init__(self, message: str, refusal: Refusal, sent_bytes: int, refused: RequestRefused) -> None:
        super().__init__(message, refusal.prompt_tokens)
        self.refusal = refusal
        self.sent_bytes = sent_bytes
        self.refused = refused
        """The error to raise if the size turns out not to be the reason."""


@dataclass
class ServerLimits:
    """Known limits of one server, shared by all its clients, so that only the first trial discovers them."""

    say: Callable[[str], None]
    listed_tokens: int | None = None
    """Context length according to its list of models."""
    learned_tokens: int | None = None
    """Context length according to a refusal."""
    most_tokens: int | None = None
    """Largest max_tokens that it accepts."""
    accepted_tokens: int = 0
    """Largest max_tokens that it has accepted."""
    longest_tokens: int = 0
    """Length of the longest answered prompt with its reply: refusals that state a shorter context are wrong."""
    longest_bytes: int = 0
    """Size of the largest answered request."""
    _accepted_once: set[int] = field(default_factory=set)
    """Values of max_tokens, other than round numbers, that were accepted with one prompt."""
    tokens_per_byte: float = _TOKENS_PER_BYTE
    """Prompt tokens per byte of the last answered request that was not short."""

    @property
    def context_tokens(self) -> int | None:
        known = [each for each in (self.listed_tokens, self.learned_tokens) if each is not None]
        return min(known, default=None)

    def record_answer(self, usage: Usage, sent_bytes: int) -> None:
        """Record the length of an answered prompt and its reply, and the size of the request."""
        self.longest_tokens = max(self.longest_tokens, usage.prompt_tokens + usage.completion_tokens)
        self.longest_bytes = max(self.longest_bytes, sent_bytes)
        # The refusal may have stated something other than the context, such as the room left by a prompt. Only the
        # request's size can show this, because counts above the context are discarded.
        if self.learned_tokens is not None and 2 * self.learned_tokens < sent_bytes * self.tokens_per_byte:
            self.learned_tokens = None
        if sent_bytes >= _MEASURED_BYTES and usage.prompt_tokens > 0:
            self.tokens_per_byte = min(1.0, usage.prompt_tokens / sent_bytes)

    def contradicts(self, refusal: Refusal, sent_bytes: int) -> bool:
        """Whether the server has already answered a request of the size that it refuses now."""
        stated = refusal.context_tokens
        if stated is not None and refusal.reason is not Reason.REPLY:
            return LEAST_LENGTH <= stated < self.longest_tokens
        return refusal.reason is Reason.PROMPT and sent_bytes * _SPREAD < self.longest_bytes

    def learn_context(self, refusal: Refusal) -> None:
        """Adopt the context length stated by a refusal if it is shorter than the known one."""
        stated, known = refusal.context_tokens, self.context_tokens
        if stated is None or stated <= max(self.longest_tokens, SMALLEST_REPLY_TOKENS) or (known and known <= stated):
            return
        self.learned_tokens = stated
        self.say(
            f"accepts {stated:,} tokens of prompt and reply together, according to its refusal: replies are limited "
            "accordingly (set it with --context-tokens)"
        )

    def learn_most(self, tokens: int, refused: int) -> None:
        """Record that the server accepts `tokens` as max_tokens, and refuses `refused` for any prompt.

        A number that is not round may only be the room left by one prompt: it is adopted once another prompt gives the
        same number.
        """
        if self.most_tokens is not None and self.most_tokens <= tokens:
            return
        if not _is_round(tokens) and tokens not in self._accepted_once:
            self._accepted_once.add(tokens)
            return
        self.most_tokens = tokens
        if self.context_tokens is None or tokens < self.context_tokens:  # else it follows from the context
            self.say(f"refuses max_tokens {refused:,}, so {tokens:,} is used from now on (set it with --max-tokens)")


def _is_round(tokens: int) -> bool:
    """Whether a limit looks configured: a round number, or one next to it."""
    return any((tokens + each) % 256 == 0 or (tokens + each) % 500 == 0 for each in (-1, 0, 1))


class MaxTokensReduction:
    """The max_tokens of one query, lowered with each refusal until the server accepts it."""

    def __init__(self, limits: ServerLimits, max_tokens: int) -> None:
        self._limits = limits
        self._asked = max_tokens
        self._last: Refusal | None = None
        self._times = self._refused = 0
        self.max_tokens = min(max_tokens, limits.most_tokens or max_tokens)

    def lower(self, error: TooManyTokensError) -> None:
        """Lower max_tokens to the room stated by the refusal, or by half if it states none.

        If that is too little, raises `error`, or `error.refused` if the refusal is not about the context.
        """
        refusal, before = error.refusal, self._last
        if refusal.is_sure:
            self._limits.learn_context(refusal)
        # The same numbers for a smaller max_tokens: they refer to the prompt alone.
        is_same = before is not None and refusal.prompt_tokens is not None and refusal.words == before.words
        self._last, self._refused = refusal, self.max_tokens
        self._times += 1
        left = self._left(error)
        if is_same or (refusal.is_sure and refusal.reason is Reason.PROMPT):
            raise error
        if not refusal.is_sure and refusal.reason is Reason.REPLY and self._times > _MAX_GUESSES:
            raise error.refused
        if self._times > _MAX_LOWERINGS or left < SMALLEST_REPLY_TOKENS:
            about_reply = refusal.reason is Reason.REPLY and refusal.context_tokens is None
            raise error.refused if about_reply and not self._is_room_limited else error
        self.max_tokens = left

    def _left(self, error: TooManyTokensError) -> int:
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
            left = self.max_tokens  # only an estimate: let the server decide
        return left if left < self.max_tokens else self.max_tokens // 2

    @property
    def _is_room_limited(self) -> bool:
        """Whether a larger max_tokens was accepted with another prompt, so that this prompt's room is the limit."""
        return self.max_tokens < self._limits.accepted_tokens

    def record_accepted(self) -> None:
        """Record the max_tokens that the server finally accepted."""
        is_room = self._is_room_limited
        self._limits.accepted_tokens = max(self._limits.accepted_tokens, self.max_tokens)
        if self._last is None:
            return
        if self._last.reason is Reason.REPLY and not is_room:
            most = self._last.most_tokens
            self._limits.learn_most(self.max_tokens if most is None or most >= self._refused else most, self._asked)
        elif self._last.reason is not Reason.REPLY and not self._last.is_sure:
            self._limits.learn_context(self._last)


# Time limit of requests, by the server's pace so far.

LEAST_SEC = 600.0
"""Time for the server's queue and the prompt, however short the reply."""
LONGEST_SEC = 4 * 3600.0
"""Longest time limit. A hanging server may still answer other paths: then nothing else ends the request."""
_MARGIN = 3.0
"""Factor by which a reply may be slower than nearly all before it: a server slows down as more trials begin."""
_UNKNOWN_PACE, _FASTEST_PACE = 15.0, 50.0
"""Tokens per second of one request: the assumed pace until enough replies are known, and the fastest pace that is
believed, since replies may come from a cache."""
_ENOUGH, _LATEST = 16, 128
_SHORTEST_TOKENS = 64
"""Length below which a reply's time is dominated by its prompt."""


class TimeLimit:
    """Time limit of the requests to one server; without `fixed_sec`, by the pace of its replies so far."""

    def __init__(self, fixed_sec: float | None) -> None:
        self.is_fixed = fixed_sec is not None
        self.longest_sec = fixed_sec if fixed_sec is not None else LONGEST_SEC
        self.least_sec = min(LEAST_SEC, self.longest_sec)
        """Limit for a request that generates nothing."""
        self._sec_per_token: deque[float] = deque(maxlen=_LATEST)

    def record(self, tokens: int, seconds: float) -> None:
        """Record the time of a reply, including the queue."""
        if tokens >= _SHORTEST_TOKENS:
            self._sec_per_token.append(seconds / tokens)

    def seconds_for(self, max_tokens: int, times_cut: int = 0) -> float:
        """Return the seconds for a request, doubled each time that it was cut off before."""
        if self.is_fixed:
            return self.longest_sec
        seconds = LEAST_SEC + _MARGIN * max_tokens * self._slow_sec_per_token()
        return float(min(seconds * 2**times_cut, LONGEST_SEC))

    def _slow_sec_per_token(self) -> float:
        seen = self._sec_per_token
        if len(seen) < _ENOUGH:
            return max(1 / _UNKNOWN_PACE, *seen) if seen else 1 / _UNKNOWN_PACE
        return max(1 / _FASTEST_PACE, quantiles(seen, n=10)[-1])


# The form in which earlier reasoning is sent back to one server, adapted to the server's refusals.

_FIELD = re.compile(r"\b(reasoning(?:_content|_details)?|thinking(?:_content|_blocks)?)\b(?!\.\w|[ _]?budget)")
"""A field of a message; `thinking.type` and the like are fields of the request."""
_FILL = re.compile(r"(?:must|may|can|should)(?: not|not) be (?:empty|null|blank|missing|omitted|none)", re.IGNORECASE)
_UNWANTED = re.compile(
    r"\bnot (?:be )?(?:allowed|permitted|supported|accepted|expected|recogni[sz]ed|valid|included|passed|present|sent)"
    r"|(?:must|should|can)(?: ?not|n't)\b|does(?: not|n't) (?:support|accept|allow|take)|unsupported|unexpected|unknown"
    r"|unrecogni[sz]ed|forbidden|disallowed|\bextra\b|\bremove\b|additional propert|no such|\bonly\b",
    re.IGNORECASE,
)
_WANTED = re.compile(
    r"missing|require|must\b|pass(?:ed)? back|\bexpect|\bneed|provide|lack|absent|not found|include|without",
    re.IGNORECASE,
)


class ReasoningPolicy:
    """The form in which reasoning is sent back to one server, for all conversations with it.

    It is sent in the field in which it came, and the chat template decides on its use. This changes if the server
    refuses a history with it, or without it.
    """

    def __init__(self, rendering: Rendering) -> None:
        self._is_chosen = rendering.send_reasoning == "on"
        self._may_send = rendering.sends_reasoning
        self.sent = ReasoningFormat() if self._may_send else None

    def note_field(self, field: str | None) -> None:
        """Record the field in which reasoning came."""
        if field is not None and self.sent is not None and not self.sent.always:
            self.sent = ReasoningFormat(field)

    def learn(self, refused: RequestRefused, asked: ReasoningFormat | None) -> str | None:
        """Adapt to a refusal of a history sent in the form `asked`, and return a message about the change.

        None if the refusal is about something else. Raises the refusal, with advice, if the user has chosen the form.
        """
        words = str(refused).partition(": HTTP ")[2]
        found = _FIELD.search(words)
        if found is None or not 400 <= refused.status < 500:
            return None
        unwanted = _UNWANTED.search(words) and not _FILL.search(words)
        if not unwanted and (_FILL.search(words) or _WANTED.search(words)):
            if asked is not None and asked.always:
                return None
            if not self._may_send:
                raise _with_advice(
                    refused, "this server needs earlier reasoning: set --send-reasoning on, and do not strip thinking"
                )
            named = found[1] if found[1] == "reasoning_content" else (asked or ReasoningFormat()).field
            self.sent = ReasoningFormat(named, always=True)
            return f"needs the reasoning of earlier replies; it is sent from now on, as {named}"
        if asked is None:
            return None
        if self._is_chosen:
            raise _with_advice(refused, "this server accepts no earlier reasoning: omit --send-reasoning")
        self.sent = None
        return "refuses the reasoning of earlier replies; it is not sent from now on"


def _with_advice(refused: RequestRefused, advice: str) -> RequestRefused:
    return RequestRefused(f"{refused} ({advice})", refused.status)


# Detection of other weights under the same name, by changes in a server's metadata.
#
# Missing values never count as a difference: most servers report little.

_IDENTITY = {
    "model": "the model",
    "weights": "the version of its weights",
    "fingerprint": "its system_fingerprint",
}
"""Descriptions of the identifying fields of replies."""
_FIRST_REPLIES = 50
MAX_IN_A_ROW = 8
"""Number of consecutive replies with an unknown fingerprint that are too many for a fleet: with two equal servers,
chance produces this many from one of them only once in 256."""


def listing_difference(before: ServedModel, now: ServedModel) -> str | None:
    """Return a message about how a listed model differs from an earlier listing; None if no difference is known.

    Other names of the same weights (`--served-model-name`) do not count as a difference.
    """
    if before.root and now.root and before.root != now.root:
        return f"{now.id} is now {now.root}; it was {before.root} before"
    lengths = before.context_tokens, now.context_tokens
    if all(lengths) and lengths[0] != lengths[1]:
        return f"{now.id} now has a context of {lengths[1]:,} tokens; it was {lengths[0]:,} before"
    return None


@dataclass
class ModelIdentity:
    """Identity of the model that replies, according to the first replies. Replies of other models are rejected.

    A fleet behind one address alternates between fingerprints: a new one among the first replies is accepted, if fewer
    than MAX_IN_A_ROW replies pass before a known one returns. New ones that come later belong to another server.
    """

    say: Callable[[str], None]
    is_strict: bool = True
    """Whether other weights are rejected; during training they are expected."""
    names: Collection[str] = ()
    """All names of the requested model, first the requested one."""
    known: dict[str, set[str]] = field(default_factory=dict)
    """Accepted values, by field."""
    _other: dict[str, str] = field(default_factory=dict)
    """Last rejected value, by field."""
    _accepted: int = 0
    """Number of accepted replies."""
    _in_a_row: int = 0
    """Number of consecutive rejected replies."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether the last reply was rejected."""
        return bool(self._other)

    @property
    def may_be_fleet(self) -> bool:
        """Whether the last replies may come from other servers of the same model."""
        is_early = self._accepted <= _FIRST_REPLIES and self._in_a_row < MAX_IN_A_ROW
        return is_early and set(self._other) == {"fingerprint"}

    def expect(self, seen: Mapping[str, Iterable[str]]) -> None:
        """Accept the values in the replies of an earlier start, by field."""
        for name, values in seen.items():
            if taken := {self._canonical(name, value) for value in values}:
                self.known.setdefault(name, set()).update(taken)

    def difference(self, reply: Reply) -> str | None:
        """Return a message about how a reply's identity differs from earlier replies; None if it does not."""
        if not self.is_strict:
            return None
        reported = {name: self._canonical(name, value) for name in _IDENTITY if (value := getattr(reply, name))}
        for name, value in reported.items():
            known = self.known.get(name)
            if known and name == "model" and value in self.names and value not in known:
                # The requested name is right, whatever the first replies named.
                self.say(f"its replies name {value} now, and named {', '.join(sorted(known))} before: another model")
                known.clear()
            elif known and value not in known:
                self._other[name] = value
                self._in_a_row += 1
                return f"its reply says that {_IDENTITY[name]} is {value}; before it was {', '.join(sorted(known))}"
        for name, value in reported.items():
            self.known.setdefault(name, set()).add(value)
        if self.may_be_fleet:
            other = self._other["fingerprint"]
            self.known["fingerprint"].add(other)
            self.say(f"replies alternate between system_fingerprint {other} and another: several servers of one model?")
        self._other.clear()
        self._accepted, self._in_a_row = self._accepted + 1, 0
        return None

    def _canonical(self, name: str, value: str) -> str:
        """Map all names of the model to one."""
        return next(iter(self.names)) if name == "model" and value in self.names else value
