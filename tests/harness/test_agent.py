"""agent: the course of a conversation, its end, and its record."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from harness.agent import Agent, Limits
from harness.errors import (
    ContextLimitReached,
    EndpointUnavailable,
    NeverAnswered,
    RequestTooLarge,
    TerminalLost,
    TerminalUnreachable,
)
from harness.fakes import FakeTerminal, ScriptedModel
from harness.limits import SMALLEST_REPLY_TOKENS
from harness.model import Sampling, Seeds
from harness.protocols.base import CommandResult, Keys, ScreenView
from harness.protocols.bash import MARKER, BashBlock, BashTool
from harness.protocols.keystrokes_json import KeystrokesJson
from harness.terminal import Settled
from harness.trajectory import Message, OnOverflow, Outcome, Reply, Step, Trajectory, Usage

LS = '{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "ls\\n", "duration": 0.1}]}'
LOOK = '{"analysis": "a", "plan": "p", "commands": []}'
CLAIM = '{"analysis": "a", "plan": "p", "commands": [], "task_complete": true}'
BAD = "I will have a look."
TOUCH = "```bash\ntouch /x\n```"
SUBMIT = f"```bash\necho {MARKER}\n```"
SUBMITTED = CommandResult(output=f"{MARKER}\n", exit_code=0)


def reply(content: str, prompt: int = 100, completion: int = 10, **more: Any) -> Reply:
    return Reply(content=content, usage=Usage(prompt_tokens=prompt, completion_tokens=completion), **more)


def refusal(prompt_tokens: int | None = None) -> ContextLimitReached:
    return ContextLimitReached("this model's maximum context length is exceeded", prompt_tokens)


def agent(model: ScriptedModel, terminal: FakeTerminal | None = None, *, bash: bool = False, **options: Any) -> Agent:
    limits = options.pop("limits", Limits())
    return Agent(model, terminal or FakeTerminal(), BashBlock() if bash else KeystrokesJson(), limits, **options)


async def run(model: ScriptedModel, terminal: FakeTerminal | None = None, **options: Any) -> Trajectory:
    steps: list[Step] = []
    made = agent(model, terminal, **{"on_step_done": steps.append, **options})
    trajectory = await made.run("Make the tests pass.")
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory
    assert "on_step_done" in options or steps == list(trajectory.steps)
    return trajectory


def roles(messages: Sequence[Message]) -> str:
    return "".join(message.role[0] for message in messages)


# -- a conversation ------------------------------------------------------------------------------


async def test_a_task_is_submitted_after_its_completion_was_said_twice() -> None:
    terminal = FakeTerminal(["$ ", "$ ls\nfile\n$ "])
    model = ScriptedModel([LS, CLAIM, CLAIM])
    trajectory = await run(model, terminal)
    assert trajectory.outcome is Outcome.SUBMITTED
    assert terminal.typed == [Keys("ls\n", 0.1)]
    assert [step.index for step in trajectory.steps] == [1, 2, 3]
    assert trajectory.steps[0].actions == ("ls\n",)
    assert trajectory.steps[0].exit_code == 0
    assert "file" in trajectory.steps[0].observation
    assert "confirm" in trajectory.steps[1].observation


async def test_the_first_message_holds_instruction_and_screen() -> None:
    model = ScriptedModel([CLAIM, CLAIM])
    await run(model, FakeTerminal(["root@box:/app# "]))
    (message,) = model.requests[0].messages
    assert "Make the tests pass." in message.content
    assert "root@box:/app#" in message.content


@pytest.mark.parametrize("between", [LS, LOOK, BAD])
async def test_a_claim_is_void_when_something_else_comes_between(between: str) -> None:
    model = ScriptedModel([CLAIM, between, CLAIM, CLAIM])
    trajectory = await run(model)
    assert trajectory.outcome is Outcome.SUBMITTED
    assert len(trajectory.steps) == 4


async def test_the_history_only_ever_grows() -> None:
    model = ScriptedModel([LS, BAD, LOOK, CLAIM, LS, CLAIM, CLAIM])
    trajectory = await run(model)
    assert len(model.requests) == 7
    for earlier, later in zip(model.requests, model.requests[1:], strict=False):
        assert later.messages[: len(earlier.messages)] == earlier.messages
        assert len(later.messages) == len(earlier.messages) + 2
    assert roles(trajectory.messages) == "u" + "au" * 7
    assert trajectory.messages[:-2] == model.requests[-1].messages


async def test_every_step_is_announced_before_its_query() -> None:
    announced: list[int] = []
    await run(ScriptedModel([LOOK, LOOK, CLAIM, CLAIM]), on_step=announced.append)
    assert announced == [1, 2, 3, 4]


async def test_every_step_is_handed_over_when_it_is_over_and_before_the_next_query() -> None:
    model = ScriptedModel([LS, BAD, CLAIM, CLAIM])
    over: list[tuple[int, int, str]] = []

    def done(step: Step) -> None:
        over.append((step.index, len(model.requests), step.observation))

    trajectory = await run(model, on_step_done=done)
    assert over == [(step.index, step.index, step.observation) for step in trajectory.steps]
    assert all(observation for _, _, observation in over[:-1])


async def stopped(steps: list[Step], model: ScriptedModel, *terminal: Any, **options: Any) -> Trajectory:
    """The trajectory of an agent that may end by an exception."""
    made = agent(model, FakeTerminal(terminal), on_step_done=steps.append, **options)
    with contextlib.suppress(EndpointUnavailable, TerminalUnreachable):
        await made.run("Make the tests pass.")
    return made.trajectory


@pytest.mark.parametrize(
    ("replies", "terminal", "options", "outcome"),
    [
        ([LS, LS], [], {"limits": Limits(steps=2)}, Outcome.STEP_LIMIT),
        ([BAD, BAD], [], {"limits": Limits(format_errors=2)}, Outcome.FORMAT_LIMIT),
        ([LS, reply(LS, cut=True), LS], [], {"limits": Limits(steps=3)}, Outcome.STEP_LIMIT),
        ([LS, reply(LS, 100, 50)], [], {"limits": Limits(completion_tokens=50)}, Outcome.TOKEN_LIMIT),
        ([LS, reply(LS, 95, 10)], [], {"limits": Limits(context_tokens=100)}, Outcome.CONTEXT_LIMIT),
        ([LS, LS], ["$ ", "$ ", TerminalLost("gone")], {}, Outcome.TERMINAL_LOST),
        ([TOUCH, TOUCH], ["$ ", "$ ", None], {"bash": True, "limits": Limits(timeout_sec=0.1)}, Outcome.AGENT_TIMEOUT),
        ([LS, None], [], {"limits": Limits(timeout_sec=0.1)}, Outcome.AGENT_TIMEOUT),
        ([LS, EndpointUnavailable("gone")], [], {}, None),
        ([LS, LS], ["$ ", "$ ", TerminalUnreachable("gone")], {}, None),
    ],
    ids=str,
)
async def test_however_it_ends_each_step_is_handed_over_once_as_it_stands_in_the_trajectory(
    replies: list[Any], terminal: list[Any], options: dict[str, Any], outcome: Outcome | None
) -> None:
    steps: list[Step] = []
    trajectory = await stopped(steps, ScriptedModel(replies), *terminal, **options)
    assert trajectory.outcome is outcome
    assert steps and steps == list(trajectory.steps)


@pytest.mark.parametrize("seeds", [Seeds("alpha", 7), Seeds("alpha", 0, "bare")])
async def test_every_query_has_the_seed_of_its_step(seeds: Seeds) -> None:
    model = ScriptedModel([LOOK, CLAIM, CLAIM])
    await run(model, seeds=seeds)
    assert [request.seed for request in model.requests] == [seeds.for_step(step) for step in (1, 2, 3)]


async def test_without_seeds_a_query_names_none() -> None:
    model = ScriptedModel([CLAIM, CLAIM])
    await run(model)
    assert [request.seed for request in model.requests] == [None, None]


async def test_usage_adds_up_over_all_replies() -> None:
    model = ScriptedModel([reply(LS, 100, 10), reply(BAD, 150, 20), reply(CLAIM, 200, 30), reply(CLAIM, 250, 40)])
    assert (await run(model)).usage == Usage(prompt_tokens=700, completion_tokens=100)


async def test_warnings_are_counted_by_kind() -> None:
    model = ScriptedModel([f"Well: {LS}", BAD, f"Well: {CLAIM}", CLAIM])
    trajectory = await run(model)
    assert trajectory.warnings["extra_text"] == 2
    assert trajectory.warnings["format_error:no_json"] == 1
    assert trajectory.steps[0].warnings


async def test_warnings_of_a_refused_reply_are_counted_too() -> None:
    half_right = 'Well: {"analysis": "a", "plan": "p", "commands": ["ls"]}'
    trajectory = await run(ScriptedModel([half_right, CLAIM, CLAIM]))
    assert trajectory.warnings == {"format_error:wrong_type": 1, "extra_text": 1}
    assert [warning.partition(":")[0] for warning in trajectory.steps[0].warnings] == ["extra_text"]


# -- limits --------------------------------------------------------------------------------------


async def test_the_step_limit_ends_after_the_last_step_was_executed() -> None:
    terminal = FakeTerminal()
    trajectory = await run(ScriptedModel([LS] * 3), terminal, limits=Limits(steps=3))
    assert trajectory.outcome is Outcome.STEP_LIMIT
    assert len(terminal.typed) == 3
    assert len(trajectory.steps) == 3


async def test_the_token_limit_ends_at_the_reply_that_reaches_it_which_is_not_executed() -> None:
    terminal = FakeTerminal()
    model = ScriptedModel([reply(LS, completion=60), reply(LS, completion=40)], sampling=Sampling(max_tokens=80))
    trajectory = await run(model, terminal, limits=Limits(completion_tokens=100))
    assert trajectory.outcome is Outcome.TOKEN_LIMIT
    assert [request.max_tokens for request in model.requests] == [80, 40]
    assert len(terminal.typed) == 1
    assert len(trajectory.steps) == 2
    assert trajectory.messages[-1].content == LS


async def test_too_many_unusable_replies_in_a_row_are_the_format_limit() -> None:
    model = ScriptedModel([BAD, LS, BAD, BAD, BAD])
    trajectory = await run(model, limits=Limits(format_errors=3))
    assert trajectory.outcome is Outcome.FORMAT_LIMIT
    assert len(trajectory.steps) == 5
    assert trajectory.warnings == {"format_error:no_json": 4}


async def test_a_format_error_goes_back_to_the_model_and_executes_nothing() -> None:
    terminal = FakeTerminal()
    model = ScriptedModel([BAD, CLAIM, CLAIM])
    trajectory = await run(model, terminal)
    assert trajectory.outcome is Outcome.SUBMITTED
    assert terminal.typed == []
    assert trajectory.steps[0].format_error == "no_json"
    assert trajectory.steps[0].observation == model.requests[1].messages[-1].content
    assert "could not be used" in trajectory.steps[0].observation


@pytest.mark.parametrize("bash", [False, True])
async def test_a_cut_reply_is_never_executed_even_when_it_is_well_formed(bash: bool) -> None:
    terminal = FakeTerminal()
    cut = reply(TOUCH if bash else LS, completion=77, cut=True)
    trajectory = await run(ScriptedModel([cut, cut]), terminal, bash=bash, limits=Limits(format_errors=2))
    assert trajectory.outcome is Outcome.FORMAT_LIMIT
    assert terminal.typed == []
    assert trajectory.steps[0].format_error == "reply_cut"
    assert "77 tokens" in trajectory.steps[0].observation


class SlowModel(ScriptedModel):
    """Takes longer for a reply than the agents' limit here; a reply's `waited_sec` is not charged."""

    async def query(
        self, messages: Sequence[Message], *, seed: int | None, max_tokens: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Reply:
        await asyncio.sleep(0.1)
        return await super().query(messages, seed=seed, max_tokens=max_tokens)


async def test_nothing_of_a_reply_that_comes_too_late_is_executed() -> None:
    terminal = FakeTerminal()
    trajectory = await run(SlowModel([LS, LS], patience_sec=60), terminal, limits=Limits(timeout_sec=0.05))
    assert trajectory.outcome is Outcome.AGENT_TIMEOUT
    assert terminal.typed == []


async def test_waiting_for_the_endpoint_is_not_charged_to_the_agent() -> None:
    model = SlowModel([reply(CLAIM, waited_sec=60.0), reply(CLAIM, waited_sec=60.0)], patience_sec=60)
    trajectory = await run(model, limits=Limits(timeout_sec=0.05))
    assert (trajectory.outcome, trajectory.waited_sec) == (Outcome.SUBMITTED, pytest.approx(120))


async def test_the_time_of_a_query_that_failed_is_in_the_record() -> None:
    broken = agent(SlowModel([reply(LS, waited_sec=60.0), EndpointUnavailable("http://x: refused")], patience_sec=60))
    with pytest.raises(EndpointUnavailable):
        await broken.run("Do it.")
    assert 60.05 < broken.trajectory.waited_sec < 90


async def test_an_outage_longer_than_the_agents_time_is_the_endpoints_error() -> None:
    with pytest.raises(EndpointUnavailable):
        model = SlowModel([EndpointUnavailable("http://x: refused")], patience_sec=60)
        await run(model, limits=Limits(timeout_sec=0.05))


async def test_a_model_that_never_answers_is_given_up_when_its_patience_is_over_too() -> None:
    trajectory = await run(ScriptedModel([LS, None], patience_sec=0.05), limits=Limits(timeout_sec=0.05))
    assert trajectory.outcome is Outcome.AGENT_TIMEOUT


async def test_a_timeout_in_mid_action_keeps_the_reply_and_what_was_typed() -> None:
    terminal = FakeTerminal(["$ ", None])
    trajectory = await run(ScriptedModel([LS]), terminal, limits=Limits(timeout_sec=0.05))
    assert trajectory.outcome is Outcome.AGENT_TIMEOUT
    (step,) = trajectory.steps
    assert step.reply.content == LS
    assert step.actions == ("ls\n",)
    assert step.observation == ""
    assert trajectory.messages[-1].content == LS


async def test_a_timeout_that_is_not_the_agents_is_no_outcome() -> None:
    with pytest.raises(TimeoutError):
        await run(ScriptedModel([TimeoutError("a bug")]), limits=Limits(timeout_sec=60))


# -- the context ---------------------------------------------------------------------------------


async def test_a_refused_prompt_is_the_context_limit() -> None:
    trajectory = await run(ScriptedModel([LS, refusal()], context_tokens=1000))
    assert trajectory.outcome is Outcome.CONTEXT_LIMIT
    assert len(trajectory.steps) == 1


async def test_a_reply_cut_because_the_context_is_full_is_the_context_limit() -> None:
    full = reply(LS, prompt=900, completion=100, cut=True)
    terminal = FakeTerminal()
    trajectory = await run(ScriptedModel([full], context_tokens=1000), terminal)
    assert trajectory.outcome is Outcome.CONTEXT_LIMIT
    assert terminal.typed == []
    assert [step.reply for step in trajectory.steps] == [full]
    assert trajectory.messages[-1] == Message(role="assistant", content=LS)


@pytest.mark.parametrize("policy", ["stop", "drop-oldest-outputs", "summarize"])
async def test_without_a_single_reply_a_full_context_is_no_outcome(policy: OnOverflow) -> None:
    model = ScriptedModel([refusal(2000)] * 9, context_tokens=1000)
    silent = agent(model, limits=Limits(on_overflow=policy))
    with pytest.raises(NeverAnswered, match="--max-tokens"):
        await silent.run("Do it.")
    assert silent.trajectory.outcome is None


async def test_without_a_single_reply_a_timeout_is_no_outcome() -> None:
    with pytest.raises(NeverAnswered, match="timeout_sec"):
        await run(ScriptedModel([None], patience_sec=0.05), limits=Limits(timeout_sec=0.05))


async def test_a_way_that_takes_no_more_is_no_outcome() -> None:
    with pytest.raises(RequestTooLarge):
        await run(ScriptedModel([LS, RequestTooLarge("HTTP 413")], context_tokens=10**6))


async def test_a_way_that_takes_no_more_gets_a_shorter_history_where_a_policy_makes_one() -> None:
    looks = [reply(LS, 3000 * index + 500, 20) for index in range(1, 5)]
    model = ScriptedModel([*looks, RequestTooLarge("HTTP 413"), CLAIM, CLAIM], context_tokens=10**6)
    screens = [f"{'word ' * 2000}{index}" for index in range(9)]
    trajectory = await run(model, FakeTerminal(screens), limits=Limits(on_overflow="drop-oldest-outputs"))
    assert trajectory.outcome is Outcome.SUBMITTED
    assert len(trajectory.compactions) == 1


# -- what the server counts ----------------------------------------------------------------------


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("counted", [(140_000, 20), (10**12, 20), (100, 10**9)])
@pytest.mark.parametrize("policy", ["stop", "drop-oldest-outputs"])
async def test_counts_that_cannot_be_end_nothing(counted: tuple[int, int], policy: OnOverflow, cut: bool) -> None:
    model = ScriptedModel([reply(LS, *counted, cut=cut), CLAIM, CLAIM], context_tokens=131_072)
    trajectory = await run(model, limits=Limits(on_overflow=policy))
    assert (trajectory.outcome, trajectory.compactions) == (Outcome.SUBMITTED, ())
    assert trajectory.steps[0].reply.signs == ("impossible_usage",)
    assert {request.max_tokens for request in model.requests} == {Sampling().max_tokens}


async def test_a_users_own_limit_holds_for_whole_replies_too() -> None:
    model = ScriptedModel([reply(LS, 1500, 20)], context_tokens=8000)
    assert (await run(model, limits=Limits(context_tokens=1000))).outcome is Outcome.CONTEXT_LIMIT


async def test_a_prompt_that_the_server_truncates_is_reported_once() -> None:
    screens = [f"{'some words of output ' * 200}{index}" for index in range(6)]
    counts = [1100, 2100, 2048, 2048, 2048]
    model = ScriptedModel([*[reply(LS, count, 20) for count in counts], CLAIM, CLAIM])
    trajectory = await run(model, FakeTerminal(screens))
    assert trajectory.outcome is Outcome.SUBMITTED
    assert trajectory.warnings["prompt_truncated"] == 1
    assert [step.reply.signs for step in trajectory.steps[:5]] == [(), (), *[("prompt_truncated",)] * 3]


async def test_max_tokens_shrinks_to_what_the_context_has_left() -> None:
    model = ScriptedModel(
        [reply(LS, 1000, 500), reply(LS, 2000, 500), reply(LS, 3960, 10)],
        context_tokens=4000,
        sampling=Sampling(max_tokens=2000),
    )
    await run(model, limits=Limits(steps=3))
    first, second, third = (request.max_tokens for request in model.requests)
    assert first == 2000
    assert 1500 < second <= 2000
    assert 1000 < third < 1500


async def test_max_tokens_never_shrinks_below_a_reply_that_fits_a_protocol() -> None:
    model = ScriptedModel([reply(LS, 3980, 15), CLAIM], context_tokens=4000)
    await run(model, limits=Limits(steps=2))
    assert model.requests[1].max_tokens == SMALLEST_REPLY_TOKENS


async def test_reasoning_that_is_not_sent_back_does_not_take_room() -> None:
    model = ScriptedModel([reply(LS, 1000, 2500, reasoning="hm " * 2000), CLAIM], context_tokens=4000)
    await run(model, limits=Limits(steps=2))
    assert model.requests[1].max_tokens > 2000


async def test_without_a_known_context_max_tokens_stays() -> None:
    model = ScriptedModel([reply(LS, 10**6, 500), CLAIM])
    await run(model, limits=Limits(steps=2))
    assert [request.max_tokens for request in model.requests] == [Sampling().max_tokens] * 2


# -- what breaks ---------------------------------------------------------------------------------


async def test_a_lost_terminal_is_an_outcome_and_the_step_is_kept() -> None:
    terminal = FakeTerminal(["$ ", TerminalLost("gone")])
    trajectory = await run(ScriptedModel([LS]), terminal)
    assert trajectory.outcome is Outcome.TERMINAL_LOST
    assert trajectory.steps[0].actions == ("ls\n",)


async def test_a_terminal_lost_before_the_first_reply_is_no_outcome() -> None:
    lost = agent(ScriptedModel([]), FakeTerminal([TerminalLost("gone")]))
    with pytest.raises(TerminalLost):
        await lost.run("Do it.")
    assert (lost.trajectory.messages, lost.trajectory.outcome) == ((), None)


async def test_after_an_endpoint_error_the_trajectory_holds_all_that_happened() -> None:
    broken = agent(ScriptedModel([LS, EndpointUnavailable("http://x: refused")]))
    with pytest.raises(EndpointUnavailable):
        await broken.run("Do it.")
    trajectory = broken.trajectory
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory
    assert trajectory.outcome is None
    assert len(trajectory.steps) == 1
    assert roles(trajectory.messages) == "uau"


async def test_a_trajectory_is_valid_before_anything_happened() -> None:
    trajectory = agent(ScriptedModel([])).trajectory
    assert (trajectory.steps, trajectory.messages, trajectory.outcome) == ((), (), None)


# -- the bash-block protocol ---------------------------------------------------------------------


async def test_a_bash_block_is_run_and_answered_with_its_output_and_exit_code() -> None:
    terminal = FakeTerminal(["$ ", CommandResult(output="no such file\n", exit_code=2), SUBMITTED])
    model = ScriptedModel(["```bash\ncat /x\n```", SUBMIT])
    trajectory = await run(model, terminal, bash=True)
    assert trajectory.outcome is Outcome.SUBMITTED
    assert terminal.typed == ["cat /x", f"echo {MARKER}"]
    assert [step.exit_code for step in trajectory.steps] == [2, 0]
    assert "no such file" in trajectory.steps[0].observation
    assert "<returncode>2</returncode>" in trajectory.steps[0].observation
    assert roles(trajectory.messages) == "suauau"


async def test_a_command_that_timed_out_says_so_and_the_conversation_goes_on() -> None:
    terminal = FakeTerminal(["$ ", CommandResult(output="half", exit_code=None, timed_out=True), SUBMITTED])
    trajectory = await run(ScriptedModel([TOUCH, SUBMIT]), terminal, bash=True)
    assert trajectory.outcome is Outcome.SUBMITTED
    assert trajectory.steps[0].exit_code is None
    assert "time limit" in trajectory.steps[0].observation


async def test_a_command_without_an_exit_code_is_answered_with_the_screen() -> None:
    terminal = FakeTerminal(["$ ", ScreenView(screen="> ", new_output="typed\n> "), SUBMITTED])
    trajectory = await run(ScriptedModel([TOUCH, SUBMIT]), terminal, bash=True)
    assert trajectory.steps[0].exit_code is None
    assert "typed" in trajectory.steps[0].observation


async def test_commands_get_the_limit_of_the_configuration() -> None:
    limits: list[float] = []

    class Recorder(FakeTerminal):
        async def run(self, command: str, limit_sec: float) -> Any:
            limits.append(limit_sec)
            return await super().run(command, limit_sec)

    await run(ScriptedModel([SUBMIT]), Recorder(["$ ", SUBMITTED]), bash=True, limits=Limits(command_sec=3.5))
    assert limits == [3.5]


class CutOffTerminal(FakeTerminal):
    """Out of reach for longer than the agent's limit, and reports it."""

    agent: Agent

    async def send(self, keys: Keys) -> Settled:
        self.agent.exclude_time(60)
        await asyncio.sleep(0.1)
        self.agent.exclude_time(0.1 - 60)
        return await super().send(keys)


