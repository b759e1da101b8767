"""State of one server, learned from its answers: its limits, its speed, how it takes reasoning, and its weights."""

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
from harness.rendering import Sent
from harness.trajectory import Reply, Usage

# The limits of one server that its refusals have told, and how a request is made smaller to fit them.

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


# How long one request may take, by how fast this server has generated so far.

LEAST_SEC = 600.0
"""For the server's queue and the prompt, however short the reply."""
LONGEST_SEC = 4 * 3600.0
"""A server that hangs answers its other paths, so that nothing but this ends a request to it."""
_MARGIN = 3.0
"""How much slower a reply may be than nearly all before it: a server slows down as more trials begin."""
_UNKNOWN_PACE, _FASTEST_PACE = 15.0, 50.0
"""Tokens per second and request: before enough replies were seen, and at most, since replies may come from a cache."""
_ENOUGH, _LATEST = 16, 128
_SHORTEST_TOKENS = 64
"""Replies below this take the time of their prompt."""


class TimeLimit:
    """The time limit of the requests to one server; without a `fixed_sec`, by the pace of its replies so far."""

    def __init__(self, fixed_sec: float | None) -> None:
        self.is_fixed = fixed_sec is not None
        self.longest_sec = fixed_sec if fixed_sec is not None else LONGEST_SEC
        self.least_sec = min(LEAST_SEC, self.longest_sec)
        """Of a request that generates nothing."""
        self._sec_per_token: deque[float] = deque(maxlen=_LATEST)

    def saw(self, tokens: int, seconds: float) -> None:
        """Note how long a reply took, the queue included."""
        if tokens >= _SHORTEST_TOKENS:
            self._sec_per_token.append(seconds / tokens)

    def of(self, max_tokens: int, times_cut: int = 0) -> float:
        """Seconds for a request; for one that was cut before, twice as many, as it most likely takes as long again."""
        if self.is_fixed:
            return self.longest_sec
        seconds = LEAST_SEC + _MARGIN * max_tokens * self._slow_sec_per_token()
        return float(min(seconds * 2**times_cut, LONGEST_SEC))

    def _slow_sec_per_token(self) -> float:
        seen = self._sec_per_token
        if len(seen) < _ENOUGH:
            return max(1 / _UNKNOWN_PACE, *seen) if seen else 1 / _UNKNOWN_PACE
        return max(1 / _FASTEST_PACE, quantiles(seen, n=10)[-1])


# Decides how earlier reasoning goes back to one server, and learns it from the server's refusals.

