"""Makes each reply of a trial wait until a person has decided about it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from harness.agent import action_text
from harness.errors import ContextLimitReached, EndpointError, FormatError
from harness.oversight import Approved, Decision, Declined, Draft
from harness.protocols.base import Parsed
from harness.thoughts import ReplyTexts, reply_texts
from harness.trajectory import Reply
from tbench.control.wire import MAX_SAMPLES, DraftSeen
from tbench.errors import UsageError

_LONGEST_TEXT = 50_000
A_PERSON = "by a person"
"""Name of the approver when a person has approved a reply."""
_NO_REPLY = "no reply of its model waits for a decision"


@dataclass(frozen=True)
class WaitingReply:
    """One candidate reply to the current conversation."""

    reply: Reply
    parsed: Parsed | FormatError
    seed: int | None = None
    temperature: float | None = None
    is_edited: bool = False

    @cached_property
    def actions(self) -> tuple[str, ...]:
        """The reply's actions; none if the reply is malformed."""
        return () if isinstance(self.parsed, FormatError) else tuple(map(action_text, self.parsed.actions))

    @cached_property
    def thoughts(self) -> tuple[str, ...]:
        """The reply's texts other than its actions."""
        return cut_thoughts(reply_texts(self.reply, self.actions, is_malformed=isinstance(self.parsed, FormatError)))

    def seen(self, step: int, *, chosen: bool, needs_approval: bool = False) -> DraftSeen:
        """Return the reply in the form of the control socket."""
        parsed = self.parsed
        return DraftSeen(
            step=step,
            reasoning=self.reply.reasoning and self.reply.reasoning[:_LONGEST_TEXT],
            thoughts=self.thoughts,
            content=editable(self.reply)[:_LONGEST_TEXT],
            actions=self.actions,
            error=str(parsed) if isinstance(parsed, FormatError) else None,
            seed=self.seed,
            temperature=self.temperature,
            edited=self.is_edited,
            chosen=chosen,
            needs_approval=needs_approval,
        )


class Breakpoint(Protocol):
    """A condition that is checked after each step."""

    async def begin(self) -> None:
        """Record the state from which steps continue, for comparison. Raises UsageError for an impossible condition."""

    async def reached(self) -> str:
        """Return why the trial stops now; empty if it continues."""


@dataclass
class RunUntil:
    """Point up to which replies are executed without asking; with no field set, the trial's end."""

    count: int | None = None
    to_step: int | None = None
    breakpoints: Sequence[Breakpoint] = ()


@dataclass
class _OpenDecision:
    """The candidate replies to one query, and the decision that is awaited."""

    draft: Draft
    samples: list[WaitingReply]
    decision: asyncio.Future[Decision] = field(init=False)
    chosen: int = 0
    asking: int = 0
    trouble: str = ""
    asked: set[asyncio.Task[None]] = field(default_factory=set)


class CanIdle(Protocol):
    """Marks the agent as idle, so that its terminal may be typed into."""

    def idling(self) -> AbstractContextManager[None]: ...


