"""A user's own agent: its interface and inputs, and the runner that enforces its limits and records it."""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol, TypeVar

from harness.agent import AgentTerminal, never_answered
from harness.checkpoint import Checkpoint, Counts, ReplayedSteps, Saved
from harness.clock import Clock
from harness.conversations import Conversations
from harness.errors import AgentCrashed, ContextLimitReached, EndpointError, RequestTooLarge, TerminalLost
from harness.history import HistoryCounts
from harness.limits import Limits
from harness.model import Model, Sampling, Seeds, SupportsTemperature
from harness.model_text import special_tokens, without_lone_surrogates
from harness.oversight import Approval, Declined, Oversight, Query, Supervisor
from harness.protocols.base import Command, CommandResult, Keys, Parsed, ScreenView, View
from harness.protocols.reply_text import render_view
from harness.terminal import Settled
from harness.trajectory import Message, Outcome, Reply, Step, ToolCall, Trajectory, Usage

Result = TypeVar("Result", View, ScreenView, Settled)

_STOPPING_SEC = 10.0
"""Longest wait for a cancelled agent to end."""


@dataclass(frozen=True)
class Assignment:
    """Inputs of a user's agent for one trial."""

    instruction: str
    terminal: AgentTerminal
    """The open terminal, closed by tbench: `send(Keys)`, `run(command, limit_sec)`, `view()`; see docs/terminal.md."""
    model: AgentModel | None
    """The endpoint; None if the run has none."""
    seed: int
    limits: Limits
    """Limits; tbench enforces `steps` (queries), `completion_tokens` and `timeout_sec`."""
    messages: tuple[Message, ...] = ()
    """The earlier conversation, which `instruction` continues; empty if there is none."""


class CustomAgent(Protocol):
    """A user's agent. The class is called without arguments for each trial, or each step of a task with several."""

    async def run(self, assignment: Assignment) -> Outcome | None:
        """Work until done. Returning None counts as Outcome.FINISHED.

        TerminalLost and ContextLimitReached may propagate and become outcomes; any other exception is an error of the
        trial. The method must not block the event loop.
        """


