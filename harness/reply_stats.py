"""Statistics and notes on the metadata of replies (models, fingerprints, signs), for trials, runs and doctor.

A reply names its model and counts its tokens; this may contradict the request. Some oddities matter only if they are
frequent. Oddities of a single reply are found when it is read (`Reply.signs`); this module finds those of many replies.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from pydantic import Field

from harness.trajectory import Frozen, Reply, Trajectory

_DISTINCTIVE_CHARS = 200
"""Minimum length of a reply that can be expected to differ between draws, in characters."""
_EQUAL_TRIALS = 3
_EQUAL_SHARE = 0.9
"""Share of comparable trials with equal first replies that leads to a note; even a confident model varies some."""
_NAMES_SHOWN = 4


class ReplyStats(Frozen):
    """Counts of the metadata of a model's replies."""

    total: int = 0
    """Number of replies, including summaries of the conversation."""
    models: dict[str, int] = Field(default={})
    """Number of replies by reported model."""
    fingerprints: dict[str, int] = Field(default={})
    """Number of replies by `system_fingerprint`."""
    weights: dict[str, int] = Field(default={})
    """Number of replies by reported version of the weights (vLLM's `weight_versions`)."""
    signs: dict[str, int] = Field(default={})
    """Number of replies by sign."""
    first: str | None = None
    """Digest of the first reply, to find trials that began alike; None for a short reply."""

    @classmethod
    def from_trajectory(cls, trajectory: Trajectory) -> ReplyStats:
        """Count the replies of a trajectory."""
        return cls.from_replies(list(trajectory.replies))

    @classmethod
    def from_replies(cls, replies: Sequence[Reply]) -> ReplyStats:
        """Count replies of one conversation, in order."""
        return cls(
            total=len(replies),
            models=_count_values(reply.model for reply in replies),
            fingerprints=_count_values(reply.fingerprint for reply in replies),
            weights=_count_values(reply.weights for reply in replies),
            signs=_count_values(sign for reply in replies for sign in _signs(reply)),
            first=_digest(replies[0]) if replies else None,
        )

    @classmethod
    def sum(cls, parts: Iterable[ReplyCounts]) -> ReplyStats:
        """Add up parts of a trial, or trials; `first` is taken from the first part."""
        total, first = 0, None
        totals: dict[str, dict[str, int]] = {name: {} for name in _COUNTED}
        for number, part in enumerate(parts):
            first = part.first if number == 0 else first
            total += part.total
            for name, counts in totals.items():
                for value, count in getattr(part, name).items():
                    counts[value] = counts.get(value, 0) + count
        sums = {name: dict(sorted(counts.items())) for name, counts in totals.items()}
        return cls(total=total, first=first, **sums)


_COUNTED = ("models", "fingerprints", "weights", "signs")


class ReplyCounts(Protocol):
    """Any object with the counts of `ReplyStats`."""

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


def _count_values(values: Iterable[str | None]) -> dict[str, int]:
    return dict(sorted(Counter(value for value in values if value is not None).items()))


def _digest(reply: Reply) -> str | None:
    calls = [[call.name, call.arguments] for call in reply.tool_calls]
    text = json.dumps([reply.reasoning or "", reply.content, calls])
    return hashlib.sha256(text.encode()).hexdigest()[:16] if len(text) >= _DISTINCTIVE_CHARS else None


# -- notes ---------------------------------------------------------------------------------------


class _SignNote(NamedTuple):
    """Text of the note about a sign."""

    words: str
    advice: str
    share: float = 0.0
    """Share of the replies above which a note is given."""


