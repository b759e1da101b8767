"""The agent loop between a model and a terminal: query, parse, act, observe, with an append-only history.

A full context is handled by the overflow policy (harness.history).
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from harness.checkpoint import (
    CONTEXT_FULL,
    Checkpoints,
    Conversation,
    Counts,
    ReplayedSteps,
    Saved,
    Worked,
)
from harness.clock import Clock
from harness.concurrency import Repeated
from harness.errors import ContextLimitReached, FormatError, HarnessError, NeverAnswered, RequestTooLarge, TerminalLost
from harness.history import IMPOSSIBLE_USAGE, PROMPT_TRUNCATED, History, make_room, make_room_again
from harness.limits import Limits, ReplyRoom
from harness.model import Model, Seeds, SupportsTemperature
from harness.model_text import Admitted, TokenGate, special_tokens_warning
from harness.oversight import Approval, Declined, Oversight, Query, Supervisor, TerminalHandback
from harness.protocols.base import (
    Action,
    ActionProtocol,
    Command,
    CommandResult,
    GatedProtocol,
    Keys,
    Parsed,
    ScreenView,
    View,
)
from harness.terminal import Settled
from harness.trajectory import Compaction, Message, Outcome, Reply, Step, ToolCall, Trajectory, Usage

__all__ = ["Agent", "AgentTerminal", "Limits"]

Tools = Sequence[Mapping[str, Any]]
MESSAGE_HEADING = "[Message from a person who watches your terminal:]"
"""Heading above a person's message, which is appended to an observation."""
NEW_TERMINAL = "[A new terminal is open. It shows:]"
"""Heading above the first screen of a task step that continues the conversation."""
TYPED_HEADING = "[A person has typed into your terminal. Typed was:]"
"""Heading above the list of a person's keystrokes."""
_CLOCK_SAVED_SEC = 5.0
_MAX_COMPACTIONS = 2
"""Maximum number of consecutive compactions without a usable reply in between."""


class AgentTerminal(Protocol):
    """The terminal as the agent loop uses it: harness.terminal.Terminal, or a fake."""

    async def send(self, keys: Keys) -> Settled: ...

    async def run(self, command: str, limit_sec: float) -> View: ...

    async def view(self) -> ScreenView: ...


