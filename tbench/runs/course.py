"""The course of a trial: what its model was asked and answered, and what of it is given again to another attempt.

Kept so that a trial can be done again up to a step: the same replies, the same decisions, in another container.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.errors import ContextLimitReached
from harness.model import Model
from harness.oversight import Approved, Decided, Declined, Query
from harness.trajectory import Intervention, Message, Reply, Step, Trajectory
from tbench.divergence import first_difference
from tbench.errors import UsageError


@dataclass(frozen=True)
class Exchange:
    """One query, and what came of it."""

    model: Model | None
    """Who was asked; None where that is not known."""
    kept: int
    """How many messages are those with which the query before began."""
    added: tuple[Message, ...]
    """The messages behind them."""
    seed: int | None
    max_tokens: int
    tools: Sequence[Mapping[str, Any]]
    outcome: Reply | ContextLimitReached


@dataclass
class CourseStep:
    """One step of an agent, as far as it can be done again."""

    said: tuple[str, ...] = ()
    """What the model was told beside its observation."""
    typed: list[bytes] = field(default_factory=lambda: [b"", b""])
    """What a person has typed: before the query, and before what the reply asks for."""
    asked: list[Exchange] = field(default_factory=list)
    drafted: int | None = None
    """How many of the queries came before the decision; None where there was none."""
    decided: Decided | None = None
    observation: str | None = None
    """What the terminal showed; None where that is not known."""

    @property
    def followed(self) -> Reply | None:
        """The reply that was followed; None where none was, or that is not known."""
        decided = self.decided.reply if isinstance(self.decided, Approved) else self.decided
        return None if isinstance(decided, Declined) else decided

    def undecided(self) -> CourseStep:
        """It up to the moment at which its reply waits for a decision."""
        return replace(self, typed=[self.typed[0], b""], asked=self.asked[: self.drafted], decided=None)


Steps = Sequence[CourseStep]


class Course:
    """What happens in a trial, step by step, and what is done once more of an earlier attempt.

    An agent's steps are a part; a task of several steps has several.
    """

    def __init__(self, known: Sequence[Steps] = ()) -> None:
        """`known` is what is done once more."""
        self._known = known
        self._parts: list[list[CourseStep]] = []
        self._messages: list[Message] = []
        """Those of the last query."""

    def begin(self, step: int) -> CourseStep:
        """The next step, which is the first of another part where its number is 1."""
        if step == 1 or not self._parts:
            self._parts.append([])
            self._messages = []
        self._parts[-1].append(CourseStep())
        return self.now

    @property
    def has_begun(self) -> bool:
        """Whether a model was to be asked."""
        return bool(self._parts)

    @property
    def now(self) -> CourseStep:
        """The step under way."""
        return self._parts[-1][-1]

    @property
    def known(self) -> CourseStep | None:
        """What is known of the step under way; None where it is new."""
        return self._known_at(len(self._parts[-1]) - 1)

    def _known_at(self, index: int) -> CourseStep | None:
        part = len(self._parts) - 1
        if part >= len(self._known) or index >= len(self._known[part]):
            return None
        return self._known[part][index]

    async def reply(self, query: Query) -> Reply:
        """The reply to a query: the known one, or the model's. Raises what the model does."""
        now, known = self.now, self.known
        if known is not None and len(now.asked) < len(known.asked):
            outcome = known.asked[len(now.asked)].outcome
        else:
            try:
                outcome = await query.ask()
            except ContextLimitReached as refusal:
                outcome = refusal
        now.asked.append(self._exchange(query, outcome))
        if isinstance(outcome, ContextLimitReached):
            raise outcome
        return outcome

    def _exchange(self, query: Query, outcome: Reply | ContextLimitReached) -> Exchange:
        kept = _common(self._messages, query.messages)
        added = tuple(query.messages[kept:])
        self._messages[kept:] = added
        return Exchange(query.model, kept, added, query.seed, query.max_tokens, query.tools, outcome)

    def until(self, step: int, steps: Sequence[Step]) -> tuple[Steps, ...]:
        """What is known of a trial up to the moment at which the reply of that step waits.

        `steps` are those of the part under way, which tell what the terminal showed.
        """
        *before, part = self._parts
        seen = [replace(mine, observation=step.observation) for mine, step in zip(part, steps, strict=False)]
        part = [*seen, *part[len(seen) :]]
        return (*before, [*part[: step - 1], part[step - 1].undecided()])

    def difference(self, steps: Sequence[Step]) -> str:
        """How the last of the steps differs from what is known of it, in a line; empty where it does not."""
        known = self._known_at(len(steps) - 1) if steps else None
        if known is None or known.observation is None:
            return ""
        found = first_difference(known.observation, steps[-1].observation)
        return "" if found is None else f"step {steps[-1].index}: {found}"

    def exchanges(self) -> Iterator[tuple[Exchange, list[Message], Reply | ContextLimitReached]]:
        """All queries, each with all its messages, and with the reply that was followed."""
        messages: list[Message] = []
        for step in (step for part in self._parts for step in part):
            for number, each in enumerate(step.asked, 1):
                messages = [*messages[: each.kept], *each.added]
                followed = step.followed if number == step.drafted else None
                yield each, messages, followed or each.outcome


def _common(old: Sequence[Message], new: Sequence[Message]) -> int:
    """How many messages two histories begin with in common."""
    for at, (mine, other) in enumerate(zip(old, new, strict=False)):
        if mine is not other:
            return at
    return min(len(old), len(new))


# What the agent of a stored trial is given again when it is done anew up to a step.


def known_until(step: int, steps: Sequence[Step], trajectory: Trajectory | None) -> tuple[Steps, ...]:
    """The steps before that one, so that the model is asked for it anew. Raises UsageError where they cannot be had."""
    if not 1 <= step <= len(steps):
        raise UsageError(f"has {len(steps)} steps, and no step {step}")
    interventions: dict[int, list[Intervention]] = {}
    for each in trajectory.interventions if trajectory is not None else ():
        interventions.setdefault(each.step, []).append(each)
    for compaction in trajectory.compactions if trajectory is not None else ():
        if (at := compaction.step) < step:
            raise UsageError(f"its history was made shorter at step {at}; name a step up to {at}")
    return (tuple(_known(each, interventions) for each in steps[: step - 1]),)


def _known(step: Step, interventions: Mapping[int, Sequence[Intervention]]) -> CourseStep:
    there = interventions.get(step.index, ())
    if any(each.kind == "typed" for each in there):
        raise UsageError(f"somebody has typed into its terminal at step {step.index}; name a step up to {step.index}")
    refused = next((each.text for each in there if each.kind == "refused"), None)
    return CourseStep(
        said=tuple(each.text for each in there if each.kind == "message"),
        asked=[_answered(step.reply)],
        drafted=1,
        decided=step.reply if refused is None else Declined(refused),
        observation=step.observation,
    )


def _answered(reply: Reply) -> Exchange:
    """The reply to a query of which nothing else is known."""
    return Exchange(None, 0, (), None, 0, (), reply)