_SIGN_NOTES = {
    "cut": _SignNote(
        "were cut at max_tokens or at the end of the context, and not executed",
        "raise --max-tokens, or serve a longer context",
        0.05,
    ),
    "reasoning_only": _SignNote(
        "had reasoning and no answer",
        "check that the server's --reasoning-parser is the model's own, and that --max-tokens leaves room to think",
        0.02,
    ),
    "raw_tool_call": _SignNote(
        "had a tool call as text that the server did not parse", "start the server with the model's --tool-call-parser"
    ),
    "channel_tokens": _SignNote(
        "had the template's channel tokens in the text", "start the server with the model's --reasoning-parser"
    ),
    "no_usage": _SignNote("came without token counts", "token limits have no effect on them"),
    "impossible_usage": _SignNote("came with impossible token counts", "token sums may be wrong"),
    "prompt_truncated": _SignNote(
        "answered a prompt that the server had silently truncated, so the model did not see all of it",
        "give the server a longer context (Ollama: num_ctx; llama.cpp: -c), or set --context-tokens",
    ),
    "near_time_limit": _SignNote("took nearly the whole request timeout", "raise --request-timeout", 0.05),
}
"""Notes by sign. Any occurrence of a sign that is missing here is shown by its name."""
_NAMED = {
    "models": ("models", "a gateway fell back to another model, or the server was replaced"),
    "weights": ("versions of the weights", "the score belongs to none of them alone"),
    "fingerprints": ("server configurations (system_fingerprint)", "replicas differ, or the server was restarted"),
}


def reply_notes(trials: Collection[ReplyCounts], asked: Collection[str] = ()) -> tuple[str, ...]:
    """Return a line for each oddity that affects enough replies of these trials.

    `asked` has the names of the requested model, if known.
    """
    seen = next(iter(trials)) if len(trials) == 1 else ReplyStats.sum(trials)
    notes = []
    reported = next(iter(seen.models), "")
    if asked and len(seen.models) == 1 and not any(_is_name_of(reported, each) for each in asked):
        notes.append(
            f"all replies name the model {reported}, but {next(iter(asked))} was requested: an alias, "
            "or a gateway used another model"
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
        note = _SIGN_NOTES.get(kind, _SignNote(f"are marked {kind}", "see docs/results.md"))
        if count > note.share * seen.total:
            having = sum(kind in trial.signs for trial in trials)
            notes.append(
                f"{count:,} of {seen.total:,} replies ({_percent(count, seen.total)}), in {_trials(having)}, "
                f"{note.words}: {note.advice}"
            )
    return tuple(notes)


def run_notes(
    trials: Iterable[tuple[str, ReplyCounts]], asked: Collection[str] = (), *, is_sampled: bool = True
) -> tuple[str, ...]:
    """Return the notes on the replies of a run; `trials` are pairs of a task name and a trial's counts."""
    found = [(task, seen) for task, seen in trials if seen.total]
    firsts: defaultdict[str, list[str | None]] = defaultdict(list)
    for task, seen in found:
        firsts[task].append(seen.first)
    notes = reply_notes([seen for _, seen in found], asked)
    equal = equal_replies_note(firsts) if is_sampled else None
    return (*notes, equal) if equal else notes


def equal_replies_note(firsts: Mapping[str, Sequence[str | None]]) -> str | None:
    """Return a note if samples do not differ between seeds; `firsts` has the digests of first replies by task.

    Given if at least three trials, and nearly all comparable ones, share their first reply with another seed's trial.
    """
    comparable = equal = 0
    for digests in firsts.values():
        counts = Counter(digest for digest in digests if digest is not None)
        if counts.total() > 1:
            comparable += counts.total()
            equal += sum(count for count in counts.values() if count > 1)
    if equal < _EQUAL_TRIALS or equal < _EQUAL_SHARE * comparable:
        return None
    return (
        f"{equal:,} of {comparable:,} trials begin with the same reply as another seed, although the temperature is "
        "above 0: the server does not sample (transformers serve: do_sample), answers from a cache, or the model is "
        "almost deterministic; then seeds are not independent, and ± is too small"
    )


def _is_name_of(reported: str, asked: str) -> bool:
    """Whether the reported model is the requested one, allowing for a date suffix and a missing provider."""
    reported, asked = (name.rpartition("/")[2].casefold() for name in (reported, asked))
    return reported.startswith(asked) and not reported[len(asked) :].strip("-@:._0123456789")


def _trials(number: int) -> str:
    return "1 trial" if number == 1 else f"{number:,} trials"


def _percent(count: int, total: int) -> str:
    share = 100 * count / total
    return f"{share:.0f} %" if share >= 1 else "below 1 %"