_FIELD = re.compile(r"\b(reasoning(?:_content|_details)?|thinking(?:_content|_blocks)?)\b(?!\.\w|[ _]?budget)")
"""A field of a message; `thinking.type` and the like are of the request."""
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
    """How the reasoning of earlier replies goes back to one server, for all conversations with it.

    It goes under the name in which it came, and the chat template decides what becomes of it, until the server refuses
    a history with it, or one that lacks it.
    """

    def __init__(self, rendering: Rendering) -> None:
        self._is_chosen = rendering.send_reasoning == "on"
        self._may_send = rendering.sends_reasoning
        self.sent = Sent() if self._may_send else None

    def came_as(self, field: str | None) -> None:
        """Note the name under which reasoning came."""
        if field is not None and self.sent is not None and not self.sent.always:
            self.sent = Sent(field)

    def learn(self, refused: RequestRefused, asked: Sent | None) -> str | None:
        """What is done from now on about a refusal of a history that went as `asked`, in words.

        None where the refusal is about something else. Raises the refusal, with advice, where the user has chosen.
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
                raise _advised(refused, "this server wants earlier reasoning back: --send-reasoning and no stripping")
            named = found[1] if found[1] == "reasoning_content" else (asked or Sent()).field
            self.sent = Sent(named, always=True)
            return f"wants the reasoning of earlier replies back; it is sent from now on, as {named}"
        if asked is None:
            return None
        if self._is_chosen:
            raise _advised(refused, "this server takes no earlier reasoning: leave out --send-reasoning")
        self.sent = None
        return "refuses the reasoning of earlier replies; it is not sent from now on"


def _advised(refused: RequestRefused, advice: str) -> RequestRefused:
    return RequestRefused(f"{refused} ({advice})", refused.status)


# Notices other weights under the same name: what a server says of itself, and whether it still says so.
#
# Unknown never differs from known: most servers say little.

_SAID = {"model": "the model", "weights": "the version of its weights", "fingerprint": "its system_fingerprint"}
"""What replies say of who gave them, by the name of the field."""
_FIRST_REPLIES = 50
MOST_IN_A_ROW = 8
"""Replies of other servers in a row that a fleet is not expected to give: of two equal ones, once in 256 times."""


def served_otherwise(before: ServedModel, now: ServedModel) -> str | None:
    """How the listing of a model differs from an earlier one, in words; None where it does not, as far as is known.

    Other names of the same weights (`--served-model-name`) are no difference.
    """
    if before.root and now.root and before.root != now.root:
        return f"{now.id} is now {now.root}, and was {before.root}"
    lengths = before.context_tokens, now.context_tokens
    if all(lengths) and lengths[0] != lengths[1]:
        return f"{now.id} now has a context of {lengths[1]:,} tokens, and had {lengths[0]:,}"
    return None


@dataclass
class Replier:
    """Who gives a server's replies, by what the first ones say. A reply of somebody else is not to be followed.

    A fleet behind one address answers in turn with several fingerprints: one that is seen among the first replies, with
    less than so many in a row before a known one is back, is taken as well. Later ones are of another server.
    """

    say: Callable[[str], None]
    is_strict: bool = True
    """Whether other weights are noticed at all; for training they are expected."""
    names: Collection[str] = ()
    """All names of the model that is asked for, first the one that is asked for."""
    known: dict[str, set[str]] = field(default_factory=dict)
    """The values that are taken, by field."""
    _other: dict[str, str] = field(default_factory=dict)
    """The last value that was not taken, by field."""
    _taken: int = 0
    """Number of replies that were taken."""
    _in_a_row: int = 0
    """Number of replies that were not, since the last one that was."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether the last reply came from somebody else."""
        return bool(self._other)

    @property
    def may_be_fleet(self) -> bool:
        """Whether the last replies may come from other servers of the same model."""
        is_early = self._taken <= _FIRST_REPLIES and self._in_a_row < MOST_IN_A_ROW
        return is_early and set(self._other) == {"fingerprint"}

    def expect(self, seen: Mapping[str, Iterable[str]]) -> None:
        """Take what the replies of an earlier start said, by field."""
        for name, values in seen.items():
            if taken := {self._canonical(name, value) for value in values}:
                self.known.setdefault(name, set()).update(taken)

    def difference(self, reply: Reply) -> str | None:
        """What a reply says of itself that those before it did not, in words; None for one of the same weights."""
        if not self.is_strict:
            return None
        said = {name: self._canonical(name, value) for name in _SAID if (value := getattr(reply, name))}
        for name, value in said.items():
            known = self.known.get(name)
            if known and name == "model" and value in self.names and value not in known:
                # The name that was asked for is right, whoever answered first.
                self.say(f"its replies name {value} now, and named {', '.join(sorted(known))} before: another model")
                known.clear()
            elif known and value not in known:
                self._other[name] = value
                self._in_a_row += 1
                return f"its reply says that {_SAID[name]} is {value}; before it was {', '.join(sorted(known))}"
        for name, value in said.items():
            self.known.setdefault(name, set()).add(value)
        if self.may_be_fleet:
            other = self._other["fingerprint"]
            self.known["fingerprint"].add(other)
            self.say(f"replies in turn with system_fingerprint {other} and another: taken for servers of one model")
        self._other.clear()
        self._taken, self._in_a_row = self._taken + 1, 0
        return None

    def _canonical(self, name: str, value: str) -> str:
        """One name for all names of the model."""
        return next(iter(self.names)) if name == "model" and value in self.names else value
