"""Reconstructs the contexts of a stored trajectory, and parses its replies with the run's protocol.

`messages` of a trajectory is the last context. Earlier ones are reconstructed by replaying the agent's compactions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.errors import FormatError
from harness.history import drop_oldest_outputs, extract_notes, with_notes, without_notes
from harness.protocols import PROTOCOLS, load_protocol
from harness.protocols.base import Action, ActionProtocol, Command, Parsed
from harness.protocols.bash import BashProtocol
from harness.trajectory import Compaction, Message, Reply, Step, Trajectory
from tbench.storage.read_run import StoredRun

# The action protocol of a stored run


@dataclass(frozen=True, slots=True)
class RunProtocol:
    """The protocol of a trajectory, if this version of tbench knows it."""

    protocol: ActionProtocol | None
    """None for custom agents and other programs."""
    same_prompts: bool
    """Whether the prompts are those of the run."""
    agents_own: Sequence[Mapping[str, Any]] = ()
    """Functions that an agent with its own loop offered."""

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Functions that the requests offered; empty if none or unknown."""
        if self.protocol is None:
            return self.agents_own
        return self.protocol.tools if self.same_prompts else ()

    @property
    def tools_offered(self) -> bool:
        """Whether replies act through function calls."""
        return bool(self.agents_own if self.protocol is None else self.protocol.tools)

    @property
    def types_commands(self) -> bool:
        """Whether actions are shell commands instead of keystrokes."""
        return self.protocol is not None and self.protocol.types_commands

    def parse(self, reply: Reply) -> Parsed | None:
        """Parse a reply; None if it is invalid or was cut off."""
        if self.protocol is None or reply.cut:
            return None
        try:
            return self.protocol.parse(reply.content, reply.tool_calls)
        except FormatError:
            return None

    def actions(self, step: Step) -> Sequence[Action]:
        """Return the actions of a step in full detail; empty if parsing the reply now gives other actions."""
        parsed = self.parse(step.reply) if step.actions else None
        if parsed is None or tuple(map(typed_text, parsed.actions)) != step.actions:
            return ()
        return parsed.actions


def load_run_protocol(run: StoredRun, trajectory: Trajectory) -> RunProtocol:
    """Return the protocol of a trajectory with the prompts and shell state of the run, if available."""
    if (document := run.document) is None:
        found = _protocol(trajectory.protocol, None, None, None)
    else:
        prompt, locked = document.config.agent.prompt, document.locked
        found = _protocol(trajectory.protocol, prompt, locked.prompt_hash, locked.shell_state)
    return replace(found, agents_own=trajectory.tools) if trajectory.tools else found


@lru_cache(maxsize=64)
def _protocol(name: str, prompt: str | None, prompt_hash: str | None, shell_state: str | None) -> RunProtocol:
    if name not in PROTOCOLS:
        return RunProtocol(None, same_prompts=False)
    protocol = _with_prompts(name, prompt)
    if isinstance(protocol, BashProtocol):
        protocol = protocol.in_shell("fresh" if shell_state == "fresh" else "persistent")
    return RunProtocol(protocol, same_prompts=protocol.prompt_hash == prompt_hash)


def _with_prompts(name: str, file: str | None) -> ActionProtocol:
    """Load the protocol with a user's prompts, or with the default ones if the user's are no longer valid."""
    try:
        return load_protocol(name, None if file is None else Path(file))
    except ValueError:
        return load_protocol(name)


def typed_text(action: Action) -> str:
    """Return the text or key of an action, as steps record it."""
    if isinstance(action, Command):
        return action.command
    return action.key if action.key is not None else action.keystrokes


_COMPACTED = "context_compacted:"