class AgentModel:
    """The endpoint for a user's agent. Every reply becomes a step of the trajectory.

    A query beyond the limits, or to an endpoint that has failed for good, does not return: the agent is cancelled.
    """

    def __init__(self, model: Model, query: Callable[..., Awaitable[Reply]]) -> None:
        self._model = model
        self._query = query

    @property
    def context_tokens(self) -> int | None:
        """Maximum number of tokens of prompt and reply together, as reported by the server; None if unknown."""
        return self._model.context_tokens

    @property
    def sampling(self) -> Sampling:
        return self._model.sampling

    async def query(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Reply:
        """Return one reply, with a seed derived from the trial's. Raises ContextLimitReached."""
        return await self._query(messages, max_tokens or self.sampling.max_tokens, tools)


@dataclass(frozen=True)
class _TerminalCall:
    """One call of the terminal and its result."""

    action: str | None
    observation: str | None
    exit_code: int | None
    command_sec: float

    def add_to(self, step: Step) -> Step:
        return step.model_copy(
            update={
                "actions": step.actions if self.action is None else (*step.actions, self.action),
                "observation": step.observation if self.observation is None else self.observation,
                "exit_code": step.exit_code if self.exit_code is None else self.exit_code,
                "command_sec": step.command_sec + self.command_sec,
            }
        )


class CustomRun:
    """One trial of a user's agent. `trajectory` is valid at any time, also after an exception.

    A step ends with the next query and is then passed to `on_step_done`, which must not raise. Terminal calls made
    while a reply is pending belong to the step of that reply.

    With `acts_unseen`, the agent is a program that executes its actions itself. Then actions are the tool calls of
    replies, and observations are the next query's messages about them. The agent never gets a reply that `oversight` or
    `approval` refuses: the model is asked again. `on_checkpoint` is called with what a replay by another process needs,
    and `again` are the steps that this process replays.
    """

    def __init__(
        self,
        agent: CustomAgent,
        name: str,
        model: Model | None,
        terminal: AgentTerminal,
        limits: Limits,
        *,
        seeds: Seeds,
        earlier: Sequence[Message] = (),
        acts_unseen: bool = False,
        oversight: Oversight | None = None,
        approval: Approval | None = None,
        on_step: Callable[[int], None] = lambda _: None,
        on_step_done: Callable[[Step], None] = lambda _: None,
        on_checkpoint: Callable[[Saved], None] = lambda _: None,
        again: ReplayedSteps | None = None,
    ) -> None:
        self._agent = agent
        self._name = name
        self._acts_unseen = acts_unseen
        self._supervisor = Supervisor(oversight, approval)
        self._replied_at: dict[int, float] = {}
        """Times of the replies whose results are not known yet, by step."""
        self._conversations = Conversations()
        """Conversations of an agent that acts unseen."""
        self._model = model
        self._terminal = terminal
        self._limits = limits
        self._seeds = seeds
        self._earlier = tuple(earlier)
        self._on_step = on_step
        self._on_step_done = on_step_done
        self._on_checkpoint, self._again = on_checkpoint, again
        self._interventions_saved = 0
        self._steps_done = 0
        """Number of steps that have ended."""
        self._early_calls: list[_TerminalCall] = []
        """Terminal calls that belong to the next step."""
        self._messages: tuple[Message, ...] = ()
        self._steps: list[Step] = []
        self._usage = Usage()
        self._warnings: Counter[str] = Counter()
        self._outcome: Outcome | None = None
        self._has_queried = False
        self._refusal: ContextLimitReached | None = None
        self._clock = Clock(limits.timeout_sec)
        self._one_at_a_time = asyncio.Lock()
        self._terminal_errors: list[Exception] = []
        """Exceptions raised by the terminal, which are not the agent's fault."""

    async def run(self, instruction: str) -> Trajectory:
        """Run the agent to its end. Raises EndpointError, AgentCrashed, RequestTooLarge, the terminal's errors, and
        NeverAnswered if the model never replied to its queries."""
        self._ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        work = asyncio.create_task(self._work(instruction), name=f"agent {self._name}")
        either: list[asyncio.Future[Any]] = [work, self._ended]
        try:
            async with self._clock:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            self._outcome = Outcome.AGENT_TIMEOUT
        else:
            self._outcome = self._ended.result() if self._ended.done() else _outcome(work, self._terminal_errors)
        finally:
            await _stop(work)
            self._end_steps(0)
            self._ended.cancel()
        if self._has_queried and not self._clock.replies:
            ended, self._outcome = self._outcome, None
            raise never_answered(ended, self._refusal)
        return self.trajectory

    @property
    def trajectory(self) -> Trajectory:
        return Trajectory(
            protocol=self._name,
            messages=self._conversations.messages if self._acts_unseen else self._messages,
            interventions=tuple(self._supervisor.interventions),
            branches=self._conversations.branches,
            tools=self._conversations.tools,
            inherited=len(self._earlier) + 1 if self._earlier else 0,
            steps=tuple(self._steps),
            outcome=self._outcome,
            usage=self._usage,
            warnings=dict(self._warnings),
            waited_sec=self._clock.waited_sec,
            model_sec=sum(step.model_sec for step in self._steps),
            command_sec=sum(step.command_sec for step in self._steps),
        )

    def exclude_time(self, seconds: float) -> None:
        """Exclude `seconds`, during which the terminal was out of reach, from the agent's time."""
        self._clock.extend(seconds)

    async def _work(self, instruction: str) -> object:
        assignment = Assignment(
            instruction=instruction,
            terminal=_RecordedTerminal(self._terminal, self._record_call, self._terminal_errors.append),
            model=None if self._model is None else AgentModel(self._model, self._query),
            seed=self._seeds.seed,
            limits=self._limits,
            messages=self._earlier,
        )
        return await self._agent.run(assignment)

    async def _query(self, messages: Sequence[Message], max_tokens: int, tools: Sequence[Mapping[str, Any]]) -> Reply:
        # One at a time: two queries would both move the clock.
        async with self._one_at_a_time:
            asked = tuple(messages)
            while True:
                asked, reply = await self._query_alone(asked, max_tokens, tools)
                if not self._acts_unseen:
                    return reply
                decided = await self._review(reply, asked, max_tokens, tools)
                self._save()
                if isinstance(decided, Reply):
                    return decided
                asked = (*asked, _said(reply), *decided)

    async def _review(
        self, reply: Reply, asked: Sequence[Message], max_tokens: int, tools: Sequence[Mapping[str, Any]]
    ) -> Reply | Sequence[Message]:
        """Return the reply for an agent that acts unseen, or the messages that tell the model about a refusal."""
        model, clock, step = self._model, self._clock, self._steps[-1]
        assert model is not None

        async def sample(seed: int | None, temperature: float | None) -> Reply:
            drawing: Model = model
            if temperature is not None and isinstance(model, SupportsTemperature):
                drawing = model.at_temperature(temperature)
            drawn = await drawing.query(asked, seed=seed, max_tokens=max_tokens, tools=tools)
            self._usage += drawn.usage
            return drawn

        decided = await self._supervisor.review(step.index, reply, _parse(reply), sample, _parse, clock)
        if isinstance(decided, Declined):
            self._steps[-1] = step.model_copy(update={"actions": ()})
            calls = reply.tool_calls
            answers = [Message(role="tool", content=decided.why, tool_call_id=call.id) for call in calls]
            return answers or [Message(role="user", content=decided.why)]
        if decided is not reply:
            self._steps[-1] = step.model_copy(update={"reply": decided, "actions": _actions(decided)})
            self._conversations.amend(_said(decided))
        return decided

    async def _query_alone(
        self, messages: tuple[Message, ...], max_tokens: int, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[tuple[Message, ...], Reply]:
        """Return the messages as sent, including those from people, and the reply."""
        model, clock = self._model, self._clock
        assert model is not None
        index = len(self._steps) + 1
        if self._limits.steps is not None and index > self._limits.steps:
            return messages, await self._end(Outcome.STEP_LIMIT)
        self._note_unseen(messages, tools)
        if self._acts_unseen:
            for each in await self._supervisor.before_query(index, clock):
                text = each if isinstance(each, str) else each.text
                self._supervisor.note_message(index, each, text)
                messages = (*messages, Message(role="user", content=text))
        # An agent that acts unseen may send another request before it reports the result of the last reply.
        self._end_steps(1 if self._acts_unseen else 0)
        if self._again is not None and index > len(self._again.dropped):
            clock.set_spent(self._again.spent_sec)  # a replay asks no model, so its time says nothing
            self._again = None
        if self._acts_unseen:
            self._save(opening=messages[:1] if index == 1 else None)
        self._on_step(index)
        if self._limits.completion_tokens is not None:
            max_tokens = min(max_tokens, self._limits.completion_tokens - self._usage.completion_tokens)
        started = time.monotonic()
        self._has_queried = True
        try:
            query = Query(model, messages, self._seeds.for_step(index), max_tokens, tools)
            asks = self._supervisor.reply if self._acts_unseen else Query.ask
            reply = await clock.ask(lambda: asks(query), model.patience_sec)
        except EndpointError as error:
            return messages, await self._end(error)
        except ContextLimitReached as refusal:
            self._refusal = refusal
            raise
        answer = _said(reply)
        self._messages = (*messages, answer)
        if self._acts_unseen:
            self._conversations.add(messages, tools, answer, index)
        self._usage += reply.usage
        step = Step(index=index, reply=reply, model_sec=time.monotonic() - started)
        if self._acts_unseen:
            step = step.model_copy(update={"actions": _actions(reply)})
            self._replied_at[index] = time.monotonic()
        early_calls, self._early_calls = self._early_calls, []
        self._steps.append(reduce(lambda so_far, call: call.add_to(so_far), early_calls, step))
        limit = self._limits.completion_tokens
        if limit is not None and self._usage.completion_tokens >= limit:
            return messages, await self._end(Outcome.TOKEN_LIMIT)
        return messages, reply

    def _save(self, opening: tuple[Message, ...] | None = None) -> None:
        """Save what a replay of the trial needs."""
        clock, new = self._clock, self._supervisor.interventions[self._interventions_saved :]
        counts = Counts(self._usage, {}, spent_sec=clock.spent_sec, waited_sec=clock.waited_sec, replies=clock.replies)
        # If two replies wait for their results, the later one is asked for again.
        pending = self._steps[self._steps_done] if self._steps_done < len(self._steps) else None
        done, self._interventions_saved = self._steps_done, self._interventions_saved + len(new)
        self._on_checkpoint(
            Checkpoint(time.time(), done, HistoryCounts(), counts, pending, opening=opening, interventions=tuple(new))
        )

    async def _end(self, why: Outcome | EndpointError) -> Reply:
        """End the trial without returning to the agent."""
        if not self._ended.done():
            if isinstance(why, Outcome):
                self._ended.set_result(why)
            else:
                self._ended.set_exception(why)
        return await asyncio.Future[Reply]()

    def _note_unseen(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
        """If the agent acts unseen, add the messages after the last reply to that reply's step, as the observation."""
        if not self._acts_unseen or (number := self._conversations.find(messages, tools)) is None:
            return
        if number <= self._steps_done:
            return  # passed on already
        replies = [at for at, message in enumerate(messages) if message.role == "assistant"]
        update = {
            "observation": "\n\n".join(message.content for message in messages[replies[-1] + 1 :]),
            "command_sec": time.monotonic() - self._replied_at[number],
        }
        self._steps[number - 1] = self._steps[number - 1].model_copy(update=update)

    def _end_steps(self, waiting: int) -> None:
        """Pass on all steps, except those of the last `waiting` steps whose results are not known yet."""
        while self._steps_done < len(self._steps):
            step = self._steps[self._steps_done]
            if self._steps_done + waiting >= len(self._steps) and not step.observation:
                return
            self._steps_done += 1
            self._replied_at.pop(self._steps_done, None)
            self._on_step_done(step)

    def _record_call(self, action: str | None, started: float, view: View | Settled | None) -> None:
        """Add a terminal call and its result to the latest step, or to the next one if the latest has ended."""
        if self._acts_unseen:
            return
        exit_code = view.exit_code if isinstance(view, CommandResult | Settled) else None
        text = "\n".join(render_view(view)) if isinstance(view, ScreenView | CommandResult) else None
        if text and special_tokens(text):
            self._warnings["special_tokens"] += 1
        typed = None if action is None else without_lone_surrogates(action)
        call = _TerminalCall(typed, text, exit_code, time.monotonic() - started)
        if self._steps_done < len(self._steps):
            self._steps[-1] = call.add_to(self._steps[-1])
        elif self._steps:
            self._early_calls.append(call)


@dataclass(frozen=True)
class _RecordedTerminal:
    """A terminal that reports every call and its result."""

    _terminal: AgentTerminal
    _record_call: Callable[[str | None, float, View | Settled | None], None]
    _on_failure: Callable[[Exception], None]

    async def send(self, keys: Keys) -> Settled:
        return await self._watch(keys.key if keys.key is not None else keys.keystrokes, self._terminal.send(keys))

    async def run(self, command: str, limit_sec: float) -> View:
        return await self._watch(command, self._terminal.run(command, limit_sec))

    async def view(self) -> ScreenView:
        return await self._watch(None, self._terminal.view())

    async def _watch(self, action: str | None, doing: Awaitable[Result]) -> Result:
        started = time.monotonic()
        try:
            result = await doing
        except BaseException as error:
            if isinstance(error, Exception):
                self._on_failure(error)
            self._record_call(action, started, None)
            raise
        self._record_call(action, started, result)
        return result


def _said(reply: Reply) -> Message:
    # Calls in a cut reply are not passed on to a program.
    calls = () if reply.cut else reply.tool_calls
    return Message(role="assistant", content=reply.content, reasoning=reply.reasoning, tool_calls=calls)


def _actions(reply: Reply) -> tuple[str, ...]:
    """Return the actions of a reply's tool calls; none if the reply was cut."""
    return tuple(map(_call_text, _said(reply).tool_calls))


def _parse(reply: Reply) -> Parsed:
    return Parsed(tuple(map(Command, _actions(reply))))


def _call_text(call: ToolCall) -> str:
    """Return the command of a shell's tool call, or the name and arguments of another tool's call."""
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        for name in ("command", "cmd"):
            if isinstance(command := arguments.get(name), str):
                return without_lone_surrogates(command)
    return without_lone_surrogates(f"{call.name} {call.arguments}")


def _outcome(work: asyncio.Task[object], terminal_errors: Sequence[Exception]) -> Outcome:
    if work.cancelled():
        raise AgentCrashed("run() cancelled itself", "")
    error = work.exception()
    if isinstance(error, RequestTooLarge):
        raise error
    if isinstance(error, ContextLimitReached):
        return Outcome.CONTEXT_LIMIT
    if isinstance(error, TerminalLost):
        return Outcome.TERMINAL_LOST
    if any(error is failure for failure in terminal_errors):
        assert error is not None
        raise error
    if isinstance(error, AgentCrashed):
        raise error
    if error is not None:
        raise crash_error(error)
    result = work.result()
    if result is None:
        return Outcome.FINISHED
    if not isinstance(result, Outcome):
        raise AgentCrashed(f"run() returned {result!r:.80}; return a harness.trajectory.Outcome or None", "")
    return result


def crash_error(error: BaseException) -> AgentCrashed:
    """Return the error for an exception in a user's code, with the innermost file and line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return AgentCrashed(f"{type(error).__name__}: {error}{place}", "".join(traceback.format_exception(error)))


async def _stop(work: asyncio.Task[object]) -> None:
    """Cancel the agent's task, and abandon it if it does not end."""
    work.cancel()
    done, _ = await asyncio.wait({work}, timeout=_STOPPING_SEC)
    if not done:
        work.add_done_callback(_ignore_exception)
    else:
        _ignore_exception(work)


def _ignore_exception(work: asyncio.Task[object]) -> None:
    """Retrieve the task's exception, so that asyncio does not log it."""
    if not work.cancelled():
        work.exception()
