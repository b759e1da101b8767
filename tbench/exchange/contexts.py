"""The conversations that a trajectory holds: one, and another after each time that its history was made shorter.

`messages` of a trajectory are the last of them. The others are made again, by doing to the steps what the agent did.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.overflow import drop_number_of_outputs, notes_in, with_notes, without_notes
from harness.trajectory import Compaction, Message, Step, Trajectory
from tbench.exchange.protocol_of import RunProtocol

_COMPACTED = "context_compacted:"


@dataclass(frozen=True, slots=True)
class ContextTurn:
    """A message of a context."""

    message: Message
    step: Step | None = None
    """The step whose reply it is; None for what the model did not say in this trial."""
    is_copied: bool = False
    """Whether it was in an earlier context, too."""


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts of a trajectory, in order."""

    turns: tuple[tuple[ContextTurn, ...], ...]
    is_whole: bool
    """Whether every reply that the model was to go on with is in one of them; else only the last context is known."""


def compactions_before(step: Step) -> int:
    """How often the history was made shorter between the reply before this one and this one."""
    return sum(warning.startswith(_COMPACTED) for warning in step.warnings)


def opening_of(trajectory: Trajectory) -> tuple[Message, ...]:
    """The messages before the first reply, as they were before any summary was joined to them."""
    roles = [message.role for message in trajectory.messages]
    opening = trajectory.messages[: roles.index("assistant") if "assistant" in roles else len(roles)]
    summarised = [done for done in trajectory.compactions if done.policy == "summarize"]
    return without_notes(opening, notes_in(summarised[-1].summary)) if summarised and opening else opening


def contexts_of(trajectory: Trajectory, protocol: RunProtocol) -> Contexts:
    """The contexts of a trajectory, the last one exactly as it was sent."""
    made = _made_again(trajectory, protocol)
    if made is not None:
        return Contexts(tuple(made), is_whole=True)
    last = tuple(_matched(trajectory))
    usable = [step for step in trajectory.steps if step.format_error != "context_full"]
    return Contexts((last,), is_whole=sum(turn.step is not None for turn in last) >= len(usable))


def _matched(trajectory: Trajectory) -> Iterator[ContextTurn]:
    """The last context, each reply in it with the first step, behind that of the reply before, that has its text."""
    steps = iter(trajectory.steps)
    left = list(steps)
    for message in trajectory.messages:
        at = None
        if message.role == "assistant":
            at = next((n for n, step in enumerate(left) if step.reply.content == message.content), None)
        yield ContextTurn(message, None if at is None else left[at])
        if at is not None:
            del left[: at + 1]


def _made_again(trajectory: Trajectory, protocol: RunProtocol) -> list[tuple[ContextTurn, ...]] | None:
    """All contexts; None where what comes out is not what the trajectory ends with."""
    if protocol.protocol is None:
        return None
    opening = opening_of(trajectory)
    turns = [ContextTurn(message) for message in opening]
    left, found = list(trajectory.compactions), []
    for step in trajectory.steps:
        due, left = left[: compactions_before(step)], left[compactions_before(step) :]
        if due:
            found.append(tuple(turns))
        for done in due:
            turns = _shortened(turns, opening, done)
        # How far the last step came, only the messages that the trajectory ends with tell.
        if step is not trajectory.steps[-1] or left:
            turns += _of_step(step, protocol)
    if left:  # nothing was said in what the history became in the end
        return [*found, tuple(turns)]
    last = _completed(turns, trajectory)
    return None if last is None else [*found, last]


def _shortened(turns: Sequence[ContextTurn], opening: Sequence[Message], done: Compaction) -> list[ContextTurn]:
    """The turns after a compaction."""
    messages = [turn.message for turn in turns]
    if done.policy == "summarize" and opening:
        return [
            ContextTurn(message, is_copied=True) for message in with_notes(opening, messages, notes_in(done.summary))
        ]
    shorter = drop_number_of_outputs(messages, len(opening), done.outputs_dropped)
    return [ContextTurn(message, turn.step, is_copied=True) for message, turn in zip(shorter, turns, strict=True)]


def _of_step(step: Step, protocol: RunProtocol) -> Iterator[ContextTurn]:
    """What a step that others follow has added to the history."""
    if step.format_error == "context_full":
        return
    reply = step.reply
    parsed = protocol.parsed(reply) if protocol.tools_offered and step.format_error is None else None
    call = None if parsed is None else parsed.tool_call
    said = Message(
        role="assistant", content=reply.content, reasoning=reply.reasoning, tool_calls=() if call is None else (call,)
    )
    yield ContextTurn(said, step)
    if call is not None:
        yield ContextTurn(Message(role="tool", content=step.observation, tool_call_id=call.id))
    elif step.observation:
        yield ContextTurn(Message(role="user", content=step.observation))


def _completed(turns: Sequence[ContextTurn], trajectory: Trajectory) -> tuple[ContextTurn, ...] | None:
    """The last context, from its turns before the last step; None where they are not what the trajectory has."""
    known = len(turns)
    if tuple(turn.message for turn in turns) != trajectory.messages[:known]:
        return None
    rest = trajectory.messages[known:]
    last = trajectory.steps[-1] if trajectory.steps else None
    return (*turns, *(ContextTurn(message, last if message.role == "assistant" else None) for message in rest))
