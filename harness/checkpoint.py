"""The state of a conversation on disk, from which another process can continue it.

Each checkpoint adds to the earlier ones. A reply is saved before it is executed; the terminal's session counts how much
of it was typed (harness.terminal.link.Typed).
"""

from __future__ import annotations

import operator
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

from pydantic import RootModel, TypeAdapter

from harness.clock import Clock
from harness.history import History, HistoryCounts
from harness.trajectory import Compaction, Intervention, Message, Step, Usage


class Counts(NamedTuple):
    """Counts of a conversation besides those of its history."""

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
    """Working time: the agent's limit applies to it."""
    waited_sec: float = 0.0
    replies: int = 0
    inherited: int = 0
    """Number of messages from the conversation of the previous task step."""


class OfStep(NamedTuple):
    """A reference to the reply or the observation of the previous step, which is on disk already."""

    what: Literal["reply", "observation"]
    calls: int = 0
    """Number of the reply's tool calls that are kept."""
    call_id: str | None = None
    """Id of the tool call that is answered."""

    @classmethod
    def of(cls, message: Message, step: Step) -> OfStep | Message:
        """Return a reference to `step` if it has this message, else the message."""
        reply, calls = step.reply, len(message.tool_calls)
        if message.role == "assistant" and message.content == reply.content and message.reasoning == reply.reasoning:
            return cls("reply", calls) if message.tool_calls == reply.tool_calls[:calls] else message
        if message.content == step.observation and message.role == ("tool" if message.tool_call_id else "user"):
            return cls("observation", 0, message.tool_call_id)
        return message

    def message(self, step: Step) -> Message:
        """Return the whole message."""
        if self.what == "reply":
            calls = step.reply.tool_calls[: self.calls]
            return Message(
                role="assistant", content=step.reply.content, reasoning=step.reply.reasoning, tool_calls=calls
            )
        return Message(
            role="tool" if self.call_id else "user", content=step.observation, tool_call_id=self.call_id or None
        )


@dataclass(slots=True)  # frozen, it would take five times as long to make
class Checkpoint:
    """The changes of a conversation's state since the previous checkpoint."""

    at: float
    """Unix time in seconds."""
    steps: int
    """Number of completed steps."""
    history: HistoryCounts
    counts: Counts
    pending: Step | None = None
    """The step whose reply is about to be executed; None before a query."""
    overflows: bool = False
    """Whether the pending reply fills the context, so that it is dropped; without a pending reply, whether room has to
    be made."""
    reviewed: bool = False
    """Whether a person or a rule has approved the pending reply."""
    kept: int = 0
    """Number of messages that stay from the previous checkpoint."""
    added: tuple[Message | OfStep, ...] = ()
    """Messages that follow them."""
    opening: tuple[Message, ...] | None = None
    """The first messages; None if they have not changed."""
    compactions: tuple[Compaction, ...] = ()
    """Compactions since the previous checkpoint; `interventions` likewise has only new ones."""
    interventions: tuple[Intervention, ...] = ()


@dataclass(slots=True)
class Replied:
    """A reply that is about to be executed, if it is the only change since the previous step."""

    at: float
    """Unix time in seconds."""
    pending: Step
    history: HistoryCounts
    spent_sec: float
    waited_sec: float

    def after(self, before: Checkpoint, kept: int) -> Checkpoint:
        """Return the whole checkpoint, given the previous one and the number of messages so far."""
        counts = before.counts
        counts = counts._replace(
            usage=counts.usage + self.pending.reply.usage,
            spent_sec=self.spent_sec,
            waited_sec=self.waited_sec,
            replies=counts.replies + 1,
        )
        return Checkpoint(self.at, before.steps, self.history, counts, self.pending, kept=kept)


@dataclass(slots=True)
class Followed:
    """The end of the pending step, if nothing else has changed."""

    at: float
    """Unix time in seconds."""
    steps: int
    """Number of completed steps."""
    added: tuple[OfStep, ...]
    """New messages."""
    spent_sec: float
    waited_sec: float

    def after(self, pending: Checkpoint, step: Step, kept: int) -> Checkpoint:
        """Return the whole checkpoint, from the previous one, the step, and the number of messages so far."""
        assert pending.pending is not None
        before = pending.counts
        noticed = (warning.partition(":")[0] for warning in step.warnings[len(pending.pending.warnings) :])
        counts = before._replace(
            warnings=Counter(before.warnings) + Counter(noticed),
            next_warnings=(),
            format_errors=0,
            compactions_in_a_row=0,
            claimed=False,
            spent_sec=self.spent_sec,
            waited_sec=self.waited_sec,
        )
        return Checkpoint(self.at, self.steps, pending.history, counts, kept=kept, added=self.added)


