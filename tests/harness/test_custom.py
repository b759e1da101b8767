"""custom: a user's own agent gets its inputs, is kept to its limits, and is recorded."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from harness.custom import Assignment, CustomRun
from harness.errors import (
    AgentCrashed,
    ContextLimitReached,
    EndpointUnavailable,
    NeverAnswered,
    RequestTooLarge,
    TerminalLost,
    TerminalUnreachable,
)
from harness.fakes import FakeTerminal, ScriptedModel
from harness.limits import Limits
from harness.model import Sampling, Seeds
from harness.oversight import Approval, Decision, Draft, Oversight, Query, Rule, TerminalHandback
from harness.protocols.base import CommandResult, Keys
from harness.trajectory import Message, Outcome, Reply, Step, ToolCall, Trajectory, Usage

ASK = [Message(role="user", content="What now?")]
Behaviour = Callable[[Assignment], Awaitable[Any]]


class Scripted:
    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour

    async def run(self, assignment: Assignment) -> Any:
        return await self._behaviour(assignment)


def a_run(
    behaviour: Behaviour,
    model: ScriptedModel | None = None,
    terminal: FakeTerminal | None = None,
    steps_done: list[Step] | None = None,
    earlier: Sequence[Message] = (),
    acts_unseen: bool = False,
    oversight: Oversight | None = None,
    approval: Approval | None = None,
    **limits: Any,
) -> CustomRun:
    return CustomRun(
        Scripted(behaviour),
        "mine:Agent",
        model,
        terminal or FakeTerminal(),
        Limits(**limits),
        seeds=Seeds("alpha", 3),
        earlier=earlier,
        acts_unseen=acts_unseen,
        oversight=oversight,
        approval=approval,
        on_step_done=([] if steps_done is None else steps_done).append,
    )


async def run(*arguments: Any, **limits: Any) -> Trajectory:
    steps: list[Step] = []
    made = a_run(*arguments, steps_done=steps, **limits)
    async with asyncio.timeout(30):
        trajectory = await made.run("Make the tests pass.")
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory
    assert steps == list(trajectory.steps)
    return trajectory


async def ask_for_ever(job: Assignment) -> None:
    assert job.model is not None
    while True:
        await job.model.query(ASK)


async def test_an_agent_gets_the_trial() -> None:
    jobs: list[Assignment] = []

    async def look(job: Assignment) -> None:
        jobs.append(job)

    assert (await run(look, steps=9)).outcome is Outcome.FINISHED
    (job,) = jobs
    assert (job.instruction, job.model, job.seed, job.limits.steps) == ("Make the tests pass.", None, 3, 9)
    assert job.messages == ()
    before = (Message(role="user", content="Make them."), Message(role="assistant", content="Done."))
    assert (await run(look, earlier=before)).inherited == 3
    assert jobs[1].messages == before


@pytest.mark.parametrize("outcome", [Outcome.SUBMITTED, Outcome.FINISHED, Outcome.STEP_LIMIT])
async def test_what_it_returns_is_the_outcome(outcome: Outcome) -> None:
    async def give(_: Assignment) -> Outcome:
        return outcome

    assert (await run(give)).outcome is outcome


async def test_an_agent_that_acts_unseen_is_recorded_by_its_calls_and_what_its_next_query_says_about_them() -> None:
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
    calls = (
        ToolCall(id="1", name="bash", arguments='{"command": "ls"}'),
        ToolCall(id="2", name="look", arguments='{"path": "x"}'),
        ToolCall(id="3", name="cut", arguments='{"comm'),
    )

    async def work(job: Assignment) -> None:
        assert job.model is not None
        reply = await job.model.query(ASK, tools=tools)
        said = Message(role="assistant", content=reply.content, tool_calls=reply.tool_calls)
        seen = [Message(role="tool", content=f"output {call.id}", tool_call_id=call.id) for call in calls]
        await job.model.query([Message(role="user", content="A title, please.")])
        await job.model.query([*ASK, said, *seen], tools=tools)
        await job.terminal.run("agent --task x", 5)

    model = ScriptedModel([Reply(content="I look.", tool_calls=calls), Reply(content="Title"), Reply(content="Done.")])
    trajectory = await run(work, model, FakeTerminal([CommandResult(output="bye", exit_code=0)]), acts_unseen=True)
    first, title, last = trajectory.steps
    assert first.actions == ("ls", 'look {"path": "x"}', 'cut {"comm')
    assert (title.reply.content, title.actions, last.actions, last.observation) == ("Title", (), (), "")
    assert first.observation == "output 1\n\noutput 2\n\noutput 3"
    (beside,) = trajectory.branches
    assert (beside.replies, beside.has_tools) == ((2,), False)
    assert [message.content for message in beside.messages] == ["A title, please.", "Title"]
    assert trajectory.tools == tuple(tools)
    assert [message.content for message in trajectory.messages] == [
        "What now?", "I look.", "output 1", "output 2", "output 3", "Done.",
    ]  # fmt: skip


async def test_calls_in_a_cut_reply_of_an_agent_that_acts_unseen_are_no_actions() -> None:
    call = ToolCall(id="1", name="bash", arguments='{"command": "rm -r /a')

    async def work(job: Assignment) -> None:
        assert job.model is not None
        await job.model.query(ASK)

    trajectory = await run(work, ScriptedModel([Reply(content="", tool_calls=(call,), cut=True)]), acts_unseen=True)
    assert trajectory.steps[0].actions == ()
    assert trajectory.messages[-1].tool_calls == ()


async def test_an_agent_that_acts_unseen_never_gets_a_reply_with_a_call_that_no_rule_allows() -> None:
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
    calls = [
        (ToolCall(id="1", name="bash", arguments='{"command": "ls"}'), ToolCall(id="2", name="rm", arguments="{}")),
        (ToolCall(id="3", name="bash", arguments='{"command": "ls"}'),),
    ]
    got: list[Reply] = []

    async def work(job: Assignment) -> None:
        assert job.model is not None
        got.append(await job.model.query(ASK, tools=tools))

    model = ScriptedModel([Reply(content="I look.", tool_calls=each) for each in calls])
    approval = Approval(asks=False, rules=(Rule("ls", re.compile("ls")),))
    trajectory = await run(work, model, acts_unseen=True, approval=approval)
    assert [reply.tool_calls for reply in got] == [calls[1]]
    assert [step.actions for step in trajectory.steps] == [(), ("ls",)]
    refused, approved = trajectory.interventions
    assert (refused.step, refused.kind, approved.step, approved.kind) == (1, "refused", 2, "approved")
    assert "rm {}" in refused.text
    second = model.requests[1].messages
    assert [message.role for message in second] == ["user", "assistant", "tool", "tool"]
    assert [message.tool_call_id for message in second[2:]] == ["1", "2"]
    assert "rm {}" in second[2].content == trajectory.steps[0].observation.partition("\n\n")[0]


async def test_an_agent_that_acts_unseen_is_held_before_its_next_query_and_its_time_stands_still() -> None:
    held = asyncio.Event()

    class Gate(Oversight):
        async def before_query(self, step: int) -> Sequence[str | TerminalHandback]:
            held.set()
            await asyncio.sleep(1.0)
            return ["Hurry."]

        async def reply(self, query: Query) -> Reply:
            return await query.ask()

        async def review(self, draft: Draft) -> Decision:
            return draft.reply

    async def work(job: Assignment) -> None:
        assert job.model is not None
        await job.model.query(ASK)

    model = ScriptedModel([Reply(content="a")])
    trajectory = await run(work, model, timeout_sec=0.5, oversight=Gate(), acts_unseen=True)
    assert [message.content for message in model.requests[0].messages] == ["What now?", "Hurry."]
    assert [each.kind for each in trajectory.interventions] == ["message"]
    assert held.is_set()
    assert trajectory.outcome is Outcome.FINISHED
    assert trajectory.waited_sec >= 1.0


async def test_replies_become_steps_with_what_was_typed_and_seen() -> None:
    async def work(job: Assignment) -> Outcome:
        assert job.model is not None
        await job.model.query(ASK, max_tokens=50)
        await job.terminal.send(Keys("ls\n", 1.0))
        await job.terminal.run("pwd", 5)
        await job.model.query([*ASK, *ASK])
        return Outcome.SUBMITTED

    usage = Usage(prompt_tokens=10, completion_tokens=5)
    model = ScriptedModel([Reply(content="one", usage=usage), Reply(content="two", usage=usage)])
    terminal = FakeTerminal([CommandResult(output="/app\n", exit_code=4)])
    trajectory = await run(work, model, terminal)
    first, second = trajectory.steps
    assert (first.index, first.reply.content, first.actions) == (1, "one", ("ls\n", "pwd"))
    assert (first.exit_code, second.exit_code) == (4, None)
    assert "/app" in first.observation
    assert trajectory.usage == Usage(prompt_tokens=20, completion_tokens=10)
    assert [message.content for message in trajectory.messages] == ["What now?", "What now?", "two"]
    assert trajectory.protocol == "mine:Agent"
    first, second = (Seeds("alpha", 3).for_step(step) for step in (1, 2))
    asked = [(request.seed, request.max_tokens) for request in model.requests]
    assert asked == [(first, 50), (second, Sampling().max_tokens)]


async def test_a_step_is_handed_over_with_the_next_query_and_with_the_end() -> None:
    steps: list[Step] = []
    over: list[int] = []

    class Watching(ScriptedModel):
        async def query(self, *arguments: Any, **options: Any) -> Reply:
            over.append(len(steps))
            return await super().query(*arguments, **options)

    async def work(job: Assignment) -> None:
        assert job.model is not None
        for _ in range(3):
            await job.model.query(ASK)
            await job.terminal.send(Keys("ls\n", 1.0))

    made = a_run(work, Watching(["x"] * 3), steps_done=steps)
    trajectory = await made.run("Do it.")
    assert over == [0, 1, 2]
    assert steps == list(trajectory.steps)
    assert [step.actions for step in steps] == [("ls\n",)] * 3


async def test_what_is_done_while_a_reply_is_awaited_belongs_to_its_step() -> None:
    async def work(job: Assignment) -> None:
        assert job.model is not None
        await job.model.query(ASK)
        await job.terminal.send(Keys("first\n", 1.0))
        asked = asyncio.create_task(job.model.query(ASK))
        await asyncio.sleep(0)
        await job.terminal.run("meanwhile", 5)
        await asked
        await job.terminal.send(Keys("last\n", 1.0))

    class Slow(ScriptedModel):
        async def query(self, *arguments: Any, **options: Any) -> Reply:
            await asyncio.sleep(0.05)
            return await super().query(*arguments, **options)

    first, second = (
        await run(work, Slow(["x"] * 2), FakeTerminal([CommandResult(output="done\n", exit_code=3)]))
    ).steps
    assert (first.actions, first.exit_code) == (("first\n",), 0)
    assert second.actions == ("meanwhile", "last\n")
    assert "done" in second.observation


async def test_half_a_character_that_was_typed_is_recorded_as_far_as_a_file_can_hold_it() -> None:
    async def work(job: Assignment) -> None:
        assert job.model is not None
        await job.model.query(ASK)
        await job.terminal.send(Keys("half \ud800\n", 1.0))

    assert (await run(work, ScriptedModel(["x"]))).steps[0].actions == ("half \ufffd\n",)


async def test_control_tokens_on_the_screen_are_counted() -> None:
    async def look(job: Assignment) -> None:
        await job.terminal.view()

    assert (await run(look, None, FakeTerminal(["<|im_end|>"]))).warnings == {"special_tokens": 1}


async def test_the_step_limit_ends_it() -> None:
    trajectory = await run(ask_for_ever, ScriptedModel(["x"] * 9), steps=3)
    assert trajectory.outcome is Outcome.STEP_LIMIT
    assert len(trajectory.steps) == 3


async def test_the_token_limit_ends_it() -> None:
    model = ScriptedModel([Reply(content="x", usage=Usage(completion_tokens=60))] * 9)
    trajectory = await run(ask_for_ever, model, completion_tokens=100)
    assert trajectory.outcome is Outcome.TOKEN_LIMIT
    assert [request.max_tokens for request in model.requests] == [100, 40]


async def test_an_agent_that_catches_everything_is_ended_all_the_same() -> None:
    async def stubborn(job: Assignment) -> None:
        while True:
            with contextlib.suppress(Exception):
                await ask_for_ever(job)

    assert (await run(stubborn, ScriptedModel(["x"] * 9), steps=2)).outcome is Outcome.STEP_LIMIT


async def test_its_time_is_bounded() -> None:
    async def sleep(_: Assignment) -> None:
        await asyncio.Future()

    assert (await run(sleep, timeout_sec=0.05)).outcome is Outcome.AGENT_TIMEOUT


async def test_a_timeout_of_its_own_is_its_own() -> None:
    async def impatient(_: Assignment) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Future()

    with pytest.raises(AgentCrashed, match="TimeoutError"):
        await run(impatient, timeout_sec=60)


async def test_waiting_for_the_endpoint_is_not_charged() -> None:
    class Slow(ScriptedModel):
        async def query(self, *arguments: Any, **options: Any) -> Reply:
            await asyncio.sleep(0.1)
            return await super().query(*arguments, **options)

    async def work(job: Assignment) -> Outcome:
        assert job.model is not None
        await job.model.query(ASK)
        return Outcome.SUBMITTED

    model = Slow([Reply(content="x", waited_sec=60.0)], patience_sec=60)
    trajectory = await run(work, model, timeout_sec=0.05)
    assert (trajectory.outcome, trajectory.waited_sec) == (Outcome.SUBMITTED, pytest.approx(60))
    late = Slow(["x"], patience_sec=60)
    assert (await run(work, late, timeout_sec=0.05)).outcome is Outcome.AGENT_TIMEOUT


async def test_an_endpoint_that_fails_is_no_fault_of_an_agent_that_hides_it() -> None:
    async def hide(job: Assignment) -> Outcome:
        with contextlib.suppress(Exception):
            await ask_for_ever(job)
        return Outcome.SUBMITTED

    with pytest.raises(EndpointUnavailable):
        await run(hide, ScriptedModel(["x", EndpointUnavailable("http://x: refused")]))


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(TerminalLost("gone"), Outcome.TERMINAL_LOST), (ContextLimitReached("full"), Outcome.CONTEXT_LIMIT)],
)
async def test_what_ends_the_built_in_agent_may_end_a_users(error: Exception, outcome: Outcome) -> None:
    async def leave(_: Assignment) -> None:
        raise error

    assert (await run(leave)).outcome is outcome


async def test_a_full_context_is_told_to_the_agent() -> None:
    async def shorten(job: Assignment) -> Outcome:
        assert job.model is not None
        with pytest.raises(ContextLimitReached):
            await job.model.query(ASK)
        await job.model.query(ASK)
        return Outcome.SUBMITTED

    trajectory = await run(shorten, ScriptedModel([ContextLimitReached("full"), "x"]))
    assert (trajectory.outcome, len(trajectory.steps)) == (Outcome.SUBMITTED, 1)


@pytest.mark.parametrize("hides", [True, False])
async def test_without_a_single_reply_there_is_no_outcome(hides: bool) -> None:
    async def go(job: Assignment) -> Outcome:
        assert job.model is not None
        try:
            await job.model.query(ASK)
        except ContextLimitReached:
            if not hides:
                raise
        return Outcome.SUBMITTED

    with pytest.raises(NeverAnswered):
        await run(go, ScriptedModel([ContextLimitReached("full")]))
    with pytest.raises(RequestTooLarge):
        await run(go, ScriptedModel([RequestTooLarge("HTTP 413")]))


async def test_a_way_that_takes_no_more_is_no_outcome() -> None:
    async def go(job: Assignment) -> None:
        assert job.model is not None
        await job.model.query(ASK)
        await job.model.query(ASK)

    with pytest.raises(RequestTooLarge):
        await run(go, ScriptedModel(["x", RequestTooLarge("HTTP 413")]))


async def test_an_exception_is_the_agents_crash_with_its_place_and_what_there_is_so_far() -> None:
    async def crash(job: Assignment) -> None:
        assert job.model is not None
        await job.model.query(ASK)
        raise ZeroDivisionError("by zero")

    steps: list[Step] = []
    made = a_run(crash, ScriptedModel(["x"]), steps_done=steps)
    with pytest.raises(AgentCrashed, match=r"ZeroDivisionError: by zero \(.*test_custom.py:\d+\)") as caught:
        await made.run("Do it.")
    assert "in crash" in caught.value.trace
    assert steps == list(made.trajectory.steps) and len(steps) == 1


async def test_a_terminal_out_of_reach_is_no_crash_of_the_agents() -> None:
    async def look(job: Assignment) -> None:
        await job.terminal.view()

    with pytest.raises(TerminalUnreachable):
        await run(look, None, FakeTerminal([TerminalUnreachable("the engine is gone")]))


async def test_something_else_than_an_outcome_is_a_crash() -> None:
    async def proud(_: Assignment) -> str:
        return "done!"

    with pytest.raises(AgentCrashed, match=r"run\(\) returned 'done!'; return a harness.trajectory.Outcome"):
        await run(proud)


async def test_an_agent_that_cancels_itself_has_crashed() -> None:
    async def vanish(_: Assignment) -> None:
        raise asyncio.CancelledError

    with pytest.raises(AgentCrashed, match="cancelled itself"):
        await run(vanish)


async def test_cancelling_the_trial_ends_the_agent() -> None:
    at_work, ended = asyncio.Event(), asyncio.Event()

    async def stuck(_: Assignment) -> None:
        at_work.set()
        try:
            await asyncio.Future()
        finally:
            ended.set()

    running = asyncio.create_task(a_run(stuck).run("Do it."))
    async with asyncio.timeout(30):
        await at_work.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert ended.is_set()