@dataclass(frozen=True, slots=True)
class ContextTurn:
    """A message in a context."""

    message: Message
    step: Step | None = None
    """Step of the reply; None for messages that are not replies of this trial."""
    is_copied: bool = False
    """Whether the message was already in an earlier context."""


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts of a trajectory, in order."""

    turns: tuple[tuple[ContextTurn, ...], ...]
    is_whole: bool
    """Whether every usable reply is in one of the contexts; otherwise only the last context is known."""
    without_tools: frozenset[int] = frozenset()
    """Positions of contexts whose requests offered no functions, unlike the others."""


def compactions_before(step: Step) -> int:
    """Return the number of compactions between the previous reply and this one."""
    return sum(warning.startswith(_COMPACTED) for warning in step.warnings)


def opening_messages(trajectory: Trajectory) -> tuple[Message, ...]:
    """Return the messages with which the trajectory began, without summaries that were added later."""
    if trajectory.inherited and not trajectory.compactions:
        return trajectory.messages[: trajectory.inherited]
    roles = [message.role for message in trajectory.messages]
    opening = trajectory.messages[: roles.index("assistant") if "assistant" in roles else len(roles)]
    summarised = [done for done in trajectory.compactions if _is_summarised(done)]
    return without_notes(opening, extract_notes(summarised[-1].summary)) if summarised and opening else opening


def make_contexts(trajectory: Trajectory, protocol: RunProtocol) -> Contexts:
    """Return the contexts of a trajectory, the last one exactly as it was sent."""
    if protocol.protocol is None and (trajectory.tools or trajectory.branches):
        return _conversations(trajectory)
    made = _reconstruct(trajectory, protocol)
    if made is not None:
        return Contexts(tuple(made), is_whole=True)
    last = tuple(_matched_last_context(trajectory))
    usable = [step for step in trajectory.steps if step.format_error != "context_full"]
    return Contexts((last,), is_whole=sum(turn.step is not None for turn in last) >= len(usable))


def _conversations(trajectory: Trajectory) -> Contexts:
    """Return all conversations of an agent with its own loop, in the order of their first replies."""
    beside = {number for branch in trajectory.branches for number in branch.replies}
    main = tuple(step.index for step in trajectory.steps if step.index not in beside)
    found = [(main, trajectory.messages, True)]
    messages: tuple[Message, ...] = ()
    for branch in trajectory.branches:
        messages = (*messages[: branch.kept], *branch.messages)
        found.append((branch.replies, messages, branch.has_tools or not trajectory.tools))
    found.sort(key=lambda each: each[0])
    steps = {step.index: step for step in trajectory.steps}
    turns = []
    for replies, messages, _ in found:
        said = [at for at, message in enumerate(messages) if message.role == "assistant"][-len(replies) :]
        step_at = dict(zip(said, (steps[number] for number in replies), strict=False))
        turns.append(tuple(ContextTurn(message, step_at.get(at)) for at, message in enumerate(messages)))
    without = frozenset(position for position, (_, _, has_tools) in enumerate(found) if not has_tools)
    return Contexts(tuple(turns), is_whole=True, without_tools=without)


def _matched_last_context(trajectory: Trajectory) -> Iterator[ContextTurn]:
    """Yield the last context, matching each reply with the next step that has the same text."""
    left = list(trajectory.steps)
    for message in trajectory.messages:
        at = None
        if message.role == "assistant":
            at = next((n for n, step in enumerate(left) if step.reply.content == message.content), None)
        yield ContextTurn(message, None if at is None else left[at])
        if at is not None:
            del left[: at + 1]


def _reconstruct(trajectory: Trajectory, protocol: RunProtocol) -> list[tuple[ContextTurn, ...]] | None:
    """Reconstruct all contexts; None if the last one does not match the trajectory's messages.

    Also None if a continued conversation was compacted: its earlier part, in another trajectory, was shortened, too.
    """
    if protocol.protocol is None or (trajectory.inherited and trajectory.compactions):
        return None
    opening = opening_messages(trajectory)
    turns = [ContextTurn(message) for message in opening]
    left, found = list(trajectory.compactions), []
    for step in trajectory.steps:
        due, left = left[: compactions_before(step)], left[compactions_before(step) :]
        if due:
            found.append(tuple(turns))
        for done in due:
            turns = _compacted_turns(turns, opening, done)
        # Only the trajectory's messages show whether the last step was completed.
        if step is not trajectory.steps[-1] or left:
            turns += _step_turns(step, protocol)
    if left:  # no reply after the last compaction
        return [*found, tuple(turns)]
    last = _complete_last_context(turns, trajectory)
    return None if last is None else [*found, last]


def _compacted_turns(turns: Sequence[ContextTurn], opening: Sequence[Message], done: Compaction) -> list[ContextTurn]:
    """Return the turns after a compaction."""
    messages = [turn.message for turn in turns]
    if _is_summarised(done) and opening:
        return [
            ContextTurn(message, is_copied=True)
            for message in with_notes(opening, messages, extract_notes(done.summary))
        ]
    shorter = drop_oldest_outputs(messages, len(opening), number=done.outputs_dropped)
    return [ContextTurn(message, turn.step, is_copied=True) for message, turn in zip(shorter, turns, strict=True)]


def _is_summarised(done: Compaction) -> bool:
    """Whether a compaction replaced the history by a summary, which happens only if that shortens it."""
    return done.policy == "summarize" and done.messages_after < done.messages_before


def _step_turns(step: Step, protocol: RunProtocol) -> Iterator[ContextTurn]:
    """Yield the messages that a step, other than the last, added to the history."""
    if step.format_error == "context_full":
        return
    reply = step.reply
    parsed = protocol.parse(reply) if protocol.tools_offered and step.format_error is None else None
    call = None if parsed is None else parsed.tool_call
    answer = Message(
        role="assistant", content=reply.content, reasoning=reply.reasoning, tool_calls=() if call is None else (call,)
    )
    yield ContextTurn(answer, step)
    if call is not None:
        yield ContextTurn(Message(role="tool", content=step.observation, tool_call_id=call.id))
    elif step.observation:
        yield ContextTurn(Message(role="user", content=step.observation))


def _complete_last_context(turns: Sequence[ContextTurn], trajectory: Trajectory) -> tuple[ContextTurn, ...] | None:
    """Complete the last context from its turns before the last step; None if they do not match the trajectory."""
    known = len(turns)
    if tuple(turn.message for turn in turns) != trajectory.messages[:known]:
        return None
    rest = trajectory.messages[known:]
    last = trajectory.steps[-1] if trajectory.steps else None
    return (*turns, *(ContextTurn(message, last if message.role == "assistant" else None) for message in rest))


# Arguments of tool calls, which models write as JSON text and other formats require as objects


def json_object(text: str) -> dict[str, Any] | None:
    """Parse a JSON object; None for anything else, including NaN and infinities."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(constant: str) -> None:
    raise ValueError(constant)