class ReplyDecisions:
    """The decisions about the replies of one trial.

    `on_change` is called with every visible change, `on_touch` when a person has changed the trial, `on_ask` with a
    reply that needs approval.
    """

    def __init__(
        self,
        agent: CanIdle,
        *,
        on_change: Callable[[], None],
        on_touch: Callable[[], None],
        on_ask: Callable[[Draft], None] = lambda _: None,
    ) -> None:
        self.is_stepping = False
        """Whether each reply waits for a decision."""
        self.asks_approval = False
        """Whether replies that need approval wait, even outside of stepping mode."""
        self.stopped = ""
        """The breakpoint that has stopped the trial, or why none could be set."""
        self._agent = agent
        self._on_change = on_change
        self._on_touch = on_touch
        self._on_ask = on_ask
        self._target: RunUntil | None = None
        self._waiting: _OpenDecision | None = None

    async def decide(self, draft: Draft) -> Decision:
        """Return the decision about a reply; at once if it does not have to wait."""
        is_asked = self.asks_approval and draft.needs_approval
        if not is_asked and (not self.is_stepping or await self._runs_past(draft)):
            return draft.reply
        self._target = None
        waiting = _OpenDecision(draft, [WaitingReply(draft.reply, draft.parsed)])
        if is_asked:
            self._on_ask(draft)
        decided = await self._wait_for(waiting)
        while not await self._begin_breakpoints():
            decided = await self._wait_for(waiting)
        return decided

    async def _wait_for(self, waiting: _OpenDecision) -> Decision:
        """Wait until a person has decided."""
        waiting.decision = asyncio.get_running_loop().create_future()
        self._waiting = waiting
        self._on_change()
        try:
            with self._agent.idling():
                return await waiting.decision
        finally:
            self._waiting = None
            for task in waiting.asked:
                task.cancel()
            self._on_change()

    async def _begin_breakpoints(self) -> bool:
        """Begin the breakpoints; return False if one is impossible, so that the reply has to wait again."""
        try:
            for each in self._target.breakpoints if self._target is not None else ():
                await each.begin()
        except UsageError as problem:
            self._target, self.stopped = None, str(problem)
            return False
        return True

    async def _runs_past(self, draft: Draft) -> bool:
        target = self._target
        if target is None:
            return False
        if target.count is not None:
            target.count -= 1
            return target.count > 0
        if target.to_step is not None and draft.step >= target.to_step:
            return False
        for each in target.breakpoints:
            if reason := await each.reached():
                self.stopped = reason
                return False
        return True

    # -- state --------------------------------------------------------------------------------------

    @property
    def step_now(self) -> int:
        """Number of the step whose reply waits; 0 for none."""
        return 0 if self._waiting is None else self._waiting.draft.step

    @property
    def samples(self) -> tuple[DraftSeen, ...]:
        """Candidate replies in the order in which they came."""
        if self._waiting is None or self._waiting.decision.done():
            return ()
        draft, chosen = self._waiting.draft, self._waiting.chosen
        return tuple(
            each.seen(draft.step, chosen=at == chosen, needs_approval=draft.needs_approval)
            for at, each in enumerate(self._waiting.samples)
        )

    @property
    def asking(self) -> int:
        """Number of further replies that the model has been asked for."""
        return 0 if self._waiting is None else self._waiting.asking

    @property
    def trouble(self) -> str:
        """Error that kept a further reply from coming; empty for none."""
        return "" if self._waiting is None else self._waiting.trouble

    # -- commands -----------------------------------------------------------------------------------

    def step(self, count: int) -> str:
        """Execute the waiting reply, and the next ones up to `count`. Raises UsageError if none waits."""
        return self._run_on(RunUntil(count=count))

    def run(self, *, to_step: int | None = None, breakpoints: Sequence[Breakpoint] = ()) -> str:
        """Execute replies up to a step or a breakpoint. Raises UsageError if none waits."""
        if to_step is not None and to_step <= (step := self._require_waiting_reply().draft.step):
            raise UsageError(f"is already at step {step}; choose a step after it, not {to_step}")
        return self._run_on(RunUntil(to_step=to_step, breakpoints=breakpoints))

    def _run_on(self, target: RunUntil) -> str:
        waiting = self._require_waiting_reply()
        self._target, self.stopped = target, ""
        self._follow(waiting)
        return f"the reply of step {waiting.draft.step} is followed"

    def set_stepping(self, on: bool) -> str:
        """Turn stepping mode on or off."""
        self.is_stepping = on
        waiting = self._waiting
        if not on and waiting is not None and not (self.asks_approval and waiting.draft.needs_approval):
            self._follow(waiting)
        self._on_change()
        if on:
            return "each reply waits for a decision"
        return f"replies are followed as they come{', except those that need approval' if self.asks_approval else ''}"

    def drop(self, why: str) -> str:
        """Discard the waiting reply; the model gets `why` instead. Raises UsageError if none waits."""
        step = self._require_waiting_reply().draft.step
        self._decide(Declined(why))
        return f"the reply of step {step} is discarded; its model gets your message instead"

    def edit(self, text: str) -> str:
        """Replace the text of the waiting reply. Raises UsageError if none waits."""
        waiting = self._require_waiting_reply()
        before = waiting.samples[waiting.chosen]
        reply = with_text(before.reply, text)
        after = replace(before, reply=reply, parsed=waiting.draft.read(reply), is_edited=True)
        waiting.samples[waiting.chosen] = after
        self._on_change()
        return f"malformed: {after.parsed}" if isinstance(after.parsed, FormatError) else "edited"

    def choose(self, number: int) -> str:
        """Choose another candidate as the reply that waits. Raises UsageError."""
        waiting = self._require_waiting_reply()
        if number > len(waiting.samples):
            raise UsageError(f"has {len(waiting.samples)} replies to choose from, so there is no reply {number}")
        waiting.chosen = number - 1
        self._on_change()
        return f"reply {number} will be followed"

    def sample(self, number: int, seed: int | None, temperature: float | None) -> str:
        """Ask the model for further replies; the latest is chosen. Raises UsageError if none waits."""
        waiting = self._require_waiting_reply()
        if len(waiting.samples) + waiting.asking + number > MAX_SAMPLES:
            raise UsageError(f"has {len(waiting.samples)} replies; the limit is {MAX_SAMPLES}")
        seeds = [random.getrandbits(31) if seed is None else seed + more for more in range(number)]
        waiting.asking, waiting.trouble = waiting.asking + number, ""
        waiting.asked.update(
            asyncio.create_task(self._ask(waiting, each, temperature), name="sampling") for each in seeds
        )
        self._on_change()
        return f"its model is asked for {number} more {'replies' if number > 1 else 'reply'}"

    async def _ask(self, waiting: _OpenDecision, seed: int, temperature: float | None) -> None:
        try:
            reply = await waiting.draft.sample(seed, temperature)
            waiting.samples.append(WaitingReply(reply, waiting.draft.read(reply), seed, temperature))
            waiting.chosen = len(waiting.samples) - 1
        except (EndpointError, ContextLimitReached) as error:
            waiting.trouble = f"no other reply: {error}"
        finally:
            waiting.asking -= 1
            self._on_change()

    def _require_waiting_reply(self) -> _OpenDecision:
        if self._waiting is None or self._waiting.decision.done():
            raise UsageError(_NO_REPLY if self.is_stepping else f"{_NO_REPLY}: it is not in stepping mode")
        return self._waiting

    def _follow(self, waiting: _OpenDecision) -> None:
        reply = waiting.samples[waiting.chosen].reply
        if waiting.draft.needs_approval:
            self._decide(Approved(reply, A_PERSON), is_as_planned=self.asks_approval and reply is waiting.draft.reply)
        else:
            self._decide(reply, is_as_planned=reply is waiting.draft.reply)

    def _decide(self, decided: Decision, *, is_as_planned: bool = False) -> None:
        waiting = self._require_waiting_reply()
        if not is_as_planned:
            self._on_touch()
        waiting.decision.set_result(decided)


def cut_thoughts(texts: ReplyTexts) -> tuple[str, ...]:
    """Return the thoughts of a reply in the form of the control socket."""
    return tuple(thought[:_LONGEST_TEXT] for thought in texts.thoughts)


def editable(reply: Reply) -> str:
    """Return the text of a reply that a person may edit: its content, or the command of its tool call."""
    if not reply.tool_calls:
        return reply.content
    arguments = reply.tool_calls[0].arguments
    try:
        command = json.loads(arguments)["command"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return arguments
    return command if isinstance(command, str) else arguments


def with_text(reply: Reply, text: str) -> Reply:
    """Return the reply with its `editable` text replaced, and no longer marked as cut."""
    if not reply.tool_calls:
        return reply.model_copy(update={"content": text, "cut": False})
    first, *others = reply.tool_calls
    is_command = editable(reply) != first.arguments
    call = first.model_copy(update={"arguments": json.dumps({"command": text}) if is_command else text})
    return reply.model_copy(update={"tool_calls": (call, *others), "cut": False})
