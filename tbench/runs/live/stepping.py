"""Has each reply of a trial wait until a person has decided what becomes of it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

from harness.errors import ContextLimitReached, EndpointError, FormatError
from harness.oversight import Approved, Decided, Declined, Draft
from harness.protocols.base import Parsed
from harness.trajectory import Reply
from tbench.control.wire import MOST_SAMPLES, DraftSeen
from tbench.errors import UsageError

_LONGEST_TEXT = 50_000
A_PERSON = "by a person"
"""Who has approved a reply."""
_NO_REPLY = "no reply of its model waits for a decision"


@dataclass(frozen=True)
class WaitingReply:
    """One reply to the conversation as it stands."""

    reply: Reply
    parsed: Parsed | FormatError
    seed: int | None = None
    temperature: float | None = None
    is_edited: bool = False

    def seen(self, step: int, *, chosen: bool, needs_word: bool = False) -> DraftSeen:
        """It as a debugger shows it."""
        from harness.agent import shown_action

        parsed = self.parsed
        return DraftSeen(
            step=step,
            reasoning=self.reply.reasoning and self.reply.reasoning[:_LONGEST_TEXT],
            content=editable(self.reply)[:_LONGEST_TEXT],
            actions=() if isinstance(parsed, FormatError) else tuple(map(shown_action, parsed.actions)),
            error=str(parsed) if isinstance(parsed, FormatError) else None,
            seed=self.seed,
            temperature=self.temperature,
            edited=self.is_edited,
            chosen=chosen,
            needs_word=needs_word,
        )


@dataclass
class Going:
    """How far a trial goes on without asking; with no bound to its end."""

    count: int | None = None
    to_step: int | None = None
    until_text: str | None = None


@dataclass
class _OpenDecision:
    """The replies that wait, and the decision about them."""

    draft: Draft
    samples: list[WaitingReply]
    decision: asyncio.Future[Decided]
    chosen: int = 0
    asking: int = 0
    trouble: str = ""
    asked: set[asyncio.Task[None]] = field(default_factory=set)


class Rests(Protocol):
    """What lets the agent's terminal be typed into while a reply waits."""

    def resting(self) -> AbstractContextManager[None]: ...