class _AgentEnded(Exception):
    """Raised to end the agent with an outcome."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class Agent:
    """One conversation about one task. `trajectory` is valid at any time, also after an exception.

    `neutralise_special_tokens` defuses control tokens in everything sent to the model except the protocol's own texts
    and earlier replies; control tokens are recorded as warnings in any case. `hide` removes secrets. `on_step` receives
    the number of each step that begins; `on_step_done` receives each final step once, in order, and must not raise.
    With `approval`, an action needs a matching rule or a person's consent. `earlier` is a conversation to continue.
    """

    def __init__(
        self,
        model: Model,
        terminal: AgentTerminal,
        protocol: ActionProtocol,
        limits: Limits,
        *,
        seeds: Seeds | None = None,
        neutralise_special_tokens: bool = False,
        hide: Callable[[str], str] = str,
        on_step: Callable[[int], None] = lambda _: None,
        on_step_done: Callable[[Step], None] = lambda _: None,
        oversight: Oversight | None = None,
        approval: Approval | None = None,
        earlier: Agent | None = None,
        on_checkpoint: Callable[[Saved], None] = lambda _: None,
        before: Conversation | None = None,
        again: ReplayedSteps | None = None,
    ) -> None:
        """`before` is an interrupted conversation to continue, `again` are recorded steps to replay. `on_checkpoint`
        receives the changes of the conversation's state.
        """
        self._model = model
        self._terminal = terminal
        self._earlier: History | None = earlier.history if earlier is not None else None
        self._inherited = 0
        self._gate = TokenGate(defuses=neutralise_special_tokens, hide=hide)
        self._protocol = protocol.with_gate(self._gate) if isinstance(protocol, GatedProtocol) else protocol
        self._limits = limits
        self._seeds = seeds
        self._on_step = on_step
        self._on_step_done = on_step_done
        self._supervisor = Supervisor(oversight, approval)
        self._history = History(self._gate)
        self._room = ReplyRoom(model, limits)
        self._steps: list[Step] = []
        self._compactions: list[Compaction] = []
        self._outcome: Outcome | None = None
        self._warnings: Counter[str] = Counter()
        self._pending_warnings: list[str] = []
        """Warnings to be recorded with the next step."""
        self._usage = Usage()
        self._format_errors = 0
        self._compactions_in_a_row = 0
        self._refusal: ContextLimitReached | None = None
        self._claimed = False
        self._before, self._again = before, again or ReplayedSteps()
        so_far = self._again if before is None else before.clock
        self._clock = Clock(
            limits.timeout_sec,
            spent_sec=so_far.spent_sec,
            waited_sec=so_far.waited_sec,
            replies=0 if before is None else before.last.counts.replies,
        )
        self._on_checkpoint = on_checkpoint
        interventions = self._supervisor.interventions
        self._checkpoints = Checkpoints(self._clock, self._steps, self._compactions, interventions, before)
        if before is not None:
            self._restore(before)

    async def run(self, instruction: str) -> Trajectory:
        """Step until an outcome. Raises EndpointError, RequestTooLarge; without any reply NeverAnswered or
        TerminalLost."""
        try:
            async with self._clock:
                await self._converse(instruction)
        except _AgentEnded as end:
            self._outcome = end.outcome
        except TerminalLost:
            if not self._clock.replies:
                raise
            self._outcome = Outcome.TERMINAL_LOST
        except TimeoutError:
            if not self._clock.expired:
                raise
            self._outcome = Outcome.AGENT_TIMEOUT
        if not self._clock.replies:
            ended, self._outcome = self._outcome, None
            raise never_answered(ended, self._refusal)
        return self.trajectory

    @property
    def trajectory(self) -> Trajectory:
        return Trajectory(
            protocol=self._protocol.name,
            messages=tuple(self._history.messages),
            inherited=self._inherited,
            steps=tuple(self._steps),
            outcome=self._outcome,
            usage=self._usage,
            warnings=dict(self._warnings),
            compactions=tuple(self._compactions),
            interventions=tuple(self._supervisor.interventions),
            waited_sec=self._clock.waited_sec,
            model_sec=sum(step.model_sec for step in self._steps) + sum(done.model_sec for done in self._compactions),
            command_sec=sum(step.command_sec for step in self._steps),
        )

    @property
    def history(self) -> History | None:
        """The conversation; None before its first message."""
        return self._history if self._history.messages else None

    def exclude_time(self, seconds: float) -> None:
        """Exclude `seconds`, during which the terminal was out of reach, from the agent's time."""
        self._clock.extend(seconds)

    # -- continuing --------------------------------------------------------------------------------

    def _restore(self, before: Conversation) -> None:
        """Continue a conversation that another process has begun."""
        counts = before.last.counts
        counted = len(before.messages) - before.uncounted
        newest, reply = before.messages[counted:], before.steps[-1].reply if before.steps else None
        self._history.restore(before.messages[:counted], before.opening, before.last.history, newest, reply)
        self._steps += before.steps
        self._compactions += before.compactions
        self._supervisor.restore(before.interventions, before.steps, self._parse)
        self._usage, self._warnings = counts.usage, Counter(counts.warnings)
        self._pending_warnings = list(counts.next_warnings)
        self._format_errors, self._claimed = counts.format_errors, counts.claimed
        self._compactions_in_a_row, self._inherited = counts.compactions_in_a_row, counts.inherited

    def _save(self, pending: Step | None = None, *, overflows: bool = False, reviewed: bool = False) -> None:
        """Pass on the state before a query, or before the `pending` reply is executed."""
        if pending is not None and not overflows and not reviewed:
            brief = self._checkpoints.replied(self._history, pending)
            if brief is not None:
                self._on_checkpoint(brief)
                return
        spent_sec, waited_sec = self._checkpoints.times()
        counts = Counts(
            usage=self._usage,
            warnings=dict(self._warnings),
            next_warnings=tuple(self._pending_warnings),
            format_errors=self._format_errors,
            compactions_in_a_row=self._compactions_in_a_row,
            claimed=self._claimed,
            spent_sec=spent_sec,
            waited_sec=waited_sec,
            replies=self._clock.replies,
            inherited=self._inherited,
        )
        made = self._checkpoints.make(self._history, counts, pending, overflows=overflows, reviewed=reviewed)
        self._on_checkpoint(made)

    def _save_followed(self, usage: Usage) -> None:
        """Pass on the state after a step, or only the step if nothing else changed; `usage` is from before the step."""
        is_more = self._format_errors or self._claimed or self._pending_warnings or self._usage is not usage
        is_brief = self._steps[-1].format_error is None and not is_more
        if is_brief and (brief := self._checkpoints.followed(self._history)) is not None:
            self._on_checkpoint(brief)
        else:
            self._save()

    def _save_clock(self) -> None:
        """Pass on the clock while a reply is being executed."""
        self._on_checkpoint(Worked(time.time(), *self._checkpoints.times()))

    async def _go_on(self, before: Conversation) -> None:
        """Execute the reply that an interrupted process has received, if there is one."""
        if (pending := before.last.pending) is None:
            if before.last.overflows:
                await self._make_room(len(self._steps))
            return
        self._on_step(pending.index)
        self._steps.append(pending)
        await self._follow_whole(pending, before.last.overflows, before.last.reviewed)

    async def _converse(self, instruction: str) -> None:
        if self._before is not None:
            await self._go_on(self._before)
        else:
            await self._begin(instruction)
            self._save()
        while True:
            is_again = len(self._steps) < self._again.steps
            with self._clock.stopped() if is_again else contextlib.nullcontext():
                await self._step()

    async def _begin(self, instruction: str) -> None:
        """Begin a conversation, or continue the previous task step's."""
        view = await self._terminal.view()
        instruction, screen = self._gate.admit(instruction), self._gate.admit(view.screen)
        if self._earlier is None:
            self._history.open(self._protocol.first_messages(instruction, screen))
        else:
            shown = f"{NEW_TERMINAL}\n{screen}" if screen.strip() else ""
            self._history = self._earlier.go_on("\n\n".join(filter(None, (instruction.strip(), shown))), self._gate)
            self._inherited = len(self._history.messages)

    async def _step(self) -> None:
        index = len(self._steps) + 1
        if self._limits.steps is not None and index > self._limits.steps:
            raise _AgentEnded(Outcome.STEP_LIMIT)
        self._on_step(index)
        await self._before_query(index)
        step, cramped = await self._query(index)
        # Kept before acting: a timeout or a lost terminal in mid-action must not lose the reply.
        self._steps.append(step)
        overflows = self._again.dropped.get(index)
        if overflows is None:
            overflows = self._room.fills_context(step.reply, cramped)
        self._save(step, overflows=overflows)
        await self._follow_whole(step, overflows)

    async def _follow_whole(self, step: Step, overflows: bool, reviewed: bool = False) -> None:
        """Execute a step's reply, or make room if it `overflows` the context, and end the step."""
        usage = self._usage
        try:
            if overflows:
                self._drop_reply(step)
            else:
                with Repeated(self._save_clock, _CLOCK_SAVED_SEC):
                    await self._follow(step, reviewed)
        finally:
            self._on_step_done(self._steps[-1])
        if not overflows:
            self._save_followed(usage)
            return
        self._save(overflows=True)
        if step.index <= self._again.has_room:
            for done in self._again.compactions_at(step.index, dropped=True):
                self._make_room_again(done)
        else:
            await self._make_room(step.index)

    async def _follow(self, step: Step, reviewed: bool) -> None:
        """Execute the reply, unless it is malformed or refused."""
        self._compactions_in_a_row = 0
        self._end_if_out_of_tokens(step.reply)
        parsed, refused = self._parse(step.reply), None
        if not reviewed:
            step, parsed, refused = await self._review(step, parsed)
        call = None if isinstance(parsed, FormatError) else parsed.tool_call
        self._history.add_reply(step.reply, call)
        if refused is not None:
            self._claimed = False
            self._add_observation(step.model_copy(update={"observation": refused.why}), call)
            return
        if isinstance(parsed, FormatError):
            self._complain(step, parsed)
            return
        self._format_errors = 0
        await self._act(step, parsed)

    def _end_if_out_of_tokens(self, reply: Reply | None) -> None:
        limit = self._limits.completion_tokens
        if limit is not None and self._usage.completion_tokens >= limit:
            if reply is not None:
                self._history.add_reply(reply)
            raise _AgentEnded(Outcome.TOKEN_LIMIT)

    def _warn_if_uncounted(self) -> None:
        if self._limits.completion_tokens is None or not self._usage.uncounted:
            return
        if not self._warnings["limit_without_effect"]:
            self._warn(
                "limit_without_effect: The server does not count the tokens of its replies, so --max-completion-tokens "
                "does not bound them."
            )

    def _warn(self, warning: str) -> None:
        self._warnings[warning.partition(":")[0]] += 1
        self._pending_warnings.append(warning)

    def _take_warnings(self) -> tuple[str, ...]:
        for warning in self._tokens_in("the conversation before this reply"):
            self._warn(warning)
        noticed, self._pending_warnings = tuple(self._pending_warnings), []
        return noticed

    # -- oversight --------------------------------------------------------------------------------

    async def _before_query(self, index: int) -> None:
        """Wait until the model may be queried, and add the messages that people have for it."""
        for each in await self._supervisor.before_query(index, self._clock):
            text = self._gate.admit(each.text if isinstance(each, TerminalHandback) else each)
            heading = TYPED_HEADING if isinstance(each, TerminalHandback) else MESSAGE_HEADING
            self._history.add_to_last(Admitted(f"{heading}\n{text}"))
            self._supervisor.note_message(index, each, text)

    async def _review(
        self, step: Step, parsed: Parsed | FormatError
    ) -> tuple[Step, Parsed | FormatError, Declined | None]:
        """Return the step to execute, its parsed reply, and the refusal, if any."""
        before = len(self._supervisor.interventions)
        decided = await self._supervisor.review(step.index, step.reply, parsed, self._sample, self._parse, self._clock)
        if isinstance(decided, Declined):
            return step, parsed, decided
        if decided is not step.reply:
            step = step.model_copy(update={"reply": decided})
            self._steps[-1], parsed = step, self._parse(decided)
        if len(self._supervisor.interventions) > before:
            self._save(step, reviewed=True)
        return step, parsed, None

    async def _sample(self, seed: int | None, temperature: float | None) -> Reply:
        """Draw another reply to the conversation as it stands; its tokens count, its time does not."""
        model = self._model
        if temperature is not None and isinstance(model, SupportsTemperature):
            model = model.at_temperature(temperature)
        reply = await model.query(
            self._history.messages,
            seed=seed,
            max_tokens=self._room.left(self._history, self._usage),
            tools=self._protocol.tools,
        )
        self._usage += reply.usage
        return reply

    # -- the model -------------------------------------------------------------------------------

    async def _query(self, index: int) -> tuple[Step, bool]:
        """Return the next reply as a step, and whether the context left too little room for it."""
        for done in self._again.compactions_at(index, dropped=False):
            self._make_room_again(done)
        while True:
            started = time.monotonic()
            try:
                reply, cramped = await self._ask_for_step()
            except ContextLimitReached as refusal:
                self._refusal = refusal
                if not isinstance(refusal, RequestTooLarge):
                    self._history.raise_estimate(refusal.prompt_tokens or self._room.context_tokens or 0)
                await self._make_room(index)
                continue
            self._refusal = None
            reply = self._check_usage(reply)
            # A recorded reply keeps the time that it took.
            model_sec = max(time.monotonic() - started, reply.latency_sec)
            return Step(index=index, reply=reply, model_sec=model_sec, warnings=self._take_warnings()), cramped

    async def _ask_for_step(self) -> tuple[Reply, bool]:
        # A recorded reply needs no room.
        is_again = len(self._steps) < len(self._again.dropped)
        used, asked = self._usage, 0 if is_again else self._room.left(self._history, self._usage)
        reply = await self._ask(self._history.messages, asked, self._protocol.tools)
        return reply, self._room.is_cramped(reply, asked, used)

    def _check_usage(self, reply: Reply) -> Reply:
        """Return the reply with a sign if its prompt count is impossible or shows that the prompt was truncated."""
        sign = self._history.count(reply.usage) if self._room.is_plausible(reply.usage) else IMPOSSIBLE_USAGE
        if sign == PROMPT_TRUNCATED and not self._warnings[sign]:
            self._warn(
                f"{sign}: The server counts only {reply.usage.prompt_tokens} tokens for a longer prompt: it seems to "
                "drop the beginning of the conversation. Give it a longer context (Ollama: num_ctx, llama.cpp: "
                "--ctx-size), or set --context-tokens to the context that it has."
            )
        return (
            reply if sign is None or sign in reply.signs else reply.model_copy(update={"signs": (*reply.signs, sign)})
        )

    async def _ask(
        self, messages: Sequence[Message], max_tokens: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Reply:
        seed = None if self._seeds is None else self._seeds.for_step(len(self._steps) + 1)
        query = Query(self._model, messages, seed, max_tokens, tools)
        reply = await self._clock.ask(lambda: self._supervisor.reply(query), self._model.patience_sec)
        self._usage += reply.usage
        self._warn_if_uncounted()
        return reply

    # -- the context -----------------------------------------------------------------------------

    def _drop_reply(self, step: Step) -> None:
        """Drop this step's reply and continue, if the policy can make room; otherwise end the agent."""
        if self._limits.on_overflow == "stop":
            self._history.add_reply(step.reply)
            raise _AgentEnded(Outcome.CONTEXT_LIMIT)
        self._claimed = False
        self._end_if_out_of_tokens(step.reply)
        self._steps[-1] = step.model_copy(update={"format_error": CONTEXT_FULL})
        self._warnings[f"format_error:{CONTEXT_FULL}"] += 1

    async def _make_room(self, index: int) -> None:
        policy = self._limits.on_overflow
        if policy == "stop" or self._compactions_in_a_row >= _MAX_COMPACTIONS:
            raise self._context_full()
        self._compactions_in_a_row += 1
        done = await make_room(
            self._history,
            policy,
            step=index,
            # If a proxy refused the size, the context's length says nothing about it.
            context_tokens=None if isinstance(self._refusal, RequestTooLarge) else self._room.context_tokens,
            max_tokens=self._room.max_tokens(self._usage),
            ask=self._ask,
        )
        if done is not None:
            self._compactions.append(done)
            self._end_if_out_of_tokens(None)
        if done is None or done.tokens_after >= done.tokens_before:
            raise self._context_full()
        self._warn_compacted(done)
        self._save()

    def _warn_compacted(self, done: Compaction) -> None:
        self._warn(
            f"context_compacted: {done.policy} shortened the history from about {done.tokens_before} "
            f"to {done.tokens_after} tokens."
        )

    def _make_room_again(self, done: Compaction) -> None:
        """Shorten the history in the same way as before the replay."""
        self._compactions_in_a_row += 1
        make_room_again(self._history, done)
        self._compactions.append(done)
        if done.summary is not None:
            self._usage += done.summary.usage
        self._warn_compacted(done)

    def _context_full(self) -> Exception:
        """Return the exception that ends an agent whose history cannot be shortened."""
        return self._refusal if isinstance(self._refusal, RequestTooLarge) else _AgentEnded(Outcome.CONTEXT_LIMIT)

    # -- replies and actions ---------------------------------------------------------------------

    def _parse(self, reply: Reply) -> Parsed | FormatError:
        """Parse a reply, or return what is wrong with its format."""
        if reply.cut:
            tokens = reply.usage.completion_tokens
            return FormatError(
                "reply_cut",
                f"Your reply was cut off{f' after {tokens} tokens' if tokens else ''}, so nothing of it was "
                "executed. Answer again, shorter; write long files in several steps.",
            )
        try:
            return self._protocol.parse(reply.content, reply.tool_calls)
        except FormatError as error:
            return self._in_reasoning(reply) or error

    def _in_reasoning(self, reply: Reply) -> FormatError | None:
        """Return the error for an empty reply whose thinking holds the answer; None for any other reply."""
        if reply.content.strip() or reply.tool_calls or not reply.reasoning:
            return None
        try:
            self._protocol.parse(reply.reasoning)
        except FormatError as error:
            if error.kind != "raw_tool_call":
                return None
        return FormatError(
            "reply_in_reasoning",
            "All of your reply counts as thinking, so nothing of it was executed. Think first, end your thinking, and "
            "answer behind it.",
        )

    def _complain(self, step: Step, error: FormatError) -> None:
        self._warnings[f"format_error:{error.kind}"] += 1
        self._count_warnings(error.warnings)
        self._format_errors += 1
        self._claimed = False
        message = self._protocol.complain(str(error), None)
        tokens = self._tokens_in("the observation")
        self._count_warnings(tokens)
        warnings = step.warnings + error.warnings + tokens
        update = {"format_error": error.kind, "warnings": warnings, "observation": message}
        self._add_observation(step.model_copy(update=update))
        if self._format_errors >= self._limits.format_errors:
            raise _AgentEnded(Outcome.FORMAT_LIMIT)

    def _count_warnings(self, warnings: tuple[str, ...]) -> None:
        self._warnings.update(warning.partition(":")[0] for warning in warnings)

    def _tokens_in(self, where: str) -> tuple[str, ...]:
        """Return the warning, if any, about control tokens in texts since the last call."""
        found = self._gate.take_found()
        return (special_tokens_warning(found, where),) if found else ()

    async def _act(self, step: Step, parsed: Parsed) -> None:
        started = time.monotonic()
        exit_code: int | None = None
        view: View | None = None
        pointless: set[str | None] = set()
        try:
            for action in parsed.actions:
                view, exit_code = await self._execute(action, pointless)
            if view is None:
                view = await self._terminal.view()
        finally:
            parsed = replace(parsed, warnings=tuple(each for each in parsed.warnings if each not in pointless))
            self._count_warnings(parsed.warnings)
            step = step.model_copy(
                update={
                    "actions": tuple(action_text(action) for action in parsed.actions),
                    "warnings": step.warnings + parsed.warnings,
                    "exit_code": exit_code,
                    "command_sec": time.monotonic() - started,
                }
            )
            self._steps[-1] = step
        response = self._protocol.respond(parsed, view, claimed=self._claimed)
        warnings = view.notes + self._tokens_in("the observation")
        self._count_warnings(warnings)
        self._claimed = response.claimed
        update = {"observation": response.message, "warnings": step.warnings + warnings}
        self._add_observation(step.model_copy(update=update), parsed.tool_call)
        if response.submitted:
            raise _AgentEnded(Outcome.SUBMITTED)

    async def _execute(self, action: Action, pointless: set[str | None]) -> tuple[View | None, int | None]:
        """Return an action's view and exit code. Adds to `pointless` the warnings that turn out to be meaningless."""
        if isinstance(action, Command):
            view = await self._terminal.run(action.command, self._limits.command_sec)
            return view, view.exit_code if isinstance(view, CommandResult) else None
        settled = await self._terminal.send(action)
        if settled.full_screen:
            pointless.add(action.shell_warning)
        return None, settled.exit_code

    def _add_observation(self, step: Step, call: ToolCall | None = None) -> None:
        self._steps[-1] = step.model_copy(update={"observation": self._history.add_observation(step.observation, call)})


def never_answered(ended: Outcome | None, refusal: ContextLimitReached | None) -> HarnessError:
    """Return the error for an agent that ended without any reply; `refusal` is the server's last refusal, if any."""
    if isinstance(refusal, RequestTooLarge):
        return refusal
    if refusal is not None:
        return NeverAnswered(
            f"the model never answered: its context is too short for the first prompt and a reply ({refusal}); serve "
            "it with a longer one, lower --max-tokens, or set --context-tokens if the server has more than it reports"
        )
    return NeverAnswered(
        f"the model had not replied when the agent ended ({ended}): check the endpoint, and whether the task's "
        "[agent] timeout_sec is long enough"
    )


def action_text(action: Action) -> str:
    """Return the text of a command, or the text or key name of keys."""
    if isinstance(action, Command):
        return action.command
    return action.key if action.key is not None else action.keystrokes