@dataclass(slots=True)
class Worked:
    """The clock while a reply is being executed, which may take hours."""

    worked_at: float
    """Unix time in seconds."""
    spent_sec: float
    waited_sec: float


Saved = Checkpoint | Replied | Followed | Worked


class CheckpointLine(RootModel[Saved]):
    """A line of a file of checkpoints."""


_SERIALIZERS = {each: TypeAdapter(each).serializer for each in (Checkpoint, Replied, Followed, Worked)}


def checkpoint_line(checkpoint: Saved) -> bytes:
    """Return a line of a file of checkpoints, without the line break."""
    return _SERIALIZERS[type(checkpoint)].to_json(checkpoint)


CONTEXT_FULL = "context_full"
"""Format error of a reply that was dropped because it filled the context."""
_STEPS_MISSING = "steps are missing in its steps.jsonl"


@dataclass(frozen=True)
class ReplayedSteps:
    """The steps of a conversation that are replayed in a new terminal; this costs the agent no time."""

    steps: int = 0
    spent_sec: float = 0.0
    """Working time of the steps when they were executed first."""
    waited_sec: float = 0.0
    dropped: Mapping[int, bool] = field(default_factory=dict)
    """For each step, the pending one included: whether its reply filled the context."""
    has_room: int = 0
    """Steps up to this number have already made room, if their reply filled the context."""
    compactions: Sequence[Compaction] = ()
    """The compactions of the history, which are repeated without asking."""

    def compactions_at(self, step: int, *, dropped: bool) -> Sequence[Compaction]:
        """Return the compactions before the reply of a step, or the compaction after the reply was `dropped`."""
        found = [done for done in self.compactions if done.step == step]
        after = 1 if step <= self.has_room and self.dropped.get(step) else 0
        return found[len(found) - after :] if dropped else found[: len(found) - after]


@dataclass
class Conversation:
    """A conversation restored from its checkpoints and steps."""

    last: Checkpoint
    steps: Sequence[Step] = ()
    """The completed steps."""
    messages: list[Message] = field(default_factory=list)
    opening: tuple[Message, ...] = ()
    compactions: list[Compaction] = field(default_factory=list)
    interventions: list[Intervention] = field(default_factory=list)
    uncounted: int = 0
    """Number of messages at the end that the history's counts do not include."""
    lines: int = 0
    """Number of lines of its file of checkpoints."""
    worked: Worked | None = None
    """The last clock saved while the pending reply was executed, if any."""

    @classmethod
    def restore(cls, checkpoints: Iterable[Saved], steps: Sequence[Step]) -> Conversation:
        """Restore a conversation up to its last known step. Raises ValueError if checkpoints or steps are missing."""
        found: Conversation | None = None
        for number, line in enumerate(checkpoints, 1):
            if isinstance(line, Worked):
                if found is not None:
                    found.worked, found.lines = line, number
                continue
            if not isinstance(line, Replied) and line.steps > len(steps):
                break  # a full disk had room for this line, but not for the step
            if isinstance(line, Checkpoint):
                each = line
                found = found or cls(each)
                found.uncounted = 0
            elif found is None or (found.last.pending is None) != isinstance(line, Replied):
                raise ValueError("its checkpoints do not follow one another")
            elif isinstance(line, Replied):
                each = line.after(found.last, len(found.messages))
                found.uncounted = 0
            else:
                each = line.after(found.last, steps[line.steps - 1], len(found.messages))
                found.uncounted = len(each.added)
            found.last, found.worked, found.lines = each, None, number
            found.messages[each.kept :] = (
                part.message(steps[each.steps - 1]) if isinstance(part, OfStep) else part for part in each.added
            )
            found.opening = found.opening if each.opening is None else each.opening
            found.compactions += each.compactions
            found.interventions += each.interventions
        if found is None or not found.opening:
            raise ValueError("the model had not been asked yet")
        found.steps = steps[: found.last.steps]
        if [step.index for step in found.steps] != [*range(1, found.last.steps + 1)]:
            raise ValueError(_STEPS_MISSING)
        return found

    @property
    def step(self) -> int:
        """Number of the next step."""
        return self.last.steps + 1

    @property
    def again(self) -> ReplayedSteps:
        """The steps as they are replayed in a new terminal."""
        dropped = {step.index: step.format_error == CONTEXT_FULL for step in self.steps}
        if self.last.pending is not None:
            dropped[self.step] = self.last.overflows
        has_room = len(self.steps) - (self.last.overflows and self.last.pending is None)
        counts = self.last.counts
        return ReplayedSteps(
            len(self.steps), counts.spent_sec, counts.waited_sec, dropped, has_room, tuple(self.compactions)
        )

    @property
    def clock(self) -> Counts | Worked:
        """The working time so far; a request that is repeated because its reply was lost does not count."""
        return self.worked or self.last.counts

    @property
    def cut_at(self) -> float:
        """Unix time of the earlier process's last known work."""
        return self.worked.worked_at if self.worked is not None else self.last.at


