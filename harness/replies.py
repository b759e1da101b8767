"""What the replies of a trial say about themselves: the one place that looks at it, for trials, runs and doctor.

A reply names its model, and counts its tokens; some of that contradicts what was asked, or is odd where it is frequent.
`Reply.signs` has what can be seen of one reply, found where it is read; what only shows over several is found here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

from pydantic import Field

from harness.trajectory import Frozen, Reply, Trajectory


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

    @classmethod
    def of(cls, trajectory: Trajectory) -> RepliesSeen:
        """What the replies of a conversation say about themselves."""
        replies = list(trajectory.replies)
        return cls(
            total=len(replies),
            models=_counted(reply.model for reply in replies),
            fingerprints=_counted(reply.fingerprint for reply in replies),
            weights=_counted(reply.weights for reply in replies),
            signs=_counted(sign for reply in replies for sign in _signs(reply)),
        )

    @classmethod
    def sum(cls, parts: Iterable[Countable]) -> RepliesSeen:
        """What several trials have seen together."""
        total = 0
        totals: dict[str, Counter[str]] = {name: Counter() for name in _COUNTED}
        for part in parts:
            total += part.total
            for name, counter in totals.items():
                counter.update(getattr(part, name))
        return cls(total=total, **{name: dict(sorted(counter.items())) for name, counter in totals.items()})


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


def _signs(reply: Reply) -> Iterable[str]:
    yield from reply.signs
    if reply.cut:
        yield "cut"


def _counted(values: Iterable[str | None]) -> dict[str, int]:
    return dict(sorted(Counter(value for value in values if value is not None).items()))
