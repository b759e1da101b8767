"""The state of a conversation on disk, from which another process can go on with it.

Each checkpoint adds to those before it. The one with a reply is written before the reply is followed; how far it was
followed is known to the terminal, whose session counts what was typed (harness.terminal.link.Typed).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from types import MappingProxyType
from typing import NamedTuple

from harness.trajectory import Compaction, Frozen, Intervention, Message, Step, Usage


class HistoryCounts(NamedTuple):
    """Sizes and counts of a history that its messages do not show."""

    counted_bytes: int = 0
    counted_tokens: int = 0
    counted_messages: int = 0
    last: tuple[int, int, int] | None = None
    stalled: int = 0
    tokens_per_byte: float = 0.0
    instructions: tuple[int, ...] = ()
    """Positions of later instructions."""


class Counts(NamedTuple):
    """Numbers of a conversation that its limits apply to."""

    usage: Usage = Usage()
    warnings: Mapping[str, int] = MappingProxyType({})
    next_warnings: tuple[str, ...] = ()
    """Warnings to be recorded with the next step."""
    format_errors: int = 0
    """Number of unusable replies in a row."""
    compactions_in_a_row: int = 0
    claimed: bool = False
    """Whether the last reply claimed completion."""
    spent_sec: float = 0.0
    """Working time, to which the agent's limit applies."""
    waited_sec: float = 0.0
    replies: int = 0
    inherited: int = 0
    """Number of messages from the conversation of the step before."""


class Checkpoint(Frozen):
    """The state of a conversation, as far as the checkpoint before does not have it."""

    at: float
    """Unix time in seconds."""
    steps: int
    """Number of steps that were followed to their end."""
    pending: Step | None = None
    """The step with a reply that is about to be followed; None before a query."""
    overflows: bool = False
    """Whether the pending reply fills the context, so that it is dropped."""
    reviewed: bool = False
    """Whether a person or a rule has decided to follow the pending reply."""
    kept: int = 0
    """Number of messages that stay from the checkpoint before."""
    added: tuple[Message, ...] = ()
    """Messages that follow them."""
    opening: tuple[Message, ...] | None = None
    """The first messages; None if they have not changed."""
    history: HistoryCounts
    counts: Counts
    compactions: tuple[Compaction, ...] = ()
    """New ones, as are `interventions`."""
    interventions: tuple[Intervention, ...] = ()


@dataclass(frozen=True)
class FollowedAgain:
    """The steps of a conversation that are followed again in a new terminal, at no cost of time."""

    steps: int = 0
    spent_sec: float = 0.0
    """Working time that they took when they were followed first."""


@dataclass
class Conversation:
    """A conversation restored from its checkpoints and steps."""

    last: Checkpoint
    steps: Sequence[Step] = ()
    """The steps that were followed to their end."""
    messages: list[Message] = field(default_factory=list)
    opening: tuple[Message, ...] = ()
    compactions: list[Compaction] = field(default_factory=list)
    interventions: list[Intervention] = field(default_factory=list)
    checkpoints: int = 0
    """Number of its checkpoints."""
    cut_at: float = 0.0
    """Unix time at which the earlier process is known to have worked last."""

    @classmethod
    def restore(cls, checkpoints: Iterable[Checkpoint], steps: Sequence[Step], cut_at: float = 0.0) -> Conversation:
        """Restore a conversation. Raises ValueError if there is no checkpoint, or steps are missing."""
        found: Conversation | None = None
        for each in checkpoints:
            found = found or cls(each)
            found.last = each
            found.checkpoints += 1
            found.messages[each.kept :] = each.added
            found.opening = found.opening if each.opening is None else each.opening
            found.compactions += each.compactions
            found.interventions += each.interventions
        if found is None or not found.opening:
            raise ValueError("the model had not been asked yet")
        found.steps, found.cut_at = steps[: found.last.steps], cut_at
        if [step.index for step in found.steps] != [*range(1, found.last.steps + 1)]:
            raise ValueError("steps are missing in its steps.jsonl")
        return found

    @property
    def step(self) -> int:
        """Number of the step to go on with."""
        return self.last.steps + 1

    @property
    def spent_sec(self) -> float:
        """Working time until the earlier process ended, as far as known."""
        return self.last.counts.spent_sec + max(0.0, self.cut_at - self.last.at)


class Checkpoints:
    """Makes the checkpoints of one conversation, each with what is new."""

    def __init__(self, before: Conversation | None = None) -> None:
        self._messages = list(before.messages) if before else []
        self._opening = before.opening if before else ()
        self._compactions = len(before.compactions) if before else 0
        self._interventions = len(before.interventions) if before else 0

    def make(
        self,
        messages: Sequence[Message],
        opening: tuple[Message, ...],
        compactions: Sequence[Compaction],
        interventions: Sequence[Intervention],
        *,
        steps: int,
        pending: Step | None,
        overflows: bool,
        reviewed: bool,
        history: HistoryCounts,
        counts: Counts,
    ) -> Checkpoint:
        """Return the checkpoint of a conversation's present state."""
        kept = shared_length(self._messages, messages)
        # Without validation, which would cost more than everything else.
        made = Checkpoint.model_construct(
            at=time.time(),
            steps=steps,
            pending=pending,
            overflows=overflows,
            reviewed=reviewed,
            kept=kept,
            added=tuple(messages[kept:]),
            opening=None if opening is self._opening else opening,
            history=history,
            counts=counts,
            compactions=tuple(compactions[self._compactions :]),
            interventions=tuple(interventions[self._interventions :]),
        )
        self._messages[kept:], self._opening = made.added, opening
        self._compactions, self._interventions = len(compactions), len(interventions)
        return made


def shared_length(old: Sequence[Message], new: Sequence[Message]) -> int:
    """Return the number of messages at the start that two versions of a history share."""
    least = min(len(old), len(new))
    if all(map(is_, old, new)):  # as at almost every step
        return least
    return next(at for at in range(least) if old[at] is not new[at])