class Decisions:
    """The decisions about the replies of one trial.

    `on_screen` gives the text of the terminal's screen; `on_change` is called when something is to be seen that was not
    before, `on_touch` when a person has changed what is done, `on_ask` with a reply that waits for somebody's yes.
    """

    def __init__(
        self,
        rests: Rests,
        *,
        on_screen: Callable[[], Awaitable[str]],
        on_change: Callable[[], None],
        on_touch: Callable[[], None],
        on_ask: Callable[[Draft], None] = lambda _: None,
    ) -> None:
        self.is_on = False
        """Whether replies wait."""
        self.asks = False
        """Whether those wait in any case that are followed only if somebody says so."""
        self._rests = rests
        self._on_screen = on_screen
        self._on_change = on_change
        self._on_touch = on_touch
        self._on_ask = on_ask
        self._going: Going | None = None
        self._waiting: _OpenDecision | None = None

    async def about(self, draft: Draft) -> Decided:
        """What becomes of a reply: at once where nobody wants to decide."""
        is_asked = self.asks and draft.needs_word
        if not is_asked and (not self.is_on or await self._goes_past(draft)):
            return draft.reply
        self._going = None
        decision: asyncio.Future[Decided] = asyncio.get_running_loop().create_future()
        waiting = self._waiting = _OpenDecision(draft, [WaitingReply(draft.reply, draft.parsed)], decision)
        self._on_change()
        if is_asked:
            self._on_ask(draft)
        try:
            with self._rests.resting():
                return await decision
        finally:
            self._waiting = None
            for task in waiting.asked:
                task.cancel()
            self._on_change()

    async def _goes_past(self, draft: Draft) -> bool:
        going = self._going
        if going is None:
            return False
        if going.count is not None:
            going.count -= 1
            return going.count > 0
        if going.to_step is not None and draft.step >= going.to_step:
            return False
        return going.until_text is None or going.until_text not in await self._on_screen()

    # -- what is to be seen ------------------------------------------------------------------------

    @property
    def step_now(self) -> int:
        """The step whose reply waits; 0 where none does."""
        return 0 if self._waiting is None else self._waiting.draft.step

    @property
    def samples(self) -> tuple[DraftSeen, ...]:
        """The replies that wait, in the order in which they came."""
        if self._waiting is None:
            return ()
        draft, chosen = self._waiting.draft, self._waiting.chosen
        return tuple(
            each.seen(draft.step, chosen=at == chosen, needs_word=draft.needs_word)
            for at, each in enumerate(self._waiting.samples)
        )

    @property
    def asking(self) -> int:
        """How many further replies the model was asked for."""
        return 0 if self._waiting is None else self._waiting.asking

    @property
    def trouble(self) -> str:
        """Why a further reply did not come."""
        return "" if self._waiting is None else self._waiting.trouble

    # -- what a person decides ---------------------------------------------------------------------

    def step(self, count: int) -> str:
        """Do what the reply asks for, and so on. Raises UsageError where none waits."""
        return self._go(Going(count=count))

    def run(self, *, to_step: int | None, until_text: str | None) -> str:
        """The same without a count. Raises UsageError."""
        if to_step is not None and to_step <= (step := self._now().draft.step):
            raise UsageError(f"is at step {step} already; name a later one than {to_step}")
        return self._go(Going(to_step=to_step, until_text=until_text))

    def _go(self, going: Going) -> str:
        waiting = self._now()
        self._going = going
        self._follow(waiting)
        return f"step {waiting.draft.step} is done"

    def set_on(self, on: bool) -> str:
        """Have replies wait, or no longer."""
        self.is_on = on
        waiting = self._waiting
        if not on and waiting is not None and not (self.asks and waiting.draft.needs_word):
            self._follow(waiting)
        self._on_change()
        if on:
            return "each reply waits for a decision"
        return f"replies are followed as they come{', but for those that have to be approved' if self.asks else ''}"

    def drop(self, why: str) -> str:
        """Do nothing of the reply. Raises UsageError where none waits."""
        step = self._now().draft.step
        self._decide(Declined(why))
        return f"nothing of step {step} is done; its model gets that instead"

    def edit(self, text: str) -> str:
        """Put another text into the place of the reply's. Raises UsageError where none waits."""
        waiting = self._now()
        before = waiting.samples[waiting.chosen]
        reply = with_text(before.reply, text)
        after = replace(before, reply=reply, parsed=waiting.draft.read(reply), is_edited=True)
        waiting.samples[waiting.chosen] = after
        self._on_change()
        return f"its form is wrong: {after.parsed}" if isinstance(after.parsed, FormatError) else "edited"

    def choose(self, number: int) -> str:
        """Let another reply be the one that waits. Raises UsageError."""
        waiting = self._now()
        if number > len(waiting.samples):
            raise UsageError(f"has {len(waiting.samples)} replies to choose from, no {number}")
        waiting.chosen = number - 1
        self._on_change()
        return f"reply {number} is followed"

    def sample(self, number: int, seed: int | None, temperature: float | None) -> str:
        """Ask for further replies; each is chosen when it comes. Raises UsageError where none waits."""
        waiting = self._now()
        if len(waiting.samples) + waiting.asking + number > MOST_SAMPLES:
            raise UsageError(f"has {len(waiting.samples)} replies; there may be {MOST_SAMPLES} at most")
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

    def _now(self) -> _OpenDecision:
        if self._waiting is None or self._waiting.decision.done():
            raise UsageError(_NO_REPLY if self.is_on else f"{_NO_REPLY}: it is not in stepping mode")
        return self._waiting

    def _follow(self, waiting: _OpenDecision) -> None:
        reply = waiting.samples[waiting.chosen].reply
        if waiting.draft.needs_word:
            self._decide(Approved(reply, A_PERSON), is_as_planned=self.asks and reply is waiting.draft.reply)
        else:
            self._decide(reply, is_as_planned=reply is waiting.draft.reply)

    def _decide(self, decided: Decided, *, is_as_planned: bool = False) -> None:
        waiting = self._now()
        if not is_as_planned:
            self._on_touch()
        waiting.decision.set_result(decided)


def editable(reply: Reply) -> str:
    """The text of a reply that a person may edit: what it says, or the command of its tool call."""
    if not reply.tool_calls:
        return reply.content
    arguments = reply.tool_calls[0].arguments
    try:
        command = json.loads(arguments)["command"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return arguments
    return command if isinstance(command, str) else arguments


def with_text(reply: Reply, text: str) -> Reply:
    """The reply with another text in that place. It is no longer cut."""
    if not reply.tool_calls:
        return reply.model_copy(update={"content": text, "cut": False})
    first, *others = reply.tool_calls
    is_command = editable(reply) != first.arguments
    call = first.model_copy(update={"arguments": json.dumps({"command": text}) if is_command else text})
    return reply.model_copy(update={"tool_calls": (call, *others), "cut": False})
