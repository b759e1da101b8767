"""history: the messages as they are sent, and their length by the server's counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.agent import Agent
from harness.errors import ContextLimitReached, EndpointUnavailable
from harness.fakes import FakeTerminal, ScriptedModel
from harness.history import (
    DROPPED,
    IMPOSSIBLE_USAGE,
    PROMPT_TRUNCATED,
    History,
    TokenGate,
    drop_oldest_outputs,
    drop_oldest_turns,
    make_room,
    make_room_again,
    size_bytes,
)
from harness.limits import Limits
from harness.model import Sampling
from harness.protocols.base import Command, CommandResult, Parsed, Response, View
from harness.protocols.keystrokes_json import KeystrokesJson
from harness.trajectory import Message, OnOverflow, Outcome, Reply, Step, ToolCall, Trajectory, Usage


def history(*contents: str) -> History:
    made = History()
    made.open([Message(role="user", content=content) for content in contents])
    return made


def test_text_that_no_one_counted_is_estimated_on_the_high_side() -> None:
    assert history("a" * 100).tokens == 40


def test_what_the_server_counted_is_taken_over() -> None:
    made = history("a" * 100)
    made.count(Usage(prompt_tokens=25))
    assert made.tokens == 25
    made.add_reply(Reply(content="b" * 40, usage=Usage(prompt_tokens=25, completion_tokens=10)))
    assert made.tokens == 35
    made.add_observation("c" * 10)
    assert made.tokens == 39


def test_a_reply_with_reasoning_is_estimated_without_it() -> None:
    made = history("a" * 100)
    made.count(Usage(prompt_tokens=25))
    made.add_reply(Reply(content="b" * 10, reasoning="hm " * 999, usage=Usage(prompt_tokens=25, completion_tokens=900)))
    assert made.tokens == 29


def test_thinking_within_a_reply_is_not_expected_in_the_next_prompt() -> None:
    made = history("a" * 100)
    made.count(Usage(prompt_tokens=25))
    thought = f"<think>{'hm ' * 999}</think>\n"
    made.add_reply(Reply(content=f"{thought}{'b' * 10}", usage=Usage(prompt_tokens=25, completion_tokens=900)))
    assert made.tokens == 29


def test_a_server_that_does_not_count_leaves_the_estimate() -> None:
    made = history("a" * 100)
    made.count(Usage())
    made.add_reply(Reply(content="b" * 100))
    assert made.tokens == 80


def test_other_versions_are_measured_at_the_servers_rate() -> None:
    made = history("a" * 100)
    made.count(Usage(prompt_tokens=50))
    assert made.estimate([Message(role="user", content="b" * 10)]) == 5
    assert made.estimate_bytes(5) == 10
    made.replace([Message(role="user", content="b" * 10)])
    assert (made.tokens, len(made.messages)) == (5, 1)


def test_a_refusal_says_that_the_history_is_longer_than_it_seemed() -> None:
    made = history("a" * 100)
    made.raise_estimate(200)
    assert made.tokens == 200
    made.raise_estimate(50)
    assert made.tokens == 200


def test_arguments_of_a_call_take_room() -> None:
    made = history("a")
    call = ToolCall(id="1", name="bash", arguments="x" * 96)
    made.add_reply(Reply(content="", tool_calls=(call,)), call)
    assert made.messages[-1].tool_calls == (call,)
    assert made.tokens > 30


def test_what_is_added_to_the_last_message_is_no_message_of_its_own() -> None:
    history = History()
    history.open([Message(role="user", content="task")])
    history.add_to_last("Look first.")
    assert history.messages == [Message(role="user", content="task\n\nLook first.")]
    assert history.opening == tuple(history.messages)
    assert history.tokens == math.ceil(len("task\n\nLook first.") * 0.4)


def test_what_is_added_to_a_reply_is_a_message_of_its_own() -> None:
    history = History()
    history.open([Message(role="user", content="task")])
    history.add_reply(Reply(content="done"))
    history.add_to_last("Go on.")
    assert [message.role for message in history.messages] == ["user", "assistant", "user"]


# -- counts that contradict the history --------------------------------------------------------------


def counted(made: History, tokens: int) -> str | None:
    return made.count(Usage(prompt_tokens=tokens))


def turn(made: History, output: str, **reply: str) -> None:
    made.add_reply(Reply(content="ls", **reply) if "content" not in reply else Reply(**reply))
    made.add_observation(output)


def test_a_count_that_stops_growing_while_the_history_grows_is_a_truncated_prompt() -> None:
    made = history("words " * 500)
    assert counted(made, 1000) is None
    for _ in range(3):
        turn(made, "more words " * 50)
        assert counted(made, 1000) == PROMPT_TRUNCATED
    assert made.tokens > 1600, "what was truncated is no measure"


def test_a_long_prompt_of_few_tokens_is_truncated_from_the_first() -> None:
    assert counted(history("some words of text " * 5000), 4096) == PROMPT_TRUNCATED


def test_text_that_makes_few_tokens_is_no_truncation() -> None:
    made = history("Do it.")
    assert counted(made, 20) is None
    turn(made, "=" * 50_000 + "\n" + " " * 50_000)
    assert counted(made, 700) is None


def test_thinking_that_a_template_leaves_out_later_is_no_truncation() -> None:
    made = history("words " * 100)
    assert counted(made, 200) is None
    turn(made, "out " * 20, content=f"<think>{'hm ' * 3000}</think>ls")
    assert counted(made, 3300) is None
    turn(made, "out " * 20)
    assert counted(made, 300) is None
    made = history("words " * 100)
    turn(made, "out " * 20, reasoning="hm " * 3000)
    assert counted(made, 3300) is None
    turn(made, "out " * 20)
    assert counted(made, 300) is None


def test_counts_that_stand_still_over_many_thoughtful_turns_are_a_truncated_prompt() -> None:
    made = history("words " * 500)
    for tokens in (1000, 1200, 1400):
        assert counted(made, tokens) is None
        turn(made, "out " * 20, content=f"<think>{'hm ' * 200}</think>ls")
    signs = []
    for _ in range(8):
        signs.append(counted(made, 1400))
        turn(made, "out " * 20, content=f"<think>{'hm ' * 200}</think>ls")
    assert signs == [*[None] * 5, *[PROMPT_TRUNCATED] * 3]


def test_a_shorter_version_of_the_history_is_no_truncation() -> None:
    made = history("words " * 5000)
    assert counted(made, 5000) is None
    made.replace([Message(role="user", content="words " * 500)])
    turn(made, "more")
    assert counted(made, 520) is None


def test_counts_of_what_no_cache_had_are_no_truncation_and_not_believed() -> None:
    made = history("words " * 2000)
    assert counted(made, 2100) is None
    for _ in range(2):
        turn(made, "more words " * 50)
        assert counted(made, 300) == IMPOSSIBLE_USAGE
    assert made.tokens > 2100


def test_more_tokens_than_bytes_can_make_are_not_believed() -> None:
    made = history("a" * 1000)
    assert counted(made, 10**9) == IMPOSSIBLE_USAGE
    assert made.tokens == 400


# overflow: what is done when the history fills the context, what is kept of it, and that it ends.

LOOK = '{"analysis": "a", "plan": "p", "commands": []}'
CLAIM = '{"analysis": "a", "plan": "p", "commands": [], "task_complete": true}'
CONTEXT = 8000
BIG = "output " * 1000


class CountingModel(ScriptedModel):
    """Counts like a server: four bytes per token; refuses long prompts, and cuts replies."""

    async def query(
        self, messages: Sequence[Message], *, seed: int | None, max_tokens: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Reply:
        prompt = sum(map(size_bytes, messages)) // 4
        assert self.context_tokens is not None
        if prompt >= self.context_tokens:
            raise ContextLimitReached("too long", prompt)
        reply = await super().query(messages, seed=seed, max_tokens=max_tokens, tools=tools)
        made = min(max(1, len(reply.content) // 4), max_tokens, self.context_tokens - prompt)
        cut = made < len(reply.content) // 4
        usage = Usage(prompt_tokens=prompt, completion_tokens=made)
        return reply.model_copy(update={"usage": usage, "cut": cut, "content": reply.content[: made * 4 + 3]})


async def run(
    model: ScriptedModel, terminal: FakeTerminal, policy: OnOverflow, protocol: Any = None, **limits: Any
) -> Trajectory:
    bounds = Limits(on_overflow=policy, **limits)
    steps: list[Step] = []
    agent = Agent(model, terminal, protocol or KeystrokesJson(), bounds, on_step_done=steps.append)
    trajectory = await agent.run("Make the tests pass.")
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory
    assert steps == list(trajectory.steps)
    return trajectory


def counting(script: Sequence[Any], context_tokens: int = CONTEXT, max_tokens: int = 2000) -> CountingModel:
    return CountingModel(script, context_tokens=context_tokens, sampling=Sampling(max_tokens=max_tokens))


def outputs(count: int) -> FakeTerminal:
    return FakeTerminal(["$ ", *(f"{number}: {BIG}" for number in range(count))])


# -- stop ----------------------------------------------------------------------------------------


async def test_without_a_policy_a_full_context_is_the_end_and_nothing_is_changed() -> None:
    trajectory = await run(counting([LOOK] * 20), outputs(20), "stop")
    assert trajectory.outcome is Outcome.CONTEXT_LIMIT
    assert trajectory.compactions == ()
    assert not any(DROPPED in message.content for message in trajectory.messages)


async def test_a_context_smaller_than_the_servers_ends_the_conversation_there() -> None:
    trajectory = await run(counting([LOOK] * 20, 10**6), outputs(20), "stop", context_tokens=CONTEXT)
    assert trajectory.outcome is Outcome.CONTEXT_LIMIT
    last = trajectory.steps[-1].reply.usage
    assert CONTEXT - 2000 < last.prompt_tokens + last.completion_tokens < CONTEXT + 4000


async def test_max_tokens_shrinks_to_what_the_given_context_has_left() -> None:
    model = counting([LOOK] * 3, 10**6, max_tokens=5000)
    await run(model, outputs(3), "stop", context_tokens=CONTEXT, steps=3)
    first, *_, last = [request.max_tokens for request in model.requests]
    assert last < first <= 5000


# -- drop-oldest-outputs -------------------------------------------------------------------------


async def test_the_oldest_outputs_are_dropped_and_the_conversation_goes_on() -> None:
    model = counting([*[LOOK] * 12, CLAIM, CLAIM])
    trajectory = await run(model, outputs(12), "drop-oldest-outputs")
    assert trajectory.outcome is Outcome.SUBMITTED
    assert len(trajectory.steps) == 14
    done = trajectory.compactions[0]
    assert done.policy == "drop-oldest-outputs"
    assert done.messages_before == done.messages_after
    assert done.tokens_after <= CONTEXT // 2 < done.tokens_before
    assert done.summary is None
    assert trajectory.warnings["context_compacted"] == len(trajectory.compactions)
    assert any("context_compacted" in warning for step in trajectory.steps for warning in step.warnings)


async def test_after_dropping_the_opening_the_replies_and_the_newest_output_are_as_they_were() -> None:
    model = counting([LOOK] * 8)
    trajectory = await run(model, outputs(8), "drop-oldest-outputs", steps=8)
    first, last = model.requests[0].messages, model.requests[-1].messages
    assert last[: len(first)] == first
    assert all(message.content == LOOK for message in last if message.role == "assistant")
    assert BIG[:100] in last[-1].content
    assert [message.content == DROPPED for message in last if message.role == "user"][:3] == [False, True, True]
    assert all(BIG[:100] in step.observation for step in trajectory.steps), "the steps hold everything"


async def test_a_prompt_that_the_server_refuses_is_made_shorter_too() -> None:
    model = ScriptedModel([LOOK, LOOK, ContextLimitReached("no"), CLAIM, CLAIM], context_tokens=None)
    trajectory = await run(model, outputs(3), "drop-oldest-outputs")
    assert trajectory.outcome is Outcome.SUBMITTED
    (done,) = trajectory.compactions
    assert done.tokens_after < done.tokens_before
    assert done.step == 3


async def test_a_reply_cut_by_the_context_is_kept_as_a_step_and_leaves_the_history() -> None:
    rambling = "hm " * 10_000
    model = counting([LOOK, LOOK, LOOK, rambling, CLAIM, CLAIM], max_tokens=6000)
    trajectory = await run(model, outputs(5), "drop-oldest-outputs")
    assert trajectory.outcome is Outcome.SUBMITTED
    step = trajectory.steps[3]
    assert step.format_error == "context_full"
    assert step.reply.content.startswith("hm hm")
    assert step.observation == ""
    assert not any("hm hm" in message.content for message in trajectory.messages)
    assert trajectory.warnings["format_error:context_full"] == 1
    assert trajectory.usage.completion_tokens == sum(s.reply.usage.completion_tokens for s in trajectory.steps)


@pytest.mark.parametrize("policy", ["drop-oldest-outputs", "summarize"])
async def test_where_nothing_can_be_gained_it_is_the_context_limit(policy: OnOverflow) -> None:
    model = ScriptedModel([LOOK, *[ContextLimitReached("no", 9000)] * 10], context_tokens=8000)
    trajectory = await run(model, FakeTerminal(), policy)
    assert trajectory.outcome is Outcome.CONTEXT_LIMIT
    assert len(model.requests) <= 5


@pytest.mark.parametrize("policy", ["drop-oldest-outputs", "summarize"])
async def test_a_model_that_always_fills_the_context_is_stopped(policy: OnOverflow) -> None:
    model = counting(["hm " * 20_000] * 100, max_tokens=10**6)
    trajectory = await run(model, outputs(100), policy, steps=None)
    assert trajectory.outcome is Outcome.CONTEXT_LIMIT
    assert len(model.requests) < 10


# -- summarize -----------------------------------------------------------------------------------


def summarising(turns: int, *rest: Any) -> CountingModel:
    return counting([*[LOOK] * turns, *rest])


async def test_a_summary_takes_the_place_of_the_history() -> None:
    model = summarising(4, "<think>let me see</think>The cake is in /oven.", CLAIM, CLAIM)
    trajectory = await run(model, outputs(5), "summarize")
    assert trajectory.outcome is Outcome.SUBMITTED
    (done,) = trajectory.compactions
    assert done.policy == "summarize"
    assert done.summary is not None
    assert (done.messages_after, done.tokens_after < done.tokens_before) == (1, True)
    request, after = model.requests[4], model.requests[5]
    assert request.tools == ()
    assert request.max_tokens <= 2000
    assert "notes" in request.messages[-1].content
    (message,) = after.messages
    assert message.content.startswith(model.requests[0].messages[0].content)
    assert "The cake is in /oven." in message.content
    assert "let me see" not in message.content
    assert BIG[:100] in message.content, "the last output is kept"
    assert len(trajectory.steps) == 6
    total = sum(s.reply.usage.completion_tokens for s in trajectory.steps) + done.summary.usage.completion_tokens
    assert trajectory.usage.completion_tokens == total


async def test_roles_alternate_also_around_a_summary() -> None:
    model = summarising(4, "Notes.", LOOK, CLAIM, CLAIM)
    await run(model, outputs(6), "summarize")
    for request in model.requests:
        roles = [message.role for message in request.messages]
        assert all(here != there for here, there in pairwise(roles)), roles


@pytest.mark.parametrize("useless", ["", "<think>on and on", ContextLimitReached("no")])
async def test_without_a_usable_summary_outputs_are_dropped(useless: Any) -> None:
    again = [useless] if isinstance(useless, str) else [useless, useless]
    model = summarising(4, *again, CLAIM, CLAIM)
    trajectory = await run(model, outputs(5), "summarize")
    assert trajectory.outcome is Outcome.SUBMITTED
    (done,) = trajectory.compactions
    assert done.policy == "drop-oldest-outputs"
    assert (done.summary is None) == (not isinstance(useless, str))


async def test_the_same_outputs_are_dropped_again_in_a_conversation_that_went_on_with_a_later_instruction() -> None:
    async def asks_nothing(*_: object) -> Reply:
        raise AssertionError("dropping outputs asks for nothing")

    first = history("the first task")
    turn(first, "a" * 4000)
    first.add_reply(Reply(content="done"))
    made, again = (first.go_on("the second task: " + "b" * 4000, TokenGate()) for _ in range(2))
    for each in (made, again):
        turn(each, "c" * 4000)
        turn(each, "d" * 4000)
    done = await make_room(made, "drop-oldest-outputs", step=4, context_tokens=8000, max_tokens=100, ask=asks_nothing)
    assert done is not None and done.outputs_dropped > 0
    make_room_again(again, done)
    assert again.messages == made.messages
    assert [message.content[:15] for message in again.messages].count("the second task") == 1


async def test_the_request_for_a_summary_fits_the_context() -> None:
    model = summarising(4, "Notes.", CLAIM, CLAIM)
    await run(model, outputs(5), "summarize")
    request = model.requests[4]
    assert sum(map(size_bytes, request.messages)) // 4 + request.max_tokens <= CONTEXT
    assert any(message.content == DROPPED for message in request.messages)


async def test_an_outage_during_the_summary_is_the_endpoints_error() -> None:
    model = summarising(4, EndpointUnavailable("http://x: refused"))
    with pytest.raises(EndpointUnavailable):
        await run(model, outputs(5), "summarize")


async def test_the_token_limit_counts_summaries() -> None:
    model = summarising(4, "x" * 400, CLAIM)
    trajectory = await run(model, outputs(5), "summarize", completion_tokens=120)
    assert trajectory.outcome is Outcome.TOKEN_LIMIT
    assert len(model.requests) == 5
    assert len(trajectory.compactions) == 1


async def test_what_a_summary_waited_for_the_endpoint_is_not_charged_and_recorded() -> None:
    summary = Reply(content="The cake is in /oven.", waited_sec=60.0)
    trajectory = await run(summarising(4, summary, CLAIM, CLAIM), outputs(5), "summarize", timeout_sec=30)
    assert trajectory.outcome is Outcome.SUBMITTED
    assert trajectory.waited_sec == pytest.approx(60)


async def test_the_agents_time_runs_on_during_a_summary() -> None:
    trajectory = await run(summarising(4, None), outputs(5), "summarize", timeout_sec=0.3)
    assert trajectory.outcome is Outcome.AGENT_TIMEOUT
    assert len(trajectory.steps) == 4


# -- tool calls ----------------------------------------------------------------------------------


class ToolProtocol:
    """The smallest protocol with tool calls."""

    name, types_commands, prompt_hash = "tool", True, ""
    tools = ({"type": "function", "function": {"name": "bash"}},)

    def first_messages(self, instruction: str, screen: str) -> list[Message]:
        return [Message(role="system", content="s"), Message(role="user", content=instruction)]

    def parse(self, content: str, tool_calls: Sequence[ToolCall] = ()) -> Parsed:
        return Parsed((Command("ls"),), tool_call=tool_calls[0] if tool_calls else None, complete=not tool_calls)

    def respond(self, parsed: Parsed, view: View, *, claimed: bool) -> Response:
        assert isinstance(view, CommandResult)
        return Response(view.output, submitted=parsed.complete)

    def complain(self, error_message: str, view: View | None) -> str:
        return error_message


@pytest.mark.parametrize("policy", ["drop-oldest-outputs", "summarize"])
async def test_every_tool_call_in_a_history_keeps_its_answer(policy: OnOverflow, tmp_path: Path) -> None:
    calls = [Reply(content="x", tool_calls=(ToolCall(id=f"c{n}", name="bash", arguments="{}"),)) for n in range(12)]
    replies = [*calls, "done"] if policy == "drop-oldest-outputs" else [*calls[:5], "Notes.", *calls[5:8], "done"]
    terminal = FakeTerminal(["$ ", *[CommandResult(output=BIG, exit_code=0)] * 20])
    model = counting(replies)
    trajectory = await run(model, terminal, policy, ToolProtocol())
    assert trajectory.outcome is Outcome.SUBMITTED
    assert trajectory.compactions
    for request in model.requests:
        asked = [call.id for message in request.messages for call in message.tool_calls]
        answered = [message.tool_call_id for message in request.messages if message.role == "tool"]
        assert asked == answered


# -- the pure parts ------------------------------------------------------------------------------

messages = st.lists(
    st.builds(
        Message,
        role=st.sampled_from(["user", "assistant", "tool"]),
        content=st.text(max_size=80),
        tool_call_id=st.none() | st.just("c"),
    ),
    max_size=12,
)


@given(messages, st.integers(0, 5), st.integers(-10, 2000))
def test_dropping_outputs_changes_contents_only(history: list[Message], keep_first: int, to_save: int) -> None:
    shorter = drop_oldest_outputs(history, keep_first, bytes_to_save=to_save)
    assert [(m.role, m.tool_call_id) for m in shorter] == [(m.role, m.tool_call_id) for m in history]
    assert shorter[:keep_first] == history[:keep_first]
    assert sum(map(size_bytes, shorter)) <= sum(map(size_bytes, history))
    assert [m for m in shorter if m.role == "assistant"] == [m for m in history if m.role == "assistant"]
    if to_save <= 0:
        assert shorter == history


@given(st.lists(st.integers(0, 60), max_size=10), st.integers(-5, 500))
def test_dropping_turns_leaves_the_opening_and_the_last_turn(sizes: list[int], to_save: int) -> None:
    opening = [Message(role="user", content="task")]
    turns = [
        [Message(role="assistant", content="r"), Message(role="user", content=f"{n}:" + "o" * size)]
        for n, size in enumerate(sizes)
    ]
    history = [*opening, *(message for turn in turns for message in turn)]
    shorter = drop_oldest_turns(history, 1, to_save)
    assert shorter[:1] == opening
    assert shorter[1:] == history[len(history) - len(shorter) + 1 :]
    assert shorter[-1] == history[-1]
    saved = sum(map(size_bytes, history)) - sum(map(size_bytes, shorter))
    assert saved >= to_save or len(shorter) <= 3