class Checkpoints:
    """Makes the checkpoints of one conversation, each with the changes since the last.

    It keeps the conversation's own lists, which grow. All steps but a pending one are on disk.
    """

    def __init__(
        self,
        clock: Clock,
        steps: Sequence[Step],
        compactions: Sequence[Compaction],
        interventions: Sequence[Intervention],
        before: Conversation | None,
    ) -> None:
        self._clock, self._steps = clock, steps
        self._all_compactions, self._all_interventions = compactions, interventions
        self._messages = list(before.messages) if before else []
        self._opening = before.opening if before else ()
        self._compactions = len(before.compactions) if before else 0
        self._interventions = len(before.interventions) if before else 0
        self._is_brief = False
        """Whether the last checkpoint was a `Followed`."""

    def times(self) -> tuple[float, float]:
        """Return the seconds spent and waited so far."""
        return round(self._clock.spent_sec, 3), round(self._clock.waited_sec, 3)

    def make(
        self, history: History, counts: Counts, pending: Step | None, *, overflows: bool, reviewed: bool
    ) -> Checkpoint:
        """Return a checkpoint of the conversation's present state."""
        messages, compactions, interventions = history.messages, self._all_compactions, self._all_interventions
        followed, kept = len(self._steps) - (pending is not None), shared_length(self._messages, messages)
        added = messages[kept:]
        made = Checkpoint(
            time.time(),
            followed,
            history.counts,
            counts,
            pending,
            overflows,
            reviewed,
            kept,
            tuple(OfStep.of(each, self._steps[followed - 1]) for each in added) if followed else tuple(added),
            None if history.opening is self._opening else history.opening,
            tuple(compactions[self._compactions :]),
            tuple(interventions[self._interventions :]),
        )
        self._messages[kept:], self._opening = added, history.opening
        self._compactions, self._interventions = len(compactions), len(interventions)
        self._is_brief = False
        return made

    def replied(self, history: History, pending: Step) -> Replied | None:
        """Return the brief checkpoint of a reply that is about to be executed; None if a whole one is needed."""
        messages = history.messages
        is_same = len(messages) == len(self._messages) and messages[-1] is self._messages[-1]
        is_more = len(self._all_compactions) > self._compactions or self._has_new_interventions or pending.warnings
        if is_more or not is_same or not self._is_brief:
            return None
        self._is_brief = False
        return Replied(time.time(), pending, history.counts, *self.times())

    def followed(self, history: History) -> Followed | None:
        """Return the end of the last step, which was pending; None if more has changed."""
        kept, step = len(self._messages), self._steps[-1]
        new = history.messages[kept:]
        added = tuple(found for each in new if isinstance(found := OfStep.of(each, step), OfStep))
        is_more = self._has_new_interventions or len(added) < len(new)
        if is_more or history.messages[kept - 1] is not self._messages[-1]:
            return None
        self._messages += new
        self._is_brief = True
        return Followed(time.time(), len(self._steps), added, *self.times())

    @property
    def _has_new_interventions(self) -> bool:
        return len(self._all_interventions) > self._interventions


def shared_length(
    old: Sequence[Message], new: Sequence[Message], is_same: Callable[[Message, Message], bool] = operator.eq
) -> int:
    """Return how many messages two versions of a history share at their start; equal messages are always shared."""
    least = min(len(old), len(new))
    # Lists skip equal objects fast; almost every step only adds messages.
    if old[:least] == new[:least] if len(old) != len(new) else old == new:
        return least
    return next((at for at in range(least) if not is_same(old[at], new[at])), least)