async def test_time_for_which_the_terminal_was_out_of_reach_is_not_charged() -> None:
    terminal = CutOffTerminal()
    terminal.agent = Agent(ScriptedModel([LS, CLAIM, CLAIM]), terminal, KeystrokesJson(), Limits(timeout_sec=0.08))
    trajectory = await terminal.agent.run("Do it.")
    assert (trajectory.outcome, trajectory.waited_sec) == (Outcome.SUBMITTED, pytest.approx(0.1))


# -- replies that are no words of the model's ------------------------------------------------------


@pytest.mark.parametrize(
    ("reasoning", "bash", "kind"),
    [
        (LS, False, "reply_in_reasoning"),
        (SUBMIT, True, "reply_in_reasoning"),
        ("I wonder what to do.", False, "no_json"),
    ],
)
async def test_a_reply_that_stands_whole_in_the_thinking_is_named_and_not_done(reasoning, bash, kind) -> None:
    terminal = FakeTerminal()
    trajectory = await run(
        ScriptedModel([reply("", reasoning=reasoning)] * 2), terminal, bash=bash, limits=Limits(steps=2)
    )
    assert [step.format_error for step in trajectory.steps] == [kind] * 2
    assert terminal.typed == []
    assert ("thinking" in trajectory.steps[0].observation) is (kind == "reply_in_reasoning") or not bash


async def test_a_call_that_was_left_in_the_thinking_is_named() -> None:
    raw = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'
    made = Agent(ScriptedModel([reply("\n", reasoning=raw)]), FakeTerminal(), BashTool(), Limits(steps=1))
    trajectory = await made.run("Make the tests pass.")
    assert trajectory.steps[0].format_error == "reply_in_reasoning"


async def test_a_limit_of_tokens_that_no_one_counts_is_said_once_to_have_no_effect() -> None:
    silent = Reply(content=LS, usage=Usage(uncounted=1))
    trajectory = await run(ScriptedModel([silent, silent]), limits=Limits(completion_tokens=100, steps=2))
    assert trajectory.outcome is Outcome.STEP_LIMIT
    assert trajectory.usage == Usage(uncounted=2)
    assert trajectory.warnings["limit_without_effect"] == 1
    assert trajectory.steps[0].warnings[0].startswith("limit_without_effect: ")
    assert "limit_without_effect" not in (await run(ScriptedModel([silent]), limits=Limits(steps=1))).warnings
