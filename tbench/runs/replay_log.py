"""Log of a trial's queries, replies and decisions, from which another attempt can replay it up to a step.

The replay repeats the same replies and decisions in another container.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.checkpoint import shared_length
from harness.errors import ContextLimitReached
from harness.model import Model
from harness.oversight import Approved, Decision, Declined, Query
from harness.trajectory import Compaction, Intervention, Message, Reply, Step, Trajectory
from tbench.divergence import first_difference
from tbench.errors import UsageError


@dataclass(frozen=True)
class Exchange:
    """One query to a model, and its outcome."""

    model: Model | None
    """Model that was asked; None if unknown."""
    kept: int
    """Number of messages carried over from the previous query."""
    added: tuple[Message, ...]
    """Messages that follow them."""
    seed: int | None
    max_tokens: int
    tools: Sequence[Mapping[str, Any]]
    outcome: Reply | ContextLimitReached


@dataclass
class ReplayStep:
    """One step of an agent, with the data for its replay."""

    messages: tuple[str, ...] = ()
    """Messages that the model got besides its observation."""
    typed: list[bytes] = field(default_factory=lambda: [b"", b""])
    """Bytes that a person typed before the query, and those before the reply's keystrokes."""
    queries: list[Exchange] = field(default_factory=list)
    reviewed_after: int | None = None
    """Number of queries before the decision; None without a decision."""
    decided: Decision | None = None
    observation: str | None = None
    """Observation after the step; None if unknown."""

    @property
    def followed_reply(self) -> Reply | None:
        """Executed reply; None if there was none, or if unknown."""
        decided = self.decided.reply if isinstance(self.decided, Approved) else self.decided
        return None if isinstance(decided, Declined) else decided

    def without_decision(self) -> ReplayStep:
        """Return a copy that ends where the reply waits for a decision."""
        return replace(self, typed=[self.typed[0], b""], queries=self.queries[: self.reviewed_after], decided=None)


ReplaySteps = Sequence[ReplayStep]


class ReplayLog:
    """Records a trial step by step, and replays the steps of an earlier attempt.

    The steps are kept in parts, one for each agent: a task with several steps has several.
    """

    def __init__(self, earlier: Sequence[ReplaySteps] = ()) -> None:
        """`earlier` holds the steps to replay."""
        self._earlier = earlier
        self._parts: list[list[ReplayStep]] = []
        self._messages: list[Message] = []
        """Messages of the last query."""

    def go_on(self, steps: Sequence[Step], pending: Step | None) -> None:
        """Continue after steps of another process: only their replies and observations are known."""
        done = [replace(_followed(step), observation=step.observation) for step in steps]
        if part := [*done, *([] if pending is None else [_followed(pending).without_decision()])]:
            self._parts.append(part)

    def begin(self, step: int) -> ReplayStep:
        """Begin the next step; number 1 begins another part."""
        if step == 1 or not self._parts:
            self._parts.append([])
            self._messages = []
        self._parts[-1].append(ReplayStep())
        return self.now

    @property
    def has_begun(self) -> bool:
        """Whether an agent has begun a step."""
        return bool(self._parts)

    @property
    def now(self) -> ReplayStep:
        """The current step."""
        return self._parts[-1][-1]

    @property
    def earlier(self) -> ReplayStep | None:
        """The current step in the earlier attempt; None if it is new."""
        return self._earlier_at(len(self._parts[-1]) - 1)

    def _earlier_at(self, index: int) -> ReplayStep | None:
        part = len(self._parts) - 1
        if part >= len(self._earlier) or index >= len(self._earlier[part]):
            return None
        return self._earlier[part][index]

    async def reply(self, query: Query) -> Reply:
        """Return the replayed reply to a query, or ask the model. Raises the model's errors."""
        now, earlier = self.now, self.earlier
        if earlier is not None and len(now.queries) < len(earlier.queries):
            outcome = earlier.queries[len(now.queries)].outcome
        else:
            try:
                outcome = await query.ask()
            except ContextLimitReached as refusal:
                outcome = refusal
        kept = shared_length(self._messages, query.messages)
        added = tuple(query.messages[kept:])
        self._messages[kept:] = added
        now.queries.append(Exchange(query.model, kept, added, query.seed, query.max_tokens, query.tools, outcome))
        if isinstance(outcome, ContextLimitReached):
            raise outcome
        return outcome

    def steps_before(self, step: int, steps: Sequence[Step]) -> tuple[ReplaySteps, ...]:
        """Return the steps of the trial up to where the reply of `step` waits.

        `steps` belong to the current part; they hold the observations.
        """
        *before, part = self._parts
        seen = [replace(own, observation=step.observation) for own, step in zip(part, steps, strict=False)]
        part = [*seen, *part[len(seen) :]]
        return (*before, [*part[: step - 1], part[step - 1].without_decision()])

    def difference(self, steps: Sequence[Step]) -> str:
        """Describe the difference of the last observation from the earlier one, in one line; empty if there is none."""
        earlier = self._earlier_at(len(steps) - 1) if steps else None
        if earlier is None or earlier.observation is None:
            return ""
        found = first_difference(earlier.observation, steps[-1].observation)
        return "" if found is None else f"step {steps[-1].index}: {found}"

    def exchanges(self) -> Iterator[tuple[Exchange, list[Message], Reply | ContextLimitReached]]:
        """Yield all queries, each with its full messages and the executed reply."""
        messages: list[Message] = []
        for step in (step for part in self._parts for step in part):
            for number, each in enumerate(step.queries, 1):
                messages = [*messages[: each.kept], *each.added]
                followed = step.followed_reply if number == step.reviewed_after else None
                yield each, messages, followed or each.outcome


# Replays of stored trials.


def replay_steps_before(step: int, steps: Sequence[Step], trajectory: Trajectory | None) -> tuple[ReplaySteps, ...]:
    """Return the steps to replay before `step`. Raises UsageError if it cannot be done."""
    if not 1 <= step <= max(1, len(steps)):  # the first reply may have failed
        raise UsageError(f"has {len(steps)} steps, so there is no step {step}")
    known = trajectory or Trajectory(protocol="")
    compactions = [each for each in known.compactions if each.step < step]
    return replay_steps(steps[: step - 1], known.interventions, compactions)


def replay_steps(
    steps: Sequence[Step], interventions: Iterable[Intervention], compactions: Sequence[Compaction]
) -> tuple[ReplaySteps, ...]:
    """Return the steps in a form that can be replayed. Raises UsageError if that is impossible."""
    by_step: dict[int, list[Intervention]] = {}
    for each in interventions:
        by_step.setdefault(each.step, []).append(each)
    if compactions:
        at = compactions[0].step
        raise UsageError(f"its history was compacted at step {at}; choose a step up to {at}")
    return (tuple(_replay_step(each, by_step) for each in steps),)


def _replay_step(step: Step, interventions: Mapping[int, Sequence[Intervention]]) -> ReplayStep:
    found = interventions.get(step.index, ())
    if any(each.kind == "typed" for each in found):
        raise UsageError(f"a person typed into its terminal at step {step.index}; choose a step up to {step.index}")
    refused = next((each.text for each in found if each.kind == "refused"), None)
    return replace(
        _followed(step),
        messages=tuple(each.text for each in found if each.kind == "message"),
        decided=step.reply if refused is None else Declined(refused),
        observation=step.observation,
    )


def _followed(step: Step) -> ReplayStep:
    """Return an executed step of which only the reply is known."""
    exchange = Exchange(None, 0, (), None, 0, (), step.reply)
    return ReplayStep(queries=[exchange], reviewed_after=1, decided=step.reply)
