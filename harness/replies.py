"""What the replies of a trial say about themselves: the one place that looks at it, for trials, runs and doctor.

A reply names its model, and counts its tokens; some of that contradicts what was asked, or is odd where it is frequent.
`Reply.signs` has what can be seen of one reply, found where it is read; what only shows over several is found here.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from pydantic import Field

from harness.trajectory import Frozen, Reply, Trajectory

_TELLING_CHARS = 200
"""Characters of a reply from which on it can be expected to differ from one draw to the next."""
_EQUAL_TRIALS = 3
_EQUAL_SHARE = 0.9
"""Of the trials that could show a difference. A model that is sure of itself begins alike in most, not in all."""
_NAMES_SHOWN = 4


class RepliesSeen(Frozen):
    """What replies of the model say about themselves, counted."""

    total: int = 0
    """Number of replies, summaries of the conversation included."""
    models: dict[str, int] = Field(default={})
    """Replies by the model that they name."""
    fingerprints: dict[str, int] = Field(default={})
    """Replies by their `system_fingerprint`."""
    weights: dict[str, int] = Field(default={})
    """Replies by the version of the weights that they name (vLLM's `weight_versions`)."""
    signs: dict[str, int] = Field(default={})
    """Replies by what is odd about them."""
    first: str | None = None
    """A digest of the first reply, by which trials that began alike are found; None for a short one."""

    @classmethod
    def of(cls, trajectory: Trajectory) -> RepliesSeen:
        """What the replies of a conversation say about themselves."""
        return cls.of_replies(list(trajectory.replies))

    @classmethod
    def of_replies(cls, replies: Sequence[Reply]) -> RepliesSeen:
        """What replies that belong together say about themselves, in their order."""
        return cls(
            total=len(replies),
            models=_counted(reply.model for reply in replies),
            fingerprints=_counted(reply.fingerprint for reply in replies),
            weights=_counted(reply.weights for reply in replies),
            signs=_counted(sign for reply in replies for sign in _signs(reply)),
            first=_digest(replies[0]) if replies else None,
        )

    @classmethod
    def sum(cls, parts: Iterable[Countable]) -> RepliesSeen:
        """What several parts of a trial, or several trials, have seen together; the first reply is the first part's."""
        total, first = 0, None
        totals: dict[str, Counter[str]] = {name: Counter() for name in _COUNTED}
        for number, part in enumerate(parts):
            first = part.first if number == 0 else first
            total += part.total
            for name, counter in totals.items():
                counter.update(getattr(part, name))
        sums = {name: dict(sorted(counter.items())) for name, counter in totals.items()}
        return cls(total=total, first=first, **sums)


_COUNTED = ("models", "fingerprints", "weights", "signs")


class Countable(Protocol):
    """What has the numbers of `RepliesSeen`."""

    @property
    def total(self) -> int: ...
    @property
    def models(self) -> Mapping[str, int]: ...
    @property
    def fingerprints(self) -> Mapping[str, int]: ...
    @property
    def weights(self) -> Mapping[str, int]: ...
    @property
    def signs(self) -> Mapping[str, int]: ...
    @property
    def first(self) -> str | None: ...


def _signs(reply: Reply) -> Iterator[str]:
    yield from dict.fromkeys(reply.signs)
    if reply.cut:
        yield "cut"


def _counted(values: Iterable[str | None]) -> dict[str, int]:
    return dict(sorted(Counter(value for value in values if value is not None).items()))


def _digest(reply: Reply) -> str | None:
    calls = [[call.name, call.arguments] for call in reply.tool_calls]
    said = json.dumps([reply.reasoning or "", reply.content, calls])
    return hashlib.sha256(said.encode()).hexdigest()[:16] if len(said) >= _TELLING_CHARS else None


# -- notes ---------------------------------------------------------------------------------------


class _Meaning(NamedTuple):
    """What a sign means for a score."""

    words: str
    advice: str
    share: float = 0.0
    """Share of the replies above which it is worth a note."""


_MEANINGS = {
    "cut": _Meaning(
        "ended at max_tokens or at the end of the context, and nothing of them was done",
        "raise --max-tokens, or serve a longer context",
        0.05,
    ),
    "reasoning_only": _Meaning(
        "had reasoning and no answer",
        "check that the server's --reasoning-parser is the model's own, and that --max-tokens leaves room to think",
        0.02,
    ),
    "raw_tool_call": _Meaning(
        "had a tool call as text that the server did not read", "start the server with the model's --tool-call-parser"
    ),
    "channel_tokens": _Meaning(
        "had the channel tokens of their template in the text", "start the server with the model's --reasoning-parser"
    ),
    "no_usage": _Meaning("came without token counts", "limits of tokens have no effect on them"),
    "impossible_usage": _Meaning("came with token counts that cannot be", "sums of tokens may be wrong"),
    "prompt_truncated": _Meaning(
        "answered a prompt that the server had silently cut, so the model did not see all of it",
        "give the server a longer context (Ollama: num_ctx; llama.cpp: -c), or set --context-tokens",
    ),
    "near_time_limit": _Meaning("took nearly as long as a request may", "raise --request-timeout", 0.05),
}
"""By kind. One that is not here is shown by its name wherever it occurs."""
_NAMED = {
    "models": ("models", "a gateway fell back to another model, or the server was exchanged"),
    "weights": ("versions of the weights", "the score is of none of them alone"),
    "fingerprints": ("configurations of the server (system_fingerprint)", "replicas that differ, or a restart"),
}


def reply_notes(trials: Collection[Countable], asked: Collection[str] = ()) -> tuple[str, ...]:
    """What is odd about the replies of these trials, one line each: a share that is worth a reader's attention.

    `asked` has the names of the model that was asked for, where they are known.
    """
    seen = RepliesSeen.sum(trials)
    notes = []
    if asked and len(seen.models) == 1 and not any(_is_name_of(said, each) for said in seen.models for each in asked):
        notes.append(
            f"all replies name the model {next(iter(seen.models))}, and {next(iter(asked))} was asked for: another "
            "name of the same one, or a gateway's other model"
        )
    for name, (what, meaning) in _NAMED.items():
        counts: dict[str, int] = getattr(seen, name)
        if len(counts) > 1:
            mixed = sum(len(getattr(trial, name)) > 1 for trial in trials)
            shown = sorted(counts.items(), key=lambda item: -item[1])
            words = ", ".join(f"{value} ({count:,})" for value, count in shown[:_NAMES_SHOWN])
            more = ", …" if len(shown) > _NAMES_SHOWN else ""
            both = f"; {_trials(mixed)} had several" if mixed else ""
            notes.append(f"replies name {len(counts)} {what}: {words}{more}{both}: {meaning}")
    for kind, count in sorted(seen.signs.items(), key=lambda item: -item[1]):
        meaning_of = _MEANINGS.get(kind, _Meaning(f"are marked {kind}", "see docs/results.md"))
        if count > meaning_of.share * seen.total:
            having = sum(kind in trial.signs for trial in trials)
            notes.append(
                f"{count:,} of {seen.total:,} replies ({_percent(count, seen.total)}), in {_trials(having)}, "
                f"{meaning_of.words}: {meaning_of.advice}"
            )
    return tuple(notes)


def run_notes(
    trials: Iterable[tuple[str, Countable]], asked: Collection[str] = (), *, is_sampled: bool = True
) -> tuple[str, ...]:
    """What is odd about the replies of a run, whose trials come with the names of their tasks."""
    found = [(task, seen) for task, seen in trials if seen.total]
    firsts: defaultdict[str, list[str | None]] = defaultdict(list)
    for task, seen in found:
        firsts[task].append(seen.first)
    notes = reply_notes([seen for _, seen in found], asked)
    equal = equal_replies_note(firsts) if is_sampled else None
    return (*notes, equal) if equal else notes


def equal_replies_note(firsts: Mapping[str, Sequence[str | None]]) -> str | None:
    """A line where draws do not differ: `firsts` has the digests of the first replies of a task at several seeds.

    Said where at least three trials, and nearly all of those that could show it, have the first reply of another seed.
    """
    comparable = equal = 0
    for digests in firsts.values():
        told = Counter(digest for digest in digests if digest is not None)
        if told.total() > 1:
            comparable += told.total()
            equal += sum(count for count in told.values() if count > 1)
    if equal < _EQUAL_TRIALS or equal < _EQUAL_SHARE * comparable:
        return None
    return (
        f"{equal:,} of {comparable:,} trials begin with the reply of another seed, though the temperature is above "
        "0: the server samples nothing (transformers serve: do_sample), answers from a cache, or the model is all but "
        "sure of its words; then seeds are no repetitions, and ± is too small"
    )


def _is_name_of(said: str, asked: str) -> bool:
    """Whether a reply's name of its model is the one that was asked for: also with a date, or without a provider."""
    said, asked = (name.rpartition("/")[2].casefold() for name in (said, asked))
    return said.startswith(asked) and not said[len(asked) :].strip("-@:._0123456789")


def _trials(number: int) -> str:
    return "1 trial" if number == 1 else f"{number:,} trials"


def _percent(count: int, total: int) -> str:
    share = 100 * count / total
    return f"{share:.0f} %" if share >= 1 else "below 1 %"
