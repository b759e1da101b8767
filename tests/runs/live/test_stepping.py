"""stepping: decisions about waiting replies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

import pytest

from harness.errors import EndpointUnavailable, FormatError
from harness.oversight import Declined, Draft
from harness.protocols.base import Command, Parsed
from harness.trajectory import Reply, ToolCall
from tbench.control.wire import MAX_SAMPLES
from tbench.errors import UsageError
from tbench.runs.live.stepping import ReplyDecisions, editable, with_text


class Resting:
    """Records whether the agent is idle."""

    def __init__(self) -> None:
        self.rests = False

    @contextlib.contextmanager
    def idling(self) -> Iterator[None]:
        self.rests = True
        yield
        self.rests = False


class Trial:
    """Decisions, and the calls that a trial gets from them."""

    def __init__(self) -> None:
        self.stop, self.changed, self.touched, self.idling = "", asyncio.Event(), False, Resting()
        self.decisions = ReplyDecisions(self.idling, on_change=self._changed, on_touch=self._touched)
        self.decisions.is_stepping = True

    async def begin(self) -> None:
        if self.stop == "impossible":
            raise UsageError(self.stop)

    async def reached(self) -> str:
        return self.stop

    def _changed(self) -> None:
        self.changed.set()

    async def quiet(self) -> None:
        """Wait until no further reply is being requested."""
        while self.decisions.asking:
            self.changed.clear()
            await self.changed.wait()

    def _touched(self) -> None:
        self.touched = True

    async def asks(self, step: int, content: str = "ls") -> asyncio.Task[Reply | Declined]:
        """Return the decision about a step's reply."""
        asking = asyncio.create_task(self.decisions.decide(a_draft(step, content)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return asking


Sampler = Callable[[int | None, float | None], Awaitable[Reply]]


async def another(seed: int | None, temperature: float | None) -> Reply:
    return Reply(content=f"seed {seed} at {temperature}")


async def none_comes(seed: int | None, temperature: float | None) -> Reply:
    raise EndpointUnavailable("connection refused")


def read(reply: Reply) -> Parsed | FormatError:
    if reply.content == "nonsense":
        return FormatError("no_json", "No JSON object found.")
    return Parsed((Command(editable(reply)),))


def a_draft(step: int, content: str = "ls", sample: Sampler = another) -> Draft:
    reply = Reply(content=content)
    return Draft(step, reply, read(reply), sample, read)


async def test_without_stepping_a_reply_is_followed_at_once() -> None:
    trial = Trial()
    trial.decisions.is_stepping = False
    draft = a_draft(1)
    assert await trial.decisions.decide(draft) is draft.reply
    with pytest.raises(UsageError, match="it is not in stepping mode"):
        trial.decisions.step(1)


async def test_a_step_is_done_as_it_was_asked_for_and_touches_nothing() -> None:
    trial = Trial()
    asking = await trial.asks(1)
    assert trial.idling.rests
    assert [(each.actions, each.chosen) for each in trial.decisions.samples] == [(("ls",), True)]
    assert trial.decisions.step(1) == "the reply of step 1 is followed"
    decided = await asking
    assert isinstance(decided, Reply)
    assert (decided.content, trial.touched, trial.idling.rests) == ("ls", False, False)
    assert trial.decisions.samples == ()
    with pytest.raises(UsageError, match="no reply of its model waits for a decision"):
        trial.decisions.step(1)


async def test_so_many_steps_are_done_and_then_one_waits() -> None:
    trial = Trial()
    first = await trial.asks(1)
    trial.decisions.step(3)
    await first
    assert (await trial.asks(2)).done()
    assert (await trial.asks(3)).done()
    fourth = await trial.asks(4)
    assert not fourth.done()
    trial.decisions.set_stepping(False)
    await fourth


async def test_it_goes_on_to_a_step_or_a_breakpoint_and_to_the_end() -> None:
    trial = Trial()
    first = await trial.asks(1)
    with pytest.raises(UsageError, match="is already at step 1"):
        trial.decisions.run(to_step=1)
    trial.decisions.run(to_step=3)
    await first
    assert (await trial.asks(2)).done()
    third = await trial.asks(3)
    assert not third.done()
    trial.decisions.run(breakpoints=[trial])
    await third
    assert (await trial.asks(4)).done()
    trial.stop = "the server is ready"
    fifth = await trial.asks(5)
    assert not fifth.done() and trial.decisions.stopped == "the server is ready"
    trial.decisions.run()
    await fifth
    assert trial.decisions.stopped == ""
    assert (await trial.asks(6)).done()


async def test_a_reply_waits_again_if_its_breakpoint_is_impossible() -> None:
    trial = Trial()
    asking = await trial.asks(1)
    trial.stop = "impossible"
    trial.decisions.run(breakpoints=[trial])
    assert trial.decisions.samples == ()
    await asyncio.sleep(0)
    assert not asking.done() and trial.decisions.stopped == "impossible"
    await asyncio.sleep(0)
    trial.decisions.step(1)
    await asking


async def test_an_edited_reply_is_followed_and_touches_the_trial() -> None:
    trial = Trial()
    asking = await trial.asks(1)
    assert trial.decisions.edit("nonsense") == "malformed: No JSON object found."
    assert trial.decisions.samples[0].error == "No JSON object found."
    assert trial.decisions.edit("ls -l") == "edited"
    assert (trial.decisions.samples[0].actions, trial.decisions.samples[0].edited) == (("ls -l",), True)
    assert not trial.touched
    trial.decisions.step(1)
    decided = await asking
    assert isinstance(decided, Reply)
    assert (decided.content, trial.touched) == ("ls -l", True)


async def test_a_dropped_reply_is_not_followed() -> None:
    trial = Trial()
    asking = await trial.asks(1)
    trial.decisions.drop("Not now.")
    assert (await asking, trial.touched) == (Declined("Not now."), True)


async def test_other_replies_are_asked_for_and_chosen_from() -> None:
    trial = Trial()
    asking = await trial.asks(1)
    assert trial.decisions.sample(2, 7, 1.5) == "its model is asked for 2 more replies"
    assert trial.decisions.asking == 2
    await trial.quiet()
    seen = trial.decisions.samples
    assert [(each.content, each.seed, each.chosen) for each in seen] == [
        ("ls", None, False),
        ("seed 7 at 1.5", 7, False),
        ("seed 8 at 1.5", 8, True),
    ]
    with pytest.raises(UsageError, match="has 3 replies to choose from, so there is no reply 4"):
        trial.decisions.choose(4)
    with pytest.raises(UsageError, match=f"the limit is {MAX_SAMPLES}"):
        trial.decisions.sample(MAX_SAMPLES, None, None)
    trial.decisions.choose(2)
    trial.decisions.step(1)
    decided = await asking
    assert isinstance(decided, Reply)
    assert (decided.content, trial.touched) == ("seed 7 at 1.5", True)


async def test_a_failed_sample_is_reported_and_the_others_stay() -> None:
    trial = Trial()
    asking = asyncio.create_task(trial.decisions.decide(a_draft(1, sample=none_comes)))
    await asyncio.sleep(0)
    trial.decisions.sample(1, None, None)
    await trial.quiet()
    assert trial.decisions.trouble == "no other reply: connection refused"
    assert len(trial.decisions.samples) == 1
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert trial.decisions.samples == ()


def test_the_command_of_a_tool_call_is_edited() -> None:
    call = ToolCall(id="1", name="bash", arguments='{"command": "ls"}')
    reply = Reply(content="I look.", tool_calls=(call,), cut=True)
    assert editable(reply) == "ls"
    edited = with_text(reply, 'echo "x"')
    assert (edited.tool_calls[0].arguments, edited.content, edited.cut) == (
        '{"command": "echo \\"x\\""}',
        "I look.",
        False,
    )
    odd = reply.model_copy(update={"tool_calls": (call.model_copy(update={"arguments": "no json"}),)})
    assert editable(odd) == "no json"
    assert with_text(odd, '{"command": "ls"}').tool_calls[0].arguments == '{"command": "ls"}'
